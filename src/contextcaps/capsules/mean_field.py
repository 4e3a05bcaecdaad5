"""Mean-field CRF over the votes: each capsule's votes for one class are corrected by its votes for the others.

The paper, Section 3.2 and Algorithm 1, after Zheng et al., "Conditional Random Fields as Recurrent Neural Networks",
2015, https://arxiv.org/abs/1502.03240. For each capsule k and attribute i on its own, the classes j form a dense CRF
whose unary is the vote and whose pairwise potentials are one learned layer from J to J without a self term.
Why Algorithm 1 to the letter cannot learn, and what `MeanFieldCRF` does instead: docs/decisions/mean-field-crf.md.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from contextcaps.capsules.guards import require_choice, require_count, require_tensor, upcast
from contextcaps.capsules.potentials import Pairwise, require_pairwise

__all__ = ["mean_field", "MeanFieldCRF", "Returns", "Unary"]

Unary = Literal["original", "current"]
Returns = Literal["logits", "marginals"]


def mean_field(
    votes: Tensor,
    pairwise: Pairwise,
    iterations: int = 2,
    unary: Unary = "original",
    returns: Returns = "logits",
    centre: bool = False,
    scale: float = 1.0,
) -> Tensor:
    """Run mean-field iterations over classes, for each capsule and attribute on its own.

    With H = softmax_j(votes) to begin with, an iteration computes
    message_j = scale · Σ_{j'≠j} H_j' · pairwise[j', j], logits_j = unary_j − message_j, H = softmax_j(logits).

    Args:
        votes: [B, K, J, I].
        pairwise: [J, J], or [I, J, J] for one per attribute, or [K, I, J, J] for one per capsule and attribute, or a
            pair of factors [J, r], [J, r] whose product left · rightᵀ is the [J, J] matrix. The diagonal never counts.
        iterations: how often messages are sent; 0 gives the votes (or their softmax) back.
        unary: "original" adds the votes anew in each iteration (CRF-as-RNN); "current" puts the current marginals in
            their place (Algorithm 1 to the letter).
        returns: "logits" of the last iteration, or its "marginals".
        centre: take the uniform distribution 1/J off the marginals before the message is made. It would add the same
            offset to all K votes of a class.
        scale: factor of the message. Near uniform marginals, J · (H_j − 1/J) ≈ votes_j − their mean, so that
            centred messages with scale J are of the size of the votes, whatever J.

    Returns:
        [B, K, J, I].

    >>> votes = torch.randn(2, 12, 5, 16)
    >>> mean_field(votes, torch.zeros(5, 5)).equal(votes)
    True
    """
    _, capsules, classes, attributes = require_tensor("votes", votes, "B K J I")
    require_count("iterations", iterations, least=0)
    require_choice("unary", unary, ("original", "current"))
    require_choice("returns", returns, ("logits", "marginals"))
    pairwise = tuple(pairwise) if isinstance(pairwise, list) else pairwise
    require_pairwise(pairwise, classes, attributes, capsules, votes=votes)

    logits = votes  # [B, K, J, I]
    for _ in range(iterations):
        marginals = torch.softmax(upcast(logits), dim=2)  # [B, K, J, I]
        # Centred before it is rounded to half precision: the difference from 1/J is what carries the signal.
        sent = scale * (marginals - 1 / classes if centre else marginals)  # [B, K, J, I]
        unaries = votes if unary == "original" else marginals.to(votes.dtype)  # [B, K, J, I]
        logits = unaries - _messages(sent.to(votes.dtype), pairwise)  # [B, K, J, I]
    return logits if returns == "logits" else torch.softmax(upcast(logits), dim=2).to(votes.dtype)


def _messages(sent: Tensor, pairwise: Pairwise) -> Tensor:
    """Return Σ_{j'≠j} sent_j' · pairwise[j', j], [B, K, J, I]."""
    if isinstance(pairwise, tuple):
        left, right = pairwise  # [J, r], [J, r]
        condensed = torch.einsum("bkhi,hr->bkri", sent, left)  # [B, K, r, I]
        own = (left * right).sum(dim=1)  # [J], the diagonal of left · rightᵀ
        return torch.einsum("bkri,jr->bkji", condensed, right) - sent * own[:, None]
    off_diagonal = pairwise - torch.diag_embed(torch.diagonal(pairwise, dim1=-2, dim2=-1))  # [((K,) I,) J, J]
    shared = {2: "hj", 3: "ihj", 4: "kihj"}[pairwise.ndim]
    return torch.einsum(f"bkhi,{shared}->bkji", sent, off_diagonal)


class MeanFieldCRF(nn.Module):
    """`mean_field` with its pairwise potentials: votes [B, K, J, I] → votes corrected by context, same shape.

    By default the messages are centred and scaled by J, the votes are re-added in each iteration, and all potentials
    start at zero, so that the module starts as the identity (with a low rank one factor starts at zero, as in LoRA).
    The literal mode is Algorithm 1: marginals fed back and handed on, messages as they are, a plain random layer.

    Args:
        classes: J.
        iterations: mean-field iterations.
        attributes: I, for one pairwise matrix per attribute; None for one shared by all attributes.
        rank: r, for a low-rank pairwise matrix of two [J, r] factors; None for the full [J, J].
        literal: Algorithm 1 to the letter.
        capsules: K, with `attributes`, for one pairwise matrix per capsule and attribute; None to share among capsules.
    """

    def __init__(
        self,
        classes: int,
        iterations: int = 2,
        attributes: int | None = None,
        rank: int | None = None,
        literal: bool = False,
        capsules: int | None = None,
    ) -> None:
        super().__init__()
        self.classes = require_count("classes", classes)
        self.iterations = require_count("iterations", iterations, least=0)
        self.literal = literal
        if rank is not None and attributes is not None:
            raise ValueError("rank: expected None together with a pairwise matrix per attribute, got both")
        if capsules is not None and attributes is None:
            raise ValueError("attributes: expected I together with a pairwise matrix per capsule, got None")
        self.left: nn.Parameter | None = None
        self.right: nn.Parameter | None = None
        self.weight: nn.Parameter | None = None
        spread = classes**-0.5  # as a linear layer from J inputs starts
        if rank is not None:
            self.left = nn.Parameter(torch.empty(classes, require_count("rank", rank)).normal_(std=spread))  # [J, r]
            self.right = nn.Parameter(torch.zeros(classes, rank))  # [J, r]
            if literal:
                nn.init.normal_(self.right, std=rank**-0.5)
        else:
            shape = [each for each in (capsules, attributes) if each is not None]
            self.weight = nn.Parameter(torch.zeros(*shape, classes, classes))  # [((K,) I,) J, J]
            if literal:
                nn.init.uniform_(self.weight, -spread, spread)

    @property
    def potentials(self) -> tuple[Tensor, ...]:
        """The pairwise matrix, or its two factors."""
        return tuple(each for each in (self.weight, self.left, self.right) if each is not None)

    @property
    def pairwise(self) -> Pairwise:
        """The potentials as `mean_field` takes them."""
        first, *second = self.potentials
        return (first, second[0]) if second else first

    def forward(self, votes: Tensor) -> Tensor:
        require_tensor("votes", votes, "B K J I", J=self.classes)
        if self.literal:
            return mean_field(votes, self.pairwise, self.iterations, unary="current", returns="marginals")
        return mean_field(votes, self.pairwise, self.iterations, centre=True, scale=float(self.classes))

    def extra_repr(self) -> str:
        return f"classes={self.classes}, iterations={self.iterations}, literal={self.literal}"
