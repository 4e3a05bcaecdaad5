"""contextcaps tag."""

import contextlib
import dataclasses
import sys
from typing import Annotated, Literal

import tyro

from contextcaps.cli.command import Command, File, Flag, Number
from contextcaps.documents import counted
from contextcaps.exit_codes import ExitCode

__all__ = ["TagImages"]


@dataclasses.dataclass(frozen=True)
class TagImages(Command):
    """Tag images with a trained model: a row for each, with classes and scores.

    A file that cannot be read has a row that says why; the exit code is then 1.
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_MODEL")]
    """A run's folder, a model's folder, or hf:OWNER/NAME on the Hugging Face Hub."""
    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES...")] = ()
    """Files, folders, patterns in quotes such as 'photos/**/*.jpg', or - for names on standard input."""
    format: Annotated[Literal["jsonl", "csv", "parquet"] | None, tyro.conf.arg(metavar="{jsonl,csv,parquet}")] = None
    """How to write the rows; by default as the suffix of --out says, or jsonl."""
    out: File = None
    """The file to write, instead of standard output."""
    threshold: Annotated[float | None, tyro.conf.arg(metavar="SCORE")] = None
    """The score from which any class counts as present, instead of each class's own."""
    top_k: Number = None
    """At most so many tags for each image; with --threshold 0 exactly so many."""
    scores: Literal["tags", "all"] = "tags"
    """Write the scores of the tags, or of all classes."""
    known: Annotated[str | None, tyro.conf.arg(metavar="CLASS=yes,CLASS=no,…")] = None
    """What is known of all these images, such as "oven=yes,bed=no"; the model takes it into account."""
    batch_size: int = 64
    """Images to compute at once."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a GPU if there is one."""
    workers: Number = None
    """Images to decode at once; as many as there are cores by default."""
    quiet: Flag = False
    """No progress and no closing line."""

    def run(self) -> None:
        from contextcaps.data.progress import progress_of
        from contextcaps.tagging import (
            check_output,
            count_images,
            find_images,
            load,
            open_output,
            parse_known,
            write_tags,
        )

        if not self.images:
            raise ValueError("no images: expected files, folders, patterns, or - for names on standard input")
        form = check_output(self.out, self.format)
        known = None if self.known is None else parse_known(self.known)
        tagger = load(self.model, self.device)
        taggings = tagger.tag_stream(
            find_images(self.images),
            threshold=self.threshold,
            top_k=self.top_k,
            batch_size=self.batch_size,
            workers=self.workers,
            known=known,
        )
        shown = not self.quiet and (self.out is not None or not sys.stdout.isatty())
        with (
            contextlib.closing(taggings),
            open_output(self.out, form, tagger.classes, self.scores == "all", given=known is not None) as output,
            progress_of("tagging", count_images(self.images) if shown else None, shown) as tell,
        ):
            count = write_tags(taggings, output, tell)
        if not self.quiet:
            print(f"{counted(count.tagged, 'image')} tagged, {count.failed:,} could not be read", file=sys.stderr)
        if count.failed:
            raise SystemExit(ExitCode.FAILED)
