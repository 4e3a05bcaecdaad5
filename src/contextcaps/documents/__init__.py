"""Documents for people: numbers and names as text, tables, pages and charts. Imports no other room.

`page` (jinja2), `drawing` and `charts` (matplotlib, of the extra `train`) are imported where they are needed.
"""

from contextcaps.documents.formats import (
    MISSING,
    count,
    counted,
    duration,
    interval,
    literal,
    number,
    percent,
    printable,
    shortened,
    signed,
    signed_interval,
    significant,
)
from contextcaps.documents.table import Cell, Column, Row, Section, Table, facts_table

__all__ = [
    "MISSING",
    "Cell",
    "Column",
    "Row",
    "Section",
    "Table",
    "count",
    "counted",
    "duration",
    "facts_table",
    "interval",
    "literal",
    "number",
    "percent",
    "printable",
    "shortened",
    "signed",
    "signed_interval",
    "significant",
]
