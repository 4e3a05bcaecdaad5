"""The base of all commands: their class, types of flags, and the console that they print to.

A command is a frozen dataclass. Its fields are the flags and their docstrings the help; `run` does the work and imports
what that needs, so that `--help` does not wait for torch.
"""

import abc
import dataclasses
import itertools
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from typing_extensions import Self

__all__ = [
    "Command",
    "CommandConsole",
    "File",
    "Flag",
    "Folder",
    "Number",
    "SourceName",
    "Split",
    "asks_for_help",
    "refuse_models",
    "require_location",
    "value_of",
    "values_of",
]

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
"""A flag without a value, and without a --no- twin."""
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]
Folder = Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")]
Number = Annotated[int | None, tyro.conf.arg(metavar="N")]
SourceName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
Split = Annotated[str | None, tyro.conf.arg(metavar="SPLIT")]


@dataclasses.dataclass(frozen=True)
class Command(abc.ABC):
    """Base of all commands."""

    @classmethod
    def defaults(cls, words: Sequence[str]) -> Self | None:
        """Return what the flags override, where that depends on the words themselves; None for the fields' defaults.

        Raises:
            ValueError: the words do not go together.
        """
        return None

    @abc.abstractmethod
    def run(self) -> None:
        """Do what the command is for."""

    def keywords(self, *left_out: str) -> dict[str, Any]:
        """Return the flags as keywords of the function that they are for, without those that are not."""
        names = (field.name for field in dataclasses.fields(self))
        return {name: getattr(self, name) for name in names if name not in left_out}


class CommandConsole(Console):
    """A console that leaves a closed pipe to `main`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def values_of(flag: str, words: Sequence[str]) -> list[str]:
    """Return what follows a flag, up to the next one, before the words are parsed.

    >>> values_of("--set", ["--set", "crf.rank=32", "field=none", "--seed=1"]), values_of("--seed", ["--seed=1"])
    (['crf.rank=32', 'field=none'], ['1'])
    """
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") != flag:  # tyro takes both
            continue
        return [value] if equals else list(itertools.takewhile(lambda each: each[:2] != "--", words[place + 1 :]))
    return []


def value_of(flag: str, words: Sequence[str]) -> str | None:
    """Return the one value of a flag, before the words are parsed; None without it."""
    return next(iter(values_of(flag, words)), None)


def asks_for_help(words: Sequence[str]) -> bool:
    """Return whether the words ask for the command's page only."""
    return "-h" in words or "--help" in words


def refuse_models(images: Sequence[str], verb: str) -> None:
    """Refuse a run or a model in the place of an image: it is the value of --model, to `verb` with."""
    from contextcaps.models.loading import HUB, kind_of_folder, shipped_folder

    for name in images:
        kind: str | None = kind_of_folder(name)
        if not os.path.lexists(name):
            kind = "shipped model" if shipped_folder(name) else "model on the Hub" if name.startswith(HUB) else None
        if kind is not None:
            raise ValueError(f"{name}: a {kind}; {verb} with it: --model {shlex.quote(name)}")


def require_location(*sources: str | None) -> None:
    """Refuse the name of a source whose location was forgotten, such as `coco:`."""
    from contextcaps.data import source_kinds

    for source in filter(None, sources):
        kind, colon, rest = source.partition(":")
        if colon and kind in source_kinds() and kind != "scenes" and re.fullmatch(r"(\?.*=.*)?", rest):
            raise ValueError(f"{source}: nothing after the colon; expected where the data are, such as {kind}:PATH")
