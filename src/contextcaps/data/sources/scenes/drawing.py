"""Draw the picture of a scene with given classes, and which object each pixel shows."""

import dataclasses
import itertools

import numpy as np

import contextcaps.data.sources.scenes.indoors
import contextcaps.data.sources.scenes.outdoors  # noqa: F401 - both register their looks
from contextcaps.data.sources.scenes.backdrops import draw_backdrop
from contextcaps.data.sources.scenes.canvas import MASK_SIDE, Canvas
from contextcaps.data.sources.scenes.layout import Scene, lay_out
from contextcaps.data.sources.scenes.looks import draw_thing
from contextcaps.data.sources.scenes.world import CLASSES, KINDS

__all__ = ["LEAST_VISIBLE", "Drawing", "draw"]

LEAST_VISIBLE = 4
"""Least number of pixels of each class at 32×32 px, the smallest size: 0.4 % of the picture."""
_COARSE = slice(4, None, 8)
"""Pixels of the map of objects that correspond to a picture of 32×32 px."""


@dataclasses.dataclass(frozen=True)
class Drawing:
    """Holds a picture and the map of its objects."""

    scene: Scene
    image: np.ndarray
    """[size, size, 3], uint8."""
    objects: np.ndarray
    """[size, size], uint8: number of the object that each pixel shows, from 1; 0 for clutter."""
    classes: tuple[int, ...]
    """Class index of object 1, 2, …"""


def draw(state: int, kind: int, light: str, present: frozenset[str], size: int) -> Drawing:
    """Draw a scene in which every class that is to be present can be seen.

    Places are drawn again until `LEAST_VISIBLE` holds. That does not depend on the size.

    Args:
        state: the image's hash.
        kind: index of the kind of scene.
        light: "day", "dusk" or "night".
        present: the classes to be seen.
        size: side of the picture, in pixels.
    """
    backdrop = KINDS[kind].always
    for attempt in itertools.count():
        scene = lay_out(state, kind, light, present, attempt)
        names = [name for name in backdrop if name not in {thing.name for thing in scene.things}]
        canvas = Canvas(size, light)

        def mark(name: str, canvas: Canvas = canvas, names: list[str] = names) -> None:
            canvas.number = names.index(name) + 1 if name else 0

        draw_backdrop(canvas, scene, mark)
        for thing in scene.things:
            names.append(thing.name)
            canvas.number = len(names)
            draw_thing(canvas, thing)
        classes = np.asarray([-1, *(CLASSES.index(name) for name in names)])
        objects = np.asarray(canvas.objects)
        seen = np.bincount(classes[objects[_COARSE, _COARSE]].ravel() + 1, minlength=len(CLASSES) + 1)[1:]
        if all(seen[CLASSES.index(name)] >= LEAST_VISIBLE for name in present):
            break
    nearest = (2 * np.arange(size) + 1) * MASK_SIDE // (2 * size)  # the pixel at each pixel's middle
    return Drawing(scene, canvas.image(), objects[np.ix_(nearest, nearest)], tuple(classes[1:].tolist()))
