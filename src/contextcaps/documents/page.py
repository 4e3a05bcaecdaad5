"""Pages: one HTML file with everything in it; no scripts, no requests, light and dark, wide and narrow.

Templates lie in `templates/`; all pages inherit `base.html.j2` and its style sheet. Every value is escaped, control
characters are taken out, and a name that a template does not get is an error.
"""

import base64
import functools
import io
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup as Rendered
from PIL import Image

from contextcaps.atomic import replace_atomically
from contextcaps.documents.formats import count, counted, number, percent, printable, shortened

__all__ = ["Rendered", "data_address", "png_of", "render", "thumbnail_address", "write_page"]

_CRISP_SIDE = 64
"""Pictures up to this side stay pixels: JPEG would blur them."""


def render(template: str, **values: Any) -> str:
    """Return a template filled with values."""
    return _environment().get_template(template).render(**values)


def write_page(path: Path, template: str, **values: Any) -> None:
    """Write a template filled with values, piece by piece: an iterator among them is never in memory as a whole."""
    with replace_atomically(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for piece in _environment().get_template(template).generate(**values):
            file.write(piece)


def thumbnail_address(pixels: np.ndarray, side: int) -> str:
    """Return pixels [H, W, 3], made smaller until no side is above `side`, as an address: JPEG, or PNG if tiny."""
    image = Image.fromarray(pixels)
    small = max(image.size) <= _CRISP_SIDE
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    written = io.BytesIO()
    image.save(written, "PNG" if small else "JPEG", **({"optimize": True} if small else {"quality": 82}))
    return data_address(written.getvalue(), f"image/{'png' if small else 'jpeg'}")


def data_address(content: bytes, kind: str = "image/png") -> str:
    """Return a picture as an address that holds all of it."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def png_of(pixels: np.ndarray) -> bytes:
    """Return pixels [H, W, 3] as a PNG file."""
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "PNG")
    return written.getvalue()


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
