"""Count what scores are worth: how often a class is there, in bands of its score."""

import torch

from contextcaps.evaluation.metrics.streaming import CHUNK_BYTES, Array
from contextcaps.evaluation.metrics.thresholds import LEVELS, count_levels
from contextcaps.models.score_bands import LEAST_PAIRS, ScoreBand, ScoreBands

__all__ = ["count_bands"]

_LEAST_SHARE = 0.02  # of the positives


def count_bands(
    scores: Array,
    targets: Array,
    *,
    device: torch.device | str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> ScoreBands:
    """Divide the scores of all classes into bands, from the highest down, and count how often the class is there.

    A band ends where it has at least `LEAST_PAIRS` pairs and two in a hundred of all positives, so that there are at
    most some fifty. The last begins at 0. With fewer pairs than `LEAST_PAIRS` there are none.

    Args:
        scores: [n, J], from 0 to 1.
        targets: [n, J], 0 or 1.
        device, chunk_bytes: as for `average_precision`.
    """
    pairs, present = (counts.sum((0, 1)).tolist() for counts in count_levels(scores, targets, 1, device, chunk_bytes))
    if sum(pairs) < LEAST_PAIRS:
        return ScoreBands()
    least_present = _LEAST_SHARE * sum(present)
    rows: list[list[float]] = []  # lowest, pairs, present
    is_full = True
    for level in range(LEVELS - 1, -1, -1):
        if is_full:
            rows.append([0.0, 0, 0])
        row = rows[-1]
        row[:] = [level / LEVELS, row[1] + pairs[level], row[2] + present[level]]
        is_full = row[1] >= LEAST_PAIRS and row[2] >= least_present
    if len(rows) > 1 and rows[-1][1] < LEAST_PAIRS:
        _, few, few_present = rows.pop()
        rows[-1] = [0.0, rows[-1][1] + few, rows[-1][2] + few_present]
    return ScoreBands(tuple(ScoreBand(lowest, int(count), int(found)) for lowest, count, found in rows))
