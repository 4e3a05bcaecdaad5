"""Divide a corpus into blocks of neighbouring images, once, and know which blocks are done.

Everything is kept beside the output, in its folder `_corpus`, so that the same command goes on from any machine:

    _corpus/plan.json       what was asked for, by which model; how many images and blocks there are
    _corpus/listing/        where each image is (`contextcaps.corpus.listing`), a Parquet row group for each block
    _corpus/done/           blocks that are done, with their counts: JSON files, written every few seconds
    _corpus/manifest.json   the counts of the whole, when all is done
    tags/00000/             a file for each block, with the rows of its images; a folder for each thousand
    errors/00000/           a file for each block with images that could not be read, with their reasons

A block is done if its file in `tags` is there and one in `_corpus/done` names it. A block that was being written when a
run was killed is simply written again: the same block has the same images, and so the same rows.
"""

import dataclasses
import io
import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow
import pyarrow.parquet

from contextcaps.corpus.listing import LISTING
from contextcaps.corpus.store import Store
from contextcaps.plain_files import parse_json

__all__ = ["Done", "DoneBlocks", "Plan", "block_file", "open_plan", "read_block", "write_plan"]

_PLAN = "_corpus/plan.json"
_MANIFEST = "_corpus/manifest.json"
_PER_FOLDER = 1000  # blocks; more files in a folder make listing it slow on some file systems
_NOTE_EVERY = 2.0  # seconds


@dataclasses.dataclass(frozen=True)
class Plan:
    """A corpus divided into blocks."""

    settings: dict[str, Any]
    """All that the rows depend on."""
    images: int
    block_size: int
    """Images of a block; the last one has what is left."""

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return -(-self.images // self.block_size)


@dataclasses.dataclass(frozen=True)
class Done:
    """A block that is done."""

    block: int
    tagged: int
    failed: int


def block_file(table: str, number: int, form: str) -> str:
    """Return the name of a block's file.

    >>> block_file("tags", 1234, "jsonl")
    'tags/00001/block-000001234.jsonl'
    """
    return f"{table}/{number // _PER_FOLDER:05d}/block-{number:09d}.{form}"


def read_block(store: Store, number: int) -> pyarrow.Table:
    """Read the list of one block's images, rows of `LISTING`."""
    with store.open(_listing_file(number // _PER_FOLDER)) as content, pyarrow.parquet.ParquetFile(content) as file:
        return file.read_row_group(number % _PER_FOLDER)


def _listing_file(part: int) -> str:
    return f"_corpus/listing/part-{part:06d}.parquet"


def open_plan(store: Store, settings: Mapping[str, Any]) -> Plan | None:
    """Return the plan that is there; None if the folder is empty, or was left before its plan was whole.

    Raises:
        ValueError: the folder has something else, or a plan of other settings.
    """
    content = store.read(_PLAN)
    if content is None:
        if not store.is_empty() and not store.names("_corpus"):
            raise ValueError(f"--out {store.root}: expected an empty folder, or one that --engine ray has begun")
        return None
    try:
        plan = Plan(**parse_json(content))
        sizes = (plan.images, plan.block_size - 1)
        if not isinstance(plan.settings, dict) or any(type(each) is not int or each < 0 for each in sizes):
            raise ValueError("not what was written")
    except (ValueError, TypeError):
        raise ValueError(f"{store.root}/{_PLAN}: damaged; remove the folder to begin anew") from None
    asked = json.loads(json.dumps(dict(settings), default=str))
    other = [name for name in {**plan.settings, **asked} if plan.settings.get(name) != asked.get(name)]
    if other:
        raise ValueError(
            f"--out {store.root}: was begun with other settings ({', '.join(other)}); ask for the same as then, or "
            "write to another folder"
        )
    return plan


def write_plan(store: Store, settings: Mapping[str, Any], block_size: int, listed: Iterable[pyarrow.Table]) -> Plan:
    """Write the list of a corpus, and then the plan, which makes it valid.

    Args:
        store: the output.
        settings: all that the rows depend on.
        block_size: images of a block.
        listed: tables of `LISTING`, in order, of any number of rows.
    """
    images, part = 0, 0
    buffer, writer = io.BytesIO(), None
    groups = 0
    for block in _in_blocks(listed, block_size):
        if writer is None:
            buffer = io.BytesIO()
            writer = pyarrow.parquet.ParquetWriter(buffer, LISTING)
        writer.write_table(block, row_group_size=max(1, len(block)))
        images, groups = images + len(block), groups + 1
        if groups == _PER_FOLDER:
            writer.close()
            store.write(_listing_file(part), buffer.getvalue())
            part, groups, writer = part + 1, 0, None
    if writer is not None:
        writer.close()
        store.write(_listing_file(part), buffer.getvalue())
    plan = Plan(json.loads(json.dumps(dict(settings), default=str)), images, block_size)
    store.write(_PLAN, json.dumps(dataclasses.asdict(plan), indent=1).encode())
    return plan


def _in_blocks(listed: Iterable[pyarrow.Table], size: int) -> Iterator[pyarrow.Table]:
    waiting: list[pyarrow.Table] = []
    rows = 0
    for table in listed:
        waiting.append(table)
        rows += len(table)
        if rows >= size:
            whole = pyarrow.concat_tables(waiting)
            last = rows - rows % size
            for start in range(0, last, size):
                yield whole.slice(start, size)
            waiting, rows = [whole.slice(last)], rows - last
    if rows:
        yield pyarrow.concat_tables(waiting).combine_chunks()


def _noted(content: bytes) -> list[Done]:
    """Return the blocks of a note; none of one that is damaged: they are done once more, into the same files."""
    try:
        found = [Done(*row) for row in parse_json(content)]
    except (ValueError, TypeError):
        return []
    return [done for done in found if all(type(each) is int for each in dataclasses.astuple(done))]


class DoneBlocks:
    """The blocks that are done, as they are noted beside the output.

    Args:
        store: the output.
        plan: of the corpus.
        form: of the rows, the suffix of their files.
    """

    def __init__(self, store: Store, plan: Plan, form: str) -> None:
        self.store, self.plan = store, plan
        self._session, self._part, self._new = uuid.uuid4().hex[:12], 0, []  # type: ignore[var-annotated]
        self._noted = time.monotonic()
        there = store.names("tags")
        self.blocks: dict[int, Done] = {}
        for name in sorted(store.names("_corpus/done")):
            for done in _noted(store.read(name) or b"[]"):
                if block_file("tags", done.block, form) in there:
                    self.blocks[done.block] = done

    def left(self) -> list[int]:
        """Return the blocks that are still to be done."""
        return [number for number in range(self.plan.blocks) if number not in self.blocks]

    def add(self, done: Done) -> None:
        """Take a block; note it with others every few seconds."""
        self.blocks[done.block] = done
        self._new.append(dataclasses.astuple(done))
        if time.monotonic() - self._noted >= _NOTE_EVERY:
            self.note()

    def note(self) -> None:
        """Write down the blocks that have been done since the last time."""
        if self._new:
            self.store.write(f"_corpus/done/{self._session}-{self._part:06d}.json", json.dumps(self._new).encode())
            self._part, self._new = self._part + 1, []
        self._noted = time.monotonic()

    def finish(self) -> None:
        """Check that every image is accounted for, write the manifest, remove what killed workers left."""
        self.note()
        tagged = sum(done.tagged for done in self.blocks.values())
        failed = sum(done.failed for done in self.blocks.values())
        if tagged + failed != self.plan.images or len(self.blocks) != self.plan.blocks:
            raise OSError(
                f"{self.store.root}: {tagged + failed:,} rows for {self.plan.images:,} images; this is a mistake of "
                "contextcaps: please report it"
            )
        manifest = {
            "images": self.plan.images,
            "tagged": tagged,
            "failed": failed,
            "blocks": self.plan.blocks,
            "block_size": self.plan.block_size,
            "settings": self.plan.settings,
        }
        for table in ("tags", "errors", "_corpus"):
            self.store.remove_temporary(table)
        self.store.write(_MANIFEST, json.dumps(manifest, indent=1).encode())
