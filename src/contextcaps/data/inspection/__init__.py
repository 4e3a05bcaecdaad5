"""Looking at data: what is in a source, as tables for the terminal and as a page for the browser."""

from contextcaps.data.inspection.page import write_page
from contextcaps.data.inspection.statistics import Inspection, Pair, inspect_source
from contextcaps.data.inspection.tables import inspection_tables

__all__ = ["Inspection", "Pair", "inspect_source", "inspection_tables", "write_page"]
