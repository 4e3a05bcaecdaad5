"""Rows in each format read back as what was written; a file is whole or not there."""

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

import contextcaps.tagging.formats as formats_module
from contextcaps.tagging import Tag, Tagging, check_output, open_output, tagged_images, write_tags

CLASSES = ("sky; blue", "image", 'a "quoted", name', "été")
STRANGE = os.fsdecode(b"photos/\xff.jpg")
SCORES = torch.tensor([0.123456789, 0.9, 0.5, 1e-9])
ROWS = [
    Tagging("photos/a, b.jpg", (Tag("image", 0.9, 0.5), Tag("été", 0.5, 0.1)), scores=SCORES),
    Tagging("new\nline.png", (), scores=SCORES / 2),
    Tagging("bad.jpg", (), error='it begins "hello", not an image'),
    Tagging(3, (Tag('a "quoted", name', 0.25, 0.2, precision=0.31337),), scores=SCORES / 4),
    Tagging(STRANGE, (), scores=SCORES),
]


def _written(path: Path, all_scores: bool) -> Path:
    with open_output(path, None, CLASSES, all_scores) as output:
        assert write_tags(iter(ROWS), [output]) == (4, 1)
        assert not path.exists()
    assert os.listdir(path.parent) == [path.name]
    return path


@pytest.mark.parametrize("all_scores", [False, True])
def test_json_lines(all_scores, tmp_path) -> None:
    lines = _written(tmp_path / "tags.jsonl", all_scores).read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["image"] for row in rows] == [row.image for row in ROWS]  # names that are no UTF-8 included
    assert rows[0]["tags"] == [{"name": "image", "score": 0.9}, {"name": "été", "score": 0.5}]
    assert rows[3]["tags"] == [{"name": 'a "quoted", name', "score": 0.25, "precision": 0.31}]
    assert [row.get("error") for row in rows] == [row.error for row in ROWS]
    assert rows[2].keys() == {"image", "tags", "error"}
    if all_scores:
        assert list(rows[0]["scores"]) == list(CLASSES)
        assert list(rows[0]["scores"].values()) == pytest.approx(SCORES.tolist(), abs=1e-6)
    else:
        assert rows[0].keys() == {"image", "tags"}


@pytest.mark.parametrize("all_scores", [False, True])
def test_csv(all_scores, tmp_path) -> None:
    with _written(tmp_path / "tags.csv", all_scores).open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header[:4] == ["image", "tags", "scores", "error"]
    assert header[4:] == (["sky; blue", "image (class)", 'a "quoted", name', "été"] if all_scores else [])
    assert rows[0][:4] == ["photos/a, b.jpg", "image; été", "0.900000; 0.500000", ""]
    assert [row[0] for row in rows] == ["photos/a, b.jpg", "new\nline.png", "bad.jpg", "3", r"photos/\udcff.jpg"]
    assert rows[2][1:4] == ["", "", 'it begins "hello", not an image']
    if all_scores:
        assert [float(value) for value in rows[3][4:]] == pytest.approx((SCORES / 4).tolist(), abs=1e-6)
        assert rows[2][4:] == [""] * 4


@pytest.mark.parametrize("all_scores", [False, True])
def test_parquet_in_several_row_groups(all_scores, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(formats_module, "_ROW_GROUP", 2)
    path = _written(tmp_path / "tags.parquet", all_scores)
    assert pyarrow.parquet.ParquetFile(path).num_row_groups == 3
    table = pyarrow.parquet.read_table(path)
    assert str(table.schema.field("tags").type).startswith("list<")
    rows = table.to_pylist()
    assert [row["image"] for row in rows] == ["photos/a, b.jpg", "new\nline.png", "bad.jpg", "3", r"photos/\udcff.jpg"]
    assert rows[0]["tags"] == [{"name": "image", "score": np.float32(0.9)}, {"name": "été", "score": 0.5}]
    assert [row["error"] for row in rows] == [row.error for row in ROWS]
    if all_scores:
        assert table.column_names[3:] == ["sky; blue", "image (class)", 'a "quoted", name', "été"]
        assert [rows[1][name] for name in table.column_names[3:]] == (SCORES / 2).tolist()  # exact
        assert rows[2]["été"] is None
    else:
        assert table.column_names == ["image", "tags", "error"]


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_no_rows_are_a_valid_file(suffix, tmp_path) -> None:
    path = tmp_path / f"tags.{suffix}"
    with open_output(path, None, CLASSES, True) as output:
        assert write_tags([], [output]) == (0, 0)
    if suffix == "parquet":
        assert pyarrow.parquet.read_table(path).num_rows == 0
    else:
        assert len(path.read_text().splitlines()) == (suffix == "csv")


def _until(error: type[BaseException]) -> Iterator[Tagging]:
    yield from ROWS
    raise error


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_error_leaves_no_half_file_and_the_old_one_as_it_was(suffix, error, tmp_path) -> None:
    for name, before in (("new", None), ("old", b"what was there")):
        path = tmp_path / f"{name}.{suffix}"
        if before is not None:
            path.write_bytes(before)
        with pytest.raises(error), open_output(path, None, CLASSES) as output:
            write_tags(_until(error), [output])
        assert (path.read_bytes() if path.exists() else None) == before
    assert os.listdir(tmp_path) == [f"old.{suffix}"]


def test_a_link_stays_a_link(tmp_path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "tags.csv").symlink_to(tmp_path / "real" / "tags.csv")
    with open_output(tmp_path / "tags.csv", None, CLASSES) as output:
        output.write(ROWS[0])
    assert (tmp_path / "tags.csv").is_symlink()
    assert "été" in (tmp_path / "real" / "tags.csv").read_text("utf-8")


def test_standard_output_has_each_row_at_once(capfdbinary) -> None:
    with open_output(None, None, CLASSES) as output:
        for row in ROWS:
            output.write(row)
            assert json.loads(capfdbinary.readouterr().out)["image"] == row.image


def test_the_format_comes_from_the_suffix_unless_it_is_given(tmp_path) -> None:
    assert check_output(None, None) == "jsonl"
    assert check_output(None, "csv") == "csv"
    assert check_output(tmp_path / "a.NDJSON", None) == "jsonl"
    assert check_output(tmp_path / "a.parquet", None) == "parquet"
    assert check_output(tmp_path / "a.parquet", "csv") == "csv"
    assert check_output(tmp_path / "a.txt", "jsonl") == "jsonl"


def test_columns_of_classes_never_share_a_name() -> None:
    classes = ("image", "image (class)", "sky")
    names = formats_module.class_columns(classes, ("image", "tags"))
    assert names == ("image (class) (class)", "image (class)", "sky")


FORMULAS = ("=1+1.jpg", "+a.png", "-b.png", "@c.png", "'=d.png", "'plain.png", "a=b.png", "\tx.png", "one\rtwo.png")


@pytest.mark.parametrize("form", ["csv", "csv-plain"])
def test_csv_that_a_spreadsheet_may_open(form, tmp_path) -> None:
    path, classes = tmp_path / "tags.csv", ("=cmd|' /C calc'!A0", "sea")
    rows = [Tagging(name, (Tag(classes[0], 0.9, 0.5), Tag("sea", 0.8, 0.5))) for name in FORMULAS]
    with open_output(path, form, classes, True) as output:
        write_tags(rows, [output])
    with path.open(newline="") as file:
        header, *found = csv.reader(file)
    names, tags = [row[0] for row in found], [row[1] for row in found]
    assert len(found) == len(FORMULAS)
    assert all(len(row) == len(header) for row in found)
    if form == "csv-plain":
        assert names == list(FORMULAS)
        assert tags[0].startswith("=cmd")
    else:
        assert names[:5] == ["'=1+1.jpg", "'+a.png", "'-b.png", "'@c.png", "''=d.png"]
        assert names[5:7] == list(FORMULAS[5:7])  # nothing that is computed
        assert not any(cell[:1] in {*"=+-@\t\r"} for row in [header, *found] for cell in row)
    assert tagged_images(path, form, classes, True, False) == set(FORMULAS)  # --only-new knows them again
    with open_output(tmp_path / "again.csv", form, classes, True) as output:
        output.copy(path)
    assert (tmp_path / "again.csv").read_bytes() == path.read_bytes()


def test_files_have_the_mode_that_the_umask_gives(tmp_path) -> None:
    before = os.umask(0o027)
    try:
        for suffix in ("jsonl", "csv", "parquet"):
            assert _written_mode(tmp_path / f"tags.{suffix}") == 0o640
    finally:
        os.umask(before)


def _written_mode(path: Path) -> int:
    with open_output(path, None, CLASSES) as output:
        output.write(ROWS[0])
    return path.stat().st_mode & 0o777
