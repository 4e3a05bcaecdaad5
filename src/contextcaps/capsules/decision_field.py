"""Mean field between the decisions: whether a class is present, corrected by which others are.

The paper's CRF (Section 3.2) stands between the votes of one capsule; this one stands between the classes themselves,
one yes-or-no variable each, after the head. Known labels are clamped, and their messages correct the other classes.
The update is that of Zheng et al., "Conditional Random Fields as Recurrent Neural Networks", 2015,
https://arxiv.org/abs/1502.03240, with binary variables.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from contextcaps.capsules.group_potentials import Groups, group_messages
from contextcaps.capsules.guards import require_between, require_count, require_tensor, upcast
from contextcaps.capsules.potentials import Pairwise, require_pairwise

__all__ = ["DecisionField", "FieldResult", "decision_field", "messages_by_sender", "require_known"]


class FieldResult(NamedTuple):
    """Scores and logits after the mean field."""

    scores: Tensor
    """[B, J], the probability of each class; exactly 0 or 1 where its label is known."""
    logits: Tensor
    """[B, J], before the last sigmoid; for a known class from the image and the others' messages."""
    sent: Tensor | None = None
    """[B, J], what each class sent in the last iteration: its probability minus its prior, times `trust` where its
    label is not known; None without an iteration."""


def decision_field(
    unary: Tensor,
    pairwise: Pairwise,
    prior: Tensor,
    iterations: int = 2,
    known: Tensor | None = None,
    trust: Tensor | float = 1.0,
    groups: Groups | None = None,
) -> FieldResult:
    """Run mean-field iterations over the presence of classes.

    With q = sigmoid(unary) to begin with, an iteration computes
    q_j = sigmoid(unary_j + Σ_{j'≠j} (q_j' − prior_j') · pairwise[j', j]); known classes keep their value throughout.

    Args:
        unary: [B, J], log-odds of each class from the image alone.
        pairwise: [J, J], or a pair of factors [J, r], [J, r] whose product left · rightᵀ is that matrix. The diagonal
            never counts.
        prior: [J], how often each class is present: a class at its prior probability sends no message.
        iterations: how often messages are sent; 0 gives sigmoid(unary), and the known labels.
        known: [B, J], 1 where a class is known to be present, 0 where absent, NaN where its label is not known. (A
            number between the two is a probability from elsewhere; it is clamped as well.)
        trust: factor of the messages of classes whose label is not known. 1 is the mean field. Probabilities from one
            image are not independent evidence, and would be counted twice.
        groups: potentials of higher order, besides the pairwise ones.

    >>> oven_to_sink = torch.tensor([[0.0, 3.0], [0.0, 0.0]])
    >>> known = torch.tensor([[1.0, float("nan")]])
    >>> decision_field(torch.zeros(1, 2), oven_to_sink, torch.tensor([0.1, 0.1]), known=known).scores
    tensor([[1.0000, 0.9370]])
    """
    batch, classes = require_tensor("unary", unary, "B J")
    require_tensor("prior", prior, "J", J=classes)
    require_count("iterations", iterations, least=0)
    require_pairwise(pairwise, classes, unary=unary)
    given = None if known is None else require_known(known, batch, classes)  # [B, J]
    wide, centre = upcast(unary), upcast(prior)  # [B, J], [J]

    def clamped(logits: Tensor) -> Tensor:
        scores = torch.sigmoid(upcast(logits))  # [B, J]
        return scores if known is None or given is None else torch.where(given, known.to(scores), scores)

    logits, sent = wide, None  # [B, J]
    for _ in range(iterations):
        sent = clamped(logits) - centre  # [B, J]
        sent = sent * trust if given is None else torch.where(given, sent, sent * trust)  # [B, J]
        logits = wide + _messages(sent, pairwise)  # [B, J]
        if groups is not None:
            logits = logits + group_messages(sent, given, groups)  # [B, J]
    return FieldResult(clamped(logits).to(unary.dtype), logits.to(unary.dtype), sent)


def _messages(sent: Tensor, pairwise: Pairwise) -> Tensor:
    """Return Σ_{j'≠j} sent_j' · pairwise[j', j], [B, J]."""
    if isinstance(pairwise, tuple):
        left, right = map(upcast, pairwise)  # [J, r], [J, r]
        return sent @ left @ right.T - sent * (left * right).sum(dim=1)  # [B, J]
    return sent @ _off_diagonal(upcast(pairwise))  # [B, J]


def messages_by_sender(sent: Tensor, pairwise: Pairwise) -> Tensor:
    """Return each message by itself, sent_j' · pairwise[j', j], [B, J', J]; those of a class to itself are zero.

    Args:
        sent: [B, J], as in `FieldResult`.
        pairwise: [J, J], or a pair of factors [J, r], as in `decision_field`.

    >>> messages_by_sender(torch.tensor([[0.9, -0.1]]), torch.tensor([[7.0, 3.0], [0.0, 7.0]]))
    tensor([[[0.0000, 2.7000],
             [-0.0000, -0.0000]]])
    """
    matrix = pairwise[0] @ pairwise[1].T if isinstance(pairwise, tuple) else pairwise  # [J, J]
    return sent.unsqueeze(2) * _off_diagonal(upcast(matrix))  # [B, J', J]


def _off_diagonal(matrix: Tensor) -> Tensor:
    """Return a matrix [J, J] with zeros on its diagonal."""
    return matrix - torch.diag(torch.diagonal(matrix))


def require_known(known: Tensor, batch: int, classes: int) -> Tensor:
    """Refuse known labels that are not [B, J] with values from 0 to 1 or NaN; return where they are known, [B, J]."""
    if not isinstance(known, Tensor) or not known.is_floating_point():
        got = known.dtype if isinstance(known, Tensor) else type(known).__name__
        raise ValueError(f"known: expected a floating-point tensor (1 present, 0 absent, NaN not known), got {got}")
    filled = known.nan_to_num(0.0)  # [B, J]
    require_tensor("known", filled, "B J", B=batch, J=classes)
    require_between("known", filled, 0, 1)
    return ~known.isnan()


class DecisionField(nn.Module):
    """`decision_field` with its weights: logits [B, J] of a head → scores corrected by each other.

    unary_j = t_j · logit_j + b_j with a learned sharpness t_j > 0 (an inverse temperature) and bias b_j for each class:
    what is a score of 0.7 to one loss is certainty to another. A global branch adds w_j · features, a linear layer on
    the pooled features of the whole image. The branch and all potentials start at zero, t at 1 and b at 0, so that the
    module starts as the identity (with a low rank one factor starts at zero, as in LoRA); or at potentials fitted to
    the training labels, `start_at`. A learned `trust` weighs the messages of classes whose label is not known.

    The pairwise matrix need not be symmetric, as in the CRF over the votes. In one energy it would be; but a few
    iterations from a trained unary are no exact inference, and what a class has to learn from another depends on which
    of the two the image shows well: a class that is easy to see sends strong messages and needs few.

    Potentials are log-odds ratios, of a size of 1 to 5 where classes belong together. Adam moves a weight by about the
    learning rate in each step, whatever its gradient, and would need thousands of steps from zero; so the weights are
    kept in units of `scale`, which multiplies their step.

    Args:
        classes: J.
        iterations: mean-field iterations, at least one: without messages the potentials would never be trained.
        rank: r, for a low-rank pairwise matrix of two [J, r] factors; None for the full [J, J].
        groups: hidden units for potentials of higher order; 0 for none. Their messages start at zero.
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
        # One number, but not a scalar: FSDP shares none.
        self.trust = nn.Parameter(torch.ones(1))  # [1]
        self.prior: Tensor
        # One half until `set_prior`; the potentials are zero then, and it has no effect.
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
    def group_potentials(self) -> Groups | None:
        """Weights of the hidden units; None where there are none."""
        if self.inward is None or self.inward_bias is None or self.outward is None:
            return None
        return Groups(self.inward, self.inward_bias, self.outward)

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
        """Start at potentials [J, J] that were fitted to labels alone, with a trust of zero.

        So the module still starts as the identity where no label is known.
        """
        if self.weight is None:
            raise ValueError("potentials: expected none for a field of low rank, which has no full matrix to take them")
        require_tensor("potentials", potentials, "J J", J=self.classes)
        if groups is not None and self.group_potentials is not None:
            for own, given in zip(self.group_potentials, groups, strict=True):
                own.copy_(given)
        self.weight.copy_(potentials / self.scale)
        self.trust.zero_()

    @torch.no_grad()
    def set_prior(self, frequencies: Tensor) -> None:
        """Set the prior to the share of training images that show each class, [J]."""
        require_tensor("frequencies", frequencies, "J", J=self.classes)
        require_between("frequencies", frequencies, 0, 1)
        self.prior.copy_(frequencies)

    def forward(self, logits: Tensor, known: Tensor | None = None, features: Tensor | None = None) -> FieldResult:
        """Return scores and logits [B, J] from a head's logits [B, J], known labels [B, J] and pooled features [B, C].

        The features are those that a global branch reads; without one they are not needed.
        """
        found = self.correct(self.unary(logits, features), known)
        return found._replace(scores=found.scores.to(logits.dtype), logits=found.logits.to(logits.dtype))

    def unary(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return what the image alone says, [B, J] in float32 at least; arguments are as for `forward`."""
        require_tensor("logits", logits, "B J", J=self.classes)
        if self.global_branch is not None and features is None:
            raise ValueError("features: expected pooled features [B, C] for the global branch, got None")
        unary = self.sharpness * upcast(logits) + upcast(self.bias)  # [B, J]
        if self.global_branch is not None and features is not None:
            weight = self.global_branch  # [J, C]
            require_tensor("features", features, "B C", B=unary.shape[0], C=weight.shape[1])
            unary = unary + upcast(nn.functional.linear(features.to(weight.dtype), weight))  # [B, J]
        return unary

    def correct(self, unary: Tensor, known: Tensor | None = None) -> FieldResult:
        """Let the classes of `unary` [B, J] correct each other, with known labels [B, J] where there are any."""
        pairwise = self.pairwise
        pairwise = (pairwise[0].to(unary), pairwise[1].to(unary)) if isinstance(pairwise, tuple) else pairwise.to(unary)
        groups = self.group_potentials
        if groups is not None:
            groups = Groups(*(each.to(unary) for each in groups))
        return decision_field(unary, pairwise, self.prior, self.iterations, known, upcast(self.trust), groups)

    def extra_repr(self) -> str:
        return (
            f"classes={self.classes}, iterations={self.iterations}, groups={self.groups}, "
            f"global_branch={self.global_branch is not None}"
        )
