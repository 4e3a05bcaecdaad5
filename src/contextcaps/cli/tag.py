"""contextcaps tag."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from contextcaps.cli.command import Command, File, Flag, Number, refuse_models
from contextcaps.exit_codes import ExitCode

__all__ = ["TagImages"]


@dataclasses.dataclass(frozen=True)
class TagImages(Command):
    """Tag images: at a terminal with bars, in a file or a pipe with a row for each.

    Without --model they are tagged by the model that is shipped.

    A file that cannot be read has a row that says why; the exit code is then 1.
    """

    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES...")] = ()
    """Files, folders, patterns in quotes such as 'photos/**/*.jpg', or - for names on standard input."""
    model: Annotated[str | None, tyro.conf.arg(metavar="NAME_OR_PATH")] = None
    """A shipped model, as contextcaps models lists them (coco80 by default), a run's folder, a model's folder, or
    hf:OWNER/NAME on the Hugging Face Hub."""
    format: Annotated[
        Literal["jsonl", "csv", "csv-plain", "parquet"] | None, tyro.conf.arg(metavar="{jsonl,csv,csv-plain,parquet}")
    ] = None
    """How to write the rows; by default as the suffix of --out says, bars at a terminal, otherwise jsonl. In csv a cell
    that a spreadsheet would compute (= + - @) has an apostrophe before it, in csv-plain it is as it is."""
    out: File = None
    """The file to write, instead of standard output. Rows are kept in FILE.part until it is whole."""
    resume: Flag = False
    """Go on with the rows in FILE.part, which a stopped command has left; all else has to be the same."""
    only_new: Flag = False
    """Keep the rows of FILE, and tag only images without one; those that could not be read are tried again."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="PAGE")] = None
    """Write a page with a picture of each image and its tags; rows are then written with --out or --format only."""
    xmp: Flag = False
    """Add the tags to an XMP sidecar file beside each image, which is made where there is none; images stay as they
    are."""
    threshold: Annotated[float | None, tyro.conf.arg(metavar="SCORE")] = None
    """The score from which any class counts as present, instead of each class's own."""
    precision_at_least: Annotated[float | None, tyro.conf.arg(metavar="SHARE")] = None
    """Choose one threshold for all classes: the lowest with which this share of the tags of the validation images was
    right, such as 0.8."""
    recall_at_least: Annotated[float | None, tyro.conf.arg(metavar="SHARE")] = None
    """Choose one threshold for all classes: the highest with which this share of the labels of the validation images
    was found, such as 0.9."""
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
        from contextcaps.models.loading import DEFAULT_MODEL
        from contextcaps.tagging import Destination, load, parse_known

        if not self.images:
            raise ValueError("no images: expected files, folders, patterns, or - for names on standard input")
        refuse_models(self.images, "tag")
        model = DEFAULT_MODEL if self.model is None else self.model
        destination = Destination(
            self.out,
            self.format,
            resume=self.resume,
            only_new=self.only_new,
            page=self.html,
            sidecars=self.xmp,
            all_scores=self.scores == "all",
        )
        known = None if self.known is None else parse_known(self.known)
        of_work = ("model", "out", "html", "xmp", "format", "resume", "batch_size", "device", "workers", "quiet")
        count = destination.tag(
            load(model, self.device),
            self.images,
            known=known,
            progress=not self.quiet and (self.out is not None or not destination.has_rows or not sys.stdout.isatty()),
            by=model,
            settings=self.keywords(*of_work),
            threshold=self.threshold,
            precision_at_least=self.precision_at_least,
            recall_at_least=self.recall_at_least,
            top_k=self.top_k,
            batch_size=self.batch_size,
            workers=self.workers,
        )
        if not self.quiet:
            print(*destination.closing_lines(count), sep="\n", file=sys.stderr)
        if count.failed:
            raise SystemExit(ExitCode.FAILED)
