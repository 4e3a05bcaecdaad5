"""Documents for people: numbers and names as text, tables, pages and charts. Imports no other room.

`page` (jinja2), `drawing` and `charts` (matplotlib, of the extra `train`) are imported where they are needed.
"""

from contextcaps.documents import formats as formats
from contextcaps.documents.formats import *  # noqa: F403  # its list of names says what
from contextcaps.documents.table import Cell, Column, Row, Section, Table, facts_table

__all__ = ["Cell", "Column", "Row", "Section", "Table", "facts_table"]
__all__ += formats.__all__
