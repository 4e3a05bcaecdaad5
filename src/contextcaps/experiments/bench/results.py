"""What was measured: a row for each case, with what it compares to, and all rows as CSV."""

import csv
import dataclasses
import io
import math
from collections.abc import Iterable
from typing import Generic, TypeVar

from contextcaps.experiments.bench.measuring import Result
from contextcaps.experiments.bench.networks import NetworkCase
from contextcaps.experiments.bench.settings import Precision
from contextcaps.experiments.bench.ways import Case, Way

__all__ = ["Ratio", "Row", "Rows", "networks_csv", "rows_csv"]

AnyCase = TypeVar("AnyCase", Case, NetworkCase)


@dataclasses.dataclass(frozen=True)
class Row(Generic[AnyCase]):
    """A measured head or network."""

    case: AnyCase
    result: Result
    floor: float = math.nan
    """The least seconds that it could take on this machine; NaN where that is not known."""

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
        return self.case.batch / self.seconds

    @property
    def floor_share(self) -> float:
        """The floor in parts of the time: 1 cannot be improved on."""
        return self.floor / self.seconds

    def figures(self) -> dict[str, float]:
        """Return what was measured, in the units of the tables."""
        cost = self.result.cost
        return {
            "ms": 1e3 * self.seconds,
            "least_ms": math.nan if cost is None else 1e3 * cost.least_seconds,
            "repetitions": 0 if cost is None else cost.repetitions,
            "images_per_second": self.images_per_second,
            "peak_MiB": self.peak / 2**20,
        }


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How many times more time and memory another row needs than this one."""

    time: float
    memory: float

    @classmethod
    def between(cls, other: Row | None, this: Row) -> "Ratio | None":
        """Compare two rows; None where one of them has no cost."""
        if other is None or this.result.cost is None or other.result.cost is None:
            return None
        return cls(other.seconds / this.seconds, other.peak / this.peak)


class Rows(dict[Case, Row[Case]]):
    """Rows by case, in the order in which they were measured."""

    def ratio(self, row: Row[Case], way: Way, precision: Precision | None = None) -> Ratio | None:
        """Against the same head at the same size, computed in another way; None where that was not measured."""
        other = dataclasses.replace(row.case, way=way, precision=precision or row.case.precision)
        return None if other == row.case else Ratio.between(self.get(other), row)


def rows_csv(rows: Rows) -> str:
    """Everything, a line for each case; empty where there is no figure."""
    return _csv(_record(row, rows) for row in rows.values())


def _record(row: Row[Case], rows: Rows) -> dict[str, object]:
    case = row.case
    size = dataclasses.asdict(case.size)
    record: dict[str, object] = {"head": case.head, "way": case.way, "precision": case.precision, "mode": case.mode}
    record |= {"size": size.pop("name"), **size, **row.figures(), "beyond_weights_MiB": row.beyond / 2**20}
    record |= {"floor_ms": 1e3 * row.floor, "floor_share": row.floor_share}
    for name, ratio in (
        ("eager", rows.ratio(row, "eager")),
        ("eager_fp32", rows.ratio(row, "eager", "fp32")),
        ("compiled", rows.ratio(row, "compiled")),
    ):
        record[f"{name}_time_ratio"] = None if ratio is None else ratio.time
        record[f"{name}_memory_ratio"] = None if ratio is None else ratio.memory
    return {**record, "reason": row.result.reason}


def networks_csv(rows: Iterable[Row[NetworkCase]]) -> str:
    """A line for each network."""
    return _csv({**dataclasses.asdict(row.case), **row.figures(), "reason": row.result.reason} for row in rows)


def _csv(records: Iterable[dict[str, object]]) -> str:
    buffer, writer = io.StringIO(), None
    for record in records:
        if writer is None:
            writer = csv.DictWriter(buffer, list(record), lineterminator="\n")
            writer.writeheader()
        writer.writerow({name: _field_text(value) for name, value in record.items()})
    return buffer.getvalue()


def _field_text(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else ""
    return "" if value is None else value
