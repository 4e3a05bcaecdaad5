"""How often three kinds of bootstrap interval hold the mAP of the population, on scores drawn from known distributions.

    python benchmarks/intervals.py

Each class is in an image with its own frequency, independently of the others; its score is normally distributed with
standard deviation 1, about 0 where it is absent and about one separation, the same for all classes, where it is
present. The separation is chosen so that the mAP of the population, known from an integral, is the one asked for.
Prints a Markdown table.
"""

import argparse
import math
from typing import NamedTuple

import torch
from torch import Tensor

from contextcaps.evaluation.metrics import average_precision, basic_interval, bootstrap_mean_average_precision


class Regime(NamedTuple):
    """What is drawn from."""

    classes: int
    rarest: float
    """Frequency of the rarest class; the others are spaced evenly by their logarithm."""
    commonest: float
    images: int
    mean_average_precision: float
    """Of the population."""

    @property
    def frequencies(self) -> Tensor:
        """[J]"""
        ends = torch.tensor([self.rarest, self.commonest], dtype=torch.float64).log()
        return torch.linspace(float(ends[0]), float(ends[1]), self.classes, dtype=torch.float64).exp()


REGIMES = (
    Regime(20, 0.005, 0.2, 500, 0.2),
    Regime(20, 0.005, 0.2, 3000, 0.2),
    Regime(20, 0.005, 0.2, 500, 0.9),
    Regime(47, 0.03, 0.5, 1000, 0.37),
    Regime(47, 0.03, 0.5, 1000, 0.85),
)


def population_map(frequencies: Tensor, separation: float) -> float:
    """The mAP of infinitely many images: precision at a positive's score, over the distribution of that score."""
    chances = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000  # [s]
    scores = separation + torch.special.ndtri(chances)  # [s], a positive's
    hits = frequencies[:, None] * (1 - chances)  # [J, s], positives at least as high
    alarms = (1 - frequencies[:, None]) * torch.special.ndtr(-scores)  # [J, s]
    return float((hits / (hits + alarms)).mean())


def find_separation(frequencies: Tensor, wanted: float) -> float:
    """The separation that gives a population's mAP, by bisection."""
    low, high = 0.0, 10.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if population_map(frequencies, middle) < wanted else (low, middle)
    return low


class Coverage(NamedTuple):
    """What became of a regime's draws."""

    estimate: float
    """Mean of the sample mAPs."""
    held: list[float]
    """How often each kind of interval holds the truth."""
    below: float
    """How far the basic interval reaches below the estimate, on average."""
    above: float


def cover(regime: Regime, draws: int, resamples: int, seed: int) -> Coverage:
    """Draw from a regime, and see how often each kind of interval holds the truth."""
    separation = find_separation(regime.frequencies, regime.mean_average_precision)
    truth = population_map(regime.frequencies, separation)
    generator = torch.Generator().manual_seed(seed)
    estimates, held, basic = [], torch.zeros(3), torch.zeros(2)
    for draw in range(draws):
        shape = (regime.images, regime.classes)
        targets = torch.rand(shape, generator=generator, dtype=torch.float64) < regime.frequencies  # [n, J]
        scores = torch.randn(shape, generator=generator) + separation * targets  # [n, J]
        value = float(average_precision(scores, targets))
        samples = bootstrap_mean_average_precision(scores, targets, resamples=resamples, seed=draw)  # [R]
        ends = samples.quantile(torch.tensor([0.025, 0.975], dtype=samples.dtype)).tolist()
        reach = 1.96 * float(samples.std())
        intervals = (ends, (value - reach, value + reach), basic_interval(samples, value))
        held += torch.tensor([low <= truth <= high for low, high in intervals])
        basic += (torch.tensor(intervals[2]) - value).abs()
        estimates.append(value)
    return Coverage(math.fsum(estimates) / draws, (held / draws).tolist(), *(basic / draws).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| classes, their share | images | true mAP | mean estimate | percentile | ± 1.96 SE | basic | its reach |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for regime in REGIMES:
        found = cover(regime, options.draws, options.resamples, options.seed)
        cells = [
            f"{regime.classes}, {100 * regime.rarest:g} to {100 * regime.commonest:g} %",
            f"{regime.images}",
            f"{100 * regime.mean_average_precision:.1f}",
            f"{100 * found.estimate:.1f}",
            *(f"{100 * share:.0f} %" for share in found.held),
            f"−{100 * found.below:.1f} +{100 * found.above:.1f}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
