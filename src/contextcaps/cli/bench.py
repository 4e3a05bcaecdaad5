"""contextcaps bench."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from contextcaps.cli.command import Command, CommandConsole, Flag, Folder
from contextcaps.experiments.bench.settings import BenchSettings

__all__ = ["BenchCommand"]

_OF_TAGGING = ("device", "seconds")
"""Settings that tagging has, too."""


@dataclasses.dataclass(frozen=True)
class BenchCommand(Command):
    """Measure time and memory of the capsule head: eager, compiled, triton, lean.

    Beside them stand the machine's ceilings and the floor that follows from them.

    With --tagging, measure how fast images are tagged instead.
    """

    tagging: Flag = False
    """Measure tagging: the first tag of a new process, one image, many images, decoding alone, the network alone."""
    model: Annotated[str | None, tyro.conf.arg(metavar="NAME_OR_PATH")] = None
    """With --tagging: a shipped model (coco80 by default), a run's folder or a model's."""
    images: Folder = None
    """With --tagging: a folder with images, instead of drawn ones of 640×480 and 4000×3000 pixels."""
    no_compile: Flag = False
    """With --tagging: leave out torch.compile and 8 bits, which take some minutes."""
    settings: Annotated[BenchSettings, tyro.conf.arg(name="")] = dataclasses.field(default_factory=BenchSettings)
    """What to measure."""
    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs/bench")
    """Where tables and pictures go."""
    quiet: Flag = False
    """No progress, only the tables."""

    def run(self) -> None:
        self._require_together()
        from contextcaps.experiments.bench.outcome import Outcome, show_bench

        bench: Outcome
        if self.tagging:
            from contextcaps.experiments.bench.tagging import run_tagging_bench
            from contextcaps.models.loading import DEFAULT_MODEL

            model = DEFAULT_MODEL if self.model is None else self.model
            device, seconds = self.settings.device, self.settings.seconds
            bench = run_tagging_bench(
                model, self.images, device, seconds, self.out, not self.quiet, not self.no_compile
            )
        else:
            from contextcaps.experiments.bench.bench import run_bench

            bench = run_bench(self.settings, self.out, progress=not self.quiet)
        show_bench(bench, CommandConsole())

    def _require_together(self) -> None:
        """Refuse flags of the other benchmark."""
        if not self.tagging:
            for flag, value in (
                ("--model", self.model),
                ("--images", self.images),
                ("--no-compile", self.no_compile or None),
            ):
                if value is not None:
                    raise ValueError(f"{flag}: is for tagging; add --tagging")
            return
        for field in dataclasses.fields(BenchSettings):
            if field.name not in _OF_TAGGING and getattr(self.settings, field.name) != field.default:
                flag = f"--{field.name.replace('_', '-')}"
                raise ValueError(f"{flag}: is for the head, which --tagging does not measure; leave one of them out")
