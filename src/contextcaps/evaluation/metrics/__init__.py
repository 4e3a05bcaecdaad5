"""Measure how good scores are: rankings, decisions, calibration, and bootstrap intervals of each figure.

CONTRIBUTING.md has the steps for adding one; `top_k.py` is an example.
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
from contextcaps.evaluation.metrics.label_noise import LabelNoise, fit_label_noise
from contextcaps.evaluation.metrics.platt_scaling import fit_platt_scaling
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
    "fit_platt_scaling",
    "fit_label_noise",
    "LabelNoise",
    "bootstrap",
    "bootstrap_mean_average_precision",
    "Bootstrap",
    "basic_interval",
    "default_resamples",
    "prior_scores",
    "prior_thresholds",
]
