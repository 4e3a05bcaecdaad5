"""Mean field between the decisions: whether a class is present, corrected by which others are.

The paper's CRF (Section 3.2) stands between the votes of one capsule; this one stands between the classes themselves,
one yes-or-no variable each, after the head. It is what can be told something: a class that is known to be present or
absent is clamped, and the others hear of it. The update is that of Zheng et al., "Conditional Random Fields as
Recurrent Neural Networks", 2015, https://arxiv.org/abs/1502.03240, with binary variables.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from contextcaps.capsules.guards import (
    require_between,
    require_count,
    require_same_dtype,
    require_tensor,
    upcast,
)
from contextcaps.capsules.mean_field import Pairwise
from contextcaps.capsules.squash import lengths

__all__ = [
    "DecisionField",
    "FieldResult",
    "Groups",
    "decision_field",
    "group_messages",
    "rescale_decisions",
    "score_logits",
]


class FieldResult(NamedTuple):
    """What the field makes of the classes' logits."""

    scores: Tensor
    """[B, J], the chance of each class; exactly 0 or 1 where it is known."""
    logits: Tensor
    """[B, J], before the last sigmoid; of a known class what the image and the others say of it."""


class Groups(NamedTuple):
    """Potentials of higher order: hidden units that classes speak to in groups, and that speak to classes.

    Unit h hears r_h = max(0, bias_h + Σ_j said_j · inward[j, h] + Σ_j known_j · inward[J + j, h]), where known_j is 1
    for a class that is known and 0 otherwise; class j hears Σ_h (r_h − max(0, bias_h)) · outward[h, j], nothing
    where nothing is said.
    """

    inward: Tensor
    """[2J, h]."""
    bias: Tensor
    """[h]."""
    outward: Tensor
    """[h, J]."""


def decision_field(
    unary: Tensor,
    pairwise: Pairwise,
    prior: Tensor,
    iterations: int = 2,
    known: Tensor | None = None,
    trust: Tensor | float = 1.0,
    groups: Groups | None = None,
) -> FieldResult:
    """Mean-field iterations over the presence of classes.

    With q = sigmoid(unary) to begin with, an iteration computes
    q_j = sigmoid(unary_j + Σ_{j'≠j} (q_j' − prior_j') · pairwise[j', j]); known classes keep their value throughout.

    Args:
        unary: [B, J], what the image says of each class, as log-odds.
        pairwise: [J, J], or a pair of factors [J, r], [J, r] whose product left · rightᵀ is that matrix. The diagonal
            never counts.
        prior: [J], how often each class is present: a class that is as likely as ever says nothing to the others.
        iterations: how often messages are sent; 0 gives sigmoid(unary), and what is known.
        known: [B, J], 1 where a class is known to be present, 0 where absent, NaN where nothing is known. (A number
            between the two is a chance that somebody else vouches for; it is kept as well.)
        trust: factor of what classes say that are not known but believed. 1 is the mean field. What the image says of
            two classes is not said independently, and taking it for two witnesses would count it twice.
        groups: potentials of higher order, besides the pairwise ones.

    >>> oven_speaks_for_sink = torch.tensor([[0.0, 3.0], [0.0, 0.0]])
    >>> told = torch.tensor([[1.0, float("nan")]])
    >>> decision_field(torch.zeros(1, 2), oven_speaks_for_sink, torch.tensor([0.1, 0.1]), known=told).scores
    tensor([[1.0000, 0.9370]])
    """
    batch, classes = require_tensor("unary", unary, "B J")
    require_tensor("prior", prior, "J", J=classes)
    require_count("iterations", iterations, least=0)
    _require_potentials(unary, pairwise, classes)
    given = None if known is None else _require_known(known, batch, classes)  # [B, J]
    wide, centre = upcast(unary), upcast(prior)  # [B, J], [J]

    def clamped(logits: Tensor) -> Tensor:
        chances = torch.sigmoid(upcast(logits))  # [B, J]
        return chances if known is None or given is None else torch.where(given, known.to(chances), chances)

    logits = wide  # [B, J]
    for _ in range(iterations):
        sent = clamped(logits) - centre  # [B, J]
        sent = sent * trust if given is None else torch.where(given, sent, sent * trust)  # [B, J]
        logits = wide + _messages(sent, pairwise)  # [B, J]
        if groups is not None:
            logits = logits + group_messages(sent, given, groups)  # [B, J]
    return FieldResult(clamped(logits).to(unary.dtype), logits.to(unary.dtype))


def _messages(sent: Tensor, pairwise: Pairwise) -> Tensor:
    """Σ_{j'≠j} sent_j' · pairwise[j', j], [B, J]."""
    if isinstance(pairwise, tuple):
        left, right = map(upcast, pairwise)  # [J, r], [J, r]
        return sent @ left @ right.T - sent * (left * right).sum(dim=1)  # [B, J]
    matrix = upcast(pairwise)  # [J, J]
    return sent @ (matrix - torch.diag(torch.diagonal(matrix)))  # [B, J]


def group_messages(sent: Tensor, given: Tensor | None, groups: Groups) -> Tensor:
    """[B, J], from hidden units."""
    inward, bias, outward = map(upcast, groups)  # [2J, h], [h], [h, J]
    heard = sent @ inward[: sent.shape[1]] + bias  # [B, h]
    if given is not None:
        heard = heard + given.to(sent) @ inward[sent.shape[1] :]  # [B, h]
    return (torch.relu(heard) - torch.relu(bias)) @ outward  # [B, J]


def _require_potentials(unary: Tensor, pairwise: Pairwise, classes: int) -> None:
    operands = {"unary": unary}
    if isinstance(pairwise, tuple):
        if len(pairwise) != 2:
            raise ValueError(f"pairwise: expected two factors [J, r], got {len(pairwise)}")
        _, rank = require_tensor("pairwise[0]", pairwise[0], "J r", J=classes)
        require_tensor("pairwise[1]", pairwise[1], "J r", J=classes, r=rank)
        operands |= {"left": pairwise[0], "right": pairwise[1]}
    else:
        require_tensor("pairwise", pairwise, "J J", J=classes)
        operands["pairwise"] = pairwise
    require_same_dtype(**operands)


def _require_known(known: Tensor, batch: int, classes: int) -> Tensor:
    """Where something is known, [B, J]."""
    if not isinstance(known, Tensor) or not known.is_floating_point():
        got = known.dtype if isinstance(known, Tensor) else type(known).__name__
        raise ValueError(f"known: expected a floating-point tensor (1 present, 0 absent, NaN not known), got {got}")
    filled = known.nan_to_num(0.0)  # [B, J]
    require_tensor("known", filled, "B J", B=batch, J=classes)
    require_between("known", filled, 0, 1)
    return ~known.isnan()


def score_logits(scores: Tensor, eps: float = 1e-4) -> Tensor:
    """Log-odds of scores, which are kept `eps` away from 0 and 1; in float32 at least, also under autocast.

    The log-odds of a length of 0 would be infinite, and near it their slope 1/p is what limits `eps` from below.

    >>> score_logits(torch.tensor([0.5, 0.0]))
    tensor([ 0.0000, -9.2102])
    """
    return torch.logit(upcast(scores), eps=eps)


def rescale_decisions(decisions: Tensor, scores: Tensor, eps: float = 1e-4) -> Tensor:
    """Decision capsules with the same direction and `scores` as their lengths: q_j · s_j / |s_j|.

    A capsule shorter than `eps` is lengthened no more than one of that length, and the zero vector, which has no
    direction, stays zero; so value and gradient are finite everywhere.

    Args:
        decisions: [B, J, I].
        scores: [B, J].

    >>> rescale_decisions(torch.tensor([[[3.0, 4.0]]]), torch.tensor([[0.5]]))
    tensor([[[0.3000, 0.4000]]])
    """
    batch, classes, _ = require_tensor("decisions", decisions, "B J I")
    require_tensor("scores", scores, "B J", B=batch, J=classes)
    wide = upcast(decisions)  # [B, J, I]
    factors = upcast(scores) / lengths(wide).clamp_min(eps)  # [B, J]
    return (wide * factors.unsqueeze(-1)).to(decisions.dtype)


class DecisionField(nn.Module):
    """`decision_field` with its weights: logits [B, J] of a head → chances that know of each other.

    unary_j = t_j · logit_j + b_j with a learned sharpness t_j > 0 (an inverse temperature) and bias b_j for each class:
    what is a score of 0.7 to one loss is certainty to another. A global branch adds w_j · features, a linear layer on
    the pooled features of the whole image. The branch and all potentials start at zero, t at 1 and b at 0, so that the
    module starts as the identity (with a low rank one factor starts at zero, as in LoRA); or at what the training
    labels say, `start_at`. A learned `trust` weighs what classes say that are believed rather than known.

    The pairwise matrix need not be symmetric, as in the CRF over the votes. In one energy it would be; but a few
    iterations from a trained unary are no exact inference, and what a class has to learn from another depends on which
    of the two the image shows well: a class that is easy to see has much to say and little to hear.

    Potentials are log-odds ratios, of a size of 1 to 5 where classes belong together. Adam moves a weight by about the
    learning rate in each step, whatever its gradient, and would need thousands of steps from zero; so the weights are
    kept in units of `scale`, which multiplies their step.

    Args:
        classes: J.
        iterations: mean-field iterations, at least one: without messages the potentials would never be trained.
        rank: r, for a low-rank pairwise matrix of two [J, r] factors; None for the full [J, J].
        groups: hidden units for potentials of higher order; 0 for none. They start silent.
        global_channels: C, channels of the pooled features [B, C] that the global branch reads; None for no branch.
        scale: unit of the potentials.
    """

    def __init__(
        self,
        classes: int,
        iterations: int = 2,
        rank: int | None = None,
        groups: int = 0,
        global_channels: int | None = None,
        scale: float = 10.0,
    ) -> None:
        super().__init__()
        self.classes = require_count("classes", classes)
        self.iterations = require_count("iterations", iterations)
        self.scale = scale
        self.raw_sharpness = nn.Parameter(torch.full((classes,), math.log(math.e - 1)))  # [J], softplus of it is 1
        self.bias = nn.Parameter(torch.zeros(classes))  # [J]
        # In classes that are believed rather than known. One number; FSDP shares no scalars.
        self.trust = nn.Parameter(torch.ones(1))  # [1]
        self.prior: Tensor
        # Before anything is known of the classes, one half; the potentials are zero then, and it has no effect.
        self.register_buffer("prior", torch.full((classes,), 0.5))  # [J]
        spread = classes**-0.5
        self.weight: nn.Parameter | None = None
        self.left: nn.Parameter | None = None
        self.right: nn.Parameter | None = None
        if rank is None:
            self.weight = nn.Parameter(torch.zeros(classes, classes))  # [J, J]
        else:
            self.left = nn.Parameter(torch.empty(classes, require_count("rank", rank)).normal_(std=spread))  # [J, r]
            self.right = nn.Parameter(torch.zeros(classes, rank))  # [J, r]
        self.groups = require_count("groups", groups, least=0)
        self.inward: nn.Parameter | None = None
        self.inward_bias: nn.Parameter | None = None
        self.outward: nn.Parameter | None = None
        if groups:
            self.inward = nn.Parameter(torch.empty(2 * classes, groups).normal_(std=spread))  # [2J, h]
            self.inward_bias = nn.Parameter(torch.zeros(groups))  # [h]
            self.outward = nn.Parameter(torch.zeros(groups, classes))  # [h, J]
        self.global_branch: nn.Parameter | None = None
        if global_channels is not None:
            channels = require_count("global_channels", global_channels)
            self.global_branch = nn.Parameter(torch.zeros(classes, channels))  # [J, C]

    @property
    def sharpness(self) -> Tensor:
        """t, [J], above 0."""
        return nn.functional.softplus(upcast(self.raw_sharpness))

    @property
    def pairwise(self) -> Pairwise:
        """The potentials as `decision_field` takes them."""
        if self.weight is not None:
            return self.scale * self.weight
        assert self.left is not None
        assert self.right is not None
        return self.left, self.scale * self.right

    @torch.no_grad()
    def start_at(self, potentials: Tensor, groups: Groups | None = None) -> None:
        """Take potentials [J, J] that were found from labels alone, for classes that are known; believe nothing yet.

        So the module still starts as the identity where nothing is known.
        """
        if self.weight is None:
            raise ValueError("potentials: expected none for a field of low rank, which has no full matrix to take them")
        require_tensor("potentials", potentials, "J J", J=self.classes)
        if groups is not None and self.inward is not None and self.inward_bias is not None and self.outward is not None:
            self.inward.copy_(groups.inward)
            self.inward_bias.copy_(groups.bias)
            self.outward.copy_(groups.outward)
        self.weight.copy_(potentials / self.scale)
        self.trust.zero_()

    @torch.no_grad()
    def set_prior(self, frequencies: Tensor) -> None:
        """Take the share of training images that show each class, [J]."""
        require_tensor("frequencies", frequencies, "J", J=self.classes)
        require_between("frequencies", frequencies, 0, 1)
        self.prior.copy_(frequencies)

    def forward(self, logits: Tensor, known: Tensor | None = None, features: Tensor | None = None) -> FieldResult:
        """Return scores and logits [B, J] from a head's logits [B, J], what is known [B, J] and pooled features [B, C].

        The features are those that a global branch reads; without one they are not needed.
        """
        require_tensor("logits", logits, "B J", J=self.classes)
        if self.global_branch is not None and features is None:
            raise ValueError("features: expected pooled features [B, C] for the global branch, got None")
        unary = self.sharpness * upcast(logits) + upcast(self.bias)  # [B, J]
        if self.global_branch is not None and features is not None:
            weight = self.global_branch  # [J, C]
            require_tensor("features", features, "B C", B=unary.shape[0], C=weight.shape[1])
            unary = unary + upcast(nn.functional.linear(features.to(weight.dtype), weight))  # [B, J]
        pairwise = self.pairwise
        pairwise = (pairwise[0].to(unary), pairwise[1].to(unary)) if isinstance(pairwise, tuple) else pairwise.to(unary)
        groups = None
        if self.inward is not None and self.inward_bias is not None and self.outward is not None:
            groups = Groups(self.inward.to(unary), self.inward_bias.to(unary), self.outward.to(unary))
        trust = upcast(self.trust)
        found = decision_field(unary, pairwise, self.prior, self.iterations, known, trust, groups)
        return FieldResult(found.scores.to(logits.dtype), found.logits.to(logits.dtype))

    def extra_repr(self) -> str:
        return (
            f"classes={self.classes}, iterations={self.iterations}, groups={self.groups}, "
            f"global_branch={self.global_branch is not None}"
        )
