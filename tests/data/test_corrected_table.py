"""Corrected tables: what they hold, where their paths lead, names of every kind; the source stays as it was."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from contextcaps.data import DataError, open_source
from contextcaps.data.corrected_table import Correction, corrected_targets, write_corrected
from contextcaps.data.unknown import UNKNOWN

NAMES = ("a.png", "b, c.png", 'd "e".png', "<b>f&.png", "sub/g;h|i.png", "line\nbreak.png")
CLASSES = ("cat", "dog, small", '<i>"bird"</i>')
ROWS = (("1", "0", "?"), ("0", "1", "0"), ("1", "1", "1"), ("0", "0", "1"), ("1", "?", "0"), ("0", "1", "1"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of six images with names that hold commas, quotes, markup and a line break."""
    (tmp_path / "data" / "sub").mkdir(parents=True)
    for index, name in enumerate(NAMES):
        Image.new("RGB", (8, 8), (40 * index, 0, 0)).save(tmp_path / "data" / name)
    path = tmp_path / "data" / "labels.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("path", *CLASSES), *((name, *row) for name, row in zip(NAMES, ROWS, strict=True))])
    return path


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """The contents and times of all files below a folder."""
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_labels_become_others_and_all_else_stays(table, tmp_path) -> None:
    before = snapshot(tmp_path)
    corrections = [
        Correction("b, c.png", "dog, small", False, "row 2"),
        Correction("<b>f&.png", "cat", True, "row 3"),
        Correction("line\nbreak.png", '<i>"bird"</i>', False, "row 4"),
    ]
    name = write_corrected(f"table:{table}", corrections, table.with_name("corrected.csv"))
    assert name == f"table:{table.with_name('corrected.csv')}?unlabelled=keep"  # b, c.png has none now
    found, source = open_source(name), open_source(f"table:{table}")
    assert found.classes == source.classes == CLASSES
    assert [found.id_of(index) for index in range(len(found))] == list(NAMES)
    changed = np.argwhere(found.targets() != source.targets()).tolist()
    assert changed == [[1, 1], [3, 0], [5, 2]]
    assert found.targets()[0, 2] == UNKNOWN
    table.with_name("corrected.csv").unlink()
    assert snapshot(tmp_path) == before


def test_a_table_elsewhere_names_the_folder_of_the_images(table, tmp_path, monkeypatch) -> None:
    (tmp_path / "a b").mkdir()
    monkeypatch.chdir(tmp_path)
    name = write_corrected(f"table:{table}", [], Path("a b/corrected.csv"))
    assert name == f"table:a b/corrected.csv?root={tmp_path.as_posix()}/data"
    np.testing.assert_array_equal(open_source(name).targets(), open_source(f"table:{table}").targets())


def test_splits_have_a_column(tmp_path) -> None:
    for part, colour in (("train", 0), ("train", 90), ("val", 180)):
        folder = tmp_path / "set" / part / ("cat" if colour else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (colour, 0, 0)).save(folder / f"{colour}.png")
    source = open_source(f"folders:{tmp_path / 'set'}")
    assert len(source.splits) == 2
    name = write_corrected(f"folders:{tmp_path / 'set'}", [], tmp_path / "new.csv")
    assert open_source(name).splits == ("train", "val")
    assert [len(open_source(name, split=each)) for each in ("train", "val")] == [2, 1]
    assert len(open_source(write_corrected(f"folders:{tmp_path / 'set'}", [], tmp_path / "n.csv", split="val"))) == 1


def test_spellings_that_are_two_classes_stay_two(table) -> None:
    source = open_source(f"table:{table}")
    text = table.read_text("utf-8").replace('"dog, small"', "Cat", 1)
    table.write_text(text, "utf-8")
    assert open_source(f"table:{table}?unify=false").classes == ("cat", "Cat", '<i>"bird"</i>')
    name = write_corrected(f"table:{table}?unify=false", [], table.with_name("new.csv"))
    assert "unify=false" in name
    np.testing.assert_array_equal(open_source(name).targets(), source.targets())


@pytest.mark.parametrize(
    ("correction", "message"),
    [
        (("z.png", "cat", False), "^row 2: table:.* has no image 'z.png'; expected the data, and the split, of the"),
        (("a.png", "cow", False), "^row 2: table:.* has no class 'cow'"),
        (("a.png", "cat", True), "^row 2: 'cat' is present in 'a.png' .* cannot become present"),
        (("a.png", '<i>"bird"</i>', True), "is unknown in 'a.png'"),
    ],
)
def test_corrections_that_do_not_fit_are_refused(correction, message, table) -> None:
    with pytest.raises(DataError, match=message):
        corrected_targets(open_source(f"table:{table}"), [Correction(*correction, "row 2")])
    with pytest.raises(DataError, match=message):
        write_corrected(f"table:{table}", [Correction(*correction, "row 2")], table.with_name("new.csv"))
    assert not table.with_name("new.csv").exists()


def test_images_that_are_no_files_are_refused(tmp_path) -> None:
    with pytest.raises(DataError, match=r"^scenes.*: its images are no files of their own"):
        write_corrected("scenes?count=20&size=32", [], tmp_path / "new.csv")


def test_a_class_that_is_called_as_a_usual_column_is_refused(tmp_path) -> None:
    for name in ("tag", "cat"):
        (tmp_path / "set" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), (len(name), 0, 0)).save(tmp_path / "set" / name / f"{name}.png")
    with pytest.raises(DataError, match="would be read otherwise"):
        write_corrected(f"folders:{tmp_path / 'set'}", [], tmp_path / "new.csv")
    assert not (tmp_path / "new.csv").exists()
