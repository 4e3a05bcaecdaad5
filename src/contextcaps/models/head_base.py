"""The base of all heads: features in, scores out, a description of the steps."""

import abc
from typing import NamedTuple

from torch import Tensor, nn

from contextcaps.models.config import ModelConfig

__all__ = ["Head", "Intermediates", "ModelOutput", "Step", "count_weights"]


class Intermediates(NamedTuple):
    """Every step between features and decisions, for pictures and tests; None where a network has no such step."""

    capsules: Tensor
    """[B, K, A], primary capsules."""
    initial: Tensor | None
    """[B, K], initial routing weights (RW)."""
    votes: Tensor
    """[B, K, J, I], as cast: the CRF's logits before it."""
    corrected_votes: Tensor | None
    """[B, K, J, I], what the CRF made of them: its logits (or, in the literal mode, its marginals) after it."""
    couplings: Tensor | None
    """[B, K, J], the routing's couplings in the last iteration."""
    routing_logits: Tensor | None
    """[B, K, J], the logits that they came from (dynamic routing)."""
    correlation_weights: Tensor | None
    """[B, J, K], the correlation module's weights."""
    sums: Tensor
    """[B, J, I], decisions before the squash (with EM routing: the cluster means)."""


class ModelOutput(NamedTuple):
    """A network's output for a batch of images."""

    scores: Tensor
    """[B, J], each class's score between 0 and 1: the length of its decision capsule, or the sigmoid of its logit. In a
    calibrated network with capsules, it is both."""
    decisions: Tensor | None
    """[B, J, I], the decision capsules; None from a baseline head, which has none."""
    intermediates: Intermediates | None = None
    """Everything in between, where it was asked for."""
    logits: Tensor | None = None
    """[B, J], of which the scores are sigmoids where nothing is known, from a baseline head, a field or a calibration;
    their gradient never vanishes."""


class Step(NamedTuple):
    """One step of a network's way from image to scores."""

    name: str
    shape: tuple[int, ...]
    """Shape of what the step gives for one image."""
    weights: int
    """Weights that the step holds."""


class Head(nn.Module, abc.ABC):
    """Base of all heads: a feature map [B, C, H, W] → scores [B, J].

    Args:
        config: the network's configuration.
        grid: (H, W) of the primary capsules, or of the features that a baseline head takes.
    """

    takes_any_size: bool
    """True where the head takes grids other than its own: no weight of it belongs to a grid position."""

    def __init__(self, config: ModelConfig, grid: tuple[int, int]) -> None:
        super().__init__()
        self.config, self.grid = config, grid

    @abc.abstractmethod
    def forward(self, features: Tensor, return_intermediates: bool = False) -> ModelOutput:
        """Score the classes of features [B, C, H, W].

        A head that can be told labels (`ModelConfig.head_takes_known`) has one more argument, `known`, as the network.
        """

    @abc.abstractmethod
    def steps(self) -> list[Step]:
        """Describe the way from features to scores; every weight is in exactly one step."""

    def savings(self) -> list[str]:
        """Return the settings that would give it fewer weights."""
        return []

    def learn_labels(self, targets: Tensor) -> None:
        """Take what the head wants from the training labels [n, J], once, before the first step; most want nothing."""
        _, classes = targets.shape
        if classes != self.config.num_classes:
            raise ValueError(f"targets: expected shape [n, J={self.config.num_classes}], got {list(targets.shape)}")

    def extra_repr(self) -> str:
        height, width = self.grid
        return f"grid={height}×{width}, J={self.config.num_classes}"


def count_weights(*parts: nn.Module | nn.Parameter | None) -> int:
    """Count the weights of modules and parameters; None has none."""
    return sum(
        part.numel() if isinstance(part, nn.Parameter) else sum(each.numel() for each in part.parameters())
        for part in parts
        if part is not None
    )
