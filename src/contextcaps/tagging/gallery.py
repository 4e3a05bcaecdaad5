"""A page of tagged images: a small picture of each, its tags with bars, and what could not be read."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from contextcaps.atomic import require_place
from contextcaps.data.images import BadImage, decode, image_size
from contextcaps.documents import Column, Table, counted
from contextcaps.tagging.tags import Tag, Tagging

__all__ = ["Gallery", "JudgedTag", "check_page", "judge", "write_gallery"]

Verdict = Literal["right", "wrong", "missed"]

_THUMBNAIL_SIDE = 320
"""Longer side of a small picture in pixels."""
_TAGS_SHOWN = 12
"""Tags of an image that are seen at once; the others unfold."""
_ERRORS_SHOWN = 200
_PIECE = 1 << 16
"""Characters of the kept figures that are in memory at once."""


@dataclasses.dataclass(frozen=True)
class JudgedTag:
    """A class that is in the image, or that the model said is."""

    name: str
    score: float
    threshold: float
    """The score from which the model says that the class is present."""
    verdict: Verdict
    """Said and true, said but not true, or true but not said."""


def judge(
    tagging: Tagging, truth: Iterable[str], classes: Sequence[str], thresholds: Sequence[float]
) -> tuple[JudgedTag, ...]:
    """Hold a model's tags against the truth: first what it said, then what it missed, each with the best score first.

    Args:
        tagging: with scores.
        truth: names of the classes that the image shows.
        classes: [J], of the model.
        thresholds: [J], of the model.
    """
    true = frozenset(truth)
    unknown = sorted(true - set(classes))
    if unknown:
        raise ValueError(f"truth: expected classes of the model, got {', '.join(unknown)}")
    if tagging.scores is None:
        raise ValueError(f"{tagging.image}: was not tagged: {tagging.error}")
    said = [
        JudgedTag(tag.name, tag.score, tag.threshold, "right" if tag.name in true else "wrong") for tag in tagging.tags
    ]
    names = {tag.name for tag in tagging.tags}
    missed = [
        JudgedTag(name, score, threshold, "missed")
        for name, score, threshold in zip(classes, tagging.scores.tolist(), thresholds, strict=True)
        if name in true - names
    ]
    return *said, *sorted(missed, key=lambda tag: -tag.score)


class Gallery(contextlib.AbstractContextManager["Gallery"]):
    """Collects tagged images, and writes the page.

    Figures wait in a temporary file, so that memory does not grow with the images. Pictures come from the images'
    files; an image without one (pixels from Python) has its tags only.
    """

    def __init__(self) -> None:
        self._figures = tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n")  # noqa: SIM115  # until __exit__
        self._errors: list[tuple[str, str]] = []
        self.tagged = self.failed = 0
        self._judged = False

    def __exit__(self, *error: object) -> None:
        self._figures.close()

    def add(
        self, tagging: Tagging, tags: Sequence[Tag | JudgedTag] | None = None, truth: Sequence[str] | None = None
    ) -> None:
        """Add an image.

        Args:
            tagging: what the model says of it, or why it could not be read.
            tags: what to show instead of the tagging's own tags, such as judged ones.
            truth: its true classes, if they are known.
        """
        from contextcaps.documents.page import render

        if tagging.error is not None:
            self.failed += 1
            if len(self._errors) < _ERRORS_SHOWN:
                self._errors.append((str(tagging.image), tagging.error))
            return
        self.tagged += 1
        shown = tagging.tags if tags is None else tags
        self._judged = self._judged or any(isinstance(tag, JudgedTag) for tag in shown)
        name = f"image {tagging.image}" if isinstance(tagging.image, int) else tagging.image
        figure = render(
            "tagged-image.html.j2",
            name=name,
            address=_thumbnail(tagging.image) if isinstance(tagging.image, str) else None,
            tags=shown[:_TAGS_SHOWN],
            more=shown[_TAGS_SHOWN:],
            truth=truth,
        )
        self._figures.write(figure)

    def passing(self, taggings: Iterable[Tagging]) -> Generator[Tagging, None, None]:
        """Add taggings as they pass by, and yield them."""
        for tagging in taggings:
            self.add(tagging)
            yield tagging

    def write(self, path: Path | str, title: str, caption: str) -> None:
        """Write the page; a crash leaves the old file or none.

        Args:
            path: of the HTML file; its folder must be there.
            title: its heading, such as the model and the data.
            caption: what the images are, where the model comes from, and the like.
        """
        from contextcaps.documents.page import write_page

        hidden = self.failed - len(self._errors)
        columns = (Column("image", align="left", wrap=True), Column("why", align="left", wrap=True))
        note = f"The first {_ERRORS_SHOWN}; {counted(hidden, 'image')} more could not be read." if hidden else ""
        write_page(
            Path(path),
            "gallery.html.j2",
            title=title,
            caption=caption,
            tagged=self.tagged,
            failed=self.failed,
            judged=self._judged,
            errors=Table("", columns, self._errors),
            note=note,
            figures=self._pieces(),
        )

    def _pieces(self) -> Iterator[str]:
        """Yield the figures, piece by piece."""
        from contextcaps.documents.page import Rendered

        self._figures.seek(0)
        while piece := self._figures.read(_PIECE):
            yield Rendered(piece)


def write_gallery(taggings: Iterable[Tagging], path: Path | str, title: str, caption: str = "") -> None:
    """Write taggings as a page, such as those of `Tagger.tag_stream`: for any number of images."""
    check_page(Path(path))
    with Gallery() as gallery:
        for tagging in taggings:
            gallery.add(tagging)
        gallery.write(path, title, caption)


def check_page(path: Path, out: Path | None = None) -> None:
    """Raise ValueError, before the work starts, if a page cannot be written there."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--html {path}: expected the name of a page to write, such as tags.html")
    require_place(path, "--html")
    if out is not None and out.resolve() == path.resolve():
        raise ValueError(f"--html {path}: expected another file than that of --out")


def _thumbnail(name: str) -> str | None:
    """Return a small picture of a file as an address; None where it cannot be read any more."""
    from contextcaps.documents.page import thumbnail_address

    path = Path(name)
    try:
        height, width = image_size(path)
        scale = min(1.0, _THUMBNAIL_SIDE / max(height, width))
        pixels = decode(path, (max(1, round(scale * height)), max(1, round(scale * width))))
    except BadImage:
        return None
    return thumbnail_address(pixels, _THUMBNAIL_SIDE)
