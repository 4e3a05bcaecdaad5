"""contextcaps data: look at data, prepare it, convert it."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from contextcaps.atomic import require_place
from contextcaps.cli.command import Command, CommandConsole, File, Folder, SourceName, Split, require_location
from contextcaps.data.problems import DataError, OnBad, Problem, left_out
from contextcaps.documents import counted

if TYPE_CHECKING:
    from contextcaps.data import Source

__all__ = ["DataConvert", "DataInspect", "DataPrepare"]


@dataclasses.dataclass(frozen=True)
class DataInspect(Command):
    """Show what is in a source: labels, classes that go together, sizes, problems."""

    source: SourceName
    """scenes (drawn, no photographs), ade20k:PATH, coco:PATH, voc:PATH, yolo:PATH, folders:PATH, metadata:PATH,
    table:FILE, shards:PATTERN, mnist:PATH, multimnist:PATH or hf:NAME; options of the kind follow as ?option=value."""
    html: File = None
    """Write a page with charts and a contact sheet to this file, too."""
    split: Split = None
    """One of the source's own splits, such as train; without it all of them, of scenes train."""
    images: int = 2000
    """Open so many images for their sizes, evenly spread over the source; labels are counted in all."""
    check_images: bool = False
    """Decode every image to the end, to find those that cannot be read."""
    on_bad: OnBad = "stop"
    """Whether bad data, which are reported in any case, end in exit code 2 (stop) or not (skip)."""

    def run(self) -> None:
        from contextcaps.data.inspection import inspect_source, inspection_tables, write_page

        if self.html is not None:
            require_place(self.html, "--html")
        opened = _open(self.source, self.split, "skip")
        limit = None if self.check_images else self.images
        inspection = inspect_source(opened, limit=limit, check_images=self.check_images)
        console = CommandConsole()
        for table in inspection_tables(inspection):
            table.print(console)
        if self.html is not None:
            write_page(opened, inspection, self.html)
            console.print(f"Page written to {self.html}")
        if inspection.problems and self.on_bad == "stop":
            count = len(inspection.problems)
            raise DataError(f"{counted(count, 'problem')} found in {opened.name}")


@dataclasses.dataclass(frozen=True)
class DataPrepare(Command):
    """Decode and resize a source once, into a copy that later runs read fast."""

    source: SourceName
    """As for data inspect."""
    size: int = 64
    """Side of the prepared images in pixels."""
    split: Split = None
    """One of the source's own splits; without it all of them, of scenes train."""
    cache: Folder = None
    """Folder for prepared copies, instead of the user's cache."""
    on_bad: OnBad = "stop"
    """Stop at bad data, or skip it and report it."""

    def run(self) -> None:
        from contextcaps.data.prepared import prepare

        opened = _open(self.source, self.split, self.on_bad)
        _say_what_was_assumed(opened.name, opened.assumptions)
        prepared = prepare(opened, self.size, self.cache)
        part = "" if opened.split is None else f" (split {opened.split})"
        side = f"{self.size}×{self.size} px"
        print(f"{len(prepared):,} images of {side}{part}, {len(prepared.classes)} classes, in {prepared.folder}")
        _report_skipped(opened.name, [*opened.problems.found, *prepared.problems])


@dataclasses.dataclass(frozen=True)
class DataConvert(Command):
    """Write a source as tar shards, with nothing lost.

    Images byte by byte, labels, boxes and masks.
    """

    source: SourceName
    """As for data inspect."""
    to: Annotated[tuple[str, Path], tyro.conf.arg(metavar="shards FOLDER")]
    """The format, shards, and the folder to write to: --to shards FOLDER."""
    split: Split = None
    """One of the source's own splits; without it all of them, each to shards of its own."""
    samples_per_shard: int = 1000
    """Images in each tar file."""
    on_bad: OnBad = "stop"
    """Stop at bad data, or skip it and report it."""

    def run(self) -> None:
        from contextcaps.data.convert import write_all_splits

        form, folder = self.to
        if form != "shards":
            raise ValueError(f"--to {form} {folder}: expected shards as the format: --to shards {folder}")
        require_location(self.source)
        conversion = write_all_splits(
            self.source,
            folder,
            on_bad=self.on_bad,
            samples_per_shard=self.samples_per_shard,
            progress=True,
            **_split_option(self.split),
        )
        _say_what_was_assumed(self.source, conversion.assumptions)
        for part in conversion.parts:
            shards = counted(len(part.shards), "shard")
            print(f"{part.samples:,} samples of {part.split} in {shards} under {folder}")
            if part.repeated:
                print(f"  {part.repeated:,} more of {part.split} were met above already and are not written twice")
        _report_skipped(self.source, conversion.problems.found)


def _open(source: str, split: str | None, on_bad: OnBad) -> "Source":
    from contextcaps.data import open_source

    require_location(source)
    return open_source(source, on_bad=on_bad, **_split_option(split))


def _split_option(split: str | None) -> dict[str, str]:
    """Return the option only where one is given: not every kind of source has splits."""
    return {} if split is None else {"split": split}


def _say_what_was_assumed(source: str, assumptions: Sequence[str]) -> None:
    """Note on standard error what was assumed about labels and files; `data inspect` and `train` say the same."""
    for each in assumptions:
        print(f"note: {source}: {each}", file=sys.stderr)


def _report_skipped(source: str, found: Sequence[Problem]) -> None:
    """Say on standard error how many samples were left out, and the first problems."""
    if found:
        print(left_out(source, found), file=sys.stderr)
