"""Define how an object of `scenes` looks by itself, whatever is beside it.

A look is a drawing function with a distribution of sizes, hues and turns. Twins share a look, so nothing that can be
seen of the object alone tells them apart. What neighbours have in common is the scene's `Mood`: one wind for
all sails and trees, one side for the light and against it all shadows, one theme for the hues of what goes together.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

from contextcaps.data.sources.scenes.canvas import Canvas, Pen
from contextcaps.data.sources.scenes.dice import Dice

__all__ = ["LOOKS", "Look", "Mood", "Thing", "draw_thing", "look", "thing"]

HueRule = Literal["any", "theme", "warm"]
LeanRule = Literal["none", "wind", "little", "any"]


@dataclasses.dataclass(frozen=True)
class Mood:
    """Holds what all of a scene's objects share; drawn alike for every kind of scene."""

    light: str
    """"day", "dusk" or "night"."""
    wind: int
    """Degrees by which the wind makes things lean, clockwise: -12 to -4 or 4 to 12."""
    side: int
    """Side that the light comes from: -1 left, 1 right. Shadows fall to the other side."""
    theme: int
    """Hue in degrees of things that go together."""


@dataclasses.dataclass(frozen=True)
class Look:
    """Describes how something is drawn and how it varies."""

    draw: Callable[["Pen", "Thing"], None]
    size: tuple[int, int]
    """Smallest and largest unit of the drawing, in thousandths of the picture's side."""
    width: float
    """Width, in units."""
    height: float
    """Height above where it stands, in units."""
    hue: HueRule
    """"any"; within 8 degrees of the scene's "theme"; or from red to yellow: "warm"."""
    lean: LeanRule
    """"none"; with the "wind", give or take a degree; up to 6 degrees either way: "little"; or "any" way round."""
    pivot: int
    """Height of the point about which it turns, in hundredths of a unit."""
    shadow: bool
    """It stands on the ground and throws a shadow."""


@dataclasses.dataclass(frozen=True)
class Thing:
    """Describes an object: its class, its appearance, and its place."""

    name: str
    """Name of its class."""
    look: str
    size: float
    hue: int
    lean: int
    flip: int
    variant: int
    """Seed of the look's small details."""
    mood: Mood
    x: float = 0.0
    y: float = 0.0
    layer: int = 0
    """Things of a higher layer are drawn later; within a layer, those that stand lower."""
    grounded: bool = True
    """It throws its shadow where it stands, if its look has one."""

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Return roughly what it covers: left, top, right, bottom."""
        look = LOOKS[self.look]
        half = look.width * self.size / 2
        return self.x - half, self.y - look.height * self.size, self.x + half, self.y


LOOKS: dict[str, Look] = {}


def look(
    size: tuple[int, int],
    width: float,
    height: float,
    hue: HueRule = "any",
    lean: LeanRule = "none",
    pivot: int = 0,
    shadow: bool = True,
) -> Callable[[Callable[[Pen, Thing], None]], Callable[[Pen, Thing], None]]:
    """Decorate a drawing function to register it as the look of its name."""

    def register(draw: Callable[[Pen, Thing], None]) -> Callable[[Pen, Thing], None]:
        LOOKS[draw.__name__] = Look(draw, size, width, height, hue, lean, pivot, shadow)
        return draw

    return register


def thing(name: str, look_name: str, mood: Mood, dice: Dice) -> Thing:
    """Draw an object's appearance; its place comes later, and does not change it."""
    rules = LOOKS[look_name]
    size = dice.integer(*rules.size) / 1000
    hues = {"any": (0, 359), "theme": (mood.theme - 8, mood.theme + 8), "warm": (8, 46)}
    leans = {"none": (0, 0), "wind": (mood.wind - 1, mood.wind + 1), "little": (-6, 6), "any": (0, 359)}
    hue, lean = dice.integer(*hues[rules.hue]) % 360, dice.integer(*leans[rules.lean])
    flip = (1 if mood.wind > 0 else -1) if rules.lean == "wind" else dice.sign()
    return Thing(name, look_name, size, hue, lean, flip, dice.integer(0, 1 << 30), mood)


def draw_thing(canvas: Canvas, thing: Thing) -> None:
    """Draw an object and its shadow; the shadow belongs to the ground."""
    rules = LOOKS[thing.look]
    if rules.shadow and thing.grounded:
        width = rules.width * thing.size
        ground = canvas.pen(thing.x - thing.mood.side * min(width * 0.28, 0.06), thing.y)
        alpha = 42 if thing.mood.light == "night" else 62
        reach, depth = min(width * 0.62, width * 0.5 + 0.02), min(width * 0.13, 0.03)
        ground.ellipse(0, 0, reach, depth, (20, 24, 48), alpha, marked=False, glowing=True)
    pen = canvas.pen(
        thing.x, thing.y, thing.size, lean=thing.lean, flip=thing.flip, pivot=rules.pivot, side=thing.mood.side
    )
    rules.draw(pen, thing)
