"""Score an image with many different sets of labels told: of its graph only the part that sees labels runs for each.

As `contextcaps.models.told` has it for networks of torch.
"""

from collections.abc import Mapping

import numpy as np

from contextcaps.models.onnx_scorer import OnnxScorer, as_parts
from contextcaps.models.parts import LogitParts

__all__ = ["OnnxTold"]

_NUMBERS_AT_ONCE = 1 << 22
"""Numbers that go at once to the part that sees known labels: 16 MiB."""


class OnnxTold:
    """Tells known labels of images that are computed already, by a graph that is divided at them.

    Args:
        scorer: whose graph it is.

    Raises:
        ValueError: the graph cannot be divided.
    """

    def __init__(self, scorer: OnnxScorer) -> None:
        if scorer.division is None:
            raise ValueError(f"{scorer.path}: its graph cannot be divided at known labels")
        self._scorer, self._division = scorer, scorer.division
        self._rest = scorer.session.part(self._division.rest, self._division.weights)

    def untold(self, image: np.ndarray) -> dict[str, np.ndarray]:
        """Compute all of an image [3, H, W] that no known label changes: name → values, without the batch's axis."""
        division, outputs = self._division, self._scorer.outputs
        names = list(dict.fromkeys([*division.passed, *(each for each in outputs if each not in division.told)]))
        return {name: each[0] for name, each in zip(names, self._scorer.run(image[None], None, names), strict=True)}

    def scores(self, untold: Mapping[str, np.ndarray], known: np.ndarray) -> np.ndarray:
        """Return the scores [T, J] of one image with each of some sets of known labels [T, J]."""
        at_once = max(1, _NUMBERS_AT_ONCE // sum(untold[name].size for name in self._division.passed))
        pieces = [
            self._run(untold, known[start : start + at_once], ["scores"])[0] for start in range(0, len(known), at_once)
        ]
        return np.concatenate(pieces)

    def parts(self, untold: Mapping[str, np.ndarray], known: np.ndarray | None) -> LogitParts:
        """Return what `OnnxScorer.parts` does for one set of known labels [J], from what `untold` gave."""
        names = list(self._division.told)
        found = self._run(untold, self._scorer.row(known)[None], names)
        return as_parts({**untold, **{name: each[0] for name, each in zip(names, found, strict=True)}})

    def expected_drops(self, untold: Mapping[str, np.ndarray], known: np.ndarray | None) -> np.ndarray:
        """Return by how many bits the answer about each class of an image [J] is expected to settle the others.

        As `contextcaps.models.expected_drops` has it, there for networks of torch; NaN where a label is known.
        """
        row = self._scorer.row(known)
        (open_places,) = np.isnan(row).nonzero()
        sets = np.repeat(row[None], 1 + 2 * len(open_places), axis=0)  # [1 + 2 O, J]
        which = np.arange(len(open_places))
        sets[1 + which, open_places] = 1
        sets[1 + len(which) + which, open_places] = 0
        plain, *answered = np.split(self.scores(untold, sets).astype(np.float64), [1, 1 + len(which)])  # [O, J] each
        chance = plain[0, open_places, None]  # [O, 1]
        present, absent = answered
        drop = _binary_entropy(chance * present + (1 - chance) * absent)  # [O, J]
        drop -= chance * _binary_entropy(present) + (1 - chance) * _binary_entropy(absent)
        drop[which, open_places] = 0
        found = np.full(len(row), np.nan)
        found[open_places] = drop.sum(axis=1)
        return found

    def _run(self, untold: Mapping[str, np.ndarray], known: np.ndarray, names: list[str]) -> list[np.ndarray]:
        """Run the part that sees known labels [T, J], for one image."""
        inputs = {name: np.repeat(untold[name][None], len(known), axis=0) for name in self._division.passed}
        inputs["known"] = np.ascontiguousarray(known, dtype=np.float32)
        return self._rest.run(names, inputs)


def _binary_entropy(probabilities: np.ndarray) -> np.ndarray:
    """Return the entropy in bits of each probability of a yes-or-no variable."""
    absent, tiny = 1 - probabilities, np.finfo(probabilities.dtype).tiny
    kept = [each * np.log2(np.maximum(each, tiny)) for each in (probabilities, absent)]
    return np.negative(kept[0] + kept[1])
