"""Count how many of the k classes with the highest scores are present, among the classes that are known of an image."""

import dataclasses

import torch
from torch import Tensor

from contextcaps.capsules.guards import require_count
from contextcaps.evaluation.metrics.decisions import ratio
from contextcaps.evaluation.metrics.streaming import CHUNK_BYTES, Array, Pairs

__all__ = ["TopK", "count_top_k", "hits"]


@dataclasses.dataclass(frozen=True)
class TopK:
    """Counts present classes among the k best-scored of each image, over all images together, as OP, OR and OF1 do."""

    k: int
    hits: Tensor
    """[...], present classes among the k best of each image, all images together."""
    present: Tensor
    """[...], present classes of all images."""
    predicted: Tensor
    """[...], classes predicted: k for each image, or all of those that are known of it where they are fewer."""

    def summary(self) -> dict[str, Tensor]:
        """Return precision, recall and F1, each [...]; recall and F1 are NaN if nothing is present anywhere."""
        predicted = self.predicted
        nothing = torch.where(self.present > 0, 0.0, torch.nan)
        return {
            "precision": ratio(self.hits, predicted),
            "recall": ratio(self.hits, self.present) + nothing,
            "F1": ratio(2 * self.hits, predicted + self.present) + nothing,
        }


def count_top_k(
    scores: Array,
    targets: Array,
    k: int,
    *,
    device: torch.device | str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> TopK:
    """Count the hits among the k (at most J) best of each image; other arguments as for `average_precision`."""
    pairs = Pairs(scores, targets, device, chunk_bytes)
    k = min(require_count("k", k), pairs.classes)
    total = torch.zeros(3, dtype=torch.float64, device=pairs.device)
    for _, part, truth in pairs.rows():
        predicted = pairs.labelled(part).sum(1).clamp_max(k).sum()
        total += torch.stack([hits(part, truth, k).sum(), truth.sum().double(), predicted.double()])
    return TopK(k, *total.cpu())


def hits(scores: Tensor, targets: Tensor, k: int) -> Tensor:
    """Count the present classes among the k best of each image: [r, J] to [r], float64.

    Where several scores are equal at the k-th place, it is the expected number over all ways to choose among them, so
    that the order of the classes does not matter.
    """
    last = scores.topk(k, dim=1).values[:, -1:]  # [r, 1]
    above, tied = scores > last, scores == last  # [r, J]
    places = k - above.sum(1)  # [r], left for those that are tied
    return (targets & above).sum(1) + places * (targets & tied).sum(1).double() / tied.sum(1)
