"""The CRF over a tile of votes in plain PyTorch, forward and backward; classes innermost, as matrix products want them.

The usual CRF (one pairwise matrix, messages centred and scaled by J, the votes re-added) has its backward pass written
out: per iteration one product for the messages' gradient and one for the pairwise weights', and few temporaries. With
q = softmax(l_t), m = J · (q - 1/J) and l_{t+1} = u - m · P, P without its diagonal, and g the gradient of l_{t+1}:

    du += g,  dP -= mᵀ · g,  dq = -J · g · Pᵀ,  dl_t = q · (dq - Σ_j q_j · dq_j),

and l_0 = u. The others are autograd's.
"""

from typing import Protocol

import torch
from torch import Tensor

from contextcaps.capsules.guards import unchecked, upcast
from contextcaps.capsules.mean_field import MeanFieldCRF

__all__ = ["LeanField", "lean_field"]


class LeanField(Protocol):
    """A CRF that can be gone through both ways; votes are [k, B, J, I], with classes innermost in memory or not."""

    def correct(self, votes: Tensor) -> Tensor:
        """Votes after the CRF."""

    def pull_back(self, votes: Tensor, gradient: Tensor, totals: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Votes after the CRF, and the gradient before it; the potentials' gradients are added to `totals`."""


def lean_field(crf: MeanFieldCRF, potentials: tuple[Tensor, ...]) -> LeanField:
    """The CRF with these potentials in the place of its own."""
    if len(potentials) == 1 and potentials[0].ndim == 2 and not crf.literal:
        return _Centred(crf.iterations, potentials[0])
    return _Any(crf, potentials)


class _Centred:
    def __init__(self, iterations: int, pairwise: Tensor) -> None:
        self.iterations = iterations
        self.matrix = pairwise.detach().clone().fill_diagonal_(0.0)  # [J, J]

    def correct(self, votes: Tensor) -> Tensor:
        return _as_votes(self._iterate(_as_rows(votes), []), votes)

    def _iterate(self, rows: Tensor, steps: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Logits [n, J] after the last iteration; `steps` gets each one's marginals and what they send, [n, J]."""
        classes, logits = rows.shape[1], rows
        for _ in range(self.iterations):
            marginals = torch.softmax(upcast(logits), dim=1)  # [n, J]
            sent = ((marginals - 1 / classes) * classes).to(rows.dtype)  # [n, J]
            steps.append((marginals, sent))
            logits = torch.addmm(rows, sent, self.matrix, alpha=-1)
        return logits

    def pull_back(self, votes: Tensor, gradient: Tensor, totals: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        steps: list[tuple[Tensor, Tensor]] = []
        rows, reached = _as_rows(votes), _as_rows(gradient)  # [n, J]
        classes, (total,) = rows.shape[1], totals
        logits = self._iterate(rows, steps)
        before = torch.zeros_like(reached)
        for marginals, sent in reversed(steps):
            before += reached
            if total.dtype == sent.dtype:
                total.addmm_(sent.t(), reached, alpha=-1)
            else:
                total -= torch.mm(sent.t(), reached)
            by_marginals = upcast(torch.mm(reached, self.matrix.t())) * -classes  # [n, J]
            inner = (marginals * by_marginals).sum(dim=1, keepdim=True)
            reached = by_marginals.sub_(inner).mul_(marginals).to(rows.dtype)
        total.fill_diagonal_(0.0)
        return _as_votes(logits, votes), _as_votes(before + reached, votes)


class _Any:
    def __init__(self, crf: MeanFieldCRF, potentials: tuple[Tensor, ...]) -> None:
        self.crf, self.potentials = crf, tuple(each.detach() for each in potentials)

    def correct(self, votes: Tensor) -> Tensor:
        return self.crf.correct(votes, *self.potentials)

    def pull_back(self, votes: Tensor, gradient: Tensor, totals: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        votes = votes.detach().requires_grad_()  # [k, B, J, I]
        leaves = tuple(each.detach().requires_grad_() for each in self.potentials)
        with torch.enable_grad(), unchecked():  # they were looked at in the forward pass
            corrected = self.crf.correct(votes, *leaves)
        before, *others = torch.autograd.grad(corrected, (votes, *leaves), gradient, allow_unused=True)
        for total, each in zip(totals, others, strict=True):
            if each is not None:  # without iterations there are no messages
                total += each
        return corrected.detach(), before


def _as_rows(votes: Tensor) -> Tensor:
    """[k, B, J, I] as [n, J]."""
    return votes.transpose(2, 3).reshape(-1, votes.shape[2])


def _as_votes(rows: Tensor, like: Tensor) -> Tensor:
    """[n, J] as [k, B, J, I], without moving anything."""
    count, batch, classes, attributes = like.shape
    return rows.view(count, batch, attributes, classes).transpose(2, 3)
