"""The command line: one thin file per command, whose flags are the fields of the dataclass in it."""

from contextcaps.cli.dispatch import main

__all__ = ["main"]
