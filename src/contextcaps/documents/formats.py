"""Numbers and names as text, the same in the terminal, in Markdown, on pages and in charts."""

import math
import re
from typing import Protocol

__all__ = [
    "MISSING",
    "Interval",
    "count",
    "counted",
    "duration",
    "interval",
    "literal",
    "number",
    "percent",
    "printable",
    "shortened",
    "signed",
    "signed_interval",
    "significant",
]

MISSING = "–"
"""Stands for a number that is not defined or not known."""


class Interval(Protocol):
    """A value and the ends of its interval, NaN where it has none."""

    @property
    def value(self) -> float: ...

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...


def number(value: float, digits: int = 0) -> str:
    """Return a number with so many digits after the point; a dash for NaN and infinity.

    >>> number(1234.56, 1), number(-0.5, 2), number(float("nan"))
    ('1,234.6', '−0.50', '–')
    """
    return f"{value:,.{digits}f}".replace("-", "−") if math.isfinite(value) else MISSING


def count(value: int) -> str:
    """Return a whole number with its thousands set apart."""
    return f"{value:,}"


def percent(share: float, digits: int = 1) -> str:
    """Return a share in percent, without the sign.

    >>> percent(0.4238), percent(0.4238, 2)
    ('42.4', '42.38')
    """
    return number(100 * share, digits)


def signed(share: float, digits: int = 1, factor: float = 100) -> str:
    """Return a difference of two shares with its sign, in points unless another factor is given.

    >>> signed(0.012), signed(-0.0204, 2)
    ('+1.2', '−2.04')
    """
    return f"{factor * share:+.{digits}f}".replace("-", "−") if math.isfinite(share) else MISSING


def interval(estimate: Interval, digits: int = 1, factor: float = 100) -> str:
    """Return the ends of an interval in brackets, in percent unless another factor is given."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return MISSING
    return f"[{number(factor * estimate.low, digits)}, {number(factor * estimate.high, digits)}]"


def signed_interval(estimate: Interval) -> str:
    """Return the ends of a difference's interval in points; an end near zero shows on which side of it it lies."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return MISSING
    digits = 2 if min(abs(estimate.low), abs(estimate.high)) < 0.0005 else 1
    return f"[{signed(estimate.low, digits)}, {signed(estimate.high, digits)}]"


def significant(value: float) -> str:
    """Return a positive number with three significant digits, at most three of them after the point.

    >>> significant(5.123), significant(2500), significant(0.0012)
    ('5.12', '2,500', '0.001')
    """
    if not math.isfinite(value):
        return MISSING
    return number(value, 3 if value < 0.01 else min(3, max(0, 2 - math.floor(math.log10(value)))))


def duration(seconds: float) -> str:
    """Return seconds in minutes and seconds.

    >>> duration(7.2), duration(133)
    ('7 s', '2 min 13 s')
    """
    if not math.isfinite(seconds):
        return MISSING
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "epoch"), counted(2000, "image"), counted(2, "class")
    ('1 epoch', '2,000 images', '2 classes')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"


def shortened(text: str, most: int) -> str:
    """Return text on one line, cut off with … where it has more than `most` characters."""
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"


def printable(text: str) -> str:
    """Return text without control characters, which could steer a terminal, and without lone surrogates."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def literal(text: object) -> str:
    """Return text for Markdown, on one line, in which nothing is markup.

    >>> print(literal("a|b <i> *c* [d](e) [1, 2] x_y"))
    a\\|b \\<i> \\*c\\* [d\\](e) [1, 2] x_y
    """
    line = printable(" ".join(str(text).split()))
    return re.sub(r"([\\`*~<|]|\](?=[(:\[])|(?<!\w)_|_(?!\w)|&(?=#?\w+;))", r"\\\1", line)
