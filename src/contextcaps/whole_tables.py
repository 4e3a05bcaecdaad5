"""Tables on a terminal that are never cut: a figure without its end says nothing."""

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

__all__ = ["print_whole"]

_WIDE = 1000


def print_whole(console: Console, table: Table) -> None:
    """Print a table in its own width, also where the console is narrower: in a log, it is read all the same."""
    narrow = console.width
    needed = Measurement.get(console, console.options.update(width=_WIDE, max_width=_WIDE), table).maximum
    console.width = max(narrow, needed)
    try:
        console.print(table)
    finally:
        console.width = narrow
