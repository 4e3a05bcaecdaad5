"""contextcaps tag."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from contextcaps.cli.command import Command, Flag, Number, refuse_models
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
    out: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """The file to write, instead of standard output. Rows are kept in FILE.part until it is whole. With --engine ray a
    folder, or its address such as s3://BUCKET/FOLDER."""
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
    """Images to decode at once; as many as there are cores by default. With --engine ray: processes that hold the
    model, by default one for each GPU, or for each core where there is none."""
    engine: Literal["local", "ray"] = "local"
    """Tag in this process, or on Ray with many: a corpus of folders, tar shards, Parquet tables, also at addresses. The
    same command goes on with what a killed one has left."""
    address: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT")] = None
    """With --engine ray: a cluster that runs already; without it one is started on this machine, for this command."""
    block_size: int = 512
    """With --engine ray: images of a block, which is written as one file and is done again after a kill."""
    image_column: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """With --engine ray: the column of Parquet tables with images or their paths."""
    quiet: Flag = False
    """No progress and no closing line."""

    def run(self) -> None:
        from contextcaps.models.loading import DEFAULT_MODEL
        from contextcaps.tagging import Destination, load, parse_known

        if not self.images:
            raise ValueError("no images: expected files, folders, patterns, or - for names on standard input")
        refuse_models(self.images, "tag")
        model = DEFAULT_MODEL if self.model is None else self.model
        known = None if self.known is None else parse_known(self.known)
        if self.engine == "ray":
            self._run_on_ray(model, known)
            return
        self._refuse(self.engine, "address", "image_column")
        out = None if self.out is None else Path(self.out)
        destination = Destination(
            out,
            self.format,
            resume=self.resume,
            only_new=self.only_new,
            page=self.html,
            sidecars=self.xmp,
            all_scores=self.scores == "all",
        )
        of_work = ("model", "out", "html", "xmp", "format", "resume", "batch_size", "device", "workers", "quiet")
        of_ray = ("engine", "address", "block_size", "image_column")
        count = destination.tag(
            load(model, self.device),
            self.images,
            known=known,
            progress=not self.quiet and (self.out is not None or not destination.has_rows or not sys.stdout.isatty()),
            by=model,
            settings=self.keywords(*of_work, *of_ray),
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

    def _run_on_ray(self, model: str, known: dict[str, bool] | None) -> None:
        from contextcaps.corpus import CorpusOptions, Model, tag_corpus
        from contextcaps.documents import counted

        self._refuse(self.engine, "resume", "only_new", "html", "xmp")
        if self.out is None:
            raise ValueError("--engine ray: needs the folder to write to: --out FOLDER")
        if self.format not in (None, "jsonl", "parquet"):
            raise ValueError(f"--engine ray: expected --format parquet or jsonl, got {self.format}")
        count = tag_corpus(
            self.images,
            self.out,
            Model(model, self.device),
            form=self.format or "parquet",
            all_scores=self.scores == "all",
            known=known,
            batch_size=self.batch_size,
            options=CorpusOptions(
                address=self.address, workers=self.workers, block_size=self.block_size, image_column=self.image_column
            ),
            progress=not self.quiet,
            threshold=self.threshold,
            precision_at_least=self.precision_at_least,
            recall_at_least=self.recall_at_least,
            top_k=self.top_k,
        )
        if not self.quiet:
            print(f"{counted(count.tagged, 'image')} tagged: {self.out}/tags", file=sys.stderr)
            if count.failed:
                print(f"{counted(count.failed, 'image')} could not be read: {self.out}/errors", file=sys.stderr)
        if count.failed:
            raise SystemExit(ExitCode.FAILED)

    def _refuse(self, engine: str, *names: str) -> None:
        """Refuse flags that an engine does not know."""
        for name in names:
            if getattr(self, name):
                raise ValueError(f"--{name.replace('_', '-')}: not with --engine {engine}")
