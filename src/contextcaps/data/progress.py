"""Show the progress of a long task on standard error: a bar on a terminal, elsewhere a line now and then."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["progress_of"]

_LINE_EVERY = 10.0  # seconds


@contextlib.contextmanager
def progress_of(what: str, total: int | None, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Show the progress of a task on images.

    Args:
        what: the task, in a few words.
        total: number of images; None if it is not known.
        shown: False shows nothing.

    Yields:
        A function to be called with the number of images done since its last call.
    """
    console = Console(stderr=True)
    if not shown:
        yield lambda count: None
    elif console.is_terminal:
        with _bar(what, total, console) as tell:
            yield tell
    else:
        yield _lines(what, total)


@contextlib.contextmanager
def _bar(what: str, total: int | None, console: Console) -> Iterator[Callable[[int], None]]:
    rate = TextColumn("{task.fields[rate]:,.0f} images/s")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn())
    start, done = time.monotonic(), 0
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(what, total=total, rate=0.0)

        def tell(count: int) -> None:
            nonlocal done
            done += count
            bar.update(task, advance=count, rate=done / max(time.monotonic() - start, 1e-3))

        yield tell


def _lines(what: str, total: int | None) -> Callable[[int], None]:
    start, done = time.monotonic(), 0
    last = start

    def tell(count: int) -> None:
        nonlocal last, done
        done += count
        now = time.monotonic()
        if now - last >= _LINE_EVERY:
            last = now
            rate = done / (now - start)
            of = "" if total is None else f" of {total:,}"
            print(f"{what}: {done:,}{of} images, {rate:,.0f} images/s", file=sys.stderr, flush=True)

    return tell
