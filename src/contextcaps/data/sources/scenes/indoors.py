"""Draw things found indoors."""

from contextcaps.data.sources.scenes.canvas import Pen, blend, hued, shade
from contextcaps.data.sources.scenes.dice import Dice
from contextcaps.data.sources.scenes.looks import Thing, look

__all__: list[str] = []  # nothing to import: the looks register themselves

_WHITE, _CREAM, _DARK, _WOOD = (250, 250, 248), (250, 240, 218), (52, 48, 60), (158, 112, 76)


# On the wall.


@look(size=(240, 330), width=0.9, height=1.0, shadow=False)
def window(pen: Pen, thing: Thing) -> None:
    """Draw a window; the sky behind it, in the scene's light, is part of the window."""
    high, low = {
        "day": ((118, 182, 232), (206, 232, 246)),
        "dusk": ((116, 92, 148), (250, 180, 128)),
        "night": ((18, 24, 58), (46, 58, 104)),
    }[thing.mood.light]
    pen.box(-0.45, -1.0, 0.45, 0.0, _WHITE)
    for step in range(16):
        top = -0.94 + 0.055 * step
        strip = [(-0.39, top), (0.39, top), (0.39, -0.06), (-0.39, -0.06)]
        pen.polygon(strip, blend(high, low, step * 100 // 15), glowing=True)
    pen.ellipse(0.0, -0.06, 0.39, 0.2, blend(low, (60, 110, 70), 70), arc=(180, 360), glowing=True)
    pen.box(-0.025, -0.97, 0.025, -0.06, _WHITE)
    pen.box(-0.42, -0.53, 0.42, -0.48, _WHITE)
    pen.box(-0.5, -0.06, 0.5, 0.0, shade(_WHITE, 86))


@look(size=(220, 300), width=0.55, height=1.0, hue="theme", shadow=False)
def towel(pen: Pen, thing: Thing) -> None:
    cloth = hued(thing.hue, 48, 90)
    pen.box(-0.34, -1.0, 0.34, -0.95, (150, 156, 166))
    pen.box(-0.25, -0.97, 0.25, -0.02, cloth)
    pen.box(-0.25, -0.97, -0.08, -0.1, shade(cloth, 90))
    pen.box(-0.25, -0.3, 0.25, -0.18, blend(cloth, _WHITE, 70))
    pen.box(-0.25, -0.12, 0.25, -0.08, blend(cloth, _WHITE, 70))


# On the table.


@look(size=(190, 270), width=1.0, height=0.46)
def bowl(pen: Pen, thing: Thing) -> None:
    glaze = hued(thing.hue, 36, 90)
    pen.ellipse(0, -0.36, 0.5, 0.38, glaze, arc=(0, 180))
    pen.ellipse(-0.12 * pen.side, -0.36, 0.36, 0.36, shade(glaze, 88), arc=(0, 180))
    pen.box(-0.18, -0.05, 0.18, 0.0, shade(glaze, 76))
    pen.ellipse(0, -0.37, 0.5, 0.09, blend(glaze, _WHITE, 40))
    pen.ellipse(0, -0.36, 0.43, 0.06, shade(glaze, 66))
    pen.box(-0.44, -0.24, 0.44, -0.2, blend(glaze, _WHITE, 60), 150)


@look(size=(120, 170), width=1.0, height=0.9)
def cup(pen: Pen, thing: Thing) -> None:
    china = hued(thing.hue, 42, 92)
    pen.ellipse(0.36, -0.42, 0.19, 0.22, shade(china, 84))
    pen.ellipse(0.36, -0.42, 0.1, 0.13, (236, 226, 214))
    pen.polygon([(-0.38, -0.8), (0.38, -0.8), (0.3, -0.06), (0.22, 0.0), (-0.22, 0.0), (-0.3, -0.06)], china)
    pen.polygon([(-0.38, -0.8), (-0.2, -0.8), (-0.16, 0.0), (-0.22, 0.0), (-0.3, -0.06)], shade(china, 86))
    pen.ellipse(0, -0.8, 0.38, 0.1, blend(china, _WHITE, 55))
    pen.ellipse(0, -0.79, 0.31, 0.07, (104, 68, 48))
    for u, lift in ((-0.1, 0.0), (0.1, 0.08)):
        pen.ellipse(u, -1.02 - lift, 0.045, 0.13, _WHITE, 90, marked=False)


@look(size=(260, 360), width=0.55, height=1.0)
def vase(pen: Pen, thing: Thing) -> None:
    dice = Dice(thing.variant)
    glaze, leaf = hued(thing.hue, 44, 74), (96, 146, 88)
    for u, v in ((-0.2, -0.78), (0.0, -0.9), (0.2, -0.8), (-0.1, -0.66), (0.12, -0.64)):
        pen.stroke((0, -0.4), (u, v), 0.025, leaf)
        pen.ellipse(u, v, 0.09, 0.08, hued(thing.hue + 140 + dice.integer(0, 50), 48, 97))
        pen.ellipse(u, v, 0.035, 0.03, (252, 214, 110))
    for u in (-0.16, 0.17):
        pen.polygon([(0, -0.42), (u, -0.56), (u * 1.5, -0.5), (u * 0.8, -0.46)], shade(leaf, 86))
    pen.polygon([(-0.09, -0.46), (0.09, -0.46), (0.07, -0.38), (-0.07, -0.38)], shade(glaze, 88))
    pen.ellipse(0, -0.19, 0.19, 0.19, glaze)
    pen.box(-0.1, -0.06, 0.1, 0.0, shade(glaze, 80))
    pen.ellipse(0.07 * pen.side, -0.25, 0.05, 0.08, blend(glaze, _WHITE, 45))
    pen.box(-0.1, -0.48, 0.1, -0.44, shade(glaze, 112))


# On the floor.


@look(size=(220, 310), width=0.75, height=1.0)
def cat(pen: Pen, thing: Thing) -> None:
    dice = Dice(thing.variant)
    furs = ((92, 88, 98), (222, 150, 84), (236, 226, 212), (128, 100, 82))
    fur = furs[dice.integer(0, 3)]
    pen.stroke((0.2, -0.06), (0.36, -0.14), 0.08, shade(fur, 84))
    pen.stroke((0.36, -0.12), (0.34, -0.38), 0.075, shade(fur, 84))
    pen.ellipse(0.34, -0.39, 0.038, 0.038, shade(fur, 84))
    pen.ellipse(0.02, -0.26, 0.25, 0.27, fur)
    pen.ellipse(-0.04, -0.44, 0.17, 0.2, fur)
    pen.ellipse(-0.06, -0.3, 0.1, 0.2, blend(fur, _WHITE, 35))
    pen.ellipse(-0.13, -0.03, 0.09, 0.045, shade(fur, 108))
    pen.ellipse(0.06, -0.03, 0.09, 0.045, shade(fur, 92))
    pen.polygon([(-0.26, -0.78), (-0.25, -1.0), (-0.1, -0.88)], shade(fur, 88))
    pen.polygon([(0.16, -0.78), (0.15, -1.0), (0.0, -0.88)], shade(fur, 88))
    pen.ellipse(-0.05, -0.73, 0.22, 0.18, fur)
    for u in (-0.13, 0.03):
        pen.ellipse(u, -0.75, 0.04, 0.045, (206, 222, 108))
        pen.ellipse(u, -0.75, 0.016, 0.04, _DARK)
    pen.ellipse(-0.05, -0.66, 0.09, 0.055, blend(fur, _WHITE, 45))
    pen.ellipse(-0.05, -0.69, 0.026, 0.018, (214, 122, 122))


@look(size=(560, 680), width=1.0, height=0.56, hue="theme")
def sofa(pen: Pen, thing: Thing) -> None:
    cloth = hued(thing.hue, 42, 72)
    for u in (-0.4, 0.4):
        pen.box(u - 0.025, -0.06, u + 0.025, 0.0, _WOOD)
    pen.round_box(-0.42, -0.55, 0.42, -0.1, 0.07, shade(cloth, 84))
    pen.box(-0.006, -0.53, 0.006, -0.25, shade(cloth, 74))
    pen.round_box(-0.44, -0.29, 0.44, -0.05, 0.04, cloth)
    pen.box(-0.4, -0.17, 0.4, -0.155, shade(cloth, 80))
    for left, right in ((-0.5, -0.36), (0.36, 0.5)):
        pen.round_box(left, -0.38, right, -0.04, 0.06, shade(cloth, 108))
        pen.box(left + 0.02, -0.12, right - 0.02, -0.06, shade(cloth, 90))


@look(size=(120, 165), width=1.0, height=0.9, hue="theme", lean="little", pivot=45, shadow=False)
def cushion(pen: Pen, thing: Thing) -> None:
    cloth = hued(thing.hue, 58, 96)
    corners = [
        (-0.5, -0.9),
        (0.0, -0.82),
        (0.5, -0.9),
        (0.44, -0.45),
        (0.5, 0.0),
        (0.0, -0.06),
        (-0.5, 0.0),
        (-0.44, -0.45),
    ]
    pen.polygon(corners, shade(cloth, 84))
    pen.polygon([(u * 0.86 + 0.03 * pen.side, -0.45 + (v + 0.45) * 0.84) for u, v in corners], cloth)
    if thing.variant % 2:
        for u in (-0.2, 0.0, 0.2):
            pen.stroke((u, -0.78), (u, -0.12), 0.07, blend(cloth, _WHITE, 65))
    else:
        pen.ellipse(0.0, -0.45, 0.2, 0.18, blend(cloth, _WHITE, 65))


@look(size=(120, 190), width=1.0, height=1.1)
def gift(pen: Pen, thing: Thing) -> None:
    paper, ribbon = hued(thing.hue, 58, 84), hued(thing.hue + 160, 40, 98)
    pen.box(-0.46, -0.78, 0.46, 0.0, paper)
    pen.box(-0.46 if pen.side > 0 else 0.2, -0.78, -0.2 if pen.side > 0 else 0.46, 0.0, shade(paper, 86))
    pen.box(-0.5, -0.84, 0.5, -0.64, shade(paper, 110))
    pen.box(-0.09, -0.84, 0.09, 0.0, ribbon)
    pen.ellipse(-0.17, -0.94, 0.17, 0.1, ribbon)
    pen.ellipse(0.17, -0.94, 0.17, 0.1, shade(ribbon, 90))
    pen.ellipse(0.0, -0.9, 0.07, 0.07, shade(ribbon, 80))


@look(size=(480, 580), width=1.0, height=0.62, hue="theme")
def bed(pen: Pen, thing: Thing) -> None:
    cover = hued(thing.hue, 40, 84)
    pen.box(-0.5, -0.62, -0.43, 0.0, _WOOD)
    pen.ellipse(-0.465, -0.62, 0.05, 0.05, shade(_WOOD, 112))
    pen.box(0.43, -0.4, 0.5, 0.0, shade(_WOOD, 90))
    pen.box(-0.46, -0.2, 0.46, -0.07, shade(_WOOD, 84))
    pen.round_box(-0.43, -0.33, 0.43, -0.16, 0.05, _WHITE)
    pen.round_box(-0.42, -0.42, -0.18, -0.29, 0.06, _CREAM)
    pen.polygon([(-0.14, -0.36), (0.43, -0.36), (0.43, -0.1), (-0.12, -0.1)], cover)
    pen.polygon([(-0.14, -0.36), (-0.05, -0.36), (-0.03, -0.1), (-0.12, -0.1)], blend(cover, _WHITE, 55))
    for u, v in ((0.06, -0.3), (0.2, -0.18), (0.34, -0.29), (0.07, -0.16), (0.21, -0.31), (0.35, -0.15)):
        pen.ellipse(u, v, 0.022, 0.022, blend(cover, _WHITE, 55))


@look(size=(190, 270), width=0.8, height=1.0)
def teddy(pen: Pen, thing: Thing) -> None:
    fur = hued(24 + thing.hue % 14, 48, 60 + thing.variant % 22)
    muzzle = blend(fur, _CREAM, 60)
    for u in (-1.0, 1.0):
        pen.ellipse(0.17 * u, -0.93, 0.09, 0.09, shade(fur, 86))
        pen.ellipse(0.17 * u, -0.93, 0.05, 0.05, muzzle)
        pen.ellipse(0.26 * u, -0.38, 0.1, 0.17, shade(fur, 86))
        pen.ellipse(0.23 * u, -0.09, 0.15, 0.1, shade(fur, 92))
        pen.ellipse(0.27 * u, -0.09, 0.07, 0.065, muzzle)
    pen.ellipse(0, -0.3, 0.25, 0.28, fur)
    pen.ellipse(0, -0.28, 0.15, 0.18, muzzle)
    pen.ellipse(0, -0.75, 0.25, 0.23, fur)
    pen.ellipse(0, -0.69, 0.12, 0.1, muzzle)
    pen.ellipse(0, -0.73, 0.045, 0.03, _DARK)
    for u in (-0.1, 0.1):
        pen.ellipse(u, -0.81, 0.028, 0.028, _DARK)


@look(size=(660, 780), width=1.0, height=0.42)
def bathtub(pen: Pen, thing: Thing) -> None:
    """Draw a bathtub from a little above; floating things stand on its water, 0.26 to 0.36 above the floor."""
    china = (246, 248, 250)
    for u in (-0.36, 0.36):
        pen.ellipse(u, -0.02, 0.05, 0.03, (206, 174, 96))
    pen.polygon(
        [(-0.49, -0.3), (0.49, -0.3), (0.43, -0.07), (0.37, -0.02), (-0.37, -0.02), (-0.43, -0.07)], shade(china, 93)
    )
    pen.polygon(
        [(-0.46, -0.14), (0.46, -0.14), (0.43, -0.07), (0.37, -0.02), (-0.37, -0.02), (-0.43, -0.07)], shade(china, 84)
    )
    pen.ellipse(0, -0.31, 0.5, 0.11, china)
    pen.ellipse(0, -0.31, 0.455, 0.085, (120, 190, 210))
    pen.ellipse(0, -0.3, 0.43, 0.068, (158, 216, 228))
    dice = Dice(thing.variant)
    for _ in range(9):  # foam
        radius = dice.between(0.02, 0.045)
        pen.ellipse(dice.between(-0.36, 0.36), dice.between(-0.36, -0.29), radius, radius * 0.6, (244, 250, 252), 200)


@look(size=(150, 210), width=0.95, height=0.95, shadow=False)
def duck(pen: Pen, thing: Thing) -> None:
    yellow = hued(44 + thing.hue % 10, 74, 98)
    pen.polygon([(-0.3, -0.25), (-0.5, -0.46), (-0.3, -0.44)], yellow)
    pen.ellipse(-0.05, -0.22, 0.4, 0.23, shade(yellow, 88))
    pen.ellipse(-0.04, -0.26, 0.36, 0.18, yellow)
    pen.ellipse(-0.1, -0.27, 0.2, 0.11, shade(yellow, 86))
    pen.ellipse(0.18, -0.64, 0.24, 0.25, yellow)
    pen.polygon([(0.38, -0.7), (0.56, -0.62), (0.38, -0.54)], (240, 128, 56))
    pen.ellipse(0.25, -0.7, 0.045, 0.055, _DARK)
    pen.ellipse(0.265, -0.72, 0.016, 0.02, _WHITE)
