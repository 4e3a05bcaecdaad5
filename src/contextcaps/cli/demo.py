"""contextcaps demo."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from contextcaps.cli.command import Command, CommandConsole, Flag, Folder

__all__ = ["DemoCommand"]


@dataclasses.dataclass(frozen=True)
class DemoCommand(Command):
    """Train capsnet and contextcaps on drawn scenes, compare them, tag six images.

    Takes minutes on two cores. Stopped or killed, it goes on when called again.
    """

    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs/demo")
    """Where runs, tables and pictures go; what a demo has finished there is used again."""
    seed: int = 0
    """Seed of everything that is random in training, and of the choice of the six images."""
    cache: Folder = None
    """Folder for prepared copies, instead of the user's cache."""
    quiet: Flag = False
    """No progress, only the results."""

    def run(self) -> None:
        from contextcaps.experiments import DemoSettings, run_demo, show_demo

        demo = run_demo(self.out, DemoSettings(seed=self.seed), cache=self.cache, progress=not self.quiet)
        show_demo(demo, CommandConsole())
