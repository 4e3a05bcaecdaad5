"""Place the things of a scene: one function for each kind of scene.

A thing's appearance is drawn once. Only its place depends on the attempt, so that an attempt that is thrown away
because something was hidden (see `contextcaps.data.sources.scenes.drawing`) changes nobody's size or colour.
"""

import dataclasses
from collections.abc import Callable

from contextcaps.data.sources.scenes.dice import Dice, fold
from contextcaps.data.sources.scenes.looks import Mood, Thing, thing
from contextcaps.data.sources.scenes.world import CLASSES, KINDS, LOOK_OF, MOST_COPIES

__all__ = ["Scene", "lay_out"]

_MOOD, _APPEARANCE, _PLACE = 1, 2, 3
"""Purposes of hashes, so that the numbers drawn for one purpose do not depend on those for another."""
_CROWDED = 0.25
"""Part of the smaller of two boxes that may overlap without another place being tried."""

Span = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Scene:
    """Describes a scene that is ready to be drawn."""

    kind: str
    mood: Mood
    horizon: float
    """Height of the horizon, or of the floor's far edge."""
    things: tuple[Thing, ...]
    """From back to front."""
    details: int
    """Seed of the backdrop's small details."""


class _Stage:
    """Places things in a scene of given classes."""

    def __init__(self, state: int, attempt: int, present: frozenset[str], mood: Mood) -> None:
        self.present, self.mood = present, mood
        self.dice = Dice(fold(fold(state, _PLACE), attempt))
        self._appearance = fold(state, _APPEARANCE)
        self.things: list[Thing] = []

    def put(
        self,
        name: str,
        across: Span | tuple[Span, ...],
        down: Span,
        layer: int = 2,
        cut: bool = False,
        grounded: bool = True,
    ) -> list[Thing]:
        """Place a class's things, if it is present, where they crowd the others least.

        Args:
            name: the class.
            across: range of x, or several of which each thing takes one.
            down: range of the y where things stand.
            layer: things of higher layers are drawn later.
            cut: whether the picture's edge may cut them.
            grounded: whether they throw their shadow where they stand.
        """
        if name not in self.present:
            return []
        appearance = Dice(fold(self._appearance, CLASSES.index(name)))
        copies = appearance.integer(1, MOST_COPIES[name])
        spans: tuple[Span, ...] = across if isinstance(across[0], tuple) else (across,)
        placed = []
        for _ in range(copies):
            new = thing(name, LOOK_OF[name], self.mood, appearance)
            best, least = new, 1e9
            for _ in range(8):
                x = self.dice.between(*spans[self.dice.integer(0, len(spans) - 1)])
                tried = dataclasses.replace(new, x=x, y=self.dice.between(*down), layer=layer, grounded=grounded)
                if not cut:
                    half = (tried.box[2] - tried.box[0]) / 2
                    tried = dataclasses.replace(tried, x=min(max(x, half + 0.01), 0.99 - half))
                crowding = max((_overlap(tried, other) for other in self.things), default=0.0)
                if crowding < least:
                    best, least = tried, crowding
                if least <= _CROWDED:
                    break
            self.things.append(best)
            placed.append(best)
        return placed


def _overlap(one: Thing, other: Thing) -> float:
    """Return the part of the smaller of two boxes that the other covers."""
    (left, top, right, bottom), (other_left, other_top, other_right, other_bottom) = one.box, other.box
    width, height = min(right, other_right) - max(left, other_left), min(bottom, other_bottom) - max(top, other_top)
    if width <= 0 or height <= 0:
        return 0.0
    smaller = min((right - left) * (bottom - top), (other_right - other_left) * (other_bottom - other_top))
    return width * height / smaller


def _sky(stage: _Stage, horizon: float) -> None:
    """Place the sun or the moon, on the side that the light comes from, and clouds."""
    across = (0.12, 0.42) if stage.mood.side < 0 else (0.58, 0.88)
    low = stage.mood.light == "dusk"
    stage.put("sun", across, (horizon - 0.16, horizon - 0.02) if low else (0.2, horizon - 0.14), layer=0)
    stage.put("moon", across, (0.19, horizon - 0.16), layer=0)
    stage.put("cloud", (0.05, 0.95), (0.13, horizon - 0.1), layer=1, cut=True)


def _lamp(stage: _Stage) -> None:
    stage.put("lamp", (0.12, 0.42) if stage.mood.side < 0 else (0.58, 0.88), (0.22, 0.34), layer=1)


def _coast(stage: _Stage, horizon: float) -> None:
    shore = horizon + 0.24
    _sky(stage, horizon)
    stage.put("mountain", (0.05, 0.95), (horizon, horizon), layer=1, cut=True)
    stage.put("palm", ((0.05, 0.2), (0.8, 0.95)), (shore + 0.12, 0.96))
    stage.put("boat", (0.1, 0.9), (horizon + 0.07, shore - 0.02))
    stage.put("blanket", (0.25, 0.75), (shore + 0.16, 0.97), layer=2, grounded=False)
    stage.put("parasol", (0.15, 0.85), (shore + 0.08, 0.9), layer=3)
    stage.put("starfish", (0.08, 0.92), (shore + 0.16, 0.97), layer=2)
    stage.put("ball", (0.1, 0.9), (shore + 0.12, 0.97), layer=3)


def _street(stage: _Stage, horizon: float) -> None:
    _sky(stage, horizon - 0.12)
    stage.put("house", (0.08, 0.92), (horizon + 0.01, horizon + 0.02), layer=1, cut=True)
    stage.put("tree", (0.08, 0.92), (horizon + 0.04, horizon + 0.06), layer=2)
    people = stage.put("person", (0.15, 0.8), (horizon + 0.08, horizon + 0.12), layer=3)
    for person in people:  # an umbrella is held in the outer hand
        hand = person.x + 0.2 * person.size * person.flip
        height = person.y - 0.5 * person.size
        stage.put("umbrella", (hand, hand), (height, height), layer=4, cut=True, grounded=False)
    stage.put("car", (0.12, 0.88), (horizon + 0.22, 0.96), layer=5)


def _meadow(stage: _Stage, horizon: float) -> None:
    _sky(stage, horizon)
    stage.put("mountain", (0.05, 0.95), (horizon + 0.02, horizon + 0.02), layer=0, cut=True)
    stage.put("house", ((0.12, 0.3), (0.7, 0.88)), (horizon + 0.05, horizon + 0.1))
    stage.put("goal", (0.3, 0.7), (horizon + 0.14, horizon + 0.26), layer=3)
    rugs = stage.put("blanket", (0.25, 0.75), (0.8, 0.92), layer=2, grounded=False)
    stage.put("ball", (0.1, 0.9), (0.84, 0.96), layer=3)
    for rug in rugs:
        stage.put("orange", (rug.x - rug.size * 0.4, rug.x + rug.size * 0.4), (rug.y - 0.07, rug.y - 0.01), layer=3)
    stage.put("tree", (0.06, 0.94), (horizon + 0.07, 0.84))
    stage.put("sheep", (0.12, 0.88), (horizon + 0.16, 0.95), layer=3)
    stage.put("flower", (0.05, 0.95), (0.8, 0.99), layer=3)


def _winter(stage: _Stage, horizon: float) -> None:
    _sky(stage, horizon)
    stage.put("mountain", (0.05, 0.95), (horizon + 0.02, horizon + 0.03), layer=0, cut=True)
    stage.put("house", ((0.15, 0.35), (0.65, 0.85)), (horizon + 0.06, horizon + 0.14))
    stage.put("snowman", (0.15, 0.85), (0.8, 0.95))
    stage.put("person", (0.12, 0.88), (0.78, 0.95))
    stage.put("fir", (0.06, 0.94), (horizon + 0.08, 0.92))


def _kitchen(stage: _Stage, horizon: float) -> None:
    _lamp(stage)
    stage.put("window", (0.15, 0.85), (horizon - 0.2, horizon - 0.1), layer=0)
    stage.put("bowl", (0.2, 0.8), (horizon + 0.1, 0.92))
    stage.put("orange", (0.1, 0.9), (horizon + 0.1, 0.96))
    stage.put("cup", (0.1, 0.9), (horizon + 0.1, 0.96))
    stage.put("vase", (0.12, 0.88), (horizon + 0.05, horizon + 0.14))
    stage.put("cat", (0.15, 0.85), (horizon + 0.04, horizon + 0.1))


def _living_room(stage: _Stage, horizon: float) -> None:
    _lamp(stage)
    stage.put("window", (0.15, 0.85), (horizon - 0.3, horizon - 0.24), layer=0)
    for sofa in stage.put("sofa", (0.4, 0.6), (horizon + 0.1, horizon + 0.16), layer=1):
        seat, half = sofa.y - 0.27 * sofa.size, 0.27 * sofa.size
        stage.put("cushion", (sofa.x - half, sofa.x + half), (seat - 0.01, seat + 0.02))
    stage.put("fir", ((0.1, 0.22), (0.78, 0.9)), (horizon + 0.06, horizon + 0.14))
    stage.put("gift", (0.1, 0.9), (horizon + 0.16, 0.98), layer=3)
    stage.put("vase", ((0.08, 0.2), (0.8, 0.92)), (horizon + 0.08, horizon + 0.16))
    stage.put("toy car", (0.15, 0.85), (horizon + 0.2, 0.98), layer=3)
    stage.put("cat", (0.12, 0.88), (horizon + 0.17, 0.98), layer=3)


def _nursery(stage: _Stage, horizon: float) -> None:
    _lamp(stage)
    stage.put("window", (0.15, 0.85), (horizon - 0.3, horizon - 0.24), layer=0)
    for bed in stage.put("bed", (0.3, 0.7), (horizon + 0.08, horizon + 0.14), layer=1):
        mattress = bed.y - 0.33 * bed.size
        stage.put("cushion", (bed.x - 0.34 * bed.size, bed.x + 0.3 * bed.size), (mattress - 0.01, mattress + 0.03))
    stage.put("star", (0.1, 0.9), (0.18, horizon - 0.24))
    stage.put("teddy", (0.12, 0.88), (horizon + 0.12, 0.97), layer=3)
    stage.put("toy car", (0.12, 0.88), (horizon + 0.16, 0.98), layer=3)
    stage.put("ball", (0.1, 0.9), (horizon + 0.14, 0.98), layer=3)


def _bathroom(stage: _Stage, horizon: float) -> None:
    _lamp(stage)
    stage.put("towel", (0.12, 0.88), (horizon - 0.3, horizon - 0.22), layer=0)
    stage.put("window", (0.15, 0.85), (horizon - 0.34, horizon - 0.26), layer=0)
    for tub in stage.put("bathtub", (0.44, 0.56), (horizon + 0.14, horizon + 0.22), layer=1):
        far, near, half = tub.y - 0.34 * tub.size, tub.y - 0.27 * tub.size, 0.32 * tub.size
        stage.put("toy boat", (tub.x - half, tub.x + half), (far, near))
        stage.put("duck", (tub.x - half, tub.x + half), (far, near))


_LAYOUTS: dict[str, tuple[Callable[[_Stage, float], None], Span]] = {
    "coast": (_coast, (0.38, 0.46)),
    "street": (_street, (0.58, 0.64)),
    "meadow": (_meadow, (0.48, 0.56)),
    "winter": (_winter, (0.48, 0.58)),
    "kitchen": (_kitchen, (0.62, 0.7)),
    "living room": (_living_room, (0.64, 0.72)),
    "nursery": (_nursery, (0.64, 0.72)),
    "bathroom": (_bathroom, (0.66, 0.74)),
}
"""Kind → its layout function, and the range of its horizon (of floor or table indoors)."""


def lay_out(state: int, kind: int, light: str, present: frozenset[str], attempt: int) -> Scene:
    """Place the things of a scene.

    Args:
        state: the image's hash.
        kind: index of the kind of scene.
        light: "day", "dusk" or "night".
        present: the classes to be seen.
        attempt: another number gives other places, and nothing else.
    """
    dice = Dice(fold(state, _MOOD))
    mood = Mood(light, dice.integer(4, 12) * dice.sign(), dice.sign(), dice.integer(0, 359))
    function, horizons = _LAYOUTS[KINDS[kind].name]
    horizon, details = dice.between(*horizons), dice.integer(0, 1 << 30)
    stage = _Stage(state, attempt, present, mood)
    function(stage, horizon)
    things = tuple(sorted(stage.things, key=lambda each: (each.layer, each.y)))
    return Scene(KINDS[kind].name, mood, horizon, things, details)
