"""contextcaps serve."""

import dataclasses
import os
import sys
from typing import Annotated

import tyro

from contextcaps.cli.command import Command, Flag
from contextcaps.serving.config import ServeConfig

__all__ = ["Serve"]


@dataclasses.dataclass(frozen=True)
class Serve(Command):
    """Open a page to tag photographs with, and an HTTP API, on this machine.

    Photographs stay in memory, and go to no other machine.
    """

    config: Annotated[ServeConfig, tyro.conf.arg(name="")] = dataclasses.field(default_factory=ServeConfig)
    """What to serve, where, and within which limits."""
    no_browser: Flag = False
    """Do not show the page in a browser, where there is one."""

    def run(self) -> None:
        from contextcaps.extras import import_extra

        for module in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
            import_extra(module, "serve", "contextcaps serve")
        from contextcaps.serving.server import serve

        has_screen = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
        serve(self.config, opens=has_screen and sys.stdout.isatty() and not self.no_browser)
