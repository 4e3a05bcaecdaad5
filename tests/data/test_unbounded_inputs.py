"""Inputs that grow without end: linear in time, bounded in memory, or refused in one sentence."""

import contextlib
import os
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from memory_source import MemorySource
from trees_small import write_images

from contextcaps.data import DataError, open_source
from contextcaps.data.file_source import Folder
from contextcaps.data.image_files import walk_images
from contextcaps.data.inspection import inspect_source
from contextcaps.data.inspection import statistics as inspection_statistics
from contextcaps.data.sources import table_file
from contextcaps.tagging.inputs import find_images


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.perf_counter()
    yield
    assert time.perf_counter() - began < seconds


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A folder with 1,500 folders in each other, and an image in the innermost."""
    here = os.getcwd()
    (tmp_path / "deep").mkdir()
    os.chdir(tmp_path / "deep")  # the whole path would be longer than one call may take
    for _ in range(1500):
        os.mkdir("d")
        os.chdir("d")
    write_images(Path(), ["a.jpg"])
    os.chdir(here)
    yield tmp_path / "deep"
    subprocess.run(["rm", "-rf", tmp_path / "deep"], check=True)  # shutil.rmtree nests as deep as the folders


def test_a_table_of_a_hundred_thousand_columns(tmp_path) -> None:
    count = 100_000
    path = tmp_path / "wide.csv"
    names = [f"c{index}" for index in range(count)]
    write_images(tmp_path, ["a.jpg"])
    path.write_text(f"file,{','.join(names)}\na.jpg,{','.join(['1', *['0'] * (count - 1)])}\n")
    with within(10):
        source = open_source(f"table:{path}")
        assert len(source.classes) == count
    path.write_text(f"file,{','.join([*names[:-1], 'c0'])}\n")
    with within(10), pytest.raises(DataError, match="the column 'c0' is there twice"):
        open_source(f"table:{path}")


def test_a_table_of_more_rows_than_memory_holds(tmp_path, monkeypatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    zeros = pyarrow.array(np.zeros(30_000_000, np.int8)).dictionary_encode()
    path = tmp_path / "long.parquet"
    parquet.write_table(pyarrow.table({"file": zeros, "labels": zeros}), path)
    assert path.stat().st_size < 1_000_000
    with within(2), pytest.raises(DataError, match=r"long\.parquet: 30,000,000 rows of 2 columns or more; a table of"):
        open_source(f"table:{path}")
    monkeypatch.setattr(table_file, "_MOST_ROWS", 100_000)
    lines = tmp_path / "long.csv"
    lines.write_text("file,labels\n" + "a.jpg,sea\n" * 200_000)
    with pytest.raises(DataError, match=r"long\.csv: 131,072 rows of 2 columns or more"):
        open_source(f"table:{lines}")


def test_a_parquet_table_of_more_text_than_memory_holds(tmp_path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "long.parquet"

    def repeated(text: str, times: int) -> object:
        return pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(times, np.int32)), pyarrow.array([text]))

    deep = pyarrow.ListArray.from_arrays(pyarrow.array([0, 100_000], pyarrow.int32()), repeated("x" * 10**6, 100_000))
    for columns, expected in (
        ({"file": repeated("x" * 10**6, 100_000)}, "more than 1,073,741,824 bytes in its cells"),
        ({"file": ["a.jpg"], "labels": deep}, "more than 1,073,741,824 bytes in its cells"),
    ):
        parquet.write_table(pyarrow.table(columns), path, compression="zstd")
        assert path.stat().st_size < 10**6
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with within(20), pytest.raises(DataError, match=expected):
            open_source(f"table:{path}")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_500_000  # KiB


def test_a_pattern_of_more_names_than_there_are_files(tmp_path) -> None:
    for pattern, expected in (
        ("a-{0..999999}-{0..999999}.tar", "1,000,000,000,000 names; expected at most 1,000,000"),
        ("a-{0..99999999}.tar", "100,000,000 names"),
        ("a-{0..1" + 5000 * "0" + "}.tar", "expected a rising range in braces"),
        ("a-{5..3}.tar", "expected a rising range in braces"),
    ):
        with within(5), pytest.raises(DataError, match=expected):
            open_source(f"shards:{tmp_path / pattern}")


def test_a_pattern_with_many_stars_is_looked_for_once(tmp_path) -> None:
    here = tmp_path
    for _ in range(24):
        here = here / "d"
        here.mkdir()
    write_images(here, ["a.jpg"])
    with within(5):
        assert list(find_images([f"{tmp_path}/{'**/' * 20}*.jpg"])) == [str(here / "a.jpg")]


def test_folders_nested_beyond_recursion(deep) -> None:
    (image,) = find_images([str(deep)])
    assert str(image).endswith("d/a.jpg")
    (found,) = find_images([f"{deep}/**/*.jpg"])
    assert found == image or "nested too deeply for a pattern; name the folder itself" in found.why
    assert [str(path) for path in walk_images(Folder(deep), deep)[0]] == [image]


def test_a_table_whose_images_lie_in_nested_folders(deep, tmp_path) -> None:
    (tmp_path / "labels.csv").write_text("file,labels\na.jpg,sea\n")
    with within(10):
        assert len(open_source(f"table:{tmp_path / 'labels.csv'}?root={deep}")) == 1


def test_ten_thousand_classes_are_inspected_without_a_matrix_of_all_pairs() -> None:
    random = np.random.default_rng(0)
    labels = [[int(each) for each in random.choice(50, 4, replace=False)] + [50 + index] for index in range(9950)]
    source = MemorySource([np.zeros((2, 2, 3), np.uint8)] * 9950, labels, [f"k{index}" for index in range(10_000)])
    with within(20):
        found = inspect_source(source, limit=0)
    assert found.together.nbytes + found.expected.nbytes < 10_000_000
    assert found.co_occurrences
    assert found.exclusions
    assert {each.first for each in found.co_occurrences} <= set(range(50))


def test_a_yaml_file_of_a_hundred_thousand_names(tmp_path) -> None:
    names = "".join(f"- {each}\n" for each in (*range(100_000), 7))
    (tmp_path / "data.yaml").write_text(f"train: images/train\nnames:\n{names}")
    with pytest.raises(DataError, match="the class '7' stands there twice"), within(10):
        open_source(f"yolo:{tmp_path}")


def test_pairs_are_the_same_whatever_is_taken_at_once(monkeypatch) -> None:
    random = np.random.default_rng(0)
    labels = [np.flatnonzero(row).tolist() for row in random.random((300, 12)) < 0.3]
    unknown = [[index for index in range(12) if index not in row and random.random() < 0.1] for row in labels]
    for missing in (None, unknown):
        names = [f"k{index}" for index in range(12)]
        source = MemorySource([np.zeros((2, 2, 3), np.uint8)] * 300, labels, names, unknown=missing)
        whole = inspect_source(source, limit=0, least_support=2)
        with monkeypatch.context() as patch:
            patch.setattr(inspection_statistics, "_CELLS", 30)
            assert inspect_source(source, limit=0, least_support=2).co_occurrences == whole.co_occurrences
            assert inspect_source(source, limit=0, least_support=2).exclusions == whole.exclusions


@pytest.mark.parametrize("start", [b"file,labels\na.jpg,sea\n", b"file,labels\n\xe9", b"\xff\xfef\0"])
def test_a_table_with_a_line_without_end(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes(start)
    os.truncate(path, 2**40)  # holes: it takes no room on the disk
    began = time.perf_counter()
    with pytest.raises(DataError) as caught:
        open_source(f"table:{path}")
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value)) < 400
    assert time.perf_counter() - began < 10
