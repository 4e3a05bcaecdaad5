"""Estimate bootstrap intervals: how far a figure would move if other images of the same kind had been drawn.

Images are drawn with replacement, whole, since the pairs of one image belong together. A resample is a weight for each
image (how often it was drawn); every metric here is a function of weighted sums, so that each class is sorted once
and not once for each resample: torchmetrics' BootStrapper would compute every metric anew on each.
"""

import dataclasses
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from contextcaps.capsules.guards import require_count
from contextcaps.evaluation.metrics.calibration import Calibration, per_image
from contextcaps.evaluation.metrics.decisions import Decisions, threshold_tensor
from contextcaps.evaluation.metrics.ranking import rank
from contextcaps.evaluation.metrics.streaming import CHUNK_BYTES, Array, Pairs
from contextcaps.evaluation.metrics.top_k import TopK, hits

__all__ = [
    "TOP",
    "Bootstrap",
    "basic_interval",
    "bootstrap",
    "bootstrap_counted_precision",
    "bootstrap_mean_average_precision",
    "default_resamples",
    "weighted_metrics",
]

TOP = (1, 3, 5)
"""The k of top-k."""


@dataclasses.dataclass(frozen=True)
class Bootstrap:
    """Holds each metric on each resample."""

    samples: dict[str, Tensor]
    """Metric to [R], float64; NaN where a resample does not define it."""
    resamples: int
    seed: int

    def interval(self, metric: str, value: float, level: float = 0.95) -> tuple[float, float]:
        """Return the basic interval of a metric with this value on the data; every metric here lies between 0 and 1."""
        low, high = basic_interval(self.samples[metric], value, level)
        return min(max(low, 0.0), 1.0), min(max(high, 0.0), 1.0)


def basic_interval(samples: Tensor, value: float, level: float = 0.95) -> tuple[float, float]:
    """Return the basic ("reverse percentile") bootstrap interval over the resamples that define a figure; else NaN.

    [2 v − q_high, 2 v − q_low] for the value v and the quantiles q of the resamples: as far as resamples lie above the
    value, the value lies above what it estimates. That matters for the average precision of a class with few positives:
    docs/decisions/metric.md has the coverage of each kind of interval.

    Args:
        samples: [R], the figure on each resample; NaN where it is not defined.
        value: the figure on the data.
        level: the interval's nominal coverage.
    """
    defined = samples[~samples.isnan()]
    if not len(defined):
        return float("nan"), float("nan")
    chances = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=defined.dtype)
    low, high = defined.quantile(chances).tolist()
    return 2 * value - high, 2 * value - low


def default_resamples(images: int, classes: int) -> int:
    """Return 1000 up to half a million pairs, then fewer so that the work stays the same, but never under 100."""
    return max(100, min(1000, 500_000_000 // max(1, images * classes)))


def bootstrap(
    scores: Array,
    targets: Array,
    thresholds: Mapping[str, float | Array],
    *,
    resamples: int | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Bootstrap:
    """Compute every metric on resampled images.

    Two calls with the same seed and number of images draw the same images: their samples can be compared in pairs.

    Args:
        scores, targets: [n, J].
        thresholds: thresholds by name, such as "0.5" or "tuned"; CF1 and the like are then called "CF1@0.5".
        resamples: R; by default `default_resamples`.
        seed: seed of the drawing.
        device, chunk_bytes: as for `average_precision`; the weights need 4 n R bytes besides.
    """
    pairs = Pairs(scores, targets, device, chunk_bytes)
    weights = _draw(pairs, resamples, seed)
    return Bootstrap(weighted_metrics(pairs, thresholds, weights), weights.shape[1], seed)


def bootstrap_mean_average_precision(
    scores: Array,
    targets: Array,
    *,
    resamples: int | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Tensor:
    """Compute macro mAP [R] on resampled images: the "mAP" of `bootstrap` without the other metrics."""
    pairs = Pairs(scores, targets, device, chunk_bytes)
    return _macro(pairs, _draw(pairs, resamples, seed))


def bootstrap_counted_precision(
    scores: Array, targets: Array, counted: Array, *, resamples: int | None = None, seed: int = 0
) -> Tensor:
    """Compute macro mAP [R] on resampled images where each class has images of its own that count, [n, J] bool.

    The images are drawn as in `bootstrap`, all n of them; a class then ranks those drawn that count for it. Pairs of
    unknown labels do not count in any case.
    """
    pairs = Pairs(scores, targets)
    weights = _draw(pairs, resamples, seed)  # [n, R]
    kept = torch.as_tensor(counted)  # [n, J]
    each = []
    for column in range(pairs.classes):
        rows = kept[:, column].nonzero().squeeze(1)
        of_class = Pairs(scores[rows][:, column : column + 1], targets[rows][:, column : column + 1])
        each.append(_macro(of_class, weights[rows]))  # NaN where no positive was drawn
    return torch.stack(each).nanmean(dim=0)


def _draw(pairs: Pairs, resamples: int | None, seed: int) -> Tensor:
    """Draw the weights of `resamples` resamples, by default `default_resamples`, on the pairs' device."""
    count = default_resamples(pairs.images, pairs.classes) if resamples is None else resamples
    return draw_weights(pairs.images, require_count("resamples", count), seed).to(pairs.device)


def draw_weights(images: int, resamples: int, seed: int) -> Tensor:
    """Draw how often each image is in each resample of n images, [n, R]."""
    generator = torch.Generator().manual_seed(seed)
    # float32 holds these counts, and their sums over all images, exactly up to 16 million images.
    weights = torch.empty(images, resamples, dtype=torch.float32 if images < 2**24 else torch.float64)
    for column in range(resamples):
        drawn = torch.randint(max(images, 1), (images,), generator=generator)
        weights[:, column] = drawn.bincount(minlength=images)
    return weights


def weighted_metrics(pairs: Pairs, thresholds: Mapping[str, float | Array], weights: Tensor) -> dict[str, Tensor]:
    """Compute every metric, by name, [R] each, with each image counted as often as its weight [n, R] says."""
    return {
        "mAP": _macro(pairs, weights),
        "micro_AP": _micro(pairs, weights),
        **_sums(pairs, thresholds, weights),
    }


def _macro(pairs: Pairs, weights: Tensor) -> Tensor:
    """Compute macro mAP [R] over the classes that have a positive in the resample."""
    total = torch.zeros(weights.shape[1], dtype=torch.float64)
    defined = torch.zeros_like(total)
    for _, part, truth in pairs.columns():
        ranking = rank(part, truth)
        for values, order, present in zip(ranking.scores, ranking.order, ranking.targets, strict=True):
            distinct, places = values[present].unique_consecutive(return_inverse=True)  # [u], [p]
            if not len(distinct):
                continue
            # From the highest score down to the lowest that a positive has: where each threshold's part begins, ends.
            ends = (len(values) - torch.searchsorted(values, distinct)).flip(0)  # [u]
            starts = F.pad(ends[:-1], (1, 0))  # [u]
            images, positive_images = order.flip(0)[: int(ends[-1])], order[present].flip(0)
            positive_starts = _starts((len(distinct) - 1 - places).flip(0), len(distinct))  # [u]
            each = []
            for columns in _blocks(weights, len(distinct), pairs.chunk_bytes):
                own = weights[:, columns].contiguous()
                sums = _bags(images, starts, own)
                each.append(_weighted_average_precision(sums, _bags(positive_images, positive_starts, own)))
            result = torch.cat(each).cpu()  # [R]
            total += result.nan_to_num(0.0)
            defined += ~result.isnan()
    return total / defined


def _micro(pairs: Pairs, weights: Tensor) -> Tensor:
    """Compute micro AP [R]: all pairs in one ranking, by the positives' scores as in `micro_curve`."""
    found = [part[truth] for _, part, truth in pairs.rows()]
    distinct = torch.cat([torch.empty(0, device=pairs.device), *found]).unique()  # [u]
    if not len(distinct):
        return torch.full((weights.shape[1],), torch.nan, dtype=torch.float64)
    result = []
    for columns in _blocks(weights, len(distinct), pairs.chunk_bytes):
        own = weights[:, columns].contiguous()
        sums, positives = (own.new_zeros(len(distinct) + 1, own.shape[1]) for _ in range(2))  # [u + 1, R]
        for rows, part, truth in pairs.rows():
            image = torch.arange(rows.start, rows.stop, device=pairs.device)[:, None].expand_as(part)  # [r, J]
            place = len(distinct) - torch.searchsorted(distinct, part, right=True)  # [r, J]
            for table, chosen in ((sums, torch.ones_like(truth)), (positives, truth)):
                places, order = place[chosen].sort()
                table += _bags(image[chosen][order], _starts(places, len(table)), own)
        result.append(_weighted_average_precision(sums[:-1], positives[:-1]).cpu())
    return torch.cat(result)


def _weighted_average_precision(sums: Tensor, positives: Tensor) -> Tensor:
    """Compute AP [R] from the weights of all pairs, and of positives, between neighbouring thresholds: [u, R]."""
    retrieved, correct = (table.cumsum(0, dtype=torch.float64) for table in (sums, positives))  # [u, R]
    total = correct[-1].clone()  # [R]
    return correct.div_(retrieved.clamp_min_(1)).mul_(positives).sum(0) / total


def _bags(images: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    """Sum the images' weights from each start to the next: [bags, R]."""
    return F.embedding_bag(images, weights, starts, mode="sum")


def _starts(places: Tensor, bags: int) -> Tensor:
    """Return where each bag begins [bags], in a sorted list of the bags that elements belong to."""
    return torch.searchsorted(places.contiguous(), torch.arange(bags, device=places.device))


def _blocks(weights: Tensor, rows: int, chunk_bytes: int) -> list[slice]:
    """Split the resamples into blocks for which some tables of [rows, R] fit into the working memory."""
    count = weights.shape[1]
    step = max(1, min(count, chunk_bytes // (48 * (rows + 1))))
    return [slice(first, min(first + step, count)) for first in range(0, count, step)]


def _sums(pairs: Pairs, thresholds: Mapping[str, float | Array], weights: Tensor) -> dict[str, Tensor]:
    """Compute the metrics that are functions of sums over images."""
    classes, count = pairs.classes, weights.shape[1]
    limits = {name: threshold_tensor(each, classes).to(pairs.device) for name, each in thresholds.items()}
    depths = {min(k, classes) for k in TOP} if classes else set()
    totals: dict[str, Tensor] = {}

    def add(name: str, values: Tensor, own: Tensor) -> None:
        """Add the weighted sum over the images of a piece: [r, ...] to [R, ...]."""
        sums = (own @ values.double().reshape(len(values), -1)).unflatten(1, values.shape[1:] or (1,))
        totals[name] = totals[name] + sums if name in totals else sums

    for rows, part, truth in pairs.rows():
        own = weights[rows].double().T  # [R, r]
        precision = rank(part, truth).average_precision()  # [r]
        add("sample", torch.stack([precision.nan_to_num(0.0), ~precision.isnan()], dim=1), own)
        add("present", truth, own)
        for name, limit in limits.items():
            add(f"predicted@{name}", part >= limit, own)
            add(f"correct@{name}", (part >= limit) & truth, own)
        known = pairs.labelled(part)  # [r, J]
        for k in depths:
            add(f"top{k}", torch.stack([hits(part, truth, k), known.sum(1).clamp_max(k).double()], dim=1), own)
        binned, squared = per_image(part, truth, known)
        add("bins", binned, own)
        add("squares", squared, own)
    if not totals:
        raise ValueError("scores: expected at least one image and one class")
    totals = {name: values.cpu() for name, values in totals.items()}

    sample = totals["sample"]
    metrics = {"sample_AP": sample[:, 0] / sample[:, 1]}
    for name in limits:
        decisions = Decisions(totals[f"correct@{name}"], totals[f"predicted@{name}"], totals["present"])
        metrics |= {f"{metric}@{name}": value for metric, value in decisions.summary().items()}
    for k in sorted(depths):
        top = TopK(k, totals[f"top{k}"][:, 0], totals["present"].sum(1), totals[f"top{k}"][:, 1])
        metrics |= {f"top{k}_{metric}": value for metric, value in top.summary().items()}
    bins = totals["bins"]  # [R, 3, bins]
    metrics |= Calibration(bins[:, 0], bins[:, 1], bins[:, 2], totals["squares"][:, 0]).summary()
    assert all(value.shape == (count,) for value in metrics.values())
    return metrics
