"""Tar shards."""

import gzip
import io
import json
import multiprocessing
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from round_trip import assert_round_trip, assert_same_samples
from trees_small import encoded, pixels, shard_members, write_tar

from contextcaps.data import DataError, open_source
from contextcaps.data.images import decode
from contextcaps.data.loading import StreamLoader

PACK = Path(__file__).parents[3].parent / "shared" / "data"
needs_pack = pytest.mark.skipif(not PACK.is_dir(), reason="the data pack is not there")


def write_shards_folder(folder: Path) -> Path:
    """Two training shards and one of validation, with boxes, masks and several formats."""
    (folder / "x").mkdir(parents=True)
    (folder / "classes.json").write_text(json.dumps(["cat", "dog", "bus"]))
    boxes = {"id": "b/1", "labels": ["dog", 0], "boxes": [["dog", 0.5, 0.25, 0.2, 0.5], [0, 0.9, 0.5, 0.4, 1]]}
    mask = np.zeros((12, 16), np.uint8)
    mask[3:6] = 2
    file = io.BytesIO()
    Image.fromarray(mask).save(file, format="PNG")
    write_tar(folder / "train-00.tar", [*shard_members([3, 1]), ("notes.txt", b"ignored"), ("._0001.jpg", b"ignored")])
    write_tar(
        folder / "train-01.tar",
        [
            ("./sub/b.one.PNG", encoded(7, "PNG")),
            ("./sub/b.one.json", json.dumps(boxes).encode()),
            ("c.webp", encoded(8, "WEBP")),
            ("c.mask.png", file.getvalue()),
            ("c.json", b'{"labels": ["dog"]}'),
        ],
    )
    write_tar(folder / "val.tar", shard_members([20], ["bus"]))
    return folder


def test_case_and_white_space_make_no_classes_without_a_list(tmp_path):
    for number, labels in enumerate((["Cat"], ["cat ", "dog"], ["cat"])):
        write_tar(tmp_path / f"part-{number}.tar", shard_members([number], labels))
    source = open_source(f"shards:{tmp_path}")
    assert source.classes == ("cat", "dog")
    assert [source.labels_of(index) for index in range(3)] == [(0,), (0, 1), (0,)]
    assert "'cat' (also 'Cat', 'cat ')" in source.assumptions[0]
    assert open_source(f"shards:{tmp_path}", unify=False).classes == ("Cat", "cat", "cat ", "dog")
    (tmp_path / "classes.json").write_text('["Cat", "cat", "cat ", "dog"]')
    assert open_source(f"shards:{tmp_path}").classes == ("Cat", "cat", "cat ", "dog")


def test_samples_in_the_order_of_the_files(tmp_path):
    source = open_source(f"shards:{write_shards_folder(tmp_path)}")
    assert [sample.id for sample in source] == ["0003", "0001", "b/1", "c", "0020"]
    assert [sample.labels for sample in source] == [(0,), (0,), (0, 1), (1,), (2,)]
    assert source.splits == ("train", "val")
    assert source.notes == ["2 members that are no image, mask or .json passed over"]
    boxes = source[2].boxes
    assert boxes.labels.tolist() == [1, 0]
    np.testing.assert_allclose(boxes.corners, [[0.4, 0, 0.6, 0.5], [0.7, 0, 1, 1]], atol=1e-7)
    assert boxes.corners.dtype == np.float32
    assert source[3].mask().dtype == np.int32
    assert np.unique(source[3].mask()).tolist() == [0, 2]
    assert source[0].image == encoded(3)
    np.testing.assert_array_equal(decode(source[2].image), pixels(7))


def test_twice_the_same_and_through_shards(tmp_path):
    folder = write_shards_folder(tmp_path / "given")
    source, again = open_source(f"shards:{folder}/*.tar"), open_source(f"shards:{folder}/*.tar")
    assert_same_samples(again, source)
    assert again.fingerprint() == source.fingerprint()
    returned = assert_round_trip(source, tmp_path)
    assert returned[2].image == source[2].image


def test_splits_and_patterns(tmp_path):
    folder = write_shards_folder(tmp_path)
    assert [sample.id for sample in open_source(f"shards:{folder}?split=validation")] == ["0020"]
    assert len(open_source(f"shards:{folder}/train-{{00..01}}.tar")) == 4
    assert len(open_source(f"shards:{folder}/train-0?.tar")) == 4
    assert len(open_source(f"shards:{folder}/val.tar")) == 1
    with pytest.raises(DataError, match=r"no file matches '.*train-02\.tar'"):
        open_source(f"shards:{folder}/train-{{00..02}}.tar")
    with pytest.raises(DataError, match="no split 'test'; it has train, val"):
        open_source(f"shards:{folder}", split="test")


@pytest.mark.parametrize("name", ["train", "train-00000", "train_3", "train.07", "train-00001-of-00012"])
def test_names_that_tell_a_split(tmp_path, name):
    write_tar(tmp_path / f"{name}.tar", shard_members([1]))
    assert open_source(f"shards:{tmp_path}").splits == ("train",)


def test_names_that_tell_none(tmp_path):
    write_tar(tmp_path / "photos-00000.tar", shard_members([1]))
    assert open_source(f"shards:{tmp_path}").splits == ()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1" + "0" * 400, "-0.1", "true", '"0.5"', "null"])
def test_box_numbers(tmp_path, number):
    annotation = f'{{"labels": ["cat"], "boxes": [["cat", 0.5, 0.5, 0.5, {number}]]}}'.encode()
    path = write_tar(tmp_path / "a.tar", [("x.jpg", encoded(1)), ("x.json", annotation)])
    with pytest.raises(DataError, match=r"as fractions of the image's width and height|a whole number of 401 digits"):
        open_source(f"shards:{path}")


def test_classes_found_are_those_of_all_splits(tmp_path):
    write_tar(tmp_path / "train.tar", shard_members([1], ["zebra"]))
    write_tar(tmp_path / "test.tar", shard_members([2], ["ant"]))
    source = open_source(f"shards:{tmp_path}", split="train")
    assert source.classes == ("ant", "zebra")
    assert source.labels_of(0) == (1,)
    assert "no classes.json" in source.notes[0]
    (tmp_path / "names.txt").write_text("zebra\nant\n")
    named = open_source(f"shards:{tmp_path}", classes=str(tmp_path / "names.txt"))
    assert named.classes == ("zebra", "ant")
    assert named.fingerprint() != open_source(f"shards:{tmp_path}").fingerprint()


def test_different_lists_beside_the_shards(tmp_path):
    for name in ("a", "b"):
        write_tar(tmp_path / name / "train.tar", shard_members([ord(name)]))
        (tmp_path / name / "classes.json").write_text(json.dumps(["cat", name]))
    with pytest.raises(DataError, match="list different classes"):
        open_source(f"shards:{tmp_path}/*/*.tar")


ANNOTATION = b'{"labels": ["cat"]}'


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("../x.jpg", encoded(1)), ("y.txt", b"")], r"\.\./x\.jpg: the member's name leads out of the archive"),
        ([("/x.jpg", encoded(1))], r"/x\.jpg: the member's name leads out"),
        ([("x.json", ANNOTATION)], "x: an annotation without an image"),
        ([("x.jpg", encoded(1))], r"x: an image without a \.json"),
        ([("x.jpg", b""), ("x.json", ANNOTATION)], "x: the image is empty"),
        ([("x.jpg", encoded(1)), ("x.png", encoded(1)), ("x.json", ANNOTATION)], "x: 2 images of one name"),
        ([("x.jpg", encoded(1)), ("x.json", ANNOTATION), ("x.json", ANNOTATION)], "x: more than one .json"),
        ([("x.jpg", encoded(1)), ("x.json", b'{"labels": ["ca')], r"x: the \.json is cut off or bad"),
        ([("x.jpg", encoded(1)), ("x.json", b"[" * 100_000)], r"x: the \.json is cut off or bad"),
        ([("x.jpg", encoded(1)), ("x.json", b"\xff\xfe\xfa")], r"x: the \.json is cut off or bad"),
        ([("x.jpg", encoded(1)), ("x.json", b'["cat"]')], r'expected {"labels"'),
        ([("x.jpg", encoded(1)), ("x.json", b'{"id": 3.5, "labels": ["cat"]}')], "expected a text as id, got 3.5"),
        ([("x.jpg", encoded(1)), ("x.json", b'{"id": "0001", "labels": ["cat"]}')], "'0001' is there twice"),
        ([("x.jpg", encoded(1)), ("x.json", b'{"labels": ["cow"]}')], "'cow' is not among the 1 classes"),
        ([("x.jpg", encoded(1)), ("x.json", b'{"labels": [1]}')], "expected an index from 0 to 0"),
        ([("x.jpg", encoded(1)), ("x.json", b'{"labels": [true]}')], "label True: expected the name"),
        ([("x.jpg", encoded(1)), ("x.json", b'{"labels": []}')], "x: has no label"),
        (
            [("x.jpg", encoded(1)), ("x.json", b'{"labels": ["cat"], "boxes": [["cat", 3, 4, 50, 60]]}')],
            "as fractions of the image's width and height",
        ),
        (
            [("x.jpg", encoded(1)), ("x.json", b'{"labels": ["cat"], "boxes": [["cat", 0.5]]}')],
            r"expected \[class, cx, cy, w, h\]",
        ),
        (
            [("x.jpg", encoded(1)), ("x.json", b'{"labels": ["cat"], "boxes": [["cow", 0.5, 0.5, 0.5, 0.5]]}')],
            "'cow' is not among",
        ),
        ([("x.jpg", encoded(1)), ("x.json", b'{"labels": ["cat"], "boxes": {}}')], "expected a list of boxes"),
    ],
)
def test_bad_samples_are_named_or_left_out(tmp_path, members, message):
    (tmp_path / "classes.json").write_text('["cat"]')
    path = write_tar(tmp_path / "all.tar", [*shard_members([1]), *members, *shard_members([2])])
    with pytest.raises(DataError, match=message):
        open_source(f"shards:{path}")
    source = open_source(f"shards:{path}", on_bad="skip")
    assert [sample.id for sample in source] == ["0001", "0002"]
    assert len(source.problems.found) == 1


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices(tmp_path, kind):
    path = write_tar(tmp_path / "all.tar", shard_members([1]))
    with tarfile.open(path, "a") as tar:
        info = tarfile.TarInfo("x.jpg")
        info.type, info.linkname = kind, "/etc/hostname"
        tar.addfile(info)
    with pytest.raises(DataError, match=r"x\.jpg: expected a plain file, got a link, a device"):
        open_source(f"shards:{path}")
    assert len(open_source(f"shards:{path}", on_bad="skip")) == 1


@pytest.mark.parametrize(
    ("length", "kept"),
    [(1023, 3), (512, 3), (300, 3), (10, 2), (0, 2), (-300, 2), (-512, 2), (-800, 2)],
    ids=["end mark", "no end mark", "padding", "json", "no json", "header", "no header", "image"],
)
def test_cut_off_anywhere(tmp_path, length, kept):
    """Cut `length` bytes after the beginning of the last .json, which fills a part of one block of 512."""
    path = write_tar(tmp_path / "all.tar", shard_members([1, 2, 3]))
    with tarfile.open(path) as tar:
        start = tar.getmembers()[-1].offset_data
    path.write_bytes(path.read_bytes()[: start + length])
    with pytest.raises(DataError, match=r"all\.tar: cut off after \d+ bytes, without an end mark"):
        open_source(f"shards:{path}")
    source = open_source(f"shards:{path}", on_bad="skip")
    assert [sample.id for sample in source] == ["0001", "0002", "0003"][:kept]


def test_broken_header_in_the_middle(tmp_path):
    path = write_tar(tmp_path / "all.tar", shard_members([1, 2]))
    with tarfile.open(path) as tar:
        offset = tar.getmembers()[2].offset
    content = bytearray(path.read_bytes())
    content[offset : offset + 100] = b"?" * 100
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"broken at byte {offset}: no tar header there"):
        open_source(f"shards:{path}")
    assert len(open_source(f"shards:{path}", on_bad="skip")) == 1


@pytest.mark.parametrize("content", [b"", b"this is text, no archive" * 100])
def test_files_that_are_no_tar(tmp_path, content):
    write_tar(tmp_path / "a.tar", shard_members([1]))
    (tmp_path / "b.tar").write_bytes(content)
    with pytest.raises(DataError, match=r"b\.tar: expected a tar archive"):
        open_source(f"shards:{tmp_path}")
    assert len(open_source(f"shards:{tmp_path}", on_bad="skip")) == 1


def test_compressed_shards_are_refused(tmp_path):
    path = write_tar(tmp_path / "a.tar", shard_members([1]))
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(DataError, match=r"decompress it first: gunzip .*b\.tar\.gz"):
        open_source(f"shards:{tmp_path}/b.tar.gz")


def test_empty_and_missing(tmp_path):
    with pytest.raises(DataError, match="no file matches"):
        open_source(f"shards:{tmp_path}")
    write_tar(tmp_path / "a.tar", [])
    with pytest.raises(DataError, match="no usable image found"):
        open_source(f"shards:{tmp_path}")
    with pytest.raises(DataError, match="unlabelled: expected one of refuse, drop, keep"):
        open_source(f"shards:{tmp_path}?unlabelled=ignore")


def test_unlabelled(tmp_path):
    path = write_tar(tmp_path / "a.tar", [*shard_members([1]), *shard_members([2], [])])
    assert open_source(f"shards:{path}?unlabelled=keep").labels_of(1) == ()
    dropped = open_source(f"shards:{path}?unlabelled=drop")
    assert len(dropped) == 1
    assert "1 image without a label left out" in " ".join(dropped.notes)


def png(mask: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(mask).save(file, format="PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (png(np.zeros((5, 16), np.uint8)), r"0001: the mask has height and width \(5, 16\), its image \(12, 16\)"),
        (png(np.full((12, 16), 2, np.uint8)), r"expected values from 0 to 1 \(class index \+ 1\), got 2"),
        (png(np.zeros((12, 16, 3), np.uint8)), "expected one channel"),
        (png(np.random.default_rng(0).integers(0, 2, (12, 16), np.uint8))[:60], "damaged or cut off"),
        (b"text", "damaged or cut off"),
    ],
    ids=["size", "value", "colour", "cut off", "text"],
)
def test_bad_masks(tmp_path, mask, message):
    image, annotation = shard_members([1])
    path = write_tar(tmp_path / "a.tar", [image, ("0001.mask.png", mask), annotation])
    sample = open_source(f"shards:{path}")[0]
    with pytest.raises(DataError, match=message):
        sample.mask()


def test_a_shard_that_changed_since(tmp_path):
    path = write_tar(tmp_path / "a.tar", shard_members([1, 2]))
    source = open_source(f"shards:{path}")
    path.write_bytes(path.read_bytes()[:2100])
    with pytest.raises(DataError, match=r"expected \d+ bytes at byte \d+, got \d+"):
        source.sample(1)
    path.unlink()
    with pytest.raises(DataError, match="cannot be read: No such file"):
        source.sample(0)


def test_a_negative_size(tmp_path):
    path = write_tar(tmp_path / "a.tar", shard_members([1, 2]))
    with tarfile.open(path) as tar:
        info = tar.getmembers()[2]
    header = bytearray(info.tobuf())
    header[124:136] = (-2048).to_bytes(12, "big", signed=True)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    content = bytearray(path.read_bytes())
    content[info.offset : info.offset + 512] = header
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.tar: expected a tar archive: .*negative|broken at byte"):
        open_source(f"shards:{path}")


def _identifiers(source, start):
    return [(source[index].id, source[index].image) for index in range(start, len(source), 2)]


def test_several_processes_read_one_source(tmp_path):
    path = write_tar(tmp_path / "a.tar", shard_members(range(20)))
    source = open_source(f"shards:{path}")
    with multiprocessing.get_context("fork").Pool(2) as pool:
        even, odd = pool.starmap(_identifiers, [(source, 0), (source, 1)])
    assert pickle.loads(pickle.dumps(source))[3].image == source[3].image  # as processes that are not forked get it
    assert [identifier for pair in zip(even, odd, strict=True) for identifier in pair] == [
        (sample.id, sample.image) for sample in source
    ]


def test_long_and_foreign_names(tmp_path):
    name = "ordner/" + "ü" * 150
    path = write_tar(tmp_path / "a.tar", [(f"{name}.jpg", encoded(1)), (f"{name}.json", ANNOTATION)])
    assert open_source(f"shards:{path}")[0].id == name


def test_unknown_labels(tmp_path):
    """Classes of which an annotation says that they are not known; one that has a box is known."""
    path = tmp_path / "a.tar"
    annotated = {"labels": ["cat"], "unknown": ["dog", "bus"]}
    write_tar(path, [("a.jpg", encoded(1)), ("a.json", json.dumps(annotated).encode())])
    source = open_source(f"shards:{path}")
    assert source.classes == ("bus", "cat", "dog")
    assert source.targets().tolist() == [[255, 1, 255]]
    assert source[0].unknown == source.unknown_of(0) == (0, 2)
    for wrong, message in (
        ({"unknown": "dog"}, "expected a list of classes as unknown, got str"),
        ({"unknown": ["cat"]}, "a class is both unknown and there"),
        ({"unknown": ["dog"], "boxes": [["dog", 0.5, 0.5, 0.1, 0.1]]}, "a class is both unknown and there"),
    ):
        write_tar(path, [("a.jpg", encoded(1)), ("a.json", json.dumps({**annotated, **wrong}).encode())])
        with pytest.raises(DataError, match=message):
            open_source(f"shards:{path}")


@needs_pack
def test_real_shards():
    source = open_source(f"shards:{PACK}/coco128/val.tar")
    assert (len(source), len(source.classes), source.splits) == (4313, 80, ("val",))
    targets = source.targets()
    assert targets.sum() / len(source) == pytest.approx(2.95, abs=0.005)
    counts = dict(zip(source.classes, targets.sum(axis=0), strict=True))
    assert (counts["toaster"], counts["hair drier"], counts["scissors"], counts["toothbrush"]) == (7, 8, 25, 28)
    sample = source[0]
    assert decode(sample.image).shape == (128, 128, 3)
    assert set(sample.boxes.labels.tolist()) == set(sample.labels)
    assert len(open_source(f"shards:{PACK}/corel5k", split="test")) == 499


@pytest.mark.parametrize(("shards", "world_size", "workers"), [(1, 3, 1), (2, 5, 2), (3, 2, 4), (1, 9, 2)])
def test_processes_and_workers_share_an_epoch_also_with_fewer_shards(tmp_path, shards, world_size, workers) -> None:
    """Every image once per epoch, over all ranks and their workers."""
    for shard in range(shards):
        write_tar(tmp_path / f"{shard}.tar", shard_members(list(range(10 * shard, 10 * shard + 7))))
    source = open_source(f"shards:{tmp_path}")
    loaders = [
        StreamLoader(source, 8, 2, workers=workers, shuffle=True, seed=5, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    epochs = []
    for _ in range(2):
        ids = [name for loader in loaders for batch in loader for name in batch.ids]
        assert sorted(ids) == sorted(source.id_of(index) for index in range(len(source)))
        epochs.append(ids)
    assert epochs[0] != epochs[1]
