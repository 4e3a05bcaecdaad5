"""Pages: one HTML file with everything in it; no scripts, no requests, light and dark, wide and narrow.

Templates lie in `templates/`; all pages inherit `base.html.j2` and its style sheet. Every value is escaped, control
characters are taken out, and a name that a template does not get is an error.
"""

import base64
import functools
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from contextcaps.documents.formats import count, counted, number, percent, printable, shortened

__all__ = ["data_address", "render"]


def render(template: str, **values: Any) -> str:
    """Return a template filled with values."""
    return _environment().get_template(template).render(**values)


def data_address(content: bytes, kind: str = "image/png") -> str:
    """Return a picture as an address that holds all of it."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("contextcaps.documents"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (count, counted, number, percent, shortened):
        environment.globals[function.__name__] = function
    return environment


def _finalized(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
