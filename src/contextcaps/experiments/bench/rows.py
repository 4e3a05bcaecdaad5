"""What was measured: a row for each case, with what it compares to."""

import dataclasses
import math

from contextcaps.experiments.bench.ceilings import Ceilings
from contextcaps.experiments.bench.floor import count_work, floor_seconds
from contextcaps.experiments.bench.networks import NetworkCase
from contextcaps.experiments.bench.settings import Precision
from contextcaps.experiments.bench.ways import Case, Result, Way

__all__ = ["NetworkRow", "Ratio", "Row", "Rows", "floor_of"]


@dataclasses.dataclass(frozen=True)
class Row:
    """A measured case."""

    case: Case
    result: Result
    floor: float
    """Seconds; NaN where the machine's ceilings are not known."""

    @property
    def seconds(self) -> float:
        return math.nan if self.result.cost is None else self.result.cost.seconds

    @property
    def peak(self) -> float:
        """Bytes, with weights, inputs and gradients."""
        return math.nan if self.result.cost is None else self.result.cost.peak

    @property
    def beyond(self) -> float:
        """Bytes beyond weights, inputs and gradients, which every way needs."""
        return max(self.peak - self.result.resident, 0.0) if math.isfinite(self.peak) else math.nan

    @property
    def images_per_second(self) -> float:
        return self.case.size.batch / self.seconds

    @property
    def floor_share(self) -> float:
        """The floor in parts of the time: 1 cannot be improved on."""
        return self.floor / self.seconds


@dataclasses.dataclass(frozen=True)
class NetworkRow:
    """A measured network."""

    case: NetworkCase
    result: Result

    @property
    def seconds(self) -> float:
        return math.nan if self.result.cost is None else self.result.cost.seconds


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How many times less time and memory a row needs than another one."""

    time: float
    memory: float


class Rows(dict[Case, Row]):
    """Rows by case, in the order in which they were measured."""

    def ratio(self, row: Row, way: Way, precision: Precision | None = None) -> Ratio | None:
        """Against the same head at the same size, computed in another way; None where that was not measured."""
        other = self.get(dataclasses.replace(row.case, way=way, precision=precision or row.case.precision))
        if other is None or other is row or row.result.cost is None or other.result.cost is None:
            return None
        return Ratio(other.seconds / row.seconds, other.peak / row.peak)


def floor_of(case: Case, ceilings: Ceilings) -> float:
    """The least seconds that a case could take on this machine."""
    return floor_seconds(count_work(case.head, case.size, case.mode), ceilings, case.precision)
