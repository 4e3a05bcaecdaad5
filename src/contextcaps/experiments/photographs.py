"""Tag six photographs with the shipped model, as the first part of the demo.

The photographs come with other packages, which the extra `demo` brings; they are in the public domain or CC0. Nothing
is downloaded, and nothing is copied.
"""

import dataclasses
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from contextcaps.models.loading import DEFAULT_MODEL
from contextcaps.tagging import Gallery, Tagging, find_images, load
from contextcaps.tagging.terminal import Terminal
from contextcaps.training.runs import require_writable

__all__ = ["Photographs", "bundled_photographs", "show_photographs", "tag_photographs"]

_BUNDLED = (
    ("skimage", "data/chelsea.png"),  # a cat; CC0, Stéfan van der Walt
    ("skimage", "data/coffee.png"),  # a cup on a table; CC0, Rachel Michetti
    ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg"),  # a portrait; public domain, US Navy
    ("skimage", "data/motorcycle_left.png"),  # a garage; CC0, Middlebury stereo data set
    ("skimage", "data/astronaut.png"),  # a portrait; public domain, NASA
    ("skimage", "data/camera.png"),  # a photographer, in grey; CC0, Lav Varshney
)
"""Packages, and photographs in them."""


@dataclasses.dataclass(frozen=True)
class Photographs:
    """Tagged photographs, and the page that shows them."""

    taggings: tuple[Tagging, ...]
    page: Path


def bundled_photographs() -> list[Path]:
    """Return the six photographs that other packages bring.

    Raises:
        ImportError: a package is missing; the message names the extra.
    """
    found = []
    for package, place in _BUNDLED:
        spec = importlib.util.find_spec(package)  # found, but not imported
        path = None if spec is None or spec.origin is None else Path(spec.origin).parent / place
        if path is None or not path.is_file():
            raise ImportError(
                f"demo: {place} of the package {package} is not here; pip install 'contextcaps[demo]' brings it, or "
                "name your own with --photographs"
            )
        found.append(path)
    return found


def tag_photographs(photographs: Sequence[str | Path], folder: Path) -> Photographs:
    """Tag photographs with the shipped model, and write a page of them into a folder.

    Args:
        photographs: files, folders or patterns; none for the bundled ones.
        folder: made if it is not there.

    Raises:
        ValueError: the folder will not do, or none of the photographs can be read.
        ImportError: the bundled ones are not here.
    """
    require_writable(folder, "--out")
    names = list(find_images(photographs)) if photographs else bundled_photographs()
    page = folder / "photographs.html"
    with Gallery() as gallery:
        taggings = tuple(gallery.passing(load(device="cpu").tag_stream(names)))
        if all(tagging.error is not None for tagging in taggings):
            first = taggings[0]
            raise ValueError(
                f"photographs: none of {len(taggings)} could be read; {first.image}: {first.error}; name others with "
                "--photographs"
            )
        folder.mkdir(parents=True, exist_ok=True)
        gallery.write(page, f"Photographs, tagged by {DEFAULT_MODEL}", "A bar is a score from 0 to 1.")
    return Photographs(taggings, page)


def show_photographs(photographs: Photographs, console: Console) -> None:
    """Print the tags of each photograph, and where the page is."""
    terminal = Terminal(console)
    for tagging in photographs.taggings:
        terminal.write(dataclasses.replace(tagging, image=Path(str(tagging.image)).name))
    console.print(f"The photographs with their tags: {photographs.page}\n", highlight=False, markup=False)
