"""The measurements as CSV: everything, a line for each."""

import csv
import dataclasses
import io
import math
from collections.abc import Sequence

from contextcaps.experiments.bench.rows import NetworkRow, Rows

__all__ = ["networks_csv", "rows_csv"]


def rows_csv(rows: Rows) -> str:
    """Everything, a line for each case; empty where there is no figure."""
    records: list[dict[str, object]] = []
    for row in rows.values():
        case, cost = row.case, row.result.cost
        size = dataclasses.asdict(case.size)
        record: dict[str, object] = {"head": case.head, "way": case.way, "precision": case.precision, "mode": case.mode}
        record |= {"size": size.pop("name"), **size}
        record |= {"ms": 1e3 * row.seconds, "least_ms": math.nan if cost is None else 1e3 * cost.least_seconds}
        record |= {"repetitions": 0 if cost is None else cost.repetitions, "images_per_second": row.images_per_second}
        record |= {"peak_MiB": row.peak / 2**20, "beyond_weights_MiB": row.beyond / 2**20}
        record |= {"floor_ms": 1e3 * row.floor, "floor_share": row.floor_share}
        against = {
            "eager": rows.ratio(row, "eager"),
            "eager_fp32": rows.ratio(row, "eager", "fp32"),
            "compiled": rows.ratio(row, "compiled"),
        }
        for name, ratio in against.items():
            record[f"{name}_time_ratio"] = math.nan if ratio is None else ratio.time
            record[f"{name}_memory_ratio"] = math.nan if ratio is None else ratio.memory
        records.append({**record, "reason": row.result.reason})
    return _csv(records)


def networks_csv(rows: Sequence[NetworkRow]) -> str:
    """A line for each network."""
    records = []
    for row in rows:
        cost, case = row.result.cost, dataclasses.asdict(row.case)
        peak = math.nan if cost is None else cost.peak / 2**20
        least = math.nan if cost is None else 1e3 * cost.least_seconds
        figures = {"ms": 1e3 * row.seconds, "least_ms": least, "images_per_second": row.case.batch / row.seconds}
        records.append({**case, **figures, "peak_MiB": peak, "reason": row.result.reason})
    return _csv(records)


def _csv(records: Sequence[dict[str, object]]) -> str:
    buffer = io.StringIO()
    if records:
        writer = csv.DictWriter(buffer, list(records[0]), lineterminator="\n")
        writer.writeheader()
        for record in records:
            writer.writerow({name: _field_text(value) for name, value in record.items()})
    return buffer.getvalue()


def _field_text(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else ""
    return "" if value is None else value
