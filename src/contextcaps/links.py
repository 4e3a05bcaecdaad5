"""Addresses of the documentation, for messages that point at it."""

__all__ = ["DOCS", "docs_page"]

DOCS = "https://contextcaps.readthedocs.io/en/latest/"
"""The documentation site; the same as in [project.urls]."""


def docs_page(path: str) -> str:
    """Return the address of a page, named by its path under docs/ without the suffix.

    >>> docs_page("decisions/loss-and-collapse")
    'https://contextcaps.readthedocs.io/en/latest/decisions/loss-and-collapse/'
    """
    return f"{DOCS}{path}/"
