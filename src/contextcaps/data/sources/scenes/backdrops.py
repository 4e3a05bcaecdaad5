"""Draw the backdrops of `scenes`: land, sea and sky, or the room, with small clutter that has no label."""

from collections.abc import Callable

from contextcaps.data.sources.scenes.canvas import Canvas, Colour, blend, hued, shade
from contextcaps.data.sources.scenes.dice import Dice
from contextcaps.data.sources.scenes.layout import Scene
from contextcaps.data.sources.scenes.looks import Thing

__all__ = ["draw_backdrop"]

_WHITE = (250, 250, 248)
_SKIES: dict[str, tuple[Colour, ...]] = {
    "day": ((84, 160, 226), (150, 202, 240), (218, 238, 246)),
    "dusk": ((74, 70, 134), (226, 122, 112), (253, 208, 142)),
    "night": ((12, 16, 46), (28, 38, 84), (62, 76, 124)),
}

Mark = Callable[[str], None]


def draw_backdrop(canvas: Canvas, scene: Scene, mark: Mark) -> None:
    """Draw everything behind the things.

    Args:
        canvas: where to draw.
        scene: what to draw.
        mark: called with the class of the part that is drawn next, or "" for clutter.
    """
    _BACKDROPS[scene.kind](canvas, scene, Dice(scene.details), mark)
    for lamp in (thing for thing in scene.things if thing.name == "lamp"):
        _light_up(canvas, lamp)


def _light_up(canvas: Canvas, lamp: Thing) -> None:
    """Draw a lamp's warm glow on the wall behind it, and the cord that it hangs from."""
    wall = canvas.pen(lamp.x, lamp.y - lamp.size / 2)
    for step in range(10):
        reach = 0.54 - 0.04 * step
        wall.ellipse(0, 0, reach, reach, (255, 208, 134), 9, marked=False, glowing=True)
    wall.stroke((0, -1), (0, 0), 0.008, (84, 76, 76), marked=False)


def _sky(canvas: Canvas, scene: Scene, dice: Dice, mark: Mark, bottom: float) -> None:
    mark("sky")
    turn = hued(dice.integer(180, 330), 40, 80)
    canvas.gradient(
        0, bottom, [blend(stop, turn, dice.integer(0, 14)) for stop in _SKIES[scene.mood.light]], glowing=True
    )
    if scene.mood.light == "night":
        pen = canvas.pen()
        for _ in range(dice.integer(12, 30)):
            size = dice.between(0.002, 0.005)
            pen.ellipse(dice.between(0, 1), dice.between(0, bottom), size, size, (236, 236, 220), glowing=True)


def _coast(canvas: Canvas, scene: Scene, dice: Dice, mark: Mark) -> None:
    horizon, shore = scene.horizon, scene.horizon + 0.24
    _sky(canvas, scene, dice, mark, horizon)
    mark("sea")
    water = hued(dice.integer(184, 212), 62, 74)
    canvas.gradient(horizon, 1, [blend(water, _SKIES["day"][1], 45), water, shade(water, 84)])
    pen = canvas.pen()
    for _ in range(22):
        y = dice.between(horizon + 0.01, shore)
        x, reach = dice.between(0, 1), (y - horizon) * 0.35 + 0.02
        pen.ellipse(x, y, reach, 0.0022 + (y - horizon) * 0.012, blend(water, _WHITE, 50), 120)
    mark("sand")
    sand = hued(dice.integer(34, 44), dice.integer(28, 42), 93)
    waves = [(step / 12, shore + dice.between(-0.012, 0.018)) for step in range(13)]
    pen.polygon([(x, y - 0.018) for x, y in waves] + [(1, 1), (0, 1)], blend(sand, _WHITE, 75))
    pen.polygon([*waves, (1, 1), (0, 1)], shade(sand, 82))
    pen.polygon([(x, y + 0.03) for x, y in waves] + [(1, 1), (0, 1)], sand)
    for _ in range(dice.integer(10, 40)):  # pebbles
        size = dice.between(0.003, 0.009)
        pen.ellipse(
            dice.between(0, 1), dice.between(shore + 0.06, 1), size * 1.4, size, shade(sand, dice.integer(74, 94))
        )


def _street(canvas: Canvas, scene: Scene, dice: Dice, mark: Mark) -> None:
    kerb = scene.horizon + 0.13
    _sky(canvas, scene, dice, mark, scene.horizon)
    mark("")
    pen = canvas.pen()
    far = blend(_SKIES[scene.mood.light][2], (110, 118, 146), 46)
    x = 0.0
    while x < 1:  # houses far away
        width = dice.between(0.06, 0.14)
        corners = [(x, scene.horizon), (x, scene.horizon - dice.between(0.06, 0.24))]
        pen.polygon([*corners, (x + width, corners[1][1]), (x + width, scene.horizon)], far, glowing=True)
        x += width + 0.012
    canvas.gradient(scene.horizon, kerb, [(196, 190, 182), (214, 208, 200)])
    mark("road")
    tar = shade((120, 122, 132), dice.integer(80, 110))
    canvas.gradient(kerb, 1, [tar, shade(tar, 86)])
    pen.box(0, kerb, 1, kerb + 0.014, (228, 224, 216))
    middle, start = (kerb + 1) / 2 + 0.01, dice.between(-0.2, 0)
    for step in range(5):
        left = start + 0.27 * step
        corners = [(left, middle - 0.012), (left + 0.14, middle - 0.012), (left + 0.135, middle + 0.012)]
        pen.polygon([*corners, (left - 0.005, middle + 0.012)], (240, 234, 214))
    for _ in range(dice.integer(0, 6)):  # patches
        patch = shade(tar, dice.integer(82, 92))
        pen.ellipse(dice.between(0, 1), dice.between(kerb + 0.05, 1), dice.between(0.02, 0.06), 0.012, patch)


def _meadow(canvas: Canvas, scene: Scene, dice: Dice, mark: Mark) -> None:
    _sky(canvas, scene, dice, mark, scene.horizon + 0.06)
    mark("grass")
    green = hued(dice.integer(74, 112), dice.integer(44, 56), dice.integer(66, 78))
    canvas.gradient(scene.horizon + 0.06, 1, [shade(green, 106), shade(green, 84)])
    pen = canvas.pen()
    _hills(canvas, scene, dice, shade(green, 112), shade(green, 104))
    for _ in range(dice.integer(16, 44)):  # tufts
        x, y = dice.between(0, 1), dice.between(scene.horizon + 0.14, 1)
        reach = 0.006 + (y - scene.horizon) * 0.03
        pen.polygon([(x - reach * 0.5, y), (x - reach * 0.4, y - reach), (x, y - reach * 0.3)], shade(green, 80))
        pen.polygon([(x - reach * 0.2, y), (x + reach * 0.4, y - reach), (x + reach * 0.4, y)], shade(green, 88))


def _winter(canvas: Canvas, scene: Scene, dice: Dice, mark: Mark) -> None:
    _sky(canvas, scene, dice, mark, scene.horizon + 0.06)
    mark("snow")
    snow = blend((240, 246, 252), hued(dice.integer(190, 250), 20, 96), dice.integer(0, 50))
    canvas.gradient(scene.horizon + 0.06, 1, [shade(snow, 94), snow])
    pen = canvas.pen()
    _hills(canvas, scene, dice, shade(snow, 96), shade(snow, 100))
    for _ in range(dice.integer(3, 9)):  # drifts
        y = dice.between(scene.horizon + 0.18, 1)
        pen.ellipse(dice.between(0, 1), y, dice.between(0.06, 0.2), dice.between(0.006, 0.014), shade(snow, 91))


def _hills(canvas: Canvas, scene: Scene, dice: Dice, left: Colour, right: Colour) -> None:
    """Draw two low hills at the horizon."""
    for across, colour in ((dice.between(0.0, 0.3), left), (dice.between(0.7, 1.0), right)):
        canvas.pen().ellipse(across, scene.horizon + 0.16, 0.75, 0.17, colour)


def _wall(canvas: Canvas, scene: Scene, dice: Dice, mark: Mark, shelves: int, lowest: float) -> None:
    """Draw a wall with stripes, dots or nothing on it, its hue opposite to the theme's; on it perhaps a shelf.

    Args:
        canvas, scene, dice, mark: as in all backdrops.
        shelves: percentage of the walls with a shelf.
        lowest: the greatest y of the shelf.
    """
    mark("wall")
    bottom = scene.horizon
    paint = hued(scene.mood.theme + 180 + dice.integer(-50, 50), dice.integer(10, 26), dice.integer(88, 96))
    canvas.gradient(0, bottom, [shade(paint, 94), paint])
    pen = canvas.pen()
    pattern, step = dice.integer(0, 2), dice.between(0.07, 0.12)
    if pattern == 1:
        for number in range(int(1 / step) + 1):
            pen.box(number * step, 0, number * step + step * 0.42, bottom, shade(paint, 95))
    elif pattern == 2:
        for row in range(int(bottom / step) + 1):
            for column in range(int(1 / step) + 1):
                x, y = (column + (row % 2) / 2) * step, (row + 0.5) * step
                if y < bottom - 0.03:
                    pen.polygon([(x, y - 0.012), (x + 0.012, y), (x, y + 0.012), (x - 0.012, y)], shade(paint, 91))
    mark("")
    if dice.chance(shelves):
        _shelf(canvas, dice, dice.between(0.18, 0.82), dice.between(0.2, lowest))


def _floor(canvas: Canvas, dice: Dice, top: float, mark: Mark) -> None:
    """Draw planks and the skirting board."""
    mark("floor")
    wood = hued(dice.integer(22, 34), dice.integer(34, 48), dice.integer(58, 78))
    canvas.gradient(top, 1, [shade(wood, 88), shade(wood, 106)])
    pen = canvas.pen()
    y = top
    for height in (0.03, 0.05, 0.07, 0.09, 0.11):
        y += height
        pen.box(0, y - 0.002, 1, y + 0.002, shade(wood, 78))
        for _ in range(2):
            x = dice.between(0, 1)
            pen.box(x, y - height, x + 0.005, y, shade(wood, 78))
    mark("")
    pen.box(0, top - 0.025, 1, top + 0.004, (240, 236, 228))


def _rug(canvas: Canvas, scene: Scene, dice: Dice) -> None:
    """Draw a rug of the theme's hue, or none: clutter without a label."""
    if dice.chance(55):
        pen, y = canvas.pen(), scene.horizon + 0.2
        x, reach, cloth = dice.between(0.35, 0.65), dice.between(0.26, 0.42), hued(scene.mood.theme, 34, 82)
        for part, tone in ((1.0, 86), (0.9, 112), (0.78, 100)):
            pen.ellipse(x, y, reach * part, 0.09 * part, shade(cloth, tone))


def _shelf(canvas: Canvas, dice: Dice, x: float, y: float) -> None:
    """Draw books or jars on a board: clutter without a label."""
    pen = canvas.pen()
    left, right = x - 0.13, x + 0.13
    at = left + 0.01
    while at < right - 0.05:
        width, height = dice.between(0.014, 0.032), dice.between(0.05, 0.09)
        pen.box(at, y - height, at + width, y, hued(dice.integer(0, 359), 34, 76))
        at += width + dice.integer(0, 3) * 0.004
    pen.box(left, y, right, y + 0.014, (150, 108, 76))


def _kitchen(canvas: Canvas, scene: Scene, dice: Dice, mark: Mark) -> None:
    _wall(canvas, scene, dice, mark, 60, 0.34)
    mark("table")
    wood = hued(dice.integer(20, 34), dice.integer(30, 50), dice.integer(66, 88))
    canvas.gradient(scene.horizon, 1, [shade(wood, 108), shade(wood, 92)])
    pen = canvas.pen()
    pen.box(0, scene.horizon, 1, scene.horizon + 0.012, shade(wood, 122))
    for _ in range(7):  # grain
        y, x = dice.between(scene.horizon + 0.04, 0.99), dice.between(-0.1, 0.8)
        pen.ellipse(x + 0.15, y, dice.between(0.1, 0.3), 0.0026, shade(wood, 84))


def _living_room(canvas: Canvas, scene: Scene, dice: Dice, mark: Mark) -> None:
    _wall(canvas, scene, dice, mark, 45, 0.3)
    _floor(canvas, dice, scene.horizon, mark)
    _rug(canvas, scene, dice)


def _bathroom(canvas: Canvas, scene: Scene, dice: Dice, mark: Mark) -> None:
    mark("wall")
    tile = hued(scene.mood.theme + 180 + dice.integer(-50, 50), dice.integer(12, 30), 94)
    canvas.gradient(0, scene.horizon, [shade(tile, 94), tile])
    pen, step = canvas.pen(), dice.between(0.08, 0.12)
    for number in range(1, int(1 / step) + 1):
        pen.box(number * step - 0.002, 0, number * step + 0.002, scene.horizon, blend(tile, _WHITE, 60))
        if number * step < scene.horizon:
            pen.box(0, number * step - 0.002, 1, number * step + 0.002, blend(tile, _WHITE, 60))
    mark("floor")
    stone = hued(dice.integer(180, 260), dice.integer(6, 18), dice.integer(66, 84))
    canvas.gradient(scene.horizon, 1, [shade(stone, 90), stone])
    for number in range(-6, 17):
        top, bottom = 0.5 + (number * 0.1 - 0.5) * 0.8, 0.5 + (number * 0.1 - 0.5) * 1.3
        pen.stroke((top, scene.horizon), (bottom, 1), 0.005, shade(stone, 108))
    for y in (0.06, 0.15, 0.26):
        pen.box(0, scene.horizon + y, 1, scene.horizon + y + 0.005, shade(stone, 108))
    mark("")
    pen.box(0, scene.horizon - 0.02, 1, scene.horizon + 0.004, shade(tile, 78))


_BACKDROPS: dict[str, Callable[[Canvas, Scene, Dice, Mark], None]] = {
    "coast": _coast,
    "street": _street,
    "meadow": _meadow,
    "winter": _winter,
    "kitchen": _kitchen,
    "living room": _living_room,
    "nursery": _living_room,
    "bathroom": _bathroom,
}
