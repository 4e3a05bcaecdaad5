"""A row for each measured case, its ratios to other rows, and all rows as CSV."""

import csv
import dataclasses
import io
import math
from collections.abc import Iterable, Mapping

from contextcaps.documents import shortened
from contextcaps.experiments.bench.cases import Case
from contextcaps.out_of_memory import is_out_of_memory

__all__ = ["Row", "ratio", "rows_csv"]


@dataclasses.dataclass(frozen=True)
class Row:
    """A measured case: its cost, or in a few words why there is none."""

    case: Case
    seconds: float = math.nan
    """Median over the repetitions; NaN where it did not run."""
    least_seconds: float = math.nan
    """Seconds of the fastest repetition."""
    repetitions: int = 0
    peak: float = math.nan
    """Bytes: the most memory in use during the calls, with weights, inputs and gradients; NaN where not known."""
    resident: int = 0
    """Bytes of weights and inputs, and in a step of their gradients, which every way needs."""
    floor: float = math.nan
    """The least seconds that it could take on this machine; NaN where that is not known."""
    reason: str = ""
    """Why there is no cost."""
    out_of_memory: bool = False

    @classmethod
    def failed(cls, case: Case, error: Exception) -> "Row":
        """Return the row of a case that ended in an error, with a reason short enough for a table."""
        text = str(error)
        if isinstance(error, MemoryError):
            return cls(case, reason=text, out_of_memory=True)
        if is_out_of_memory(error):
            return cls(case, reason="out of memory", out_of_memory=True)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        told = lines[0] if isinstance(error, ValueError) and lines else f"{type(error).__name__}: {' '.join(lines[:2])}"
        return cls(case, reason=shortened(told, 160))

    @property
    def has_run(self) -> bool:
        return math.isfinite(self.seconds)

    @property
    def beyond(self) -> float:
        """Bytes beyond weights, inputs and gradients."""
        return max(self.peak - self.resident, 0.0) if math.isfinite(self.peak) else math.nan

    @property
    def images_per_second(self) -> float:
        return self.case.size.batch / self.seconds

    @property
    def floor_share(self) -> float:
        """Floor : time; 1 cannot be improved on."""
        return self.floor / self.seconds

    def compared(self, other: "Row | None") -> tuple[float, float] | None:
        """Return how many times more time and memory another row takes; None where one of them has not run."""
        if other is None or other is self or not (self.has_run and other.has_run):
            return None
        return other.seconds / self.seconds, other.peak / self.peak


def ratio(rows: Mapping[Case, Row], row: Row, **changes: str) -> tuple[float, float] | None:
    """Compare a row with that of the same case computed in another way or precision; None without such a row."""
    return row.compared(rows.get(dataclasses.replace(row.case, **changes)))  # type: ignore[arg-type]


def rows_csv(rows: Mapping[Case, Row]) -> str:
    """Return everything as CSV, a line for each case; a field is empty where there is no figure."""
    buffer = io.StringIO()
    records = [_record(row, rows) for row in rows.values()]
    writer = csv.DictWriter(buffer, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()


def _record(row: Row, rows: Mapping[Case, Row]) -> dict[str, object]:
    case, mebi = row.case, 2**20
    size = dataclasses.asdict(case.size)
    others = {
        "eager": ratio(rows, row, way="eager"),
        "eager_fp32": ratio(rows, row, way="eager", precision="fp32"),
        "compiled": ratio(rows, row, way="compiled"),
    }
    record: dict[str, object] = {
        **{name: getattr(case, name) for name in ("model", "backbone", "way", "precision", "mode")},
        **{"size": size.pop("name"), **size},
        **{"ms": 1e3 * row.seconds, "least_ms": 1e3 * row.least_seconds, "repetitions": row.repetitions},
        **{"images_per_second": row.images_per_second, "peak_MiB": row.peak / mebi},
        **{"beyond_weights_MiB": row.beyond / mebi, "floor_ms": 1e3 * row.floor, "floor_share": row.floor_share},
    }
    for name, found in others.items():
        record[f"{name}_time_ratio"], record[f"{name}_memory_ratio"] = found or (None, None)
    return dict(_fields({**record, "reason": row.reason}.items()))


def _fields(items: Iterable[tuple[str, object]]) -> Iterable[tuple[str, object]]:
    for name, value in items:
        if isinstance(value, float):
            yield name, f"{value:.6g}" if math.isfinite(value) else ""
        else:
            yield name, "" if value is None else value
