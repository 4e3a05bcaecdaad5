"""YOLO's text files as Ultralytics, Roboflow, CVAT and Label Studio write them, and what can be wrong with them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from round_trip import assert_round_trip
from trees_exports import label_studio_yolo, roboflow_yolo, ultralytics, write
from trees_small import encoded, write_images

from contextcaps.data import DataError, Source, open_source, open_splits


def named(source: Source) -> dict[str, list[str]]:
    return {sample.id: [source.classes[label] for label in sample.labels] for sample in source}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return ultralytics(tmp_path / "coco8")


def test_ultralytics(root: Path) -> None:
    for location in (root, root / "data.yaml"):
        source = open_source(f"yolo:{location}")
        assert source.classes == ("person", "bicycle", "car")
        assert source.splits == ("train", "val")
        assert named(source) == {
            "images/train/train0.jpg": ["person", "car"],
            "images/train/train1.jpg": ["bicycle"],
            "images/val/val0.jpg": ["person", "car"],
            "images/val/val1.jpg": ["bicycle"],
        }
        assert "2 images without a text file: without a label" in source.assumptions
        assert "2 images without a label left out (unlabelled=drop)" in source.notes
    assert list(named(open_source(f"yolo:{root}", split="validation"))) == [
        "images/val/val0.jpg",
        "images/val/val1.jpg",
    ]
    assert len(open_source(f"yolo:{root}", unlabelled="keep")) == 6
    assert {name: len(part) for name, part in open_splits(f"yolo:{root}").items()} == {"train": 2, "val": 2}


def test_boxes_and_outlines(tmp_path: Path) -> None:
    source = open_source(f"yolo:{roboflow_yolo(tmp_path)}", split="train")
    boxes, outline = source[0].boxes, source[1].boxes
    assert boxes.labels.tolist() == [0, 1]
    assert boxes.corners.tolist() == [[0, 0, 0.5, 0.5], [0, 0, 1, 1]]
    assert outline.labels.tolist() == [1]
    assert outline.corners.tolist() == [pytest.approx([0.1, 0.1, 0.9, 0.6])]


def test_roboflow(tmp_path: Path) -> None:
    """Paths begin with "../" and lead nowhere; a class is called no; an empty file is an image without a label."""
    root = roboflow_yolo(tmp_path / "fruit.v1i.yolov8")
    source = open_source(f"yolo:{root}")
    assert source.classes == ("apple", "no")
    assert {name: len(part) for name, part in open_splits(f"yolo:{root}").items()} == {"train": 2, "val": 2, "test": 2}
    assert source.notes == ["3 images without a label left out (unlabelled=drop)"]


def test_label_studio_without_yaml(tmp_path: Path) -> None:
    root = label_studio_yolo(tmp_path)
    assert named(open_source(f"yolo:{root}")) == {"images/1f-a.jpg": ["Car"], "images/2e-b.jpg": ["Person"]}
    (root / "classes.txt").unlink()
    with pytest.raises(DataError, match=r"expected data.yaml, or classes.txt with a class in each line, found neither"):
        open_source(f"yolo:{root}")


@pytest.mark.parametrize("line", ["data/images/train/{}", "./images/train/{}", "/home/somebody/set/images/train/{}"])
def test_lists_of_images(root: Path, line: str) -> None:
    """CVAT's Ultralytics export lists the images of a split in train.txt."""
    write(root / "train.txt", "".join(line.format(f"train{number}.jpg\n") for number in range(2)))
    write(root / "data.yaml", "path: .\ntrain: train.txt\nnames: [person, bicycle, car]\n")
    assert list(named(open_source(f"yolo:{root}"))) == ["images/train/train0.jpg", "images/train/train1.jpg"]
    lines = ["images/train/train0.jpg", "images/train/gone.jpg", "../../etc/hostname", "labels/train/train0.txt"]
    write(root / "train.txt", "\n".join(lines))
    source = open_source(f"yolo:{root}", on_bad="skip")
    assert [str(problem) for problem in source.problems.found] == [
        "train.txt, line 2: images/train/gone.jpg is not there",
        "train.txt, line 3: ../../etc/hostname is not there",
        "train.txt, line 4: labels/train/train0.txt is no image by its suffix",
    ]


def test_labels_beside_the_images(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "A.JPG").write_bytes(encoded(1))
    write(tmp_path / "train" / "A.txt", "0 0.5 0.5 0.1 0.1\n")
    write(tmp_path / "train" / "classes.txt", "cat\n")
    write(tmp_path / "set.yaml", "train: train\nnames: [cat]\n")
    assert named(open_source(f"yolo:{tmp_path}")) == {"train/A.JPG": ["cat"]}


def test_paths_of_another_machine(root: Path) -> None:
    text = "train: /content/coco8/images/train\nval: C:\\\\Users\\\\me\\\\coco8\\\\images\\\\val\nnames: [a, b, c]\n"
    write(root / "data.yaml", "path: /content/coco8\n" + text.replace("\\\\", "\\"))
    assert open_source(f"yolo:{root}").splits == ("train", "val")


def test_a_root_elsewhere_has_to_be_named(root: Path, tmp_path: Path) -> None:
    alone = write(tmp_path / "configs" / "coco8.yaml", "path: ../coco8\ntrain: images/train\nnames: [a, b, c]\n")
    with pytest.raises(DataError, match=r"path: ../coco8 lies outside of the file's folder; .* root=.*coco8"):
        open_source(f"yolo:{alone}")
    assert len(open_source(f"yolo:{alone}?root={root}")) == 2
    write(alone, f"train: {root}/images/train\nnames: [a, b, c]\n")
    with pytest.raises(DataError, match=r"train: .*images/train lies outside of"):
        open_source(f"yolo:{alone}")


def test_validation_on_the_training_images_is_not_taken(root: Path) -> None:
    """As in coco128.yaml, whose val is its train."""
    write(root / "data.yaml", "train: images/train\nval: images/train\nnames: [a, b, c]\n")
    source = open_source(f"yolo:{root}")
    assert source.splits == ("train",)
    assert "val left out: in data.yaml it is the same as train" in source.assumptions
    write(root / "data.yaml", "train: images\nval: images/val\nnames: [a, b, c]\n")
    with pytest.raises(DataError, match=r"3 images of val, such as images/val/val0.jpg, also in train; expected"):
        open_source(f"yolo:{root}")


def test_key_points_are_not_taken_for_an_outline(root: Path) -> None:
    write(root / "labels/train/train0.txt", "0 0.5 0.5 0.2 0.2 0.9 0.9 2 0.8 0.1 2\n")
    write(root / "data.yaml", "train: images/train\nkpt_shape: [2, 3]\nnames: [a, b, c]\n")
    corners = open_source(f"yolo:{root}")[0].boxes.corners.tolist()
    assert corners == [pytest.approx([0.4, 0.4, 0.6, 0.6])]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("3 0.5 0.5 0.1 0.1", "class 3: expected 0 to 2, since there are 3 names"),
        ("-1 0.5 0.5 0.1 0.1", "class -1: expected 0 to 2"),
        ("inf 0.5 0.5 0.1 0.1", "class inf: expected 0 to 2"),
        ("0.5 0.5 0.5 0.1 0.1", "class 0.5: expected 0 to 2"),
        ("person 0.5 0.5 0.1 0.1", "expected numbers, got 'person 0.5 0.5 0.1 0.1'"),
        ("0 320 240 100 80", "expected fractions of the image from 0 to 1, not pixels; got 320 240 100 80"),
        ("0 nan 0.5 0.1 0.1", "expected fractions"),
        ("0 0.5 0.5", "or an outline of 3 points; got 3 numbers"),
        ("0 0.5 0.5 0.1 0.1 0.97", "or an outline of 3 points; got 6 numbers"),
    ],
)
def test_bad_lines(root: Path, line: str, told: str) -> None:
    write(root / "labels/train/train0.txt", f"1 0.5 0.5 0.1 0.1\n\n{line}\n")
    source = open_source(f"yolo:{root}", on_bad="skip")
    assert len(source.problems.found) == 1
    assert str(source.problems.found[0]).startswith("images/train/train0.jpg: labels/train/train0.txt, line 3: ")
    assert told in str(source.problems.found[0])


def yaml(text: str) -> Callable[[Path], object]:
    return lambda root: write(root / "data.yaml", text)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (yaml("train: images/train\n"), "expected the names of the classes under names:, found none"),
        (yaml("names: cat\n"), "names: expected a list of class names, got 'cat'"),
        (yaml("names: []\n"), "names: expected a list of class names"),
        (yaml("names: [cat, [dog]]\n"), "names: expected a list of class names"),
        (yaml("names: [cat, cat]\n"), "names: the class 'cat' stands there twice"),
        (yaml("names: {0: cat, 2: dog}\n"), "names: expected the indices 0 to 1, got 0, 2"),
        (yaml("nc: 3\nnames: [cat, dog]\n"), "nc is 3, but there are 2 names"),
        (yaml("names: [cat\ntrain: a\n"), "cannot be read as YAML"),
        (yaml("- a\n"), "expected the names of the classes"),
        (yaml("train: images/nowhere\nnames: [a, b, c]\n"), "train: images/nowhere is not there; looked in"),
        (yaml("train: {a: b}\nnames: [a, b, c]\n"), "train: expected a folder or a list of images"),
        (yaml("train: labels/train\nnames: [a, b, c]\n"), "train: expected images in labels/train, found none"),
        (
            lambda root: (root / "labels").rename(root / "annotations"),
            "expected a text file for each image",
        ),
    ],
)
def test_bad_descriptions(root: Path, spoil: Callable[[Path], object], told: str) -> None:
    spoil(root)
    with pytest.raises(DataError) as caught:
        open_source(f"yolo:{root / 'data.yaml'}")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_systems_leave_behind_is_passed_over(root: Path) -> None:
    write(root / "images/train/.DS_Store", "x")
    write(root / "images/train/._train0.jpg", "x")
    write(root / "images/train/Thumbs.db", "x")
    write(root / "__MACOSX/images/train/a.jpg", "x")
    write(root / "labels/train.cache", "x")
    assert len(open_source(f"yolo:{root}", split="train", unlabelled="keep")) == 3


def test_links_out_of_the_folder(root: Path, tmp_path: Path) -> None:
    write_images(tmp_path, ["outside.jpg"])
    (root / "images/train/linked.jpg").symlink_to(tmp_path / "outside.jpg")
    with pytest.raises(DataError, match=r"images/train/linked.jpg is a link out of the folder"):
        open_source(f"yolo:{root}")
    (root / "images/train/linked.jpg").unlink()
    (root / "images/train/more").symlink_to(tmp_path)
    with pytest.raises(DataError, match=r"images/train/more is a link out of the folder; copy what it leads to"):
        open_source(f"yolo:{root}")


def test_changed_labels_change_the_fingerprint(root: Path) -> None:
    before = open_source(f"yolo:{root}").fingerprint()
    write(root / "labels/train/train0.txt", "0 0.5 0.5 0.1 0.1\n")
    assert open_source(f"yolo:{root}").fingerprint() != before


def test_through_shards_and_back(root: Path, tmp_path: Path) -> None:
    assert_round_trip(open_source(f"yolo:{root}?unlabelled=keep"), tmp_path)
