"""Score the same images with many different sets of labels told: the backbone, and a head without labels, run once."""

from collections.abc import Iterator

import torch
from torch import Tensor

from contextcaps.capsules import score_logits, unchecked
from contextcaps.models.calibration import calibrate
from contextcaps.models.head_base import ModelOutput
from contextcaps.models.network import CapsuleNetwork

__all__ = ["Told"]

_NUMBERS_AT_ONCE = 1 << 24
"""Numbers of a tile of told labels, 64 MiB; a field has a few tensors of that size."""
_IMAGES_AT_ONCE = 256
"""Images whose features a head that is told takes at once: it keeps attention among all of its tokens."""


class Told:
    """Images, ready to be scored with labels told. Only the field runs for each set of labels, or a head that is told.

    Args:
        network: in evaluation mode, one that can be told labels.
        features: [B, C, H, W], that `network.features` gave.
    """

    @torch.no_grad()
    def __init__(self, network: CapsuleNetwork, features: Tensor) -> None:
        self.network, self.images, self.device = network, len(features), features.device
        self._features = features
        self._unary: Tensor | None = None
        if network.config.head_takes_known:
            return
        assert network.field is not None
        with unchecked():
            output = network.head(features.to(network.pixel_mean.dtype))
            logits = score_logits(output.scores) if output.logits is None else output.logits  # [B, J]
            pooled = None if network.field.global_branch is None else features.mean(dim=(2, 3))  # [B, C]
            self._unary = network.field.unary(logits, pooled)  # [B, J]
        self._features = features.new_empty(0)  # the field alone is told; their memory is free again

    @torch.no_grad()
    def scores(self, labels: Tensor) -> Tensor:
        """Return scores [B, T, J], float32 at least, of each image with each of its T sets of labels.

        Args:
            labels: [B, T, J], 1 for present, 0 for absent, NaN for what is not told.
        """
        sets, flat = labels.shape[1], labels.flatten(0, 1)  # [B·T, J]
        if self._unary is None:
            scores = self.network.from_features(self._features.repeat_interleave(sets, 0), known=flat).scores.float()
            return scores.unflatten(0, (self.images, sets))
        assert self.network.field is not None
        with unchecked():
            found = self.network.field.correct(self._unary.repeat_interleave(sets, 0), flat)  # [B·T, J]
            scores, calibration = found.scores, self.network.config.calibration
            if calibration is not None:
                scores = calibrate(ModelOutput(scores, None, logits=found.logits), calibration, flat).scores
        return scores.unflatten(0, (self.images, sets))

    def tiles(self, classes: int) -> Iterator[Tensor]:
        """Yield places of classes [T], for each of which there is a set of labels, as many at once as memory allows."""
        rows = _IMAGES_AT_ONCE if self._unary is None else _NUMBERS_AT_ONCE // classes
        yield from torch.arange(classes, device=self.device).split(max(1, rows // max(1, self.images)))
