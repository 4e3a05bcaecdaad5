"""How often intervals of a difference between two models hold the true one: paired by seed, Welch's, and pooled.

    python benchmarks/seed_intervals.py

Eight models of the same true mAP are drawn with three or five seeds, normally distributed. Their deviations are equal,
or lie evenly (by their logarithm) between a half and twice, or one of them is five times the others'; or seeds have a
part in common, which makes runs of the same seed correlate by 0.26. Intervals are compared in all 28 pairs of each
draw. Prints a Markdown table.
"""

import argparse
import math
from itertools import combinations

import numpy as np

from contextcaps.experiments.ablation.statistics import difference_interval, mean_interval, pool_deviations

MODELS = 8
DEVIATIONS = {
    "equal": np.ones(MODELS),
    "0.5 to 2": np.geomspace(0.5, 2, MODELS),
    "one of 5": np.array([1.0] * (MODELS - 1) + [5.0]),
}


def held_and_narrow(deviations: np.ndarray, seeds: int, shared: float, draws: int) -> dict[str, list[float]]:
    """Return of each kind: how often it holds in all pairs, how often in the worst pair, how often it is half as wide
    as with known deviations, and its median width beside that."""
    random = np.random.default_rng(seeds)
    own = math.sqrt(1 - shared) * random.normal(size=(draws, MODELS, seeds))
    values = deviations[:, None] * (own + math.sqrt(shared) * random.normal(size=(draws, 1, seeds)))  # [D, M, S]
    pairs = list(combinations(range(MODELS), 2))
    held = {name: np.zeros((draws, len(pairs))) for name in ("paired", "Welch", "pooled")}
    width = {name: np.zeros((draws, len(pairs))) for name in held}
    for draw, groups in enumerate(values):
        spread = pool_deviations({str(number): each.tolist() for number, each in enumerate(groups)})
        for place, (first, second) in enumerate(pairs):
            one, other = groups[first].tolist(), groups[second].tolist()
            pooled = spread if spread is not None and {str(first), str(second)} <= spread.models else None
            found = {
                "paired": mean_interval((groups[first] - groups[second]).tolist()),
                "Welch": difference_interval(one, other),
                "pooled": difference_interval(one, other, pooled),
            }
            ideal = 2 * 1.96 * math.sqrt((1 - shared) * (deviations[first] ** 2 + deviations[second] ** 2) / seeds)
            for name, each in found.items():
                held[name][draw, place] = each.low <= 0 <= each.high
                width[name][draw, place] = (each.high - each.low) / ideal
    return {
        name: [
            held[name].mean(),
            held[name].mean(axis=0).min(),
            (width[name] < 0.5).mean(),
            float(np.median(width[name])),
        ]
        for name in held
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000)
    options = parser.parse_args()
    print(
        "| seeds | deviations | interval | holds | in the worst pair | less than half as wide as it should be | width |"
    )
    print("|---:|---|---|---:|---:|---:|---:|")
    for seeds in (3, 5):
        cases = [(name, each, 0.0) for name, each in DEVIATIONS.items()]
        cases.append(("equal, seeds correlate", DEVIATIONS["equal"], 0.26))
        for words, deviations, shared in cases:
            found = held_and_narrow(deviations, seeds, shared, options.draws)
            for name, (all_pairs, worst, narrow, width) in found.items():
                cells = [f"{100 * all_pairs:.1f} %", f"{100 * worst:.0f} %", f"{100 * narrow:.1f} %", f"{width:.2f}"]
                print(f"| {seeds} | {words} | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
