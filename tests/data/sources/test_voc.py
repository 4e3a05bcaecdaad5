"""Pascal VOC: what counts, masks, and bad data of each kind."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from round_trip import assert_round_trip
from trees_voc import SIZE, annotation_xml, mask_values, object_xml, voc_tree, write_mask

from contextcaps.data import DataError, Source, open_source
from contextcaps.data.sources.voc import VOC_CLASSES


def named(source: Source) -> dict[str, list[str]]:
    return {sample.id: [source.classes[label] for label in sample.labels] for sample in source}


def problem_of(source: Source) -> str:
    assert len(source.problems.found) == 1
    return str(source.problems.found[0])


@pytest.fixture
def root(tmp_path):
    return voc_tree(tmp_path / "data")


def test_the_same_samples_in_the_same_order_twice(root):
    first = open_source(f"voc:{root}")
    assert first.splits == ("train", "val", "trainval", "test")
    assert len(VOC_CLASSES) == 20
    assert first.classes == VOC_CLASSES
    assert list(named(first).items()) == [
        ("000005", ["dog", "person"]),
        ("000002", ["cat"]),
        ("000009", ["aeroplane"]),
        ("000001", ["person"]),
    ]
    for location in (root, root.parent, root.parent.parent):
        second = open_source(f"voc:{location}")
        assert [(a.id, a.image, a.labels) for a in first] == [(a.id, a.image, a.labels) for a in second]
        assert first.fingerprint() == second.fingerprint()
    for sample in first:
        assert Image.open(sample.image).size == SIZE


def test_a_class_seen_only_in_difficult_objects_is_absent(root):
    source = open_source(f"voc:{root}")
    assert named(source)["000002"] == ["cat"]
    assert "000007" not in named(source)  # its only object is difficult, and images without a label are left out
    assert "1 image without a label left out (unlabelled=drop)" in source.notes
    assert source[0].boxes.labels.tolist() == [11, 14]


def test_difficult_objects_count_if_asked(root):
    source = open_source(f"voc:{root}?difficult=positive")
    assert named(source)["000002"] == ["cat", "chair"]
    assert named(source)["000007"] == ["tvmonitor"]
    assert source[0].boxes.labels.tolist() == [11, 14, 11]
    assert source.fingerprint() != open_source(f"voc:{root}").fingerprint()


def test_boxes_count_pixels_from_1(root):
    (root / "Annotations/000001.xml").write_text(
        annotation_xml("000001", object_xml("person", 0) + object_xml("dog", 0, (1, 1, 40.0, 21.5)))
    )
    boxes = open_source(f"voc:{root}", split="test")[0].boxes
    assert boxes.corners.tolist() == [[0.25, 0.25, 0.75, 0.75], [0, 0, 1, 1]]


def test_masks(root):
    source = open_source(f"voc:{root}")
    expected = mask_values().astype(np.int32)
    expected[expected == 255] = 0
    mask = pickle.loads(pickle.dumps(source[0])).mask()
    assert np.array_equal(mask, expected)
    assert mask.dtype == np.int32
    assert source.classes[mask[5, 5] - 1] == "dog"
    assert source[1].mask is None


@pytest.mark.parametrize(
    ("split", "plain", "expected"),
    [
        ("train", "train", ["000005", "000002"]),
        ("validation", "val", ["000009"]),
        ("trainval", "trainval", ["000002", "000005", "000009"]),
        ("test", "test", ["000001"]),
    ],
)
def test_splits(root, split, plain, expected):
    source = open_source(f"voc:{root}", split=split)
    assert source.split == plain
    assert [sample.id for sample in source] == expected
    with pytest.raises(DataError, match="no split 'minival'; it has train, val, trainval, test"):
        open_source(f"voc:{root}", split="minival")


def test_years(tmp_path):
    voc_tree(tmp_path, 2012)
    voc_tree(tmp_path, 2007)
    with pytest.raises(DataError, match="found VOC2007, VOC2012; name one of them or choose with year="):
        open_source(f"voc:{tmp_path}")
    source = open_source(f"voc:{tmp_path}?year=2007")
    assert source[0].image.parent.parent.name == "VOC2007"
    with pytest.raises(DataError, match="year=2010 is not among them"):
        open_source(f"voc:{tmp_path}?year=2010")


def test_boxes_without_extent_do_not_count(root):
    (root / "Annotations/000001.xml").write_text(
        annotation_xml("000001", object_xml("person", 0) + object_xml("dog", 0, (5, 5, 4, 9)))
    )
    source = open_source(f"voc:{root}", split="test")
    assert named(source) == {"000001": ["person"]}
    assert "1 objects whose box has no extent in the image not counted" in source.notes


@pytest.mark.parametrize("unlabelled", ["keep", "refuse"])
def test_images_without_a_label(root, unlabelled):
    if unlabelled == "refuse":
        with pytest.raises(DataError, match="000007: has no label"):
            open_source(f"voc:{root}?unlabelled=refuse")
    else:
        assert named(open_source(f"voc:{root}?unlabelled=keep"))["000007"] == []


# Bad data

BOMB = '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;">]>'


@pytest.mark.parametrize(
    ("file", "spoil", "told"),
    [
        ("JPEGImages/000005.jpg", Path.unlink, "JPEGImages/000005.jpg is missing"),
        ("JPEGImages/000005.jpg", lambda path: path.write_bytes(b""), "000005.jpg is empty (0 bytes)"),
        ("Annotations/000005.xml", Path.unlink, "Annotations/000005.xml is missing"),
        ("Annotations/000005.xml", lambda path: path.write_text(path.read_text()[:200]), "not XML, or cut off"),
        ("Annotations/000005.xml", lambda path: path.write_text(BOMB + path.read_text()), "DOCTYPE is not read"),
        (
            "Annotations/000005.xml",
            lambda path: path.write_text(path.read_text().replace(">dog<", ">wolf<")),
            "'wolf' is none of the 20 classes",
        ),
        (
            "Annotations/000005.xml",
            lambda path: path.write_text(path.read_text().replace("<xmin>11", "<xmin>left")),
            "expected a number as bndbox/xmin, got 'left'",
        ),
        (
            "Annotations/000005.xml",
            lambda path: path.write_text(path.read_text().replace("<width>40", "<width>0")),
            "expected at least 1",
        ),
        ("SegmentationClass/000005.png", lambda path: path.write_bytes(b""), "000005.png is empty (0 bytes)"),
        ("SegmentationClass/000005.png", lambda path: path.write_bytes(path.read_bytes()[:20]), "cannot be read"),
        (
            "SegmentationClass/000005.png",
            lambda path: write_mask(path, np.zeros((3, 4), dtype=np.uint8)),
            "is 4×3 px, its image 40×20 px",
        ),
    ],
)
def test_bad_files(root, file, spoil, told):
    spoil(root / file)
    with pytest.raises(DataError, match="1 problem found\n  000005: "):
        open_source(f"voc:{root}")
    source = open_source(f"voc:{root}", on_bad="skip")
    assert [sample.id for sample in source] == ["000002", "000009", "000001"]
    assert told in problem_of(source)


def test_mask_values_out_of_range_are_told_when_the_mask_is_read(root):
    write_mask(root / "SegmentationClass/000005.png", np.full((SIZE[1], SIZE[0]), 33, dtype=np.uint8))
    with pytest.raises(DataError, match="expected values 0 to 20 and 255 in the mask, got 33"):
        open_source(f"voc:{root}")[0].mask()


def test_a_mask_cut_off_in_its_pixels_is_told_when_it_is_read(root):
    path = root / "SegmentationClass/000005.png"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match="the mask cannot be read"):
        open_source(f"voc:{root}")[0].mask()


@pytest.mark.parametrize(("listed", "told"), [("../000001", "leads out"), ("/etc/hostname", "is absolute")])
def test_lists_that_lead_out_of_the_folder(root, listed, told):
    (root / "ImageSets/Main/test.txt").write_text(f"{listed}\n000001\n")
    source = open_source(f"voc:{root}", split="test", on_bad="skip")
    assert [sample.id for sample in source] == ["000001"]
    assert told in problem_of(source)


def test_duplicated_ids(root):
    (root / "ImageSets/Main/test.txt").write_text("000001\n000001\n")
    source = open_source(f"voc:{root}", on_bad="skip")
    assert problem_of(source) == "000001: this id was there before; JPEGImages/000001.jpg is left out"


def test_links_out_of_the_folder_are_not_followed(root, tmp_path):
    photo = root / "JPEGImages/000005.jpg"
    photo.rename(tmp_path / "outside.jpg")
    photo.symlink_to(tmp_path / "outside.jpg")
    assert "is a link out of the folder" in problem_of(open_source(f"voc:{root}", on_bad="skip"))


def test_an_empty_list(root):
    (root / "ImageSets/Main/test.txt").write_text("\n")
    with pytest.raises(DataError, match="no usable image found"):
        open_source(f"voc:{root}", split="test")


def test_wrong_locations(root, tmp_path):
    with pytest.raises(DataError, match="found no such folder"):
        open_source(f"voc:{tmp_path / 'nowhere'}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="with Annotations, ImageSets and JPEGImages, found none"):
        open_source(f"voc:{tmp_path / 'empty'}")
    with pytest.raises(DataError, match="difficult: expected one of ignore, positive, got 'maybe'"):
        open_source(f"voc:{root}?difficult=maybe")
    for path in (root / "ImageSets/Main").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"expected train.txt, val.txt, trainval.txt or test.txt in"):
        open_source(f"voc:{root}")


def test_unreadable_folders(root, monkeypatch):
    listing = os.scandir

    def refuse(path):  # as the system does for a folder of mode 000, but also where the tests run as root
        if Path(path) == root.parent:
            raise PermissionError(13, "Permission denied", str(path))
        return listing(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"cannot be read \(Permission denied\)"):
        open_source(f"voc:{root.parent}")


def test_through_shards_and_back(root, tmp_path):
    source = open_source(f"voc:{root}?unlabelled=keep")
    assert len(assert_round_trip(source, tmp_path)) == len(source)
