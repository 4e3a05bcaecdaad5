"""Sweeps: the same cases at sizes along one axis, and how fast their costs grow."""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np

from contextcaps.experiments.bench.cases import AXES, Size
from contextcaps.experiments.bench.rows import Row
from contextcaps.experiments.bench.settings import Axis, Mode

__all__ = ["Line", "Sweep", "exponent", "sweep_sizes"]


def sweep_sizes(base: Size, axis: Axis, points: int) -> list[Size]:
    """Return sizes whose B, K or J is the base's times powers of two, the base in the middle.

    >>> [size.classes for size in sweep_sizes(Size(), "J", 5)]
    [38, 75, 150, 300, 600]
    """
    if points < 2:
        raise ValueError(f"points: expected at least 2 sizes along a sweep, got {points}")
    middle, least = getattr(base, AXES[axis]), 2 if axis == "J" else 1
    values = {max(least, math.floor(middle * 2.0 ** (index - points // 2) + 0.5)) for index in range(points)}
    return [base.along(axis, value) for value in sorted(values)]


def exponent(sizes: Sequence[float], costs: Sequence[float], last: int = 0) -> float:
    """Fit p of the power law cost ~ sizeᵖ, by least squares between logarithms; NaN from fewer than two points.

    >>> round(exponent([1, 2, 4, 8], [3, 12, 48, 192]), 6)
    2.0

    Args:
        sizes: ascending.
        costs: at these sizes; those that are not finite are left out.
        last: the number of points to fit, from the largest size down; 0 for all.
    """
    points = [(size, cost) for size, cost in zip(sizes, costs, strict=True) if math.isfinite(cost) and cost > 0]
    points = points[-last:]
    if len({size for size, _ in points}) < 2:
        return math.nan
    x, y = np.log(points).T
    return float(np.polyfit(x, y, deg=1)[0])


@dataclasses.dataclass(frozen=True)
class Line:
    """One way to compute one head, along a sweep."""

    head: str
    way: str
    precision: str
    rows: dict[int, Row]
    """B, K or J, ascending → what was measured there."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """All lines along one axis, in one mode."""

    axis: Axis
    mode: Mode
    base: Size
    values: tuple[int, ...]
    lines: tuple[Line, ...]

    @classmethod
    def of(cls, axis: Axis, mode: Mode, sizes: Sequence[Size], base: Size, rows: Iterable[Row]) -> "Sweep":
        """Return the sweep through some sizes, ascending, from all rows that were measured."""
        lines: dict[tuple[str, str, str], dict[Size, Row]] = {}
        for row in rows:
            case = row.case
            if case.mode == mode and case.size in sizes and not case.backbone:
                lines.setdefault((case.model, case.way, case.precision), {})[case.size] = row
        values = {size: getattr(size, AXES[axis]) for size in sizes}
        found = [Line(*name, {values[size]: at[size] for size in sizes if size in at}) for name, at in lines.items()]
        return cls(axis, mode, base, tuple(values.values()), tuple(found))
