"""Lists of classes that come from a mistake are doubted, and those of real sets are not."""

from pathlib import Path

import numpy as np
import pytest
from memory_source import MemorySource

from contextcaps.data import open_source
from contextcaps.data.doubts import class_doubts

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


def source(classes: list[str], images: int = 200) -> MemorySource:
    """A source in which each image has one of the classes, in turn."""
    pixels = [np.zeros((4, 4, 3), np.uint8)] * images
    return MemorySource(pixels, [[index % len(classes)] for index in range(images)], classes)


@pytest.mark.parametrize("separator", [", ", ";", " | ", "/", "+", " & "])
def test_several_labels_in_one(separator: str) -> None:
    cells = [["cup", "knife"], ["cup", "knife", "sandwich"], ["knife", "sandwich"], ["sandwich"]]
    (doubt,) = class_doubts(source([separator.join(cell) for cell in cells]))
    assert doubt.startswith(f"3 of 4 classes contain {separator.strip()!r} and share parts, such as 'cup")


def test_several_words_in_one() -> None:
    cells = [f"{sky} {ground}" for sky in ("clear", "haze", "partly") for ground in ("a b", "a c", "a b c", "b c")]
    assert "12 of 12 classes contain ' ' and share parts" in class_doubts(source(cells))[0]


def test_a_class_for_nearly_every_image() -> None:
    assert class_doubts(source([f"photograph {number}" for number in range(180)])) == [
        "there are 180 classes in 200 images, such as 'photograph 0', 'photograph 1', 'photograph 2': are these the "
        "labels?"
    ]


def test_classes_with_a_single_image() -> None:
    names = [f"thing {chr(97 + number)}" for number in range(10)]
    pixels = [np.zeros((4, 4, 3), np.uint8)] * 30
    labels = [[index if index < 6 else 6 + index % 4] for index in range(30)]
    assert class_doubts(MemorySource(pixels, labels, names)) == [
        "6 of 10 classes have a single image, such as 'thing a', 'thing b', 'thing c': nothing can be learned of them"
    ]


def test_a_class_that_every_image_has() -> None:
    pixels = [np.zeros((4, 4, 3), np.uint8)] * 20
    labels = [[0, 1 + index % 2] for index in range(20)]
    assert class_doubts(MemorySource(pixels, labels, ["annotator", "cat", "dog"])) == [
        "every image has 'annotator': nothing can be learned of a class that is never absent"
    ]


def test_nearly_the_same_name() -> None:
    classes = ["dining table", "dining_table", "Dining-Tables", "cup", "cups", "class 1", "class 11"]
    assert class_doubts(source(classes)) == [
        "classes with nearly the same name: 'dining table' and 'dining_table' and 'Dining-Tables'; 'cup' and 'cups'"
    ]


def test_values_in_the_place_of_names() -> None:
    assert "the classes are '0', '1': expected names" in class_doubts(source(["0", "1"]))[0]
    assert class_doubts(source(["cat", "nan"])) == ["'nan' as a class looks like a missing value"]
    assert "'[\"cat\"', 'dog\"]': looks like a part of a list" in class_doubts(source(['["cat"', 'dog"]']))[0]
    assert "2 of 2 classes are numbers, such as '0.25'" in class_doubts(source(["0.25", "17.5"]))[0]


@pytest.mark.parametrize(
    "classes",
    [
        ["building, edifice", "floor, flooring", "stool", "toilet, can, pot, stool"],
        ["traffic light", "stop sign", "baseball bat", "baseball glove", "tennis racket", "hot dog", "potted plant"],
        [str(digit) for digit in range(10)],
        ["animal/cat", "animal/dog", "/m/01g317", "/m/04yx4"],
    ],
)
def test_names_that_are_right(classes: list[str]) -> None:
    assert class_doubts(source(classes)) == []


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the data pack")
@pytest.mark.parametrize("name", ["cocostuff171", "corel5k"])
def test_real_sets_are_not_doubted(name: str) -> None:
    assert class_doubts(open_source(f"shards:{SHARED / name}")) == []


@pytest.mark.parametrize("word", ["?", "-1", "nan"])
def test_words_for_a_missing_value(word: str) -> None:
    assert class_doubts(source([word, "cat", "dog"])) == [f"{word!r} as a class looks like a missing value"]
