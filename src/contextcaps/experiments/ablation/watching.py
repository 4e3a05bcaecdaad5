"""Progress of a grid for people: a line for each run that ends, and on a terminal those under way."""

import dataclasses
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from contextcaps.documents import duration
from contextcaps.experiments.ablation.results import read_epochs
from contextcaps.training.runs import RunError

__all__ = ["Watch"]

_LOG_SECONDS = 30  # between two looks at the runs under way, where there is no terminal


@dataclasses.dataclass
class _Watched:
    folder: Path
    epochs: int
    state: str
    begun: float = 0.0


class Watch:
    """Shows progress on the error stream.

    Args:
        shown: show something at all; what failed is said in any case.
    """

    def __init__(self, shown: bool) -> None:
        self.shown, self.console = shown, Console(stderr=True)
        self._runs: dict[str, _Watched] = {}
        self._live: Live | None = None
        self._looked = time.monotonic()
        if shown and self.console.is_terminal:
            self._live = Live(console=self.console, transient=True, auto_refresh=False)
            self._live.start()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *rest: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def add(self, name: str, folder: Path, epochs: int, is_done: bool) -> None:
        """Add a run to those that are shown."""
        self._runs[name] = _Watched(folder, epochs, "done before" if is_done else "waiting")

    def begin(self, name: str) -> None:
        self._runs[name].state, self._runs[name].begun = "running", time.monotonic()

    def end(self, name: str, seconds: float) -> None:
        """Report that a run is done."""
        run = self._runs[name]
        run.state = "done"
        epoch, value = _progress(run.folder)
        self.say(f"[{self._done()}] {name}: {epoch} epochs, validation mAP {value}, {duration(seconds)}")

    def fail(self, name: str, why: str) -> None:
        """Report that a run has failed."""
        self._runs[name].state = "failed"
        self._print(f"[{self._done()}] {name}: failed: {why}")

    def say(self, text: str) -> None:
        """Print a line, unless nothing is to be shown."""
        if self.shown:
            self._print(text)

    def look(self) -> None:
        """Show those under way: on a terminal about once a second, in a log now and then."""
        if not self.shown or time.monotonic() - self._looked < (_LOG_SECONDS if self._live is None else 1):
            return
        self._looked = time.monotonic()
        table = Table.grid(padding=(0, 2))
        for name, run in self._runs.items():
            if run.state == "running":
                epoch, value = _progress(run.folder)
                spent = duration(time.monotonic() - run.begun)
                words = (name, f"epoch {epoch}/{run.epochs}", f"mAP {value}", spent)
                table.add_row("", *map(Text, words))
                if self._live is None:
                    self._print(", ".join(words))
        if self._live is None:
            return
        waiting = sum(run.state == "waiting" for run in self._runs.values())
        table.add_row(Text(f"  {self._done()} runs ended, {waiting} waiting", style="dim"))
        self._live.update(table, refresh=True)

    def _done(self) -> str:
        ended = sum(run.state not in ("running", "waiting") for run in self._runs.values())
        return f"{ended}/{len(self._runs)}"

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _progress(folder: Path) -> tuple[int, str]:
    """Return the epochs so far, and the best validation mAP in words."""
    try:
        history = read_epochs(folder)
        return len(history), f"{100 * max(record['val_mAP'] for record in history):.2f} %"
    except RunError:  # no epoch has ended yet
        return 0, "–"
