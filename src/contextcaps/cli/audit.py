"""contextcaps audit."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from contextcaps.cli.command import Command, CommandConsole, File, Flag, Number, Split, require_location
from contextcaps.data.problems import OnBad
from contextcaps.documents import counted

__all__ = ["AuditLabels"]

_OF_AUDIT = ("html", "folds", "fine_tune", "trust_model", "top", "only")
"""Flags of the audit itself, which say nothing beside --apply and --ask."""


@dataclasses.dataclass(frozen=True)
class AuditLabels(Command):
    """Find labels that are probably wrong or missing; say which to ask for next.

    Each label is judged by the image and by all of its other labels.

    The data are never changed: --apply writes a corrected table.
    """

    data: Annotated[str, tyro.conf.arg(metavar="SOURCE")]
    """Images and labels, as for train: table:FILE, coco:PATH, …; with the model's classes."""
    model: Annotated[str | None, tyro.conf.arg(metavar="NAME_OR_PATH")] = None
    """A shipped model, as contextcaps models lists them (coco80 by default), a run's folder, a model's folder, or
    hf:OWNER/NAME on the Hugging Face Hub."""
    split: Split = None
    """One of the source's own splits, such as val."""
    out: File = None
    """Write the suspected labels to this CSV file, with a column `fix` to tick; with --apply, the corrected table; with
    --ask, the questions, as CSV or JSON lines."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="PAGE")] = None
    """Write a page: each image with its labels, the suspected one, and why."""
    apply: Annotated[Path | None, tyro.conf.arg(metavar="TICKED")] = None
    """Correct the labels that are ticked in this CSV file (x, yes or 1 in `fix`), and write all images and labels of
    the data to --out as a table."""
    ask: Number = None
    """Judge nothing: list for each image the N open labels (?) that would settle most of its others, if they were
    known. Where the data leave none open, all classes are asked as if no label were known."""
    top: Number = None
    """List so many labels at most, 100 by default."""
    only: Annotated[Literal["wrong", "missing"] | None, tyro.conf.arg(metavar="{wrong,missing}")] = None
    """List labels that are there and probably wrong, or that are probably missing, alone."""
    folds: Annotated[int | None, tyro.conf.arg(metavar="K")] = None
    """Where the model, a run, has learned from these images: train K models as it was trained, each on the other folds,
    with a pretrained backbone as it began. Each judges the images that it has not learned from."""
    fine_tune: Flag = False
    """With --folds, train the backbone, too, if the run did."""
    trust_model: Flag = False
    """Let the model judge images that it has learned from. It will find few of their errors."""
    batch_size: int = 64
    """Images to compute at once."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a GPU if there is one."""
    workers: Number = None
    """Images to decode at once; as many as there are cores by default."""
    on_bad: OnBad = "stop"
    """Stop at images that cannot be read, or skip them and report it."""
    quiet: Flag = False
    """No progress and no remarks, only the table."""

    def run(self) -> None:
        from contextcaps.atomic import require_place
        from contextcaps.tagging import check_page

        require_location(self.data)
        if self.out is not None:
            if self.out.suffix.lower() not in ((".csv",) if self.ask is None else (".csv", ".json", ".jsonl")):
                also = "" if self.ask is None else " or labels.jsonl"
                raise ValueError(f"--out {self.out}: expected the name of a table to write, such as labels.csv{also}")
            require_place(self.out, "--out")
        if self.apply is not None:
            self._refuse(*_OF_AUDIT, "ask", "model", "quiet", beside="--apply, which only corrects labels")
            self._correct(self.apply)
            return
        if self.ask is not None:
            self._refuse(*_OF_AUDIT, beside="--ask, which judges no label")
            self._ask(self.ask)
            return
        if self.html is not None:
            check_page(self.html, self.out)
        self._audit()

    def _refuse(self, *flags: str, beside: str) -> None:
        given = [name for name in flags if getattr(self, name) not in (None, False)]
        if given:
            raise ValueError(f"--{given[0].replace('_', '-')}: expected nothing of the audit beside {beside}")

    def _ask(self, count: int) -> None:
        from contextcaps.data import open_source
        from contextcaps.data.problems import left_out
        from contextcaps.data.progress import progress_of
        from contextcaps.models.loading import DEFAULT_MODEL
        from contextcaps.tagging import ask_labels, load, questions_table, write_questions

        source = open_source(self.data, on_bad=self.on_bad, **({} if self.split is None else {"split": self.split}))
        tagger = load(DEFAULT_MODEL if self.model is None else self.model, self.device)
        with progress_of(f"choosing what to ask of {source.name}", len(source), not self.quiet) as tell:
            found = ask_labels(
                source, tagger, count, batch_size=self.batch_size, workers=self.workers, on_bad=self.on_bad, tell=tell
            )
        if self.out is not None:
            write_questions(found, self.out)
        questions_table(found).print(CommandConsole())
        if found.problems:
            print(left_out(self.data, found.problems), file=sys.stderr)
        if self.out is not None:
            print(f"{self.out}: {counted(sum(len(asked) for _, asked in found.images), 'label')}")

    def _audit(self) -> None:
        from contextcaps.data.problems import left_out
        from contextcaps.experiments.audit import audit
        from contextcaps.models.loading import DEFAULT_MODEL
        from contextcaps.tagging import audit_table, write_audit, write_suspicions

        of_function = self.keywords("model", "out", "html", "apply", "ask", "top", "quiet")
        found = audit(
            model=DEFAULT_MODEL if self.model is None else self.model,
            top=100 if self.top is None else self.top,
            progress=not self.quiet,
            **of_function,
        )
        if self.out is not None:
            write_suspicions(found.suspicions, self.out)
        if self.html is not None:
            write_audit(found, self.html)
        audit_table(found).print(CommandConsole())
        if found.problems:
            print(left_out(self.data, found.problems), file=sys.stderr)
        for path in filter(None, (self.out, self.html)):
            print(f"{path}: {counted(len(found.suspicions), 'label')}")

    def _correct(self, ticked: Path) -> None:
        from contextcaps.data.corrected_table import write_corrected
        from contextcaps.tagging import read_ticked

        if self.out is None:
            raise ValueError("--apply: expected the name of the corrected table beside it, such as --out corrected.csv")
        if self.out.exists():  # it could be a part of the data
            raise ValueError(f"--out {self.out}: expected a new table, got a file that is there; choose another name")
        corrections = read_ticked(ticked)
        options = {} if self.split is None else {"split": self.split}
        name = write_corrected(self.data, corrections, self.out, on_bad=self.on_bad, **options)
        print(f"{counted(len(corrections), 'label')} corrected; open the table as {name}")
