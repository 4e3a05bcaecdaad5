"""Draw things found outdoors, and the twins (`contextcaps.data.sources.scenes.world.TWINS`), found in both."""

from contextcaps.data.sources.scenes.canvas import Pen, blend, hued, shade
from contextcaps.data.sources.scenes.dice import Dice
from contextcaps.data.sources.scenes.looks import Thing, look

__all__: list[str] = []  # nothing to import: the looks register themselves

_WHITE, _CREAM, _DARK, _WOOD, _STEEL = (250, 250, 248), (250, 240, 218), (52, 48, 60), (132, 92, 62), (186, 192, 200)


# The looks of twins.


@look(size=(120, 170), width=1.0, height=1.0, pivot=50, shadow=False)
def globe(pen: Pen, thing: Thing) -> None:
    """Draw a pale ball of light: the moon, or a lamp."""
    pale = hued(48, 8 + thing.hue % 18, 100)
    for radius, alpha in ((1.0, 16), (0.82, 24), (0.66, 36)):
        pen.ellipse(0, -0.5, radius, radius, pale, alpha, marked=False, glowing=True)
    pen.ellipse(0, -0.5, 0.5, 0.5, shade(pale, 88), glowing=True)
    pen.ellipse(0.05 * pen.side, -0.53, 0.44, 0.44, pale, glowing=True)
    pen.ellipse(0.08 * pen.side, -0.57, 0.34, 0.34, blend(pale, _WHITE, 60), glowing=True)


@look(size=(190, 290), width=0.9, height=1.0, lean="wind")
def sailboat(pen: Pen, thing: Thing) -> None:
    """Draw two sails on a hull, heeling with the wind."""
    hull, sail = hued(thing.hue, 62, 80), blend(_WHITE, hued(thing.hue + 150, 50, 95), thing.variant % 30)
    pen.stroke((0.0, -0.2), (0.0, -1.0), 0.03, _WOOD)
    pen.polygon([(0.03, -0.98), (0.13, -0.62), (0.42, -0.25), (0.03, -0.25)], sail)
    pen.polygon([(0.03, -0.62), (0.24, -0.48), (0.42, -0.25), (0.03, -0.25)], shade(sail, 93))
    pen.polygon([(-0.04, -0.88), (-0.3, -0.25), (-0.04, -0.25)], shade(sail, 84))
    pen.polygon([(-0.45, -0.22), (0.48, -0.22), (0.32, 0.0), (-0.3, 0.0)], hull)
    pen.polygon([(-0.38, -0.1), (0.4, -0.1), (0.32, 0.0), (-0.3, 0.0)], shade(hull, 76))
    pen.polygon([(-0.45, -0.22), (0.48, -0.22), (0.46, -0.17), (-0.42, -0.17)], _CREAM)


@look(size=(210, 300), width=1.0, height=0.5)
def car(pen: Pen, thing: Thing) -> None:
    """Draw a small rounded car."""
    paint = hued(thing.hue, 66, 86)
    glass = (188, 222, 236)
    pen.polygon([(-0.3, -0.27), (-0.2, -0.47), (0.12, -0.47), (0.27, -0.27)], shade(paint, 92))
    pen.polygon([(-0.25, -0.28), (-0.18, -0.43), (-0.06, -0.43), (-0.06, -0.28)], glass)
    pen.polygon([(-0.02, -0.28), (-0.02, -0.43), (0.1, -0.43), (0.21, -0.28)], glass)
    pen.round_box(-0.5, -0.3, 0.5, -0.07, 0.08, paint)
    pen.box(-0.48, -0.15, 0.48, -0.09, shade(paint, 74))
    pen.polygon([(-0.44, -0.28), (0.4, -0.28), (0.44, -0.25), (-0.46, -0.25)], blend(paint, _WHITE, 45))
    for u in (-0.28, 0.28):
        pen.ellipse(u, -0.1, 0.115, 0.115, _DARK)
        pen.ellipse(u, -0.1, 0.055, 0.055, _STEEL)
    pen.ellipse(0.46, -0.21, 0.03, 0.035, (255, 244, 180), glowing=True)


@look(size=(240, 330), width=0.94, height=1.0, hue="theme", lean="wind")
def canopy(pen: Pen, thing: Thing) -> None:
    """Draw a striped canopy on a pole: a parasol, or an umbrella."""
    cloth = hued(thing.hue, 66, 90)
    pen.stroke((0, 0), (0, -0.98), 0.035, (120, 88, 66))
    edge = [(-0.47 + 0.1175 * step, -0.52 + (0.03 if step % 2 else 0.0)) for step in range(9)]
    top = (0.0, -0.97)
    pen.ellipse(0, -0.52, 0.47, 0.44, cloth, arc=(180, 360))
    for panel in range(4):
        left, middle, right = edge[2 * panel : 2 * panel + 3]
        ribs = [(left[0] * 0.62, -0.84), left, middle, right, (right[0] * 0.62, -0.84)]
        colour = _CREAM if panel % 2 else cloth
        pen.polygon([top, *ribs], shade(colour, 92 if (panel < 2) == (pen.side > 0) else 100))
    pen.ellipse(0, -0.97, 0.025, 0.03, shade(cloth, 70))


@look(size=(120, 180), width=1.0, height=1.0, hue="warm", lean="any", pivot=50, shadow=False)
def five_points(pen: Pen, thing: Thing) -> None:
    """Draw a plump star: a starfish, or a star."""
    body = hued(thing.hue, 64, 97)
    tips = [(0.0, -1.0), (0.476, -0.655), (0.294, -0.095), (-0.294, -0.095), (-0.476, -0.655)]
    hollows = [(0.15, -0.706), (0.243, -0.421), (0.0, -0.245), (-0.243, -0.421), (-0.15, -0.706)]
    corners = [corner for pair in zip(tips, hollows, strict=True) for corner in pair]
    pen.polygon(corners, shade(body, 84))
    for tip in tips:  # round the points off
        pen.ellipse(tip[0] * 0.93, -0.5 + (tip[1] + 0.5) * 0.93, 0.045, 0.045, shade(body, 84))
    pen.polygon([(u * 0.78, -0.5 + (v + 0.5) * 0.78) for u, v in corners], body)
    pen.ellipse(0, -0.5, 0.1, 0.1, blend(body, _WHITE, 40))
    for tip in tips:
        pen.ellipse(tip[0] * 0.5, -0.5 + (tip[1] + 0.5) * 0.5, 0.035, 0.035, blend(body, _WHITE, 40))


@look(size=(105, 165), width=1.0, height=1.0, hue="warm")
def sphere(pen: Pen, thing: Thing) -> None:
    """Draw a plain round thing: a ball, or an orange."""
    skin = hued(thing.hue, 82, 96)
    pen.ellipse(0, -0.5, 0.5, 0.5, shade(skin, 76))
    pen.ellipse(0.05 * pen.side, -0.54, 0.44, 0.44, shade(skin, 90))
    pen.ellipse(0.08 * pen.side, -0.58, 0.36, 0.36, skin)
    pen.ellipse(0.17 * pen.side, -0.7, 0.12, 0.09, blend(skin, _WHITE, 65))


# The sky.


@look(size=(130, 190), width=1.0, height=1.0, pivot=50, shadow=False)
def sun(pen: Pen, thing: Thing) -> None:
    disc = (255, 232, 130) if thing.mood.light == "day" else (255, 178, 96)
    for radius, alpha in ((1.15, 22), (0.9, 34), (0.7, 52)):
        pen.ellipse(0, -0.5, radius, radius, blend(disc, _WHITE, 40), alpha, marked=False, glowing=True)
    pen.ellipse(0, -0.5, 0.5, 0.5, disc, glowing=True)
    pen.ellipse(0, -0.5, 0.38, 0.38, blend(disc, _WHITE, 40), glowing=True)


@look(size=(200, 340), width=1.0, height=0.46, shadow=False)
def cloud(pen: Pen, thing: Thing) -> None:
    dice = Dice(thing.variant)
    white = (252, 252, 254)
    puffs = [(-0.3, 0.13), (-0.1, 0.2), (0.13, 0.18), (0.33, 0.12)]
    lifted = [(u, radius + dice.between(-0.03, 0.04)) for u, radius in puffs]
    for u, radius in lifted:
        pen.ellipse(u, -0.16, radius * 1.05, radius, shade(white, 88))
    pen.round_box(-0.48, -0.2, 0.48, 0.0, 0.1, shade(white, 88))
    for u, radius in lifted:
        pen.ellipse(u, -0.19, radius * 0.92, radius * 0.9, white)


@look(size=(190, 330), width=1.9, height=1.0, shadow=False)
def mountain(pen: Pen, thing: Thing) -> None:
    dice = Dice(thing.variant)
    rock = blend(hued(215 + thing.hue % 40, 26, 68), (150, 142, 150), dice.integer(0, 60))
    top, left, right = dice.between(-0.15, 0.15), dice.between(0.5, 0.7), dice.between(0.5, 0.7)
    pen.polygon([(-0.98, 0.02), (top - 0.55, -left * 0.8), (top - 0.38, -left), (top, -1.0), (0.98, 0.02)], rock)
    pen.polygon([(top, -1.0), (top + 0.08, -0.62), (top - 0.06, -0.3), (0.1, 0.02), (0.98, 0.02)], shade(rock, 82))
    pen.polygon([(top + 0.4, -right), (0.98, 0.02), (0.4, 0.02)], shade(rock, 90))
    cap = [(top, -1.0), (top + 0.21, -0.78), (top + 0.1, -0.72), (top + 0.03, -0.8), (top - 0.06, -0.7)]
    pen.polygon([*cap, (top - 0.14, -0.8), (top - 0.2, -0.8)], (244, 248, 252))
    pen.polygon([(top, -1.0), (top + 0.21, -0.78), (top + 0.1, -0.72), (top + 0.05, -0.8)], (214, 224, 238))


# Plants.


@look(size=(260, 420), width=0.62, height=1.0, lean="wind")
def tree(pen: Pen, thing: Thing) -> None:
    leaf = hued(78 + thing.hue % 62, 52, 66)
    pen.polygon([(-0.06, 0.0), (-0.035, -0.5), (0.035, -0.5), (0.06, 0.0)], shade(_WOOD, 88))
    for u, v, radius in ((-0.15, -0.52, 0.17), (0.15, -0.52, 0.17), (0.0, -0.7, 0.27)):
        pen.ellipse(u, v, radius, radius, shade(leaf, 78))
    for u, v, radius in ((-0.13, -0.56, 0.13), (0.13, -0.56, 0.13), (0.0, -0.72, 0.22)):
        pen.ellipse(u + 0.03 * pen.side, v, radius, radius, leaf)
    pen.ellipse(0.07 * pen.side, -0.78, 0.11, 0.1, shade(leaf, 116))


@look(size=(340, 480), width=0.7, height=1.0, lean="wind")
def palm(pen: Pen, thing: Thing) -> None:
    leaf = hued(95 + thing.hue % 40, 56, 62)
    trunk = (158, 120, 84)
    pen.polygon([(-0.05, 0), (-0.01, -0.4), (0.06, -0.78), (0.1, -0.76), (0.05, -0.4), (0.05, 0)], trunk)
    for step in range(5):
        v = -0.12 - 0.13 * step
        pen.stroke((-0.035 + 0.02 * step, v), (0.045 + 0.014 * step, v), 0.018, shade(trunk, 78))
    crown = (0.08, -0.78)
    fronds = ((0.38, -0.62), (0.36, -0.86), (0.18, -1.0), (-0.08, -1.0), (-0.24, -0.84), (-0.24, -0.6), (0.2, -0.5))
    for number, (u, v) in enumerate(fronds):
        middle = ((crown[0] + u) / 2, (crown[1] + v) / 2 - 0.1)
        pen.polygon(
            [crown, (middle[0], middle[1] - 0.03), (u, v), (middle[0], middle[1] + 0.07)],
            shade(leaf, 100 - 7 * (number % 3)),
        )
    for u in (0.05, 0.11):
        pen.ellipse(u, -0.74, 0.035, 0.035, (112, 76, 52))


@look(size=(300, 460), width=0.62, height=1.0, lean="little")
def fir(pen: Pen, thing: Thing) -> None:
    needle = hued(140 + thing.hue % 30, 48, 48)
    pen.box(-0.045, -0.14, 0.045, 0.0, _WOOD)
    for bottom, height, half in ((-0.1, 0.42, 0.31), (-0.34, 0.38, 0.25), (-0.58, 0.42, 0.18)):
        pen.polygon([(-half, bottom), (0, bottom - height), (half, bottom)], needle)
        pen.polygon(
            [(-half * pen.side, bottom), (0, bottom - height), (-half * 0.25 * pen.side, bottom)], shade(needle, 78)
        )


@look(size=(130, 200), width=0.6, height=1.0, lean="wind")
def flower(pen: Pen, thing: Thing) -> None:
    petal = hued(thing.hue if not 70 < thing.hue < 170 else thing.hue + 180, 52, 98)
    stem = (84, 140, 72)
    pen.stroke((0, 0), (0, -0.6), 0.07, stem)
    pen.polygon([(0, -0.1), (0.26, -0.36), (0.1, -0.1)], stem)
    pen.polygon([(0, -0.16), (-0.26, -0.4), (-0.1, -0.14)], shade(stem, 88))
    for u, v in ((0.0, -0.88), (0.17, -0.76), (0.11, -0.57), (-0.11, -0.57), (-0.17, -0.76)):
        pen.ellipse(u, v, 0.135, 0.135, petal)
    pen.ellipse(0, -0.7, 0.11, 0.11, (252, 206, 84))


# Buildings, people, animals, belongings.


@look(size=(260, 400), width=0.86, height=1.15, hue="theme")
def house(pen: Pen, thing: Thing) -> None:
    dice = Dice(thing.variant)
    wall, roof = hued(30 + dice.integer(0, 24), dice.integer(10, 34), 95), hued(thing.hue, 48, 70)
    pane = (255, 224, 140) if thing.mood.light != "day" else (150, 190, 214)
    pen.box(0.16, -1.1, 0.27, -0.7, (150, 96, 82))
    for step, radius in enumerate((0.05, 0.07, 0.09)):  # smoke drifts with the wind
        drift = (0.1 + 0.14 * step) * (1 if thing.mood.wind > 0 else -1) * thing.flip
        pen.ellipse(0.21 + drift, -1.17 - 0.09 * step, radius, radius * 0.8, (236, 236, 240), 110, marked=False)
    pen.box(-0.38, -0.62, 0.38, 0.0, wall)
    pen.box(0.06 if pen.side < 0 else -0.38, -0.62, 0.38 if pen.side < 0 else -0.06, 0.0, shade(wall, 90))
    pen.polygon([(-0.46, -0.58), (0, -1.0), (0.46, -0.58)], roof)
    pen.polygon([(-0.46, -0.58), (-0.4, -0.58), (0, -0.93), (0.4, -0.58), (0.46, -0.58), (0, -1.0)], shade(roof, 76))
    pen.box(-0.1, -0.32, 0.1, 0.0, shade(roof, 62))
    for u in (-0.26, 0.26):
        pen.box(u - 0.09, -0.48, u + 0.09, -0.28, _WHITE)
        glass = [(u - 0.07, -0.46), (u + 0.07, -0.46), (u + 0.07, -0.3), (u - 0.07, -0.3)]
        pen.polygon(glass, pane, glowing=thing.mood.light != "day")
    pen.ellipse(0, -0.72, 0.07, 0.07, pane, glowing=thing.mood.light != "day")


@look(size=(240, 320), width=0.36, height=1.0, hue="theme")
def person(pen: Pen, thing: Thing) -> None:
    dice = Dice(thing.variant)
    skin = blend((246, 208, 176), (122, 82, 58), dice.integer(0, 100))
    coat, trousers, hair = (
        hued(thing.hue, 58, 78),
        hued(215, 34, 40 + dice.integer(0, 20)),
        hued(24, 45, dice.integer(18, 52)),
    )
    pen.box(-0.11, -0.4, -0.015, -0.03, trousers)
    pen.box(0.015, -0.4, 0.11, -0.03, shade(trousers, 84))
    pen.round_box(-0.14, -0.05, -0.005, 0.0, 0.02, _DARK)
    pen.round_box(0.005, -0.05, 0.14, 0.0, 0.02, _DARK)
    pen.polygon([(-0.12, -0.74), (0.12, -0.74), (0.16, -0.32), (-0.16, -0.32)], coat)
    pen.stroke((-0.12, -0.7), (-0.18, -0.42), 0.08, shade(coat, 84))
    pen.stroke((0.12, -0.7), (0.2, -0.52), 0.08, shade(coat, 92))
    pen.ellipse(0.2, -0.51, 0.045, 0.045, skin)
    pen.box(-0.04, -0.79, 0.04, -0.72, shade(skin, 88))
    pen.ellipse(0, -0.87, 0.105, 0.12, skin)
    pen.ellipse(0, -0.9, 0.115, 0.1, hair, arc=(180, 360))


@look(size=(200, 280), width=1.0, height=0.75)
def sheep(pen: Pen, thing: Thing) -> None:
    wool, face = (246, 240, 228), (70, 62, 66)
    for u in (-0.24, -0.12, 0.12, 0.24):
        pen.box(u - 0.035, -0.25, u + 0.035, 0.0, face)
    puffs = ((-0.28, -0.36, 0.16), (-0.12, -0.5, 0.19), (0.1, -0.5, 0.19), (0.24, -0.36, 0.17), (-0.02, -0.3, 0.2))
    for u, v, radius in puffs:
        pen.ellipse(u, v, radius, radius * 0.9, shade(wool, 88))
    for u, v, radius in puffs:
        pen.ellipse(u + 0.02 * pen.side, v - 0.03, radius * 0.82, radius * 0.72, wool)
    pen.ellipse(0.38, -0.5, 0.11, 0.14, face)
    pen.ellipse(0.27, -0.56, 0.07, 0.035, face)
    pen.ellipse(0.35, -0.64, 0.09, 0.06, wool)
    pen.ellipse(0.42, -0.52, 0.02, 0.02, _WHITE)


@look(size=(330, 460), width=1.0, height=0.6)
def goal(pen: Pen, thing: Thing) -> None:
    pen.polygon([(-0.47, -0.57), (0.47, -0.57), (0.47, 0.0), (-0.47, 0.0)], (214, 228, 232), 110)
    for step in range(1, 9):
        pen.stroke((-0.47 + 0.104 * step, -0.57), (-0.47 + 0.104 * step, 0.0), 0.01, _WHITE, 170, marked=False)
    for step in range(1, 5):
        pen.stroke((-0.47, -0.115 * step), (0.47, -0.115 * step), 0.01, _WHITE, 170, marked=False)
    for left, top, right, bottom in ((-0.5, -0.6, -0.45, 0.0), (0.45, -0.6, 0.5, 0.0), (-0.5, -0.6, 0.5, -0.55)):
        pen.box(left, top, right, bottom, _WHITE)


@look(size=(240, 340), width=1.1, height=0.4, hue="theme", shadow=False)
def blanket(pen: Pen, thing: Thing) -> None:
    cloth = hued(thing.hue, 56, 88)
    pen.polygon([(-0.38, -0.38), (0.38, -0.38), (0.55, 0.0), (-0.55, 0.0)], cloth)
    for left in (-0.75, -0.15, 0.45):
        right = left + 0.3
        stripe = [(left * 0.38, -0.38), (right * 0.38, -0.38), (right * 0.55, 0.0), (left * 0.55, 0.0)]
        pen.polygon(stripe, blend(cloth, _CREAM, 70))
    for top, bottom in ((-0.32, -0.25), (-0.13, -0.05)):
        pen.polygon([(-0.41, top), (0.41, top), (0.46, bottom), (-0.46, bottom)], shade(cloth, 72), 90)


@look(size=(240, 340), width=0.6, height=1.0)
def snowman(pen: Pen, thing: Thing) -> None:
    snow, scarf = (248, 250, 254), hued(thing.hue, 68, 84)
    for v, radius in ((-0.24, 0.25), (-0.54, 0.18), (-0.78, 0.13)):
        pen.ellipse(0, v, radius, radius, (196, 208, 230))
        pen.ellipse(0.025 * pen.side, v - 0.02, radius * 0.9, radius * 0.9, snow)
    pen.stroke((-0.15, -0.56), (-0.32, -0.7), 0.025, _WOOD)
    pen.stroke((0.15, -0.56), (0.32, -0.68), 0.025, _WOOD)
    pen.box(-0.13, -0.7, 0.13, -0.64, scarf)
    pen.polygon([(0.04, -0.66), (0.11, -0.66), (0.13, -0.46), (0.05, -0.46)], shade(scarf, 84))
    pen.box(-0.15, -0.9, 0.15, -0.86, _DARK)
    pen.box(-0.1, -1.02, 0.1, -0.88, _DARK)
    pen.polygon([(0.0, -0.8), (0.15, -0.76), (0.0, -0.75)], (240, 140, 60))
    for u, v in ((-0.05, -0.82), (0.05, -0.82), (0.0, -0.56), (0.0, -0.48)):
        pen.ellipse(u, v, 0.018, 0.018, _DARK)
