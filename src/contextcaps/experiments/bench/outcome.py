"""What every benchmark leaves: its tables, its files, and the facts about the machine."""

import dataclasses
import platform
import sys
from datetime import date
from pathlib import Path

import torch
from rich.console import Console

from contextcaps.documents import Table
from contextcaps.training.processes import device_name

__all__ = ["Outcome", "machine_facts", "make_folder", "say", "show_bench"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A finished benchmark."""

    folder: Path
    facts: dict[str, str]
    """Device, versions, date, and what else the figures depend on."""
    tables: tuple[Table, ...]
    files: tuple[Path, ...]


def show_bench(bench: Outcome, console: Console) -> None:
    """Show the tables on the terminal, and where the files are."""
    for table in bench.tables:
        table.print(console)
        console.print()
    for name, value in bench.facts.items():
        console.print(f"{name}: {value}", highlight=False)
    written = ", ".join(path.name for path in bench.files)
    console.print(f"Written to {bench.folder}: {written}", soft_wrap=True, highlight=False)


def machine_facts(device: torch.device) -> dict[str, str]:
    """Return the device, the versions and the date."""
    return {
        "device": device_name(device),
        "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
        "date": date.today().isoformat(),
    }


def make_folder(out: Path | str) -> Path:
    """Make the folder for a benchmark's files, if it is not there."""
    folder = Path(out).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder, got a file; choose another with --out")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def say(line: str, progress: bool) -> None:
    """Write a line about progress to the error stream."""
    if progress:
        print(line, file=sys.stderr, flush=True)
