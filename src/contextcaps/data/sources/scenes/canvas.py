"""Draw a colour picture and, beside it, a map of which object each pixel shows.

Lengths are fractions of the picture's side, x to the right and y down. Turns are whole degrees, with cosines rounded to
2⁻¹⁶ and corners to whole canvas pixels, so that the last bit of a platform's sine cannot move a pixel.
"""

import colorsys
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

__all__ = ["MASK_SIDE", "Canvas", "Colour", "Pen", "blend", "hued", "shade"]

Colour = tuple[int, int, int]
Point = tuple[float, float]

MASK_SIDE = 256
"""Side of the map of objects, in pixels: the largest picture's, whatever size is drawn."""
_COSINE = [round(math.cos(math.radians(degrees)) * 65536) / 65536 for degrees in range(360)]
_TINTS = {"day": (256, 256, 256), "dusk": (256, 214, 190), "night": (136, 142, 184)}
"""Factors of the light on red, green and blue, of 256."""


def shade(colour: Colour, percent: int) -> Colour:
    """Make a colour darker (below 100) or lighter."""
    return tuple(min(255, channel * percent // 100) for channel in colour)  # type: ignore[return-value]


def blend(colour: Colour, other: Colour, percent: int) -> Colour:
    """Mix a colour with so many percent of another."""
    return tuple((a * (100 - percent) + b * percent) // 100 for a, b in zip(colour, other, strict=True))  # type: ignore[return-value]


def hued(hue: int, saturation: int = 58, value: int = 88) -> Colour:
    """Return the colour of a hue in degrees, with saturation and value in percent."""
    red, green, blue = colorsys.hsv_to_rgb(hue % 360 / 360, saturation / 100, value / 100)
    return int(red * 255), int(green * 255), int(blue * 255)


class Canvas:
    """Holds a picture while it is drawn, at a larger size, so that edges become smooth when it is reduced.

    Args:
        size: side of the picture, in pixels.
        light: "day", "dusk" or "night".
    """

    def __init__(self, size: int, light: str) -> None:
        self.factor = 4 if size <= 96 else 3 if size <= 160 else 2
        self.side = size * self.factor
        self.picture = Image.new("RGB", (self.side, self.side))
        self.objects = Image.new("L", (MASK_SIDE, MASK_SIDE))  # the number of the object on top, 0 for none
        self._colours = ImageDraw.Draw(self.picture, "RGBA")
        self._numbers = ImageDraw.Draw(self.objects)
        self._tint = _TINTS[light]
        self.number = 0
        """The object that is being drawn."""

    def lit(self, colour: Colour) -> Colour:
        """Return a colour as it looks in the scene's light."""
        return tuple(channel * part >> 8 for channel, part in zip(colour, self._tint, strict=True))  # type: ignore[return-value]

    def gradient(self, top: float, bottom: float, stops: Sequence[Colour], glowing: bool = False) -> None:
        """Fill the picture's whole width from top to bottom with colours that run into each other."""
        first, last = round(top * self.side), round(bottom * self.side)
        colours = np.asarray(stops if glowing else [self.lit(stop) for stop in stops], dtype=np.int64)
        places = np.arange(last - first) * (len(stops) - 1) * 256 // max(last - first, 1)
        step, part = places // 256, (places % 256)[:, None]
        rows = (colours[step] * (256 - part) + colours[np.minimum(step + 1, len(stops) - 1)] * part) >> 8
        strip = Image.fromarray(rows[:, None].astype(np.uint8))
        self.picture.paste(strip.resize((self.side, last - first), Image.Resampling.NEAREST), (0, first))
        self._numbers.rectangle((0, round(top * MASK_SIDE), MASK_SIDE, round(bottom * MASK_SIDE) - 1), fill=self.number)

    def polygon(self, points: Sequence[Point], colour: Colour, alpha: int = 255, marked: bool = True) -> None:
        """Fill a polygon; `marked` if its pixels belong to the object (a shadow's or a glow's do not)."""
        side = self.side
        corners = [(math.floor(x * side + 0.5), math.floor(y * side + 0.5)) for x, y in points]
        self._colours.polygon(corners, fill=colour if alpha == 255 else (*colour, alpha))
        if marked:
            if side != MASK_SIDE:
                corners = [(math.floor(x * MASK_SIDE + 0.5), math.floor(y * MASK_SIDE + 0.5)) for x, y in points]
            self._numbers.polygon(corners, fill=self.number)

    def pen(self, x: float = 0.0, y: float = 0.0, size: float = 1.0, **turned: int) -> "Pen":
        return Pen(self, x, y, size, **turned)

    def image(self) -> np.ndarray:
        """Return the picture at its final size [H, W, 3], uint8."""
        return np.array(self.picture.reduce(self.factor))  # a copy, so that it can be written to


class Pen:
    """Draws in an object's own frame: the origin where it stands, y down (so up is negative), lengths in its size.

    Args:
        canvas: where to draw.
        x, y, size: the origin and the unit, in fractions of the picture.
        lean: degrees to turn clockwise about the point `pivot` hundredths above the origin.
        flip: -1 mirrors the object.
        side: where the light comes from, -1 for the left, 1 for the right.
    """

    def __init__(
        self,
        canvas: Canvas,
        x: float,
        y: float,
        size: float,
        lean: int = 0,
        flip: int = 1,
        pivot: int = 0,
        side: int = 1,
    ) -> None:
        self.canvas = canvas
        cosine, sine, above = size * _COSINE[lean % 360], size * _COSINE[(lean - 90) % 360], pivot / 100
        # (u, v) → (x, y): the linear part by rows, then the origin.
        self._frame = (flip * cosine, -sine, flip * sine, cosine)
        self._origin = (x - above * sine, y + above * (cosine - size))
        self.side = side * flip
        """Where the light comes from, in the object's own frame."""

    def polygon(
        self, points: Sequence[Point], colour: Colour, alpha: int = 255, marked: bool = True, glowing: bool = False
    ) -> None:
        """Fill a polygon with a colour, as the light makes it unless it glows itself."""
        (a, b, c, d), (x, y) = self._frame, self._origin
        placed = [(x + a * u + b * v, y + c * u + d * v) for u, v in points]
        self.canvas.polygon(placed, colour if glowing else self.canvas.lit(colour), alpha, marked)

    def ellipse(
        self,
        u: float,
        v: float,
        width: float,
        height: float,
        colour: Colour,
        alpha: int = 255,
        marked: bool = True,
        glowing: bool = False,
        arc: tuple[int, int] = (0, 360),
    ) -> None:
        """Fill an ellipse about (u, v) with these radii, or the part of it between two angles (0: right, 90: down)."""
        points = [
            (u + width * _COSINE[degrees % 360], v + height * _COSINE[(degrees - 90) % 360])
            for degrees in range(arc[0], arc[1] + 1, 10)
        ]
        self.polygon(points, colour, alpha, marked, glowing)

    def box(self, left: float, top: float, right: float, bottom: float, colour: Colour, alpha: int = 255) -> None:
        self.polygon([(left, top), (right, top), (right, bottom), (left, bottom)], colour, alpha)

    def round_box(self, left: float, top: float, right: float, bottom: float, radius: float, colour: Colour) -> None:
        """Fill a box with rounded corners."""
        points = []
        for degrees in range(0, 361, 15):
            u = right - radius if degrees <= 90 or degrees >= 270 else left + radius
            v = bottom - radius if degrees <= 180 else top + radius
            points.append((u + radius * _COSINE[degrees % 360], v + radius * _COSINE[(degrees - 90) % 360]))
        self.polygon(points, colour)

    def stroke(
        self, start: Point, end: Point, width: float, colour: Colour, alpha: int = 255, marked: bool = True
    ) -> None:
        """Draw a straight line of some width."""
        along, down = end[0] - start[0], end[1] - start[1]
        length = max(math.sqrt(along * along + down * down), 1e-6)
        u, v = -down / length * width / 2, along / length * width / 2
        corners = [(start[0] + u, start[1] + v), (end[0] + u, end[1] + v), (end[0] - u, end[1] - v)]
        self.polygon([*corners, (start[0] - u, start[1] - v)], colour, alpha, marked)
