"""An ablation's results on the terminal."""

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from contextcaps.experiments.ablation.ablation import Ablation
from contextcaps.experiments.ablation.tables import grids
from contextcaps.experiments.ablation.wording import findings
from contextcaps.whole_tables import print_whole

__all__ = ["show_ablation"]

_SHOWN = ("table", "convergence", "cost")


def show_ablation(ablation: Ablation, console: Console) -> None:
    """The table, convergence and cost, what they show, and where the page is."""
    for grid in grids(ablation.report):
        if grid.name not in _SHOWN:
            continue
        table = Table(title=grid.title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
        for number, heading in enumerate(grid.headings):
            table.add_column(heading, justify="right" if number else "left", no_wrap=True)
        for row in grid.rows:
            table.add_row(*map(Text, row))
        print_whole(console, table)
        console.print()
    for text in findings(ablation.report):
        console.print(text, highlight=False, markup=False)
    for failure in ablation.failures:
        console.print(f"Failed: {failure.name}: {failure.why} (log: {failure.log})", highlight=False, markup=False)
    console.print(f"\nThe whole report: {ablation.files['page']}", highlight=False, markup=False, soft_wrap=True)
