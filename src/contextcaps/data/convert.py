"""Convert any source to tar shards, which `shards:FOLDER/*.tar` reads back as the same samples in the same order."""

import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contextcaps.data.problems import DataError, OnBad, Problems
from contextcaps.data.progress import progress_of
from contextcaps.data.shard_writer import NO_SPLIT, Part, ShardEncoder, write_parts
from contextcaps.data.source import Source
from contextcaps.data.source_registry import open_source

__all__ = ["Conversion", "Part", "write_all_splits", "write_shards"]

_IN_NO_SPLIT = "other"


@dataclasses.dataclass(frozen=True)
class Conversion:
    """Describes what `write_all_splits` wrote, and what it left out."""

    parts: tuple[Part, ...]
    problems: Problems
    assumptions: tuple[str, ...]
    """What the source assumed about labels and files."""


def write_shards(
    source: Source,
    folder: str | os.PathLike[str],
    *,
    split: str | None = None,
    samples_per_shard: int = 1000,
    progress: bool = False,
) -> list[Path]:
    """Write a source's samples to FOLDER/SPLIT-00000.tar, SPLIT-00001.tar and so on, and its classes to classes.json.

    Nothing is lost: JPEG, PNG and WebP files are copied byte by byte, pixels and other formats become PNG, ids, labels,
    boxes (to `BOX_DECIMALS` decimals) and masks are kept. The same source gives the same bytes. All shards are written
    under a name beginning with a dot, and get their own names once all are complete; if anything fails, none is left.

    Args:
        source: the samples. An image that cannot be decoded to its end is a problem: with on_bad="stop" all are named
            and nothing is written; with "skip" they are left out and added to `source.problems`.
        folder: new, empty, or with the shards of other splits of the same classes.
        split: prefix of the shards' names; None is the source's own split, or "all".
        samples_per_shard: samples in each shard, fewer in the last.
        progress: show the progress on standard error.

    Returns:
        The shards' paths.
    """
    name = split or source.split or NO_SPLIT
    problems = Problems(source.name, source.problems.on_bad)
    parts = iter([(name, source)])
    with progress_of(source.name, len(source), progress) as tell:
        encoder = ShardEncoder(problems, tell)
        (part,) = write_parts(parts, [name], source.classes, Path(folder), name, samples_per_shard, encoder)
    source.problems.found += problems.found
    return list(part.shards)


def write_all_splits(
    spec: str,
    folder: str | os.PathLike[str],
    *,
    on_bad: OnBad = "stop",
    samples_per_shard: int = 1000,
    progress: bool = False,
    **options: Any,
) -> Conversion:
    """Write all of a source as `write_shards` does, each of its splits to shards of its own; all of them, or nothing.

    Every sample is written once, so that `shards:FOLDER/*.tar` reads them all back: one that several splits have, to
    the first of these; those that are in no split, to shards named other-*.tar. If a split is asked for, in the
    options or in the name, only that one is written.

    Args:
        spec, on_bad, options: as in `open_source`.
        folder: new or empty; for one split also with the shards of other splits of the same classes.
        samples_per_shard: samples in each shard, fewer in the last of each split.
        progress: show the progress on standard error.
    """
    source = open_source(spec, on_bad=on_bad, **options)
    is_one_part = not source.splits or "split" in options or re.search(r"[?&]split=[^?]*$", spec) is not None
    opened = (
        {} if is_one_part else {name: open_source(spec, on_bad=on_bad, **options, split=name) for name in source.splits}
    )
    for name, part in opened.items():
        if part.classes != source.classes:
            raise DataError(
                f"{spec}: the classes of {name} differ from those of the whole; convert it with split={name}"
            )
    # Some kinds open one of their splits where none is asked for: then all samples are in splits.
    has_whole = source.split is None
    total = len(source) if has_whole else sum(len(part) for part in opened.values()) or len(source)
    problems = Problems(source.name, on_bad)
    problems.found = list(dict.fromkeys(found for each in (source, *opened.values()) for found in each.problems.found))
    rest = _IN_NO_SPLIT
    while rest in opened:
        rest += "_"
    whole = source.split or NO_SPLIT

    with progress_of(source.name, total, progress) as tell:
        encoder = ShardEncoder(problems, tell)

        def parts() -> Iterator[tuple[str, Source]]:
            yield from opened.items()
            if not opened:
                yield whole, source
            elif has_whole and encoder.count < len(source):
                yield rest, source

        names = [*opened, rest] if opened else [whole]
        partial_name = NO_SPLIT if opened else whole
        written = write_parts(parts(), names, source.classes, Path(folder), partial_name, samples_per_shard, encoder)
    return Conversion(tuple(written), problems, tuple(source.assumptions))
