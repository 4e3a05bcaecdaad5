"""contextcaps demo."""

import dataclasses
from typing import Annotated

import tyro

from contextcaps.cli.command import Command, CommandConsole
from contextcaps.experiments.demo_config import DemoConfig

__all__ = ["DemoCommand"]


@dataclasses.dataclass(frozen=True)
class DemoCommand(Command):
    """Tag six photographs; then train and compare two models on drawn scenes.

    The shipped model tags them in seconds; training takes minutes on two cores.

    Stopped or killed, it goes on when called again.
    """

    config: Annotated[DemoConfig, tyro.conf.arg(name="")] = dataclasses.field(default_factory=DemoConfig)
    """Which photographs, where to write, and with which seed."""

    def run(self) -> None:
        from contextcaps.experiments.demo import run_demo, show_demo
        from contextcaps.experiments.photographs import show_photographs, tag_photographs

        console = CommandConsole()
        show_photographs(tag_photographs(self.config.photographs, self.config.out), console)
        show_demo(run_demo(self.config), console)
