"""Measure how good scores are: rankings, decisions, calibration, and bootstrap intervals of each figure.

To add a metric:

1. Write `evaluation/metrics/NAME.py` with a function of `(scores, targets, *, device, chunk_bytes)`, both [n, J], that
   reads them through `Pairs`, some images (`rows`) or classes (`columns`) at a time; `top_k.py` is a short example.
2. Export it here, and test it in `tests/evaluation/test_metrics_NAME.py` against a few lines of NumPy.
3. For its interval, compute it from sums weighted by resample, [R], in `bootstrap.weighted_metrics`, under a new name.
4. To report it, add its value under the same name to the figures in `evaluation/report/evaluation.py`.
"""

from contextcaps.evaluation.metrics.bootstrap import (
    Bootstrap,
    basic_interval,
    bootstrap,
    bootstrap_mean_average_precision,
    default_resamples,
)
from contextcaps.evaluation.metrics.calibration import Calibration, count_calibration
from contextcaps.evaluation.metrics.decisions import Decisions, count_decisions
from contextcaps.evaluation.metrics.prior import prior_scores, prior_thresholds
from contextcaps.evaluation.metrics.ranking import Curve, average_precision, micro_curve
from contextcaps.evaluation.metrics.score_bands import count_bands
from contextcaps.evaluation.metrics.thresholds import TunedThresholds, tune_thresholds
from contextcaps.evaluation.metrics.top_k import TopK, count_top_k

__all__ = [
    "average_precision",
    "micro_curve",
    "Curve",
    "count_decisions",
    "Decisions",
    "count_top_k",
    "TopK",
    "tune_thresholds",
    "TunedThresholds",
    "count_bands",
    "count_calibration",
    "Calibration",
    "bootstrap",
    "bootstrap_mean_average_precision",
    "Bootstrap",
    "basic_interval",
    "default_resamples",
    "prior_scores",
    "prior_thresholds",
]
