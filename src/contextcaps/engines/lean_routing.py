"""Dynamic routing and weighted sums over votes that are computed a few capsules at a time, with their vjps.

Each iteration is one pass over the tiles: its logits are the agreement of a vote with the sum of all earlier decisions,
and need not be kept. Backward likewise; and a last pass computes all couplings anew.

No image needs another's votes. So where the votes after a CRF are too many to keep for the passes over them, the images
are routed in groups, one group after the other, and their votes computed a second time in the backward pass.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from contextcaps.capsules.squash import squash
from contextcaps.engines.lean_votes import Gradients, LeanVotes
from contextcaps.engines.operands import Factors

__all__ = ["Record", "route", "route_vjp", "weighted_sum", "weighted_sum_vjp"]


class Record(NamedTuple):
    """Each iteration's sums and the decisions that its couplings followed from, added up; [T, B, J, I] both."""

    sums: Tensor
    states: Tensor

    def of_images(self, images: slice) -> "Record":
        return Record(self.sums[:, images], self.states[:, images])


def weighted_sum(votes: LeanVotes, weights: Tensor) -> Tensor:
    """Return Σ_k weights_kj · vote_kj: [B, K, J] → [B, J, I]."""
    by_capsule = weights.transpose(0, 1).to(votes.capsules.dtype)  # [K, B, J]
    total = votes.zeros(votes.shape[0], dtype=votes.wide)  # [B, J, I]
    for tile in votes.tiles():
        votes.add_sum(total, votes.votes(tile), by_capsule[tile].to(votes.wide))
    return total.to(votes.capsules.dtype)


def weighted_sum_vjp(votes: LeanVotes, weights: Tensor, gradient: Tensor) -> tuple[Tensor, Gradients]:
    """Return the gradients of the weights [B, K, J] and of the inputs, for that of the sums [B, J, I]."""
    batch, count, classes, _ = votes.shape
    by_capsule, vectors = weights.transpose(0, 1).to(votes.capsules.dtype), votes.like_votes(gradient)
    found = votes.no_gradients()
    by_weights = votes.capsules.new_empty(count, batch, classes)  # [K, B, J]
    for tile in votes.tiles():
        by_votes = by_capsule[tile].unsqueeze(-1) * vectors  # [k, B, J, I]
        corrected = votes.vjp(tile, by_votes, found, need_votes=True)
        assert corrected is not None
        torch.sum(corrected * vectors, dim=3, out=by_weights[tile])
    return by_weights.transpose(0, 1).to(weights.dtype), found


def route(
    votes: LeanVotes, factors: Factors, record: Record, gain: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Route votes; write the record.

    Returns:
        Decisions and sums [2, B, J, I]; and the corrected votes of all images [K, B, J, I] if `votes.keeps_all`, or
        something empty.
    """
    gain = gain.to(votes.wide)
    for images, part in votes.parts():
        _Routing(part, factors.of_images(images)).forward(record.of_images(images), gain, bias)
    dtype, sums = votes.capsules.dtype, record.sums[-1]  # [B, J, I]
    kind = dtype if bias is None else torch.promote_types(dtype, bias.dtype)
    both = votes.capsules.new_empty(2, *sums.shape, dtype=kind)
    both[0], both[1] = squash(sums), sums
    return both, votes.capsules.new_empty(0) if votes.kept is None else votes.kept


def route_vjp(
    votes: LeanVotes, factors: Factors, record: Record, gain: Tensor, gradient: Tensor
) -> tuple[Factors, Tensor, Gradients]:
    """Return the gradients of the factors, of the bias [J, I] and of the inputs, for those of decisions and sums."""
    gain, found = gain.to(votes.wide), votes.no_gradients()
    by_factors = factors.each(lambda given: given.new_zeros(given.shape))
    by_bias = torch.zeros_like(record.sums[0, 0])  # [J, I]
    for images, part in votes.parts():
        routing = _Routing(part, factors.of_images(images))
        by_bias += routing.backward(
            record.of_images(images), gain, gradient[:, images], by_factors.of_images(images), found.of_images(images)
        )
    return by_factors, by_bias, found


def _squash_vjp(sums: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of s [B, J, I] for that of squash(s) = s · h, h = |s|/(1+|s|²); zero where s is."""
    norm = torch.linalg.vector_norm(sums, dim=-1, keepdim=True)  # [B, J, 1]
    shrunk = 1 / (1 + norm * norm)  # [B, J, 1]
    inner = (sums * gradient).sum(dim=-1, keepdim=True)  # [B, J, 1]
    slope = torch.where(norm > 0, (1 - norm * norm) * shrunk * shrunk / norm, 0)  # dh/d|s| over |s|
    return gradient * (norm * shrunk) + sums * (slope * inner)


class _Routing:
    """Routing of the votes of some images."""

    def __init__(self, votes: LeanVotes, factors: Factors) -> None:
        self.votes, self.factors = votes, factors

    def forward(self, record: Record, gain: Tensor, bias: Tensor | None) -> None:
        votes = self.votes
        state = votes.zeros(votes.shape[0], dtype=votes.wide)  # [B, J, I]
        for turn in range(len(record.sums)):
            state = state + squash(record.sums[turn - 1]) if turn else state
            record.states[turn] = state
            raw = torch.zeros_like(state)
            for tile in votes.tiles():
                cast = votes.votes(tile)  # [k, B, J, I]
                couplings = self._couplings(cast, tile, state, turn)
                votes.add_sum(raw, cast, couplings * self._factor(self.factors.votes, tile))
            record.sums[turn] = gain * raw if bias is None else gain * raw + bias

    def backward(self, record: Record, gain: Tensor, gradient: Tensor, by_factors: Factors, found: Gradients) -> Tensor:
        """Return the bias's gradient [J, I]; add the others to `by_factors` and `found`."""
        votes, (sums, states) = self.votes, record
        last = len(sums) - 1
        later = torch.zeros_like(sums[0])  # gradients of later states, added up
        gradients = [later] * len(sums)  # of each iteration's raw sums
        by_bias = torch.zeros_like(later[0])  # [J, I]
        for turn in range(last, -1, -1):
            reached = torch.empty_like(later).copy_(gradient[0]) if turn == last else later
            by_sums = _squash_vjp(sums[turn], reached)
            by_sums = by_sums + gradient[1] if turn == last else by_sums
            by_bias += by_sums.sum(dim=0)
            gradients[turn] = gain * by_sums
            if turn:
                for tile in votes.tiles():
                    cast = votes.votes(tile)  # [k, B, J, I]
                    _, by_logits, _ = self._back(cast, tile, states[turn], gradients[turn], turn)
                    votes.add_sum(later, cast, by_logits)
        self._last_pass(states, gradients, by_factors, found)
        return by_bias

    def _factor(self, factor: Tensor | None, tile: slice) -> Tensor | float:
        """Return a tile's factors [k, B, J or 1], or 1."""
        if factor is None:
            return 1.0
        by_capsule = factor[:, tile].transpose(0, 1).to(self.votes.wide)  # [k, B] or [k, B, J]
        return by_capsule.unsqueeze(2) if factor.ndim == 2 else by_capsule

    def _agreement(self, cast: Tensor, vectors: Tensor) -> Tensor:
        """Return Σ_i vote_kji · vectors_ji, [k, B, J], of votes [k, B, J, I] and vectors [B, J, I]."""
        return torch.sum(cast * vectors.to(cast.dtype), dim=3).to(self.votes.wide)

    def _couplings(self, cast: Tensor, tile: slice, state: Tensor, turn: int) -> Tensor:
        """Return the couplings times the initial weights, [k, B, J]."""
        initial = self._factor(self.factors.couplings, tile)
        if turn == 0:
            even = 1 / cast.shape[2] if self.factors.couplings is None else 1.0
            return torch.full(cast.shape[:3], even, dtype=self.votes.wide, device=cast.device) * initial
        agreement = self._agreement(cast, state)  # [k, B, J]
        return torch.softmax(self._factor(self.factors.votes, tile) * agreement, dim=2) * initial

    def _back(
        self, cast: Tensor, tile: slice, state: Tensor, gradient: Tensor, turn: int
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Return a vote's weight in the sum, in the state's gradient, and the factors' gradients; all [k, B, J]."""
        of_votes, initial = self._factor(self.factors.votes, tile), self._factor(self.factors.couplings, tile)
        reached = self._agreement(cast, gradient)  # [k, B, J], of the weight in the sum
        if turn == 0:
            weighed = self._couplings(cast, tile, state, turn)
            plain = weighed if self.factors.couplings is None else torch.ones_like(weighed)
            by_factors = (reached * weighed, reached * plain * of_votes)
            return weighed * of_votes, torch.zeros_like(weighed), by_factors
        agreement = self._agreement(cast, state)  # [k, B, J]
        couplings = torch.softmax(of_votes * agreement, dim=2)  # [k, B, J]
        by_couplings = reached * of_votes * initial  # [k, B, J]
        by_logits = couplings * (by_couplings - (couplings * by_couplings).sum(dim=2, keepdim=True))  # [k, B, J]
        by_votes = reached * couplings * initial + by_logits * agreement  # [k, B, J]
        by_factors = (by_votes, reached * couplings * of_votes)
        return couplings * of_votes * initial, of_votes * by_logits, by_factors

    def _last_pass(self, states: Tensor, gradients: list[Tensor], by_factors: Factors, found: Gradients) -> None:
        """Add the factors' gradients to `by_factors`, and those of the inputs to `found`."""
        votes, dtype = self.votes, self.votes.capsules.dtype
        for tile in votes.tiles():
            cast = votes.votes(tile)  # [k, B, J, I]
            gradient = votes.zeros(len(cast), votes.shape[0])  # [k, B, J, I]
            for turn, (state, reached) in enumerate(zip(states, gradients, strict=True)):
                weights, by_logits, parts = self._back(cast, tile, state, reached, turn)
                gradient.addcmul_(weights.unsqueeze(-1).to(dtype), reached.to(dtype))
                if turn:
                    gradient.addcmul_(by_logits.unsqueeze(-1).to(dtype), state.to(dtype))
                for total, part in zip(by_factors, parts, strict=True):
                    if total is not None:
                        part = part.sum(dim=2) if total.ndim == 2 else part  # [k, B] or [k, B, J]
                        total[:, tile] += part.transpose(0, 1).to(total.dtype)
            votes.vjp(tile, gradient, found)
