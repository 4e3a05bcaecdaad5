"""contextcaps demo."""

import dataclasses
from typing import Annotated

import tyro

from contextcaps.cli.command import Command, CommandConsole
from contextcaps.experiments.demo_config import DemoConfig

__all__ = ["DemoCommand"]


@dataclasses.dataclass(frozen=True)
class DemoCommand(Command):
    """Train capsnet and contextcaps on drawn scenes, compare them, tag six images.

    Takes minutes on two cores. Stopped or killed, it goes on when called again.
    """

    config: Annotated[DemoConfig, tyro.conf.arg(name="")] = dataclasses.field(default_factory=DemoConfig)
    """Where, and with which seed."""

    def run(self) -> None:
        from contextcaps.experiments.demo import run_demo, show_demo

        show_demo(run_demo(self.config), CommandConsole())
