"""`open_source`: names, options, and what every source shares."""

import numpy as np
import pytest
from memory_source import MemorySource

from contextcaps.data import DataError, Problems, Subset, open_source, source_kinds


def memory_source(count: int = 4, **options: object) -> MemorySource:
    images = [np.full((8, 8, 3), index, dtype=np.uint8) for index in range(count)]
    return MemorySource(images, [(index % 2,) for index in range(count)], ("bed", "lamp", "sea"), **options)


def test_every_kind_is_known() -> None:
    files = ["ade20k", "coco", "voc", "yolo", "folders", "metadata", "table", "shards", "mnist", "multimnist", "hf"]
    assert source_kinds()[:12] == ["scenes", *files]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nonsense:here", "nonsense:here: expected KIND:LOCATION with one of scenes, ade20k"),
        ("scenes?colour=red", "scenes has no option 'colour'; it has .*count"),
        ("scenes?count=many", "option count: expected int, got 'many'"),
        ("shards:nowhere/*.tar", "nowhere"),
        ("coco:nowhere", "nowhere"),
        ("", "expected KIND:LOCATION"),
    ],
)
def test_misuse_is_one_clear_line(spec, message) -> None:
    with pytest.raises(DataError, match=message) as refusal:
        open_source(spec)
    assert "\n" not in str(refusal.value)


def test_arguments_of_another_type_are_a_mistake_of_the_program(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("path,labels\n")
    for spec in (None, tmp_path / "a.csv"):
        with pytest.raises(TypeError, match="spec: expected the name of a source, such as 'coco:PATH', got "):
            open_source(spec)
    for option, value, expected in (("separator", 3, "str"), ("split", 3, "str"), ("unify", "yes", "bool")):
        with pytest.raises(TypeError, match=f"{option}: expected {expected}, got {value!r}"):
            open_source(f"table:{tmp_path / 'a.csv'}", **{option: value})
    with pytest.raises(DataError, match="no usable image found"):  # a place may be a path
        open_source(f"table:{tmp_path / 'a.csv'}", root=tmp_path)


def test_options_in_the_name_equal_options_as_arguments() -> None:
    written, given = open_source("scenes?count=12&size=32&seed=3"), open_source("scenes", count=12, size=32, seed=3)
    assert written.fingerprint() == given.fingerprint()
    assert [sample.labels for sample in written] == [sample.labels for sample in given]


def test_a_source_is_a_sequence() -> None:
    source = memory_source()
    assert [sample.id for sample in source] == [source[index].id for index in range(4)]
    assert source[-1].id == source[3].id
    assert [sample.id for sample in source[1:3]] == [source[1].id, source[2].id]
    with pytest.raises(IndexError, match="expected an index below 4, got 4"):
        source[4]
    assert source.targets().tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]]
    assert source.notes == ["1 of 3 classes have no positive: sea"]


def test_a_subset_has_its_own_fingerprint() -> None:
    source = memory_source()
    part, same, other = (Subset(source, indices, "train") for indices in ([0, 3], [0, 3], [3, 0]))
    assert [sample.id for sample in part] == [source[0].id, source[3].id]
    assert part.fingerprint() == same.fingerprint()
    assert len({source.fingerprint(), part.fingerprint(), other.fingerprint()}) == 3


def test_the_first_ten_problems_are_named() -> None:
    problems = Problems("here")
    for index in range(13):
        problems.add(f"image-{index}", "is torn")
    with pytest.raises(DataError, match="13 problems found") as refusal:
        problems.settle()
    lines = str(refusal.value).splitlines()
    assert lines[1] == "  image-0: is torn"
    assert lines[11] == "  … and 3 more"
    assert "--on-bad skip" in lines[12]
    skipping = Problems("here", "skip")
    skipping.add("image-0", "is torn")
    skipping.settle()
    with pytest.raises(DataError, match="on_bad: expected 'stop' or 'skip'"):
        Problems("here", "ignore")
