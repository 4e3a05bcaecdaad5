"""A page of suspected labels: the image, its labels, the suspected one, and the reason with a heat map."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from contextcaps.data.images import BadImage
from contextcaps.documents import counted
from contextcaps.tagging.audit import Audit, Suspicion
from contextcaps.tagging.explanation_page import draw_legend
from contextcaps.tagging.heat_maps import paint_heat_map, photograph_of, shrunk

__all__ = ["write_audit"]

_SIDE = 400
"""Longer side of a picture on the page, in pixels."""


def write_audit(audit: Audit, path: Path | str, title: str | None = None) -> None:
    """Write the suspected labels as a page; a crash leaves the old file or none.

    Args:
        audit: from `contextcaps.audit`.
        path: of the HTML file; its folder must be there.
        title: its heading; by default the data.
    """
    from contextcaps.documents.page import write_page

    maps = [each.explanation.heat_map() for each in audit.suspicions if each.explanation is not None]
    scale = max((float(np.abs(cells).max()) for cells in maps), default=0.0)
    write_page(
        Path(path),
        "audit.html.j2",
        title=audit.source.name if title is None else title,
        caption=audit.by,
        told=audit.told,
        judged=counted(audit.judged, "label"),
        suspected=audit.suspected,
        shown=len(audit.suspicions),
        legend=draw_legend(scale) if maps else None,
        suspicions=_entries(audit, scale),
    )


def _entries(audit: Audit, scale: float) -> Iterator[dict[str, Any]]:
    """Yield what the page has of each suspected label, one picture in memory at a time."""
    for number, each in enumerate(audit.suspicions, 1):
        yield {"number": number, "it": each, **_pictures(audit, each, scale)}


def _pictures(audit: Audit, suspicion: Suspicion, scale: float) -> dict[str, Any]:
    """Return the addresses of the photograph and of its heat map, and the ratio of their sides."""
    from contextcaps.documents.page import thumbnail_address

    try:
        pixels = shrunk(photograph_of(audit.source.sample(suspicion.index).image), _SIDE)
    except BadImage:  # it has gone meanwhile
        return {"address": None, "heat_map": None, "ratio": "4/3"}
    found = {"address": thumbnail_address(pixels, _SIDE), "heat_map": None}
    if suspicion.explanation is not None:
        painted = paint_heat_map(suspicion.explanation.heat_map(), pixels, scale)
        found["heat_map"] = thumbnail_address(painted, _SIDE)
    return {**found, "ratio": f"{pixels.shape[1]}/{pixels.shape[0]}"}
