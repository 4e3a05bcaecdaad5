"""Plans: one division of a corpus for good, and blocks that count as done only where their rows are."""

from pathlib import Path

import pyarrow
import pytest

from contextcaps.corpus.listing import LISTING, row_of
from contextcaps.corpus.plan import Done, DoneBlocks, block_file, open_plan, read_block, write_plan
from contextcaps.corpus.store import Store


def tables(*sizes: int) -> list[pyarrow.Table]:
    """Tables of so many rows each, with names that count on."""
    made, start = [], 0
    for size in sizes:
        rows = [dict(zip(LISTING.names, row_of(str(n)), strict=True)) for n in range(start, start + size)]
        made.append(pyarrow.Table.from_pylist(rows, LISTING))
        start += size
    return made


@pytest.mark.parametrize("sizes", [(10,), (3, 3, 4), (1,) * 10, (0, 7, 3)])
def test_a_division_depends_on_the_images_alone(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    store = Store(str(tmp_path / "out"))
    plan = write_plan(store, {"a": 1}, 4, tables(*sizes))
    assert (plan.images, plan.blocks) == (10, 3)
    names = [[int(name) for name in read_block(store, block)["image"].to_pylist()] for block in range(3)]
    assert names == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert open_plan(store, {"a": 1}) == plan


def test_more_blocks_than_a_file_of_the_list_holds(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    plan = write_plan(store, {}, 1, tables(1001))
    assert plan.blocks == 1001
    assert read_block(store, 1000)["image"].to_pylist() == [b"1000"]


def test_other_settings_and_other_folders_are_refused(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "out"))
    write_plan(store, {"a": 1, "b": (1, 2)}, 4, tables(3))
    assert open_plan(store, {"a": 1, "b": (1, 2)}) is not None
    with pytest.raises(ValueError, match=r"other settings \(a\)"):
        open_plan(store, {"a": 2, "b": (1, 2)})
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="expected an empty folder"):
        open_plan(Store(str(tmp_path / "theirs")), {})


def test_a_list_that_was_not_finished_is_made_anew(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    write_plan(store, {}, 1, tables(3))
    store.remove("_corpus/plan.json")
    assert open_plan(store, {}) is None


def test_a_block_is_done_if_its_rows_are_there_and_it_was_noted(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    plan = write_plan(store, {}, 2, tables(6))
    done = DoneBlocks(store, plan, "jsonl")
    assert done.left() == [0, 1, 2]
    for block in (0, 2):
        done.add(Done(block, 2, 0))
    store.write(block_file("tags", 0, "jsonl"), b"")
    store.write(block_file("tags", 1, "jsonl"), b"")  # written, but the driver was killed before it noted it
    done.note()
    again = DoneBlocks(store, plan, "jsonl")
    assert again.left() == [1, 2]
    again.add(Done(1, 1, 1))
    again.add(Done(2, 1, 0))
    with pytest.raises(OSError, match="5 rows for 6 images"):
        again.finish()


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write("a/b", b"whole")
    (tmp_path / "a" / ".b.1.tmp").write_bytes(b"ha")
    assert store.names("a") == {"a/b"}
    store.remove_temporary("a")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert store.read("a/c") is None
    at_address = Store(f"file://{tmp_path}")
    assert at_address.read("a/b") == b"whole"
    at_address.write("a/d", b"more")
    assert at_address.names("a") == {"a/b", "a/d"}
    at_address.remove("a/d")
    assert store.names("a") == {"a/b"}
