"""Every model of an ablation against every other, not the baseline alone."""

import dataclasses
from itertools import permutations

from contextcaps.evaluation.report.evaluation import Estimate
from contextcaps.experiments.ablation.report import ModelReport, Report
from contextcaps.experiments.ablation.statistics import paired_interval

__all__ = ["Pair", "pairs_of"]


@dataclasses.dataclass(frozen=True)
class Pair:
    """How much more mAP one model has than another."""

    label: str
    other: str
    difference: Estimate
    """Paired by seed; the interval is NaN with a single common one."""
    seeds: int

    @property
    def is_shown(self) -> bool:
        """Whether the interval over seeds leaves out zero."""
        return self.difference.low > 0 or self.difference.high < 0


def pairs_of(report: Report) -> list[Pair]:
    """Each ordered pair of models that have a seed in common."""
    found = (_pair(model, other) for model, other in permutations(report.models, 2))
    return [pair for pair in found if pair is not None]


def _pair(model: ModelReport, other: ModelReport) -> Pair | None:
    ours, theirs = ({run.seed: run.metrics["mAP"] for run in each.runs} for each in (model, other))
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return None
    difference = paired_interval([ours[seed] for seed in common], [theirs[seed] for seed in common])
    return Pair(model.label, other.label, difference, len(common))
