"""Hold what a model's scores were worth on its validation images: bands of score, and how often the class was there."""

import dataclasses

__all__ = ["LEAST_PAIRS", "ScoreBand", "ScoreBands"]

LEAST_PAIRS = 50
"""Pairs of image and class that a band has at least."""


@dataclasses.dataclass(frozen=True)
class ScoreBand:
    """Counts the validation pairs of image and class whose score lies in a band."""

    lowest: float
    """The band reaches from this score up to below the next higher band."""
    pairs: int
    present: int
    """Pairs of them in which the image shows the class."""

    def __post_init__(self) -> None:
        if not (0 <= self.lowest <= 1 and self.pairs >= LEAST_PAIRS and 0 <= self.present <= self.pairs):
            raise ValueError(
                f"a band of scores: expected its lowest from 0 to 1, at least {LEAST_PAIRS} pairs, and no more present "
                f"than pairs, got {self.lowest}, {self.pairs}, {self.present}"
            )


@dataclasses.dataclass(frozen=True)
class ScoreBands:
    """Answers what precision and recall a score stands for, over all classes together.

    >>> bands = ScoreBands((ScoreBand(0.5, 100, 80), ScoreBand(0.25, 100, 20), ScoreBand(0.0, 800, 0)))
    >>> bands.precision(0.3), bands.threshold_of_precision(0.5), bands.threshold_of_recall(0.8)
    (0.2, 0.25, 0.5)
    """

    bands: tuple[ScoreBand, ...] = ()
    """The highest scores first; none where the validation part had too few pairs."""

    def __post_init__(self) -> None:
        lowest = [band.lowest for band in self.bands]
        if lowest and (lowest != sorted(set(lowest), reverse=True) or lowest[-1] != 0):
            raise ValueError(f"bands of scores: expected them from high to low, the last from 0 on, got {lowest}")

    def precision(self, score: float) -> float | None:
        """Return the share of the validation pairs in this score's band that were present; None without bands."""
        for band in self.bands:
            if score >= band.lowest:
                return band.present / band.pairs
        return None

    def threshold_of_precision(self, least: float) -> float | None:
        """Return the lowest threshold whose tags had at least this precision; None if none had."""
        return min((score for score, precision, _ in self._totals() if precision >= least), default=None)

    def threshold_of_recall(self, least: float) -> float | None:
        """Return the highest threshold above 0 whose tags had at least this recall; None if none had."""
        return max((score for score, _, recall in self._totals() if recall >= least), default=None)

    def best_precision(self) -> float:
        """Return the highest precision that a threshold had; 0 without bands."""
        return max((precision for _, precision, _ in self._totals()), default=0.0)

    def best_recall(self) -> float:
        """Return the recall of the lowest threshold above 0; 0 without bands."""
        return max((recall for _, _, recall in self._totals()), default=0.0)

    def _totals(self) -> list[tuple[float, float, float]]:
        """Return each threshold above 0 with the precision and the recall of all pairs from it up."""
        everything = sum(band.present for band in self.bands)
        totals, pairs, present = [], 0, 0
        for band in self.bands:
            pairs, present = pairs + band.pairs, present + band.present
            if band.lowest > 0:
                totals.append((band.lowest, present / pairs, present / everything if everything else 0.0))
        return totals
