"""A folder per class: torchvision's ImageFolder, with splits above it or without."""

from pathlib import Path

import pytest
from round_trip import assert_round_trip
from trees_exports import class_folders, write
from trees_small import encoded, write_images

from contextcaps.data import DataError, Source, open_source, open_splits


def named(source: Source) -> dict[str, list[str]]:
    return {sample.id: [source.classes[label] for label in sample.labels] for sample in source}


def test_folders_of_classes(tmp_path: Path) -> None:
    source = open_source(f"folders:{class_folders(tmp_path)}")
    assert source.classes == ("cat", "dog")
    assert source.splits == ()
    assert named(source) == {
        "cat/cat10.jpg": ["cat"],
        "cat/cat11.jpg": ["cat"],
        "dog/dog20.jpg": ["dog"],
        "dog/dog21.jpg": ["dog"],
        "dog/more/Deep.JPG": ["dog"],
    }
    assert source.assumptions == []
    assert_round_trip(source, tmp_path / "shards")


@pytest.mark.parametrize("parts", [("train", "val"), ("Training", "validation", "test"), ("train", "valid", "test")])
def test_splits_above_the_classes(tmp_path: Path, parts: tuple[str, ...]) -> None:
    root = class_folders(tmp_path, parts)
    source = open_source(f"folders:{root}")
    assert source.splits == parts
    assert source.classes == ("cat", "dog")
    assert len(source) == 5 * len(parts)
    first = named(open_source(f"folders:{root}", split="train"))
    assert {each.partition("/")[0] for each in first} == {parts[0]}


def test_a_class_that_one_split_lacks(tmp_path: Path) -> None:
    root = class_folders(tmp_path, ("train", "test"))
    write_images(root / "train" / "bird", ["bird.jpg"])
    parts = open_splits(f"folders:{root}")
    assert {part.classes for part in parts.values()} == {("bird", "cat", "dog")}


def test_a_single_split(tmp_path: Path) -> None:
    parts = open_splits(f"folders:{class_folders(tmp_path, ('val',))}")
    assert {name: len(part) for name, part in parts.items()} == {"train": 3, "val": 1, "test": 1}


def test_a_split_without_images_is_left_out(tmp_path: Path) -> None:
    root = class_folders(tmp_path, ("train",))
    (root / "val" / "cat").mkdir(parents=True)
    source = open_source(f"folders:{root}")
    assert source.splits == ("train",)
    assert source.assumptions == ["1 split without an image left out: val"]
    assert open_splits(f"folders:{root}").keys() == {"train", "val", "test"}


def test_an_image_in_the_folders_of_several_classes_has_all_their_labels(tmp_path: Path) -> None:
    root = class_folders(tmp_path)
    for name in ("cat", "dog"):
        (root / name / "both.jpg").write_bytes(encoded(99))
        (root / name / "other.jpg").write_bytes(encoded(98 if name == "cat" else 97, form="BMP"))  # of one size
    source = open_source(f"folders:{root}")
    assert named(source)["cat/both.jpg"] == ["cat", "dog"]
    assert "dog/both.jpg" not in named(source)
    assert named(source)["dog/other.jpg"] == ["dog"]
    assert source.assumptions == ["1 image in the folders of several classes: each has all their labels"]


def test_what_lies_beside_is_noted(tmp_path: Path) -> None:
    root = class_folders(tmp_path, ("train", "val"))
    write_images(root / "train", ["loose.jpg"])
    write_images(root / "test", ["0001.jpg"])  # of a competition: without labels
    write(root / "train" / "cat" / "notes.txt", "x")
    (root / "train" / "empty").mkdir()
    for clutter in (".DS_Store", "__MACOSX/train/cat/a.jpg", "train/Thumbs.db", "train/cat/._cat10.jpg"):
        write(root / clutter, "x")
    assert open_source(f"folders:{root}").assumptions == [
        "1 folder left out, neither train, val nor test with folders of classes: test",
        "1 image beside train's folders left out: loose.jpg",
        "1 folder without an image left out: empty",
        "1 file without an image's suffix left out: train/cat/notes.txt",
    ]


def test_a_class_called_train(tmp_path: Path) -> None:
    write_images(tmp_path, ["train/a.jpg", "bus/b.jpg", "car/c.jpg"])
    assert open_source(f"folders:{tmp_path}").classes == ("bus", "car", "train")


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ([], "expected a folder for each class, found no folder"),
        (["a.jpg"], "found only images, of which nothing says what they show"),
        (["train/a.jpg", "val/b.jpg"], "expected a folder for each class in train and val, found none"),
        (["test/a.jpg"], "expected a folder for each class in test, found none"),
        (["cat/a.jpg"], "expected folders of two or more classes, found images in one only: cat"),
        (["photos/cat/a.jpg", "photos/dog/b.jpg"], "one folder deeper: folders:"),
    ],
)
def test_wrong_depth(tmp_path: Path, files: list[str], told: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    write_images(root, files)
    with pytest.raises(DataError) as caught:
        open_source(f"folders:{root}")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_empty_folders(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
    with pytest.raises(DataError, match="no usable image found"):
        open_source(f"folders:{tmp_path}")


def test_links_out_of_the_folder(tmp_path: Path) -> None:
    outside = class_folders(tmp_path / "outside")
    root = class_folders(tmp_path / "root")
    (root / "bird").symlink_to(outside / "cat")
    with pytest.raises(DataError, match="bird is a link out of the folder; copy what it leads to"):
        open_source(f"folders:{root}")
    (root / "bird").unlink()
    (root / "cat" / "linked.jpg").symlink_to(outside / "dog" / "dog20.jpg")
    with pytest.raises(DataError, match=r"linked.jpg is a link out of the folder"):
        open_source(f"folders:{root}")
    assert len(open_source(f"folders:{root}", on_bad="skip")) == 5
    (root / "cat" / "linked.jpg").unlink()
    (root / "cat" / "again").symlink_to(root / "cat")  # a link in a circle
    assert len(open_source(f"folders:{root}")) == 5
