"""contextcaps tag."""

import contextlib
import dataclasses
import sys
from pathlib import Path
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
    """The file to write, instead of standard output. Rows are kept in FILE.part until it is whole."""
    resume: Flag = False
    """Go on with the rows in FILE.part, which a stopped command has left; all else has to be the same."""
    only_new: Flag = False
    """Keep the rows of FILE, and tag only images without one; those that could not be read are tried again."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="PAGE")] = None
    """Write a page with a picture of each image and its tags; rows are then written with --out or --format only."""
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
        from contextcaps.data.progress import progress_of
        from contextcaps.tagging import (
            Gallery,
            Journal,
            check_output,
            check_page,
            count_images,
            find_images,
            load,
            model_fingerprint,
            open_output,
            parse_known,
            tagged_images,
            write_tags,
        )

        if not self.images:
            raise ValueError("no images: expected files, folders, patterns, or - for names on standard input")
        form = check_output(self.out, self.format)
        if self.out is None and (self.resume or self.only_new):
            raise ValueError(f"--{'resume' if self.resume else 'only-new'}: needs the file with the rows: --out FILE")
        journal = None if self.out is None else Journal(self.out, self.resume)
        if self.html is not None:
            check_page(self.html, self.out)
        rows = self.html is None or self.out is not None or self.format is not None
        known = None if self.known is None else parse_known(self.known)
        tagger = load(self.model, self.device)
        images = find_images(self.images)
        taggings = tagger.tag_stream(
            images if journal is None else journal.left(images),
            threshold=self.threshold,
            precision_at_least=self.precision_at_least,
            recall_at_least=self.recall_at_least,
            top_k=self.top_k,
            batch_size=self.batch_size,
            workers=self.workers,
            known=known,
        )
        shown = not self.quiet and (self.out is not None or not rows or not sys.stdout.isatty())
        columns = (form, tagger.classes, self.scores == "all", known is not None)
        progress = progress_of("tagging", count_images(self.images) if shown else None, shown)
        gallery = None if self.html is None else Gallery()
        if self.out is None or journal is None:
            opened = open_output(None, *columns) if rows else contextlib.nullcontext()
            with contextlib.closing(taggings), opened as output, progress as tell:
                count = write_tags(taggings if gallery is None else gallery.passing(taggings), output, tell)
        else:
            before = tagged_images(self.out, *columns) if self.only_new else set()
            of_work = ("model", "out", "html", "format", "resume", "batch_size", "device", "workers", "quiet")
            settings = {"model": model_fingerprint(tagger), **self.keywords(*of_work)}
            with journal.kept(settings, self.scores == "all", before):
                with contextlib.closing(taggings), progress as tell:
                    count = write_tags(taggings, journal, tell)
                with open_output(self.out, *columns) as output:
                    if before:
                        output.copy(self.out)
                    kept = journal.taggings()
                    write_tags(kept if gallery is None else gallery.passing(kept), output)
        if gallery is not None and self.html is not None:
            with gallery:
                by = f"{self.model} ({tagger.network.config.model}, {counted(len(tagger.classes), 'class')})"
                gallery.write(self.html, "Tagged images", f"Tagged by {by}.")
        if not self.quiet:
            skipped = f", {journal.skipped:,} had a row" if journal is not None and journal.skipped else ""
            tagged = f"{counted(count.tagged, 'image')} tagged, {count.failed:,} could not be read{skipped}"
            page = "" if self.html is None else f"; {self.html} shows them"
            print(f"{tagged}{page}", file=sys.stderr)
        if count.failed:
            raise SystemExit(ExitCode.FAILED)
