"""The one table, which prints itself for the terminal, in Markdown and in HTML.

Rows hold values, columns know how to write them: a number is formatted in one place, None and NaN are a dash, and a
text is a name or a remark, in which nothing is markup in any of the three forms.
"""

import dataclasses
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table as RichTable
from rich.text import Text

from contextcaps.documents.formats import MISSING, literal, printable

__all__ = ["Cell", "Column", "Row", "Section", "Table", "facts_table"]

Tone: TypeAlias = Literal["strong", "good", "bad"]
_STYLES: dict[Tone | None, str] = {None: "", "strong": "bold", "good": "bold green", "bad": "bold red"}
_NARROWEST = 14  # a column that wraps on the terminal has at least so many characters
_HEADING = 11  # a heading above narrower values is folded at so many


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: its heading, how its values are written, and on which side."""

    heading: str
    format: Callable[[Any], str] = str
    """Writes a value that is neither None nor text."""
    align: Literal["left", "right"] = "right"
    most: int | None = None
    """Characters on the terminal; longer texts are cut off with …."""
    wrap: bool = False
    """Whether its texts may go on in another line of the terminal."""
    bar: bool = False
    """Whether HTML shows a bar beside its values, which are shares from 0 to 1."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """A value that stands out."""

    value: Any
    tone: Tone | None


@dataclasses.dataclass(frozen=True)
class Row:
    """A row that stands back, such as that of the constant prior."""

    cells: tuple[Any, ...]
    quiet: bool = True


@dataclasses.dataclass(frozen=True)
class Section:
    """The beginning of a group of rows, with or without a heading."""

    heading: str = ""


class Written(NamedTuple):
    """A cell as it is written."""

    text: str
    tone: Tone | None
    is_text: bool
    """Whether its value is text, in which nothing is markup, rather than a number."""
    value: Any
    column: Column


AnyRow: TypeAlias = Row | Section | tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table with its title and notes."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[AnyRow]
    notes: tuple[str, ...] = ()
    name: str = ""
    """By which programs choose it."""
    more: Sequence[AnyRow] = ()
    """All rows where `rows` are some of them; in HTML they can be unfolded."""
    empty: str = "None."
    """Stands in the place of the table where it has no rows."""

    def texts(self) -> list[tuple[str, ...]]:
        """Return every row's cells as they are written, without sections."""
        return [tuple(cell.text for cell in self.cells(row)) for row in self.rows if not isinstance(row, Section)]

    # Terminal

    def print(self, console: Console, notes: bool = True) -> None:
        """Print the table and an empty line below it.

        Where the console is narrower than the table, the lines are longer than the console rather than cut: a number
        without its end says nothing, and a log can be read all the same.
        """
        narrow = console.width
        widths = (_NARROWEST if width is None else width for width in self._widths())
        console.width = max(narrow, sum(widths) + 2 * (len(self.columns) - 1))
        try:
            console.print(self.to_rich(notes))
            console.print()
        finally:
            console.width = narrow

    def to_rich(self, notes: bool = True) -> Group:
        """Return title, rows and, unless told otherwise, notes for rich."""
        table = RichTable(
            box=box.SIMPLE_HEAD,
            padding=(0, 0, 0, 1),
            pad_edge=False,
            show_edge=False,
            show_header=any(column.heading for column in self.columns),
        )
        for column, width in zip(self.columns, self._widths(), strict=True):
            table.add_column(
                Text(_folded(printable(column.heading), width)),
                justify=column.align,
                vertical="top" if any(each.wrap for each in self.columns) else "bottom",
                width=width,
                no_wrap=width is not None,
                overflow="ellipsis" if width else "fold",
            )
        for number, row in enumerate(self.rows):
            if isinstance(row, Section):
                if number:
                    table.add_section()
                if row.heading:
                    table.add_row(Text(printable(row.heading), style="bold"))
                continue
            cells = [Text(cell.text, style=_STYLES[cell.tone]) for cell in self.cells(row)]
            table.add_row(*cells, style="dim" if isinstance(row, Row) and row.quiet else "")
        parts: list[Text | RichTable] = []
        if self.title:
            parts.append(Text(printable(self.title), style="italic", overflow="fold"))
        parts.append(table if self.rows else Text(printable(self.empty)))
        parts += [Text(printable(note), style="dim italic") for note in self.notes if notes]
        return Group(*parts)

    def __rich__(self) -> Group:
        return self.to_rich()

    # Markdown

    def to_markdown(self, level: int | None = 2) -> str:
        """Return the table in Markdown, its columns padded so that the source reads as well as the page.

        Args:
            level: of the title's heading; None for the rows alone, without title and notes.
        """
        lines = self._markdown_rows() if self.rows else [literal(self.empty)]
        if level is not None:
            lines = [f"{'#' * level} {literal(self.title)}", "", *lines, *(f"\n{literal(note)}" for note in self.notes)]
        return "\n".join(lines) + "\n"

    def _markdown_rows(self) -> list[str]:
        rows = [[literal(column.heading) for column in self.columns]]
        for row in self.rows:
            if isinstance(row, Section):
                if row.heading:
                    rows.append([f"**{literal(row.heading)}**", *[""] * (len(self.columns) - 1)])
            else:
                rows.append([literal(cell.text) if cell.is_text else cell.text for cell in self.cells(row)])
        widths = [max(3, *map(len, cells)) for cells in zip(*rows, strict=True)]
        right = [column.align == "right" for column in self.columns]

        def line(cells: Sequence[str]) -> str:
            padded = (
                text.rjust(width) if on_right else text.ljust(width)
                for text, width, on_right in zip(cells, widths, right, strict=True)
            )
            return f"| {' | '.join(padded)} |"

        rule = ["-" * (width - 1) + ("-:"[on_right]) for width, on_right in zip(widths, right, strict=True)]
        return [line(rows[0]), line(rule), *map(line, rows[1:])]

    # HTML

    def to_html(self) -> str:
        """Return the table's rows as HTML, escaped; title and notes are the page's affair."""
        from contextcaps.documents.page import render

        return render("table.html.j2", table=self)

    def __html__(self) -> str:
        return self.to_html()

    # Cells

    def cells(self, row: Row | tuple[Any, ...]) -> list[Written]:
        """Return a row's cells as they are written."""
        found = []
        for column, value in zip(self.columns, row.cells if isinstance(row, Row) else row, strict=True):
            tone = None
            if isinstance(value, Cell):
                value, tone = value.value, value.tone
            is_text = isinstance(value, str)
            text = printable(value) if is_text else MISSING if value is None else column.format(value)
            found.append(Written(text, tone, is_text, value, column))
        return found

    def _widths(self) -> list[int | None]:
        """Return the characters that each column needs on the terminal; None for one that wraps."""
        rows = self.texts()
        sections = [cell_len(row.heading) for row in self.rows if isinstance(row, Section)]
        widths: list[int | None] = []
        for index, column in enumerate(self.columns):
            words = [cell_len(word) for word in column.heading.split(" ")]
            cells = [cell_len(row[index]) for row in rows] + (sections if index == 0 else [])
            width = max(1, min(len(column.heading), _HEADING), *words, *cells)
            widths.append(None if column.wrap else width if column.most is None else min(width, column.most))
        return widths


def _folded(heading: str, width: int | None) -> str:
    """Return a heading in lines of so many characters."""
    return heading if width is None else textwrap.fill(heading, width, break_long_words=False, break_on_hyphens=False)


def facts_table(facts: Mapping[str, object], title: str = "") -> Table:
    """Return names and values side by side, without headings."""
    columns = (Column("", align="left"), Column("", align="left", wrap=True))
    return Table(title, columns, [(name, str(value)) for name, value in facts.items()])
