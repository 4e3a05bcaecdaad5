"""What decoding may take: pixels of all workers together, scans of a JPEG; a bad image costs its own row only."""

import io
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from memory_source import MemorySource
from PIL import Image

from contextcaps.data.decoding import decode_ahead, decode_samples
from contextcaps.data.decoding_limits import MAX_PIXELS, MAX_SCANNED, PixelBudget, decoding_budget, scans
from contextcaps.data.images import BadImage, decode, decode_opened, image_size
from contextcaps.models import create_model
from contextcaps.tagging import Tagger


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def photo(side: int, mode: str = "RGB") -> Image.Image:
    coarse = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC).convert(mode)


def with_more_scans(side: int, count: int) -> bytes:
    """Return a progressive JPEG whose last scan stands in it so many times more: valid, small, and slow."""
    content = encoded(photo(side), "JPEG", progressive=True, quality=50)
    last = content.rindex(b"\xff\xda")
    return content[:-2] + content[last:-2] * count + content[-2:]


def in_separate_scans(side: int, count: int) -> bytes:
    """Return a sequential JPEG whose only scan, of one component of three, stands there so many times."""
    content = encoded(photo(side, "L"), "JPEG", quality=50)
    frame, scan = content.index(b"\xff\xc0"), content.index(b"\xff\xda")
    header = bytearray(content[frame : frame + 13])
    three = header[:3] + bytes([17]) + header[4:9] + bytes([3, 1, 17, 0, 2, 17, 0, 3, 17, 0])  # 17: 8 + 3 · 3
    return content[:frame] + bytes(three) + content[frame + 13 : scan] + content[scan:-2] * count + content[-2:]


def test_a_jpeg_of_many_scans_is_refused_at_once() -> None:
    for content in (with_more_scans(3000, 200), in_separate_scans(3000, 200)):
        began = time.perf_counter()
        with pytest.raises(BadImage, match=r"2\d\d scans of 9,000,000 pixels: .*save it again without progressive"):
            decode(content, 224)
        assert time.perf_counter() - began < 1
        with pytest.raises(BadImage, match="scans of 9,000,000 pixels"):
            decode_opened(Image.open(io.BytesIO(content)), 224)


def test_what_is_accepted_is_decoded_in_seconds() -> None:
    content = with_more_scans(4096, MAX_SCANNED // 4096**2 - 20)
    began = time.perf_counter()
    assert decode(content, 224).shape == (224, 224, 3)
    assert time.perf_counter() - began < 15


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_ordinary_images_are_not_searched_for_scans(mode) -> None:
    class Counting(io.BytesIO):
        count = 0

        def read(self, size: int | None = -1) -> bytes:
            content = super().read(size)
            self.count += len(content)
            return content

    content = encoded(photo(500, mode), "JPEG", quality=95)
    file = Counting(content)
    opened = Image.open(file)
    before = file.count
    assert scans(opened) == 1
    assert file.count - before < 10


@pytest.mark.parametrize(("mode", "count"), [("RGB", 10), ("L", 6)])
def test_progressive_jpegs_as_programs_write_them_are_decoded(mode, count) -> None:
    content = encoded(photo(500, mode), "JPEG", progressive=True)
    opened = Image.open(io.BytesIO(content))
    assert scans(opened) == count
    assert np.array_equal(decode(content), np.array(Image.open(io.BytesIO(content)).convert("RGB")))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "1", "L", "RGB", "I;16"])
def test_an_image_converted_in_strips_is_the_same(mode, monkeypatch) -> None:
    image = photo(100, "L").convert("I").point(lambda v: v * 257).convert("I;16") if mode == "I;16" else photo(100)
    if mode in ("RGBA", "LA"):
        image.putalpha(photo(100, "L").rotate(90))
    image = image if mode == "I;16" else image.convert(mode)
    options = {"transparency": 3} if mode == "P" else {}
    content = encoded(image, "PNG", **options)
    whole = decode(content)
    monkeypatch.setattr("contextcaps.data.image_opening._STRIP", 700)
    assert np.array_equal(decode(content), whole)


def test_threads_hold_no_more_pixels_than_there_are() -> None:
    budget, most, lock = PixelBudget(100), [0], threading.Lock()

    def work() -> None:
        for _ in range(20):
            with budget.held(40):
                with lock:
                    most[0] = max(most[0], 100 - budget.free)
                time.sleep(0.0002)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [80]
    assert budget.free == 100


def test_an_image_that_fails_gives_its_pixels_back() -> None:
    content = encoded(photo(500), "PNG")
    for bad in (content[:-2000], content[:2000]):
        with pytest.raises(BadImage):
            decode(bad, 64)
    assert decoding_budget().free == MAX_PIXELS


def test_pillow_images_meet_the_same_limits() -> None:
    tagger = Tagger(create_model("gap", 3, 32, "small"), device="cpu")
    too_large = Image.new("1", (10_000, 10_000))
    scanned = Image.open(io.BytesIO(with_more_scans(3000, 200)))
    taggings = tagger.tag([photo(64), too_large, scanned, photo(64)])
    assert [tagging.error is None for tagging in taggings] == [True, False, False, True]
    assert taggings[1].error == (
        "100,000,000 pixels: more than 89,478,485 pixels are not decoded (a decompression bomb?)"
    )
    assert "scans of 9,000,000 pixels" in str(taggings[2].error)


_TAG = """
import resource, sys
from pathlib import Path
from contextcaps.models import create_model
from contextcaps.tagging import Tagger
tagger = Tagger(create_model("gap", 3, 32, "small"), device="cpu")
tagger.tag([sys.argv[-1]] * 4, workers=4)
used = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmSize" in line)
spare = int(sys.argv[1])
if spare:
    resource.setrlimit(resource.RLIMIT_AS, (used * 1024 + spare, resource.RLIM_INFINITY))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for tagging in tagger.tag(sys.argv[2:], workers=4):
    print(tagging.error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def tag_elsewhere(spare: int, *paths: object) -> list[str]:
    """Tag files by four workers in another process, with so many bytes of address space to spare (0: any)."""
    words = [sys.executable, "-c", _TAG, str(spare), *map(str, paths)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines()


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_four_workers_with_a_bomb_each_stay_under_the_stated_memory(tmp_path) -> None:
    (tmp_path / "small.jpg").write_bytes(encoded(photo(64), "JPEG"))
    transparent = Image.new("RGBA", (9400, 9400), (9, 8, 7, 128))
    transparent.save(tmp_path / "bomb.png", compress_level=1)
    assert image_size(tmp_path / "bomb.png") == (9400, 9400)
    *errors, megabytes = tag_elsewhere(0, *[tmp_path / "bomb.png"] * 4, tmp_path / "small.jpg")
    assert errors == ["None"] * 5
    assert int(megabytes) < 1600  # it was 1.9 GB for each worker


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_an_image_that_memory_does_not_suffice_for_costs_its_own_row(tmp_path) -> None:
    (tmp_path / "small.jpg").write_bytes(encoded(photo(64), "JPEG"))
    Image.new("RGB", (9000, 9000)).save(tmp_path / "large.png", compress_level=1)
    small = tmp_path / "small.jpg"
    *errors, _ = tag_elsewhere(200 * 2**20, small, tmp_path / "large.png", small)
    assert errors == ["None", "there is not enough memory to decode it", "None"]


def test_memory_that_does_not_suffice_is_a_problem_of_one_sample(monkeypatch) -> None:
    source = MemorySource([np.zeros((8, 8, 3), np.uint8)] * 5, [[0]] * 5, ["sea"])
    sample = source.sample

    def fail(index: int) -> object:
        if index == 2:
            raise MemoryError
        return sample(index)

    monkeypatch.setattr(source, "sample", fail)
    decoded = decode_samples(source, range(5), (8, 8))
    assert [problem.what for problem in decoded.bad] == ["there is not enough memory to decode it"]
    assert len(decoded.ids) == 4
    assert sum(len(piece.ids) for piece in decode_ahead(source, [np.arange(5)], (8, 8), 2)) == 4
