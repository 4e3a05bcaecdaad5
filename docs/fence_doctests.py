"""Griffe extension of the site: doctests that stand bare in a docstring become code blocks.

Python's doctest needs no fence around `>>>`; Markdown would take it for three nested quotations.
"""

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^>>> .*(?:\n(?!\s*\n).+)*", re.MULTILINE)


class FenceDoctests(griffe.Extension):
    """Put a fence around each doctest, before the docstring is read as Markdown."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None and "```" not in obj.docstring.value:
            obj.docstring.value = _DOCTEST.sub(lambda match: f"```pycon\n{match[0]}\n```", obj.docstring.value)
