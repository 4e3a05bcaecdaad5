"""The CRF over a tile of votes in plain PyTorch, forward and backward.

Votes become rows [n, J], one for each capsule, image and attribute, classes innermost as matrix products want them.
With q = softmax(l_t), minus what is sent is m = s · (o - q), and l_{t+1} = u + m · P, P without its diagonal. Centred,
s = J, o = 1/J and u are the votes; to the letter s = 1, o = 0, u = q, and q = softmax(l_T) is handed on. Backward, with
g the gradient of l_{t+1}:

    dP += mᵀ · g,  dq = -s · g · Pᵀ,  dl_t = q · (dq - Σ_j q_j · dq_j),

g is added to the gradient of the votes, or to the letter to dq; and l_0 are the votes.
"""

import torch
from torch import Tensor

from contextcaps.capsules.guards import upcast
from contextcaps.engines.pairwise import make_pairwise

__all__ = ["LeanCRF"]


class LeanCRF:
    """A CRF for tiles of votes [k, B, J, I]; the potentials' gradients add up in `pairwise`.

    Args:
        potentials: a pairwise matrix [J, J], one per attribute [I, J, J], or two factors [J, r]; in the votes'
            precision.
        iterations: mean-field iterations.
        literal: Algorithm 1 to the letter.
    """

    def __init__(self, potentials: tuple[Tensor, ...], iterations: int, literal: bool) -> None:
        self.pairwise = make_pairwise(potentials)
        self.iterations, self.literal = iterations, literal

    def correct(self, votes: Tensor) -> Tensor:
        """Return votes [k, B, J, I] after the CRF, with classes innermost in memory."""
        return _as_votes(self._iterate(_as_rows(votes), []), votes)

    def _iterate(self, rows: Tensor, steps: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return rows [n, J] after the CRF; add each iteration's marginals and minus what they send to `steps`."""
        classes, logits = rows.shape[1], rows
        scale, offset = (1.0, 0.0) if self.literal else (float(classes), 1 / classes)
        for _ in range(self.iterations):
            marginals = torch.softmax(upcast(logits), dim=1)  # [n, J]
            sent = ((offset - marginals) * scale).to(rows.dtype)  # [n, J]
            steps.append((marginals, sent))
            logits = self.pairwise.add_messages(marginals.to(rows.dtype) if self.literal else rows, sent)
        if not self.literal:
            return logits
        marginals = torch.softmax(upcast(logits), dim=1)  # [n, J]
        steps.append((marginals, marginals))
        return marginals.to(rows.dtype)

    def vjp(self, votes: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return votes after the CRF, and the gradient before it; add to the potentials' gradients."""
        steps: list[tuple[Tensor, Tensor]] = []
        rows, reached = _as_rows(votes), _as_rows(gradient)  # [n, J]
        corrected = self._iterate(rows, steps)
        scale = 1.0 if self.literal else float(rows.shape[1])
        before: Tensor | None = None
        if self.literal:
            marginals, _ = steps.pop()
            reached = _softmax_vjp(marginals, upcast(reached)).to(rows.dtype)
        for marginals, sent in reversed(steps):
            self.pairwise.add_gradient(sent, reached)
            by_marginals = upcast(self.pairwise.vjp(reached)) * -scale  # [n, J]
            if self.literal:
                by_marginals = by_marginals + reached
            else:
                before = reached if before is None else before + reached
            reached = _softmax_vjp(marginals, by_marginals).to(rows.dtype)
        reached = reached if before is None else before + reached
        return _as_votes(corrected, votes), _as_votes(reached, votes)


def _softmax_vjp(marginals: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of the logits, for that of their softmax, the marginals [n, J]."""
    return (gradient - (marginals * gradient).sum(dim=1, keepdim=True)).mul_(marginals)


def _as_rows(votes: Tensor) -> Tensor:
    """Return votes [k, B, J, I] as rows [n, J]."""
    return votes.transpose(2, 3).reshape(-1, votes.shape[2])


def _as_votes(rows: Tensor, like: Tensor) -> Tensor:
    """Return rows [n, J] as votes [k, B, J, I], a view."""
    count, batch, classes, attributes = like.shape
    return rows.view(count, batch, attributes, classes).transpose(2, 3)
