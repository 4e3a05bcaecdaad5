"""Hook of the site: a figure and its interval, such as 42.0 [41.3, 42.7], stay on one line in tables."""

import re
from typing import Any

_INTERVAL = re.compile(r"(?:([−+]?[\d.]+) )?\[([−+]?[\d.]+), ([−+]?[\d.]+)\]")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put no-break spaces into intervals in the rows of tables."""
    lines = markdown.split("\n")
    return "\n".join(_INTERVAL.sub(_kept, line) if line.lstrip().startswith("|") else line for line in lines)


def _kept(match: re.Match[str]) -> str:
    value, low, high = match.groups()
    return (f"{value}\u00a0" if value else "") + f"[{low},\u00a0{high}]"
