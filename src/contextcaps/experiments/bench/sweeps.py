"""Sweeps: the same measured at sizes along one axis, and how fast the costs grow."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from contextcaps.experiments.bench.results import Row
from contextcaps.experiments.bench.settings import Axis, Mode, Precision
from contextcaps.experiments.bench.sizes import AXES, Size
from contextcaps.experiments.bench.ways import Case, Way

__all__ = ["Line", "Sweep", "exponent", "sweep_sizes"]


def sweep_sizes(base: Size, axis: Axis, points: int) -> list[Size]:
    """Sizes whose B, K or J is the base's times powers of two, the base in the middle.

    >>> [size.classes for size in sweep_sizes(Size(), "J", 5)]
    [38, 75, 150, 300, 600]
    """
    if points < 2:
        raise ValueError(f"points: expected at least 2 sizes along a sweep, got {points}")
    middle, least = getattr(base, AXES[axis]), 2 if axis == "J" else 1
    values = {max(least, math.floor(middle * 2.0 ** (index - points // 2) + 0.5)) for index in range(points)}
    return [base.along(axis, value) for value in sorted(values)]


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """p of the power law cost ~ sizeᵖ, by least squares between logarithms; NaN from fewer than two finite points.

    >>> round(exponent([1, 2, 4, 8], [3, 12, 48, 192]), 6)
    2.0
    """
    points = [(size, cost) for size, cost in zip(sizes, costs, strict=True) if math.isfinite(cost) and cost > 0]
    if len({size for size, _ in points}) < 2:
        return math.nan
    x, y = np.log(points).T
    return float(np.polyfit(x, y, deg=1)[0])


@dataclasses.dataclass(frozen=True)
class Line:
    """One way to compute one head, along a sweep."""

    head: str
    way: Way
    precision: Precision
    rows: tuple[Row[Case], ...]
    values: tuple[int, ...]
    """Of B, K or J."""

    def growth(self, cost: Callable[[Row[Case]], float], last: int | None = None) -> float:
        """The exponent of a cost, over the whole sweep or its last points: small sizes are all overhead."""
        values, costs = self.values, tuple(map(cost, self.rows))
        finite = [index for index, each in enumerate(costs) if math.isfinite(each)]
        kept = finite if last is None else finite[-last:]
        return exponent([values[index] for index in kept], [costs[index] for index in kept])


@dataclasses.dataclass(frozen=True)
class Sweep:
    """All lines along one axis, in one mode."""

    axis: Axis
    mode: Mode
    base: Size
    values: tuple[int, ...]
    lines: tuple[Line, ...]

    @classmethod
    def of(cls, axis: Axis, mode: Mode, sizes: Sequence[Size], base: Size, rows: Iterable[Row[Case]]) -> "Sweep":
        """The sweep through some sizes, from all rows that were measured."""
        wanted = set(sizes)
        lines: dict[tuple[str, Way, Precision], dict[Size, Row[Case]]] = {}
        for row in rows:
            case = row.case
            if case.mode == mode and case.size in wanted:
                lines.setdefault((case.head, case.way, case.precision), {})[case.size] = row
        found = []
        for (head, way, precision), by_size in lines.items():
            along = sorted(by_size, key=lambda size: getattr(size, AXES[axis]))
            values = tuple(getattr(size, AXES[axis]) for size in along)
            found.append(Line(head, way, precision, tuple(by_size[size] for size in along), values))
        return cls(axis, mode, base, tuple(getattr(size, AXES[axis]) for size in sizes), tuple(found))
