"""Files that nobody knows the time of are decoded by a process that can be killed; ordinary ones are not."""

import functools
import io
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from memory_source import MemorySource
from PIL import Image
from test_images import encoded, scenery

from contextcaps.data import decoding_process
from contextcaps.data.decoding import decode_ahead
from contextcaps.data.decoding_process import can_be_elsewhere
from contextcaps.data.images import BadImage, decode, decode_opened, image_size

pytestmark = pytest.mark.skipif(not can_be_elsewhere(), reason="this system has no such processes")


def tiff_of_shared_strips(width: int, height: int, blocks: int) -> bytes:
    """Return a TIFF whose rows are all the same strip, which begins with so many empty blocks of deflate."""
    row = bytes(3 * width)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    strip = b"\x78\x9c" + b"\x00\x00\x00\xff\xff" * blocks
    strip += packer.compress(row) + packer.flush() + struct.pack(">I", zlib.adler32(row))
    directory = 8 + 2 + 12 * 9 + 4
    offsets = directory + 6
    counts = offsets + 4 * height
    entries = [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, 3, directory),
        (259, 3, 1, 8),
        (262, 3, 1, 2),
        (273, 4, height, offsets),
        (277, 3, 1, 3),
        (278, 4, 1, 1),
        (279, 4, height, counts),
    ]
    head = b"II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(struct.pack("<HHII", *each) for each in entries)
    body = struct.pack("<I3H", 0, 8, 8, 8) + struct.pack("<I", counts + 4 * height) * height
    return head + body + struct.pack("<I", len(strip)) * height + strip


def jpeg_of_many_segments(count: int, kind: bytes = b"\xff\xe1\0\x0aExif\0\0ab") -> bytes:
    content = encoded(scenery(), "JPEG")
    return content[:2] + kind * count + content[2:]


HOURS = tiff_of_shared_strips(1000, 60_000, 200_000)  # 1.5 MB; some 80 seconds of the processor
MINUTES = jpeg_of_many_segments(1_000_000)  # 12 MB; Pillow copies what it has for each segment


@pytest.fixture
def one_second(monkeypatch) -> None:
    monkeypatch.setattr(decoding_process, "SECONDS", 1)


@pytest.mark.long
@pytest.mark.parametrize("content", [HOURS, MINUTES], ids=["TIFF", "JPEG"])
def test_what_takes_too_long_is_ended(content, one_second, tmp_path) -> None:
    (tmp_path / "slow").write_bytes(content)
    for image in (content, tmp_path / "slow"):
        with pytest.raises(BadImage, match=r"^it takes more than 1 seconds to decode \(a decompression bomb\?\)$"):
            decode(image, 32)
    assert decode(encoded(scenery(), "TIFF")).shape == (60, 90, 3)


@pytest.mark.long
def test_pillow_images_that_take_too_long_are_ended(one_second) -> None:
    with Image.open(io.BytesIO(HOURS)) as opened, pytest.raises(BadImage, match="more than 1 seconds"):
        decode_opened(opened, 32)


def test_a_pillow_image_stays_as_it_is() -> None:
    content = encoded(scenery(), "TIFF")
    with Image.open(io.BytesIO(content)) as opened:
        assert np.array_equal(decode_opened(opened), scenery())
        assert np.array_equal(np.array(opened), scenery())
        assert np.array_equal(decode_opened(opened), scenery())


@pytest.mark.parametrize("kind", ["TIFF", "JPEG2000", "AVIF", "PNG", "JPEG"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_the_pixels_are_the_same(kind, orientation, monkeypatch) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {} if kind == "JPEG2000" else {"exif": exif}
    try:
        content = encoded(scenery(), kind, **options)
    except (KeyError, OSError):
        pytest.skip(f"this Pillow writes no {kind}")
    monkeypatch.setattr("contextcaps.data.images.is_slow_file", lambda file, decodes: True)
    found = [decode(content), decode(content, (12, 9)), decode(content, (12, 9), fast=False), image_size(content)]
    monkeypatch.setattr("contextcaps.data.images.can_be_elsewhere", lambda: False)
    here = [decode(content), decode(content, (12, 9)), decode(content, (12, 9), fast=False), image_size(content)]
    assert all(np.array_equal(one, other) for one, other in zip(found, here, strict=True))


def test_ordinary_images_need_no_process(monkeypatch) -> None:
    monkeypatch.delattr("contextcaps.data.images.elsewhere")
    photo = Image.fromarray(scenery(480, 640))
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM"):
        assert decode(encoded(photo, kind), 32).shape == (32, 32, 3)
    assert decode(encoded(photo.resize((4000, 3000)), "JPEG", progressive=True), 32).shape == (32, 32, 3)
    for kind in ("TIFF", "JPEG2000"):  # nor does a look at the header of any image
        assert image_size(encoded(photo, kind)) == (480, 640)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (encoded(scenery(), "TIFF")[:-5000], "damaged or truncated image: "),
        (encoded(scenery(), "JPEG2000")[:200], "damaged or truncated image: "),
        (b"II*\0" + bytes(100), "damaged or truncated image: it begins as TIFF"),
        (b"MMnothing", "not an image but text: it begins 'MMnothing'"),
    ],
)
def test_what_is_wrong_is_said_as_elsewhere(content, why) -> None:
    with pytest.raises(BadImage) as caught:
        decode(content, 32)
    assert str(caught.value).startswith(why)
    assert decode(encoded(scenery(), "TIFF")).shape == (60, 90, 3)


def test_a_decoder_that_crashes_is_one_bad_image(monkeypatch) -> None:
    content, ask = encoded(scenery(), "TIFF"), decoding_process._Process.ask

    def crash(process: decoding_process._Process, **request: object) -> None:
        if "decode" in request:
            process.process.send_signal(signal.SIGSEGV)
            process.process.wait()
        ask(process, **request)

    with monkeypatch.context() as patch:
        patch.setattr(decoding_process._Process, "ask", crash)
        with pytest.raises(BadImage, match="the program that decodes it crashed at it"):
            decode(content)
    assert np.array_equal(decode(content), scenery())


def test_one_that_was_killed_while_it_waited_is_replaced() -> None:
    content = encoded(scenery(), "TIFF")
    decode(content)
    for process in decoding_process._idle:
        process.process.kill()
        process.process.wait()
    assert np.array_equal(decode(content), scenery())


def test_no_code_comes_from_the_working_folder(tmp_path, monkeypatch) -> None:
    for name in ("PIL", "json", "numpy", "contextcaps"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(decoding_process, "_idle", [])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    Image.fromarray(scenery()).save("picture.tif")
    assert np.array_equal(decode(Path("picture.tif")), scenery())


def test_a_forked_process_has_its_own() -> None:
    content = encoded(scenery(), "TIFF")
    decode(content)
    child = os.fork()
    if child == 0:
        os._exit(0 if not decoding_process._idle and np.array_equal(decode(content), scenery()) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert np.array_equal(decode(content), scenery())


@pytest.mark.long
def test_whoever_leaves_early_does_not_wait() -> None:
    source = MemorySource([scenery()] * 2, [[0]] * 2, ["sea"])
    whole, slow = source.sample(0), source.sample(1)
    object.__setattr__(whole, "image", encoded(scenery(), "PNG"))
    object.__setattr__(slow, "image", HOURS)
    source.sample = [whole, slow].__getitem__
    pieces = decode_ahead(source, [np.array([0]), np.array([1])], (8, 8), 2)
    assert len(next(pieces).ids) == 1
    time.sleep(0.5)
    began = time.perf_counter()
    pieces.close()
    assert time.perf_counter() - began < 5
    assert not [each for each in threading.enumerate() if each.name.startswith("decode")]


_TAG = """
import sys
from contextcaps.models import create_model
from contextcaps.tagging import Tagger
tagger = Tagger(create_model("gap", 3, 32, "small"), device="cpu")
print("begun", flush=True)
tagger.tag(sys.argv[1:], workers=2)
"""


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_at_once(how, tmp_path) -> None:
    (tmp_path / "slow.tif").write_bytes(HOURS)
    words = [sys.executable, "-c", _TAG, *[str(tmp_path / "slow.tif")] * 3]
    heed = functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # a shell's job may ignore it
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=heed) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(1.5)
        began = time.perf_counter()
        process.send_signal(how)
        process.wait(timeout=20)
        assert time.perf_counter() - began < 10
        assert process.returncode != 0
