"""contextcaps bench."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from contextcaps.cli.command import Command, CommandConsole, Flag
from contextcaps.experiments.bench.settings import BenchSettings

__all__ = ["BenchCommand"]


@dataclasses.dataclass(frozen=True)
class BenchCommand(Command):
    """Measure time and memory of the capsule head: eager, compiled, triton, lean.

    Beside them stand the machine's ceilings and the floor that follows from them.
    """

    settings: Annotated[BenchSettings, tyro.conf.arg(name="")] = dataclasses.field(default_factory=BenchSettings)
    """What to measure."""
    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs/bench")
    """Where tables and pictures go."""
    quiet: Flag = False
    """No progress, only the tables."""

    def run(self) -> None:
        from contextcaps.experiments.bench.bench import run_bench, show_bench

        show_bench(run_bench(self.settings, self.out, progress=not self.quiet), CommandConsole())
