"""ML-GCN: each class's classifier comes from a graph of the classes that appear together in the training images.

Chen et al., "Multi-Label Image Recognition with Graph Convolutional Networks", 2019, https://arxiv.org/abs/1904.03582.
"""

import torch
from torch import Tensor, nn

from contextcaps.models.baselines.baseline_head import BaselineHead, PositionParts, max_pooled_parts, start_embedding
from contextcaps.models.config import ModelConfig
from contextcaps.models.head_base import Step, count_weights
from contextcaps.models.sections import MLGCNConfig

__all__ = ["MLGCNHead", "label_graph"]


class MLGCNHead(BaselineHead):
    """Classifiers = Â · leaky_relu(Â · E · W₁) · W₂, logits = classifiers · max-pooled features.

    E are embeddings of the labels; here they are learnt, where the paper has word vectors (GloVe), so that classes need
    no English names. Â is the graph of the training labels, saved with the weights; until `learn_labels` is called it
    is the identity, and each class is on its own.
    """

    def __init__(self, config: ModelConfig, own: MLGCNConfig, in_channels: int, grid: tuple[int, int]) -> None:
        super().__init__(config, in_channels, grid)
        width, classes = own.width, config.num_classes
        self.width = width  # d
        self.adjacency: Tensor
        self.register_buffer("adjacency", torch.eye(classes))  # [J, J]
        self.labels = nn.Parameter(start_embedding(classes, width))  # [J, d]
        self.first = nn.Parameter(torch.randn(width, 4 * width))  # [d, 4d]
        self.second = nn.Parameter(torch.randn(4 * width, in_channels))  # [4d, C]
        # W₁ and W₂ are these times fixed scales: a label's classifier then starts as large as a row of a linear layer,
        # and a step of the optimiser moves it about as far. Plain ones threw all scores to 0 within a few steps of
        # AdamW, at a rate that suits the other heads.
        self.first_scale, self.second_scale = width**-0.5, (4 * width * in_channels) ** -0.5

    def learn_labels(self, targets: Tensor) -> None:
        super().learn_labels(targets)
        self.adjacency.copy_(label_graph(targets))

    def classifiers(self) -> Tensor:
        """Return a linear classifier for each class, [J, C]."""
        graph = self.adjacency.to(self.labels.dtype)  # [J, J]
        hidden = nn.functional.leaky_relu(graph @ (self.labels @ self.first) * self.first_scale, 0.2)  # [J, 4d]
        return graph @ (hidden @ self.second) * self.second_scale  # [J, C]

    def logits(self, features: Tensor) -> Tensor:
        pooled = features.amax(dim=(2, 3))  # [B, C]
        return pooled @ self.classifiers().to(pooled.dtype).T  # [B, J]

    def parts(self, features: Tensor) -> PositionParts:
        return PositionParts(max_pooled_parts(features, self.classifiers()))

    def steps(self) -> list[Step]:
        width, classes = self.width, self.config.num_classes
        return [
            Step("global max pooling [C]", (self.in_channels,), 0),
            Step("label embeddings [J, d]", (classes, width), count_weights(self.labels)),
            Step("graph convolution [J, 4d]", (classes, 4 * width), count_weights(self.first)),
            Step("graph convolution [J, C]", (classes, self.in_channels), count_weights(self.second)),
        ]


def label_graph(targets: Tensor, threshold: float = 0.4, neighbours: float = 0.2) -> Tensor:
    """Return the label graph Â of training labels, [J, J] (the paper's Equations 6 to 8 and Kipf's normalisation).

    With M_ij images that show both i and j and N_i that show i: A_ij = 1 where M_ij / N_i ≥ τ (j ≠ i), so that rare and
    noisy pairs are left out; A'_ij = p · A_ij / Σ_j A_ij and A'_ii = 1 − p, so that a label is not drowned by its
    neighbours; Â = D^(−½) A' D^(−½), D_ii = Σ_j A'_ij. (Its authors' code has 1 and 0.25 in
    place of 1 − p and p = 0.2, the same proportion.)

    Args:
        targets: [n, J], multi-hot; NaN where a label is unknown. N_i then counts, for each j, the images in which j is
            known.
        threshold: τ.
        neighbours: p, the weight that a label's neighbours have together.
    """
    shape = 2, targets.shape[1], targets.shape[1]
    together, shown = torch.zeros(*shape, dtype=torch.float64, device=targets.device)  # [J, J]
    for part in targets.split(65536):  # a million images of a thousand classes would be 8 GB of float64
        present = part.double().nan_to_num(0.0)  # [n, J]
        together += present.T @ present
        shown += present.T @ (~part.isnan()).double()
    chances = together / shown.clamp_min(1)  # [J, J], P(j | i)
    near = (chances >= threshold).double().fill_diagonal_(0)  # [J, J]
    weighted = neighbours * near / near.sum(dim=1, keepdim=True).clamp_min(1)  # [J, J]
    weighted += (1 - neighbours) * torch.eye(len(weighted), dtype=weighted.dtype, device=weighted.device)
    scale = weighted.sum(dim=1).rsqrt()  # [J]
    return (scale[:, None] * weighted * scale).float()
