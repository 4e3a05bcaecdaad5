"""The list of images that a run has learned from, when it is damaged, or somebody made it to do harm."""

import io
import os
import resource
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from contextcaps.data import open_source
from contextcaps.training.config import TrainConfig
from contextcaps.training.data import Part
from contextcaps.training.runs import SEEN_FILE
from contextcaps.training.seen import Seen, count_seen, record_seen

CONFIG = TrainConfig(data="table:x", image_size=32, workers=1)


@pytest.fixture
def part(tmp_path: Path) -> Part:
    names = [f"{number}.png" for number in range(4)]
    for number, name in enumerate(names):
        pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / name)
    (tmp_path / "labels.csv").write_text("file,labels\n" + "".join(f"{name},sea\n" for name in names))
    return Part(open_source(f"table:{tmp_path / 'labels.csv'}"), 32)


class Runs:
    """Makes a file where somebody unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (open, (str(self.path), "w"))


def arrays(**members: object) -> bytes:
    """A file of numpy's with these arrays, or these bytes in their place."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in members.items():
            content = io.BytesIO()
            if isinstance(value, bytes):
                content.write(value)
            else:
                np.save(content, value)
            archive.writestr(f"{name}.npy", content.getvalue())
    return file.getvalue()


def huge(shape: str) -> bytes:
    content = io.BytesIO()
    np.save(content, np.zeros(3, np.uint64))
    return content.getvalue().replace(b"(3,)", shape.encode())


def test_whole(part: Part, tmp_path: Path) -> None:
    record_seen(tmp_path, (part, part), CONFIG)
    assert count_seen(tmp_path, part, CONFIG) == Seen(4, 4, 4)


def test_damaged_it_is_as_none(part: Part, tmp_path: Path) -> None:
    record_seen(tmp_path, (part, part), CONFIG)
    whole, random = (tmp_path / SEEN_FILE).read_bytes(), np.random.default_rng(0)
    for cut in range(0, len(whole), 7):
        (tmp_path / SEEN_FILE).write_bytes(whole[:cut])
        assert count_seen(tmp_path, part, CONFIG) is None
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[random.integers(len(whole))] ^= 1 << random.integers(8)
        (tmp_path / SEEN_FILE).write_bytes(damaged)
        assert count_seen(tmp_path, part, CONFIG) in (None, Seen(4, 4, 4))  # zip has checksums


def test_hostile_it_is_as_none(part: Part, tmp_path: Path) -> None:
    path, good = tmp_path / SEEN_FILE, np.zeros(3, np.uint64)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for content in (
        arrays(train=np.array([Runs(tmp_path / "ran")], object), val=good),
        arrays(train=np.zeros(3), val=good),
        arrays(train=np.zeros((2, 2), np.uint64), val=good),
        arrays(train=huge("(2**62,)"), val=good),
        arrays(train=huge("(1099511627776,)"), val=good),
        arrays(train=huge("(-1,)"), val=good),
        arrays(train=huge(f"({10**30},)"), val=good),
        arrays(train=b"no array", val=good),
        b"[" * 100,
    ):
        path.write_bytes(content)
        assert count_seen(tmp_path, part, CONFIG) is None
    assert not (tmp_path / "ran").exists()
    with path.open("wb") as file:
        file.truncate(2**40)  # holes: they take no room on the disk
    assert count_seen(tmp_path, part, CONFIG) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in this system's folders")
def test_in_place_of_it_a_pipe(part: Part, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / SEEN_FILE)  # to open it would wait for ever
    assert count_seen(tmp_path, part, CONFIG) is None
