"""Open what computes a model's scores; its torch network is loaded when it is first asked for."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from contextcaps.models.config import ModelConfig
from contextcaps.models.loading import load_model
from contextcaps.models.runtime import is_installed
from contextcaps.models.scorer import Scorer

if TYPE_CHECKING:
    from torch import Tensor

    from contextcaps.models.network import CapsuleNetwork
    from contextcaps.models.torch_scorer import TorchScorer

__all__ = ["LoadedModel"]


class LoadedModel:
    """Computes scores, by ONNX Runtime or torch, and features, by torch.

    Args:
        network: a torch network, which is put into evaluation mode and changed no more but for its device and
            precision; or what computes its scores, as `contextcaps.models.runtime.open_scorer` gives it.
        device: of a torch network: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1".
        source: the model, as for `load_model`, from which the torch network is loaded where torch does not compute;
            None where there is none.
    """

    def __init__(
        self, network: "CapsuleNetwork | Scorer", device: Any = "auto", source: str | Path | None = None
    ) -> None:
        if hasattr(network, "state_dict"):
            from contextcaps.models.torch_scorer import TorchScorer

            network = TorchScorer(cast("CapsuleNetwork", network), device)
        self.scorer: Scorer = network
        """What computes the scores."""
        self._torch: TorchScorer | None = None
        self._source = source

    @property
    def config(self) -> ModelConfig:
        """The network's configuration."""
        return self.scorer.config

    @property
    def device(self) -> Any:
        """The device that computes."""
        return self.scorer.device

    @property
    def network(self) -> "CapsuleNetwork":
        """The torch network; it is loaded now where ONNX Runtime computes.

        Raises:
            ImportError: PyTorch is not installed.
            ValueError: the model is an ONNX file, which has none.
        """
        return self._by_torch().network

    @property
    def computes_by_torch(self) -> bool:
        """Return whether PyTorch computes the scores, not ONNX Runtime."""
        return hasattr(self.scorer, "network")

    @property
    def has_network(self) -> bool:
        """Return whether there is a torch network: torch is installed, and the model is no ONNX file."""
        return self.computes_by_torch or (self._source is not None and is_installed("torch"))

    def scores(self, images: np.ndarray, known: np.ndarray | None = None) -> np.ndarray:
        """Return scores [B, J], float32, of images [B, 3, H, W] as bytes at the network's size.

        `known` are the known labels of each of them, [J]: 1 for present, 0 for absent, NaN for not known.
        """
        told = None if known is None else np.asarray(known, dtype=np.float32)
        return self.scorer.scores(np.asarray(images), told)  # tensors, too

    def features(self, images: "np.ndarray | Tensor") -> "Tensor":
        """Return the torch backbone's features [B, C', H', W'], on its device, of images as for `scores`."""
        return self._by_torch().features(images)

    def _by_torch(self) -> "TorchScorer":
        if self.computes_by_torch:
            return cast("TorchScorer", self.scorer)
        if self._torch is None:
            if self._source is None:
                raise ValueError("an ONNX file has no torch network; name the model that it was exported from")
            network, _ = load_model(self._source)
            from contextcaps.models.torch_scorer import TorchScorer

            self._torch = TorchScorer(network, "cpu")
        return self._torch
