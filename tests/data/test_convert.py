"""Any source to tar shards."""

import contextlib
import dataclasses
import errno
import io
import json
import os
import tarfile
import urllib.parse
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_source import MemorySource, blank_source
from PIL import Image
from round_trip import assert_round_trip
from trees_small import encoded, pixels, shard_members, write_images, write_tar
from trees_voc import voc_tree

from contextcaps.data import Boxes, DataError, Sample, convert, open_source
from contextcaps.data.convert import Part, write_all_splits, write_shards
from contextcaps.data.images import decode
from contextcaps.data.shard_format import decode_boxes, encode_annotation, member_stem

PACK = Path(__file__).parents[2].parent / "shared" / "data"
needs_pack = pytest.mark.skipif(not PACK.is_dir(), reason="the data pack is not there")


def rich_source(folder: Path) -> MemorySource:
    """Images of every kind, with boxes and masks where some have none."""
    write_images(folder, ["a.jpg"])
    images = [folder / "a.jpg", encoded(1), encoded(2, "PNG"), encoded(3, "WEBP"), encoded(4, "BMP"), pixels(5)]
    labels = [[0], [1, 2], [0], [2], [0, 1], [1]]
    corners = np.array([[0.1, 0.2, 0.3, 0.9], [0, 0, 1, 1]], np.float32)
    boxes = [None, Boxes(np.array([1, 2]), corners), Boxes(np.zeros(0, np.int64), corners[:0]), None, None, None]
    masks = [None, np.full((12, 16), 2, np.int32), None, np.arange(192, dtype=np.int32).reshape(12, 16), None, None]
    return MemorySource(images, labels, [f"class {index}" for index in range(300)], boxes, masks)


def read_members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar}


def test_everything_comes_back(tmp_path):
    assert_round_trip(rich_source(tmp_path / "images"), tmp_path)


def test_masks_of_many_classes_come_back(tmp_path):
    mask = np.arange(192, dtype=np.int32).reshape(12, 16) + 300
    source = MemorySource([pixels(1)], [[0]], [f"class {index}" for index in range(500)], None, [mask])
    assert_round_trip(source, tmp_path)


def test_files_are_copied_and_pixels_kept(tmp_path):
    shards = write_shards(rich_source(tmp_path / "images"), tmp_path / "out", samples_per_shard=4, split="val")
    assert [path.name for path in shards] == ["val-00000.tar", "val-00001.tar"]
    members = read_members(shards[0])
    assert list(members) == [
        *("00000.jpg", "00000.json", "00001.jpg", "00001.json", "00001.mask.png"),
        *("00002.png", "00002.json", "00003.webp", "00003.json", "00003.mask.png"),
    ]
    assert members["00000.jpg"] == (tmp_path / "images" / "a.jpg").read_bytes()
    assert [members["00001.jpg"], members["00002.png"], members["00003.webp"]] == [
        *(encoded(1), encoded(2, "PNG"), encoded(3, "WEBP"))
    ]
    annotation = json.loads(members["00001.json"])
    assert annotation["boxes"] == [["class 1", 0.2, 0.55, 0.2, 0.7], ["class 2", 0.5, 0.5, 1.0, 1.0]]
    members = read_members(shards[1])
    assert list(members) == ["00004.png", "00004.json", "00005.png", "00005.json"]
    assert (decode(members["00004.png"]) == pixels(4)).all()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "classes.json",
        *(path.name for path in shards),
    ]


def test_members_carry_no_time_or_owner(tmp_path):
    (shard,) = write_shards(blank_source([[0]], 1), tmp_path / "out")
    with tarfile.open(shard) as tar:
        facts = {(info.mtime, info.uid, info.gid, info.mode, info.uname, info.type) for info in tar}
    assert facts == {(0, 0, 0, 0o644, "", tarfile.REGTYPE)}


@given(st.text(min_size=1))
def test_member_names_can_be_told_back(identifier):
    stem = member_stem(identifier)
    assert urllib.parse.unquote(stem, errors="surrogatepass") == identifier
    assert not set(stem) & set("./\\\0")


@given(
    st.lists(st.tuples(*[st.floats(0, 1, width=32)] * 4), max_size=5).map(
        lambda rows: [(min(a, c), min(b, d), max(a, c), max(b, d)) for a, b, c, d in rows]
    )
)
def test_boxes_come_back_to_a_millionth(corners):
    boxes = Boxes(np.zeros(len(corners), np.int64), np.array(corners, np.float32).reshape(-1, 4))
    annotation = encode_annotation(Sample("x", b"", (0,), boxes), ["cat"])
    _, found = decode_boxes(json.loads(annotation)["boxes"])
    np.testing.assert_allclose(np.reshape(found, (-1, 4)), boxes.corners, rtol=0, atol=1e-6)


class OddSource(MemorySource):
    """Samples with ids that are no file names."""

    IDS = ("../../etc/passwd", "/absolute", "a.b.jpg", "ünï çødé 画像", "x" * 300, "new\nline", "\udcff", "%2E")

    def sample(self, index: int) -> Sample:
        sample = super().sample(index)
        return Sample(self.IDS[index], sample.image, sample.labels)


def test_odd_ids_come_back(tmp_path):
    count = len(OddSource.IDS)
    assert_round_trip(OddSource([pixels(seed) for seed in range(count)], [[0]] * count, ["cat"]), tmp_path)
    for path in (tmp_path / "shards").glob("*.tar"):
        assert not any("/" in name or ".." in name for name in read_members(path))


def test_several_splits_in_one_folder(tmp_path):
    train, val = blank_source([[0], [1]], 2), blank_source([[1]], 2)
    write_shards(train, tmp_path / "out", split="train")
    write_shards(val, tmp_path / "out", split="val")
    assert open_source(f"shards:{tmp_path / 'out'}/train-*.tar").splits == ("train",)
    assert len(open_source(f"shards:{tmp_path / 'out'}/val-*.tar")) == 1
    with pytest.raises(DataError, match=r"not empty \(it has val-00000\.tar\)"):
        write_shards(val, tmp_path / "out", split="val")
    with pytest.raises(DataError, match="not empty"):
        write_shards(val, tmp_path / "out")
    with pytest.raises(DataError, match="lists other classes"):
        write_shards(blank_source([[0]], 1), tmp_path / "out", split="test")


def test_folders_that_are_refused(tmp_path):
    source = blank_source([[0]], 1)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match=r"not empty \(it has notes\.txt\); choose a new or empty folder"):
        write_shards(source, tmp_path)
    with pytest.raises(DataError, match="expected a folder"):
        write_shards(source, tmp_path / "notes.txt")
    with pytest.raises(DataError, match="the shards cannot be written: Not a directory"):
        write_shards(source, tmp_path / "notes.txt" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "busy" / ".all.partial").mkdir(parents=True)
    with pytest.raises(DataError, match="a conversion is under way there or was cut off"):
        write_shards(source, tmp_path / "busy")
    assert (tmp_path / "busy" / ".all.partial").is_dir()


@pytest.mark.parametrize("split", ["../out", "a/b", ".hidden", "train 1"])
def test_splits_that_cannot_name_files(tmp_path, split):
    with pytest.raises(DataError, match="expected letters, digits"):
        write_shards(blank_source([[0]], 1), tmp_path / "out", split=split)
    assert not (tmp_path / "out").exists()


def test_at_least_one_sample_in_a_shard(tmp_path):
    with pytest.raises(DataError, match="samples_per_shard: expected at least 1, got 0"):
        write_shards(blank_source([[0]], 1), tmp_path / "out", samples_per_shard=0)


def test_progress(tmp_path, monkeypatch):
    seen = []

    @contextlib.contextmanager
    def shown(what, total, is_shown):
        seen.append((total, is_shown))
        yield seen.append

    monkeypatch.setattr(convert, "progress_of", shown)
    write_shards(blank_source([[0]] * 3, 1), tmp_path / "out", progress=True)
    assert seen == [(3, True), 1, 1, 1]


def bomb() -> bytes:
    """A PNG that says it has 50,000 × 50,000 pixels."""
    file = io.BytesIO()
    Image.new("1", (8, 8)).save(file, format="PNG")
    content = bytearray(file.getvalue())
    content[16:24] = (50_000).to_bytes(4, "big") * 2
    return bytes(content)


def half(content: bytes) -> bytes:
    """A file cut in half, whose header is good."""
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"this is text", encoded(1)[:20], encoded(1, "BMP")[:90], bomb()),
        *(half(encoded(1, form, 64, 64)) for form in ("JPEG", "PNG", "WEBP")),
    ],
    ids=["empty", "text", "cut", "bmp", "bomb", "half a JPEG", "half a PNG", "half a WebP"],
)
def test_bad_images_are_named_or_left_out(tmp_path, content):
    (tmp_path / "bad.jpg").write_bytes(content)
    source = MemorySource([encoded(1), tmp_path / "bad.jpg", encoded(2)], [[0]] * 3, ["cat"])
    with pytest.raises(DataError, match="1 problem found\n  00001: "):
        write_shards(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    source.problems.on_bad = "skip"
    write_shards(source, tmp_path / "out")
    assert [sample.id for sample in open_source(f"shards:{tmp_path / 'out'}")] == ["00000", "00002"]
    assert len(source.problems.found) == 1


def test_nothing_usable(tmp_path):
    source = MemorySource([tmp_path / "missing.jpg"], [[0]], ["cat"])
    source.problems.on_bad = "skip"
    with pytest.raises(DataError, match="no usable image found"):
        write_shards(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "mask", [np.full((12, 16), -1, np.int32), np.full((12, 16), 70_000, np.int32), np.zeros(3, np.int32)]
)
def test_bad_masks(tmp_path, mask):
    with pytest.raises(DataError, match=r"\n  00000: mask: expected \[H, W\] with values from 0 to 65535"):
        write_shards(MemorySource([pixels(1)], [[0]], ["cat"], None, [mask]), tmp_path / "out")


@pytest.mark.parametrize(
    ("where", "is_new"),
    [  # a folder with another split's shards has its list of classes already
        *(("first shard", True), ("first shard", False), ("later shard", True), ("later shard", False)),
        ("classes", True),
    ],
)
def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch, where, is_new):
    folder = tmp_path / "out"
    if not is_new:
        write_shards(blank_source([[0]], 1), folder, split="train")
    before = sorted(tmp_path.rglob("*"))
    calls = 0
    add = tarfile.TarFile.addfile

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def fill(tar: tarfile.TarFile, info: tarfile.TarInfo, file: io.BytesIO) -> None:
        nonlocal calls
        calls += 1
        if calls == (1 if where == "first shard" else 6):
            tar.fileobj.write(b"half a member")
            fail()
        add(tar, info, file)

    def fail_at_classes(path: Path) -> None:
        if path.name == "classes.json":
            fail()

    if where == "classes":
        monkeypatch.setattr("contextcaps.data.shard_writer.synchronise", fail_at_classes)
    else:
        monkeypatch.setattr(tarfile.TarFile, "addfile", fill)
    with pytest.raises(DataError, match="cannot be written: the disk is full; none of them is left behind"):
        write_shards(blank_source([[0]] * 5, 1), folder, split="val", samples_per_shard=2)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_interruption_leaves_nothing(tmp_path):
    class Interrupted(MemorySource):
        def sample(self, index):
            if index == 3:
                raise KeyboardInterrupt
            return super().sample(index)

    with pytest.raises(KeyboardInterrupt):
        write_shards(Interrupted([pixels(1)] * 5, [[0]] * 5, ["cat"]), tmp_path / "out", samples_per_shard=2)
    assert not (tmp_path / "out").exists()


def mixed_shards(folder: Path) -> str:
    """Shards of train, val and no split, with two samples each."""
    for name, seeds in {"train-0": [0, 1], "val-0": [2, 3], "more": [4, 5]}.items():
        write_tar(folder / f"{name}.tar", shard_members(seeds))
    return f"shards:{folder}"


def ids_of(spec: str) -> list[str]:
    return sorted(sample.id for sample in open_source(spec))


def test_samples_of_no_split_are_written(tmp_path):
    spec, out = mixed_shards(tmp_path / "in"), tmp_path / "out"
    conversion = write_all_splits(spec, out)
    assert conversion.parts == (
        Part("train", 2, 0, (out / "train-00000.tar",)),
        Part("val", 2, 0, (out / "val-00000.tar",)),
        Part("other", 2, 4, (out / "other-00000.tar",)),
    )
    assert ids_of(f"shards:{out}/*.tar") == ids_of(spec) == [f"{seed:04d}" for seed in range(6)]
    assert ids_of(f"shards:{out}?split=val") == ["0002", "0003"]
    assert sorted(path.name for path in out.iterdir()) == [
        *("classes.json", "other-00000.tar", "train-00000.tar", "val-00000.tar")
    ]


def test_overlapping_splits_are_written_once(tmp_path):
    spec = f"voc:{voc_tree(tmp_path)}"
    conversion = write_all_splits(spec, tmp_path / "out")
    assert [(part.split, part.samples, part.repeated) for part in conversion.parts] == [
        *(("train", 2, 0), ("val", 1, 0), ("trainval", 0, 3), ("test", 1, 0))
    ]
    assert conversion.parts[2].shards == ()
    assert ids_of(f"shards:{tmp_path / 'out'}/*.tar") == ids_of(spec)


def test_a_split_asked_for_is_written_alone(tmp_path):
    spec = mixed_shards(tmp_path / "in")
    for out, options in {"a": {"spec": f"{spec}?split=val"}, "b": {"spec": spec, "split": "validation"}}.items():
        conversion = write_all_splits(folder=tmp_path / out, **options)
        assert [(part.split, part.samples) for part in conversion.parts] == [("val", 2)]
        assert ids_of(f"shards:{tmp_path / out}/*.tar") == ["0002", "0003"]
    write_all_splits(spec, tmp_path / "a", split="train")
    assert ids_of(f"shards:{tmp_path / 'a'}/*.tar") == ["0000", "0001", "0002", "0003"]


def test_all_splits_of_scenes_are_written(tmp_path):
    conversion = write_all_splits("scenes?count=3&size=32", tmp_path / "out")
    assert [(part.split, part.samples) for part in conversion.parts] == [("train", 3), ("validation", 3), ("test", 3)]


def test_a_source_without_splits_is_one_part(tmp_path):
    write_tar(tmp_path / "in" / "pictures.tar", shard_members([0, 1]))
    (part,) = write_all_splits(f"shards:{tmp_path / 'in'}", tmp_path / "out").parts
    assert part == Part("all", 2, 0, (tmp_path / "out" / "all-00000.tar",))


def test_a_bad_image_in_a_later_split_stops_all_and_can_be_skipped(tmp_path):
    root = voc_tree(tmp_path)
    photo = root / "JPEGImages" / "000009.jpg"  # of val and trainval
    photo.write_bytes(half(photo.read_bytes()))
    with pytest.raises(DataError, match="1 problem found\n  000009: damaged or truncated"):
        write_all_splits(f"voc:{root}", tmp_path / "new" / "out")
    assert not (tmp_path / "new").exists()
    conversion = write_all_splits(f"voc:{root}", tmp_path / "new" / "out", on_bad="skip")
    assert [problem.where for problem in conversion.problems.found] == ["000009"]
    assert [(part.split, part.samples) for part in conversion.parts if part.shards] == [("train", 2), ("test", 1)]
    assert ids_of(f"shards:{tmp_path / 'new' / 'out'}/*.tar") == ["000001", "000002", "000005"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.EIO, "Input/output error")])
def test_a_failure_between_renames_leaves_nothing(tmp_path, monkeypatch, error):
    replace, names = os.replace, []

    def fail_at_third(old: Path, new: Path) -> None:
        names.append(new.name)
        replace(old, new)
        if len(names) == 3:
            raise error

    monkeypatch.setattr("contextcaps.data.shard_writer.os.replace", fail_at_third)
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else DataError):
        write_all_splits(mixed_shards(tmp_path / "in"), tmp_path / "out")
    assert names == ["train-00000.tar", "val-00000.tar", "other-00000.tar"]
    assert not (tmp_path / "out").exists()


class TwinSource(MemorySource):
    """Different samples with one id."""

    def sample(self, index: int) -> Sample:
        return dataclasses.replace(super().sample(index), id="twin")


def test_an_id_that_is_there_twice_is_a_problem(tmp_path):
    with pytest.raises(DataError, match="1 problem found\n  twin: another sample has the same id"):
        write_shards(TwinSource([pixels(1), pixels(2)], [[0], [0]], ["cat"]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@needs_pack
def test_real_shards_come_back(tmp_path):
    source = open_source(f"shards:{PACK}/corel5k?split=test")
    shards = write_shards(source, tmp_path / "out", samples_per_shard=200)
    returned = open_source(f"shards:{tmp_path / 'out'}/*.tar")
    assert [path.name for path in shards] == ["test-00000.tar", "test-00001.tar", "test-00002.tar"]
    assert returned.classes == source.classes
    for one, other in zip(returned, source, strict=True):
        assert (one.id, one.labels, one.image) == (other.id, other.labels, other.image)
