"""The evaluation of a network's predictions: every metric, beside that of the constant prior."""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from contextcaps.data.unknown import is_unknown
from contextcaps.evaluation.metrics.bootstrap import TOP, Bootstrap, basic_interval, bootstrap
from contextcaps.evaluation.metrics.calibration import Calibration, count_calibration
from contextcaps.evaluation.metrics.decisions import Decisions, count_decisions
from contextcaps.evaluation.metrics.prior import prior_scores, prior_thresholds
from contextcaps.evaluation.metrics.ranking import Curve, average_precision, micro_curve
from contextcaps.evaluation.metrics.streaming import CHUNK_BYTES, Array
from contextcaps.evaluation.metrics.top_k import count_top_k
from contextcaps.evaluation.predictions import Predictions

__all__ = ["ClassFigures", "Estimate", "Evaluation", "Metric", "evaluate_predictions", "plain"]

_CURVE_POINTS = 400


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A figure and its bootstrap 95 % interval; NaN where the data does not define it."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Metric:
    """One metric, of the network and of the constant prior."""

    model: Estimate
    prior: Estimate


@dataclasses.dataclass(frozen=True)
class ClassFigures:
    """One class; average precision is NaN, and the rest says nothing, if it has no positive."""

    name: str
    positives: int
    average_precision: float
    prior_average_precision: float
    precision: float
    """At 0.5, as the next two."""
    recall: float
    f1: float
    tuned_precision: float
    """At the tuned threshold, as the next two; NaN without one."""
    tuned_recall: float
    tuned_f1: float
    threshold: float


@dataclasses.dataclass(frozen=True)
class Reliability:
    """Bins of equal width by score, and the pairs of image and class in them."""

    pairs: tuple[int, ...]
    mean_score: tuple[float, ...]
    frequency: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class PrecisionRecall:
    """The micro precision-recall curve, thinned out to some hundred points; recall ascends."""

    recall: tuple[float, ...]
    precision: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """All results of an evaluation; figures are shares from 0 to 1."""

    images: int
    positives: int
    """Pairs of image and class that are present."""
    unknown: int
    """Pairs of which the data do not know whether the class is present; no figure counts them."""
    classes: tuple[ClassFigures, ...]
    """[J], in the order of the network's classes."""
    metrics: dict[str, Metric]
    """By name: mAP, micro_AP, sample_AP, CF1@0.5, CF1@tuned, top3_recall, ECE, …"""
    reliability: dict[str, Reliability]
    """Reliability diagrams of "model" and "prior"."""
    curves: dict[str, PrecisionRecall]
    """Precision-recall curves of "model" and "prior"."""
    resamples: int
    """Bootstrap resamples behind each interval."""
    seed: int
    """Seed of the bootstrap."""
    seen: dict[str, int] | None = None
    """How many of the images the model has learned from: "train" and "val", "of" those compared; None: not known."""
    tuned_gains: dict[str, Estimate] = dataclasses.field(default_factory=dict)
    """By how much CF1 and OF1 are higher at tuned thresholds than at 0.5; empty without tuned ones."""

    @property
    def left_out(self) -> int:
        """Classes without a positive, which no mean over classes includes."""
        return sum(each.positives == 0 for each in self.classes)

    @property
    def tuned_worse(self) -> tuple[str, ...]:
        """Return those of CF1 and OF1 that tuned thresholds make worse than 0.5 does: the whole interval is below 0."""
        return tuple(name for name, gain in self.tuned_gains.items() if gain.high < 0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, dictionaries and numbers, for JSON; None in place of what is not defined."""
        document = dataclasses.asdict(self)
        document["classes_left_out"] = self.left_out
        document["tuned_worse"] = list(self.tuned_worse)
        return plain(document)


def evaluate_predictions(
    predictions: Predictions,
    frequencies: Array | tuple[float, ...],
    thresholds: Array | tuple[float, ...] | None = None,
    seed: int = 0,
    resamples: int | None = None,
    *,
    device: torch.device | str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Evaluation:
    """Compute every metric of the network and of the constant prior, with bootstrap 95 % intervals.

    Args:
        predictions: on the data to evaluate.
        frequencies: [J], the share of training images that show each class, among those where it is known.
        thresholds: [J], tuned on validation data (`tune_thresholds`); without them there are no figures at tuned ones.
        seed: of the resampling.
        resamples: how many; by default as many as `default_resamples` gives.
        device, chunk_bytes: as for `average_precision`.
    """
    images, classes = len(predictions), len(predictions.classes)
    if len(frequencies) != classes:
        raise ValueError(f"frequencies: expected one for each of {classes} classes, got {len(frequencies)}")
    if not images or not classes:
        raise ValueError("predictions: expected at least one image and one class")
    limits: dict[str, float | Array] = {"0.5": 0.5}
    prior_limits = dict(limits)
    if thresholds is not None:
        limits["tuned"] = torch.as_tensor(thresholds, dtype=torch.float64)
        prior_limits["tuned"] = prior_thresholds(frequencies)

    where: dict[str, Any] = {"device": device, "chunk_bytes": chunk_bytes}
    model = _Measured(predictions.scores, predictions.targets, limits, where)
    prior = _Measured(prior_scores(frequencies, images), predictions.targets, prior_limits, where)
    drawn = {"resamples": resamples, "seed": seed, **where}
    model_bootstrap, prior_bootstrap = (
        bootstrap(each.scores, each.targets, each.limits, **drawn) for each in (model, prior)
    )
    metrics = {
        name: Metric(
            _estimate(value, model_bootstrap, name),
            _estimate(prior.metrics[name], prior_bootstrap, name),
        )
        for name, value in model.metrics.items()
    }
    return Evaluation(
        images=images,
        positives=int(model.decisions["0.5"].present.sum()),
        unknown=int(is_unknown(predictions.targets).sum()),
        classes=_class_figures(predictions.classes, model, prior),
        metrics=metrics,
        reliability={"model": _reliability(model.calibration), "prior": _reliability(prior.calibration)},
        curves={"model": _thinned(model.curve), "prior": _thinned(prior.curve)},
        resamples=model_bootstrap.resamples,
        seed=seed,
        tuned_gains={} if thresholds is None else _tuned_gains(model.metrics, model_bootstrap),
    )


class _Measured:
    """All figures of one predictor, without intervals."""

    def __init__(self, scores: Array, targets: Array, limits: dict[str, float | Array], where: dict[str, Any]) -> None:
        self.scores, self.targets, self.limits = scores, targets, limits
        self.each = average_precision(scores, targets, None, **where)  # [J]
        self.curve = micro_curve(scores, targets, **where)
        self.decisions: dict[str, Decisions] = {
            name: count_decisions(scores, targets, limit, **where) for name, limit in limits.items()
        }
        self.calibration = count_calibration(scores, targets, **where)
        figures = {
            "mAP": self.each.nanmean(),
            "micro_AP": self.curve.average_precision(),
            "sample_AP": average_precision(scores, targets, "samples", **where),
        }
        for name, decisions in self.decisions.items():
            figures |= {f"{metric}@{name}": value for metric, value in decisions.summary().items()}
        for k in sorted({min(k, scores.shape[1]) for k in TOP}):
            top = count_top_k(scores, targets, k, **where)
            figures |= {f"top{k}_{metric}": value for metric, value in top.summary().items()}
        figures |= self.calibration.summary()
        self.metrics = {name: float(value) for name, value in figures.items()}


def _class_figures(names: tuple[str, ...], model: _Measured, prior: _Measured) -> tuple[ClassFigures, ...]:
    nothing = torch.full_like(model.each, torch.nan)
    plain, tuned = model.decisions["0.5"], model.decisions.get("tuned")
    columns = (
        plain.present,
        model.each,
        prior.each,
        *(plain.precision, plain.recall, plain.f1),
        *((tuned.precision, tuned.recall, tuned.f1) if tuned else (nothing, nothing, nothing)),
        torch.as_tensor(model.limits.get("tuned", nothing)),
    )
    rows = zip(names, *(column.tolist() for column in columns), strict=True)
    return tuple(ClassFigures(*row) for row in rows)


def _tuned_gains(metrics: dict[str, float], drawn: Bootstrap) -> dict[str, Estimate]:
    """Compare tuned thresholds with 0.5 on the same resamples."""
    gains = {}
    for name in ("CF1", "OF1"):
        gain = metrics[f"{name}@tuned"] - metrics[f"{name}@0.5"]
        samples = drawn.samples[f"{name}@tuned"] - drawn.samples[f"{name}@0.5"]
        gains[name] = Estimate(gain, *basic_interval(samples, gain))
    return gains


def _estimate(value: float, drawn: Bootstrap, name: str) -> Estimate:
    return Estimate(value, *drawn.interval(name, value))


def _reliability(calibration: Calibration) -> Reliability:
    return Reliability(
        tuple(calibration.pairs.long().tolist()),
        tuple(calibration.mean_score.tolist()),
        tuple(calibration.frequency.tolist()),
    )


def _thinned(curve: Curve) -> PrecisionRecall:
    """Return points spread evenly over recall, from the highest threshold to the lowest, both kept."""
    recall, precision = curve.recall.flip(0), curve.precision.flip(0)  # [u], recall ascending
    if len(recall) > _CURVE_POINTS:
        wanted = torch.linspace(float(recall[0]), 1.0, _CURVE_POINTS, dtype=torch.float64)
        kept: Tensor = torch.searchsorted(recall, wanted).clamp_max(len(recall) - 1).unique()
        recall, precision = recall[kept], precision[kept]
    return PrecisionRecall(tuple(recall.tolist()), tuple(precision.tolist()))


def plain(value: Any) -> Any:
    """Return lists, dictionaries and numbers for JSON; None in place of numbers that are not finite."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
