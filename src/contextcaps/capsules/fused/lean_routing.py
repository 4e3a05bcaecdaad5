"""Dynamic routing over votes that are computed a few capsules at a time.

Each iteration is one pass over the tiles: its logits are the agreement of a vote with the sum of all earlier decisions,
and need not be kept. Backward likewise; and a last pass computes all couplings anew.

No image needs another's votes. So where the votes after a CRF are too many to keep for the passes over them, the images
are routed in groups, one group after the other, and their votes computed a second time in the backward pass.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from contextcaps.capsules.fused.votes import RoutingFactors
from contextcaps.capsules.squash import squash

if TYPE_CHECKING:
    from contextcaps.capsules.fused.lean import Gradients, LeanVotes

__all__ = ["Record", "route", "route_back"]


class Record(NamedTuple):
    """What the way back through a routing needs: each iteration's sums and states, [B, J, I]."""

    sums: list[Tensor]
    states: list[Tensor]
    factors: RoutingFactors
    gain: Tensor
    has_bias: bool


def route(
    votes: "LeanVotes", factors: RoutingFactors, iterations: int, gain: Tensor, bias: Tensor | None
) -> tuple[Tensor, list[Record]]:
    """Decisions and sums [2, B, J, I], and a record for each group of images."""
    bias = None if bias is None else bias.detach()
    records = []
    for images, part in votes.parts():
        records.append(_Routing(part, _of_images(factors, images)).forward(iterations, gain, bias))
    sums = torch.cat([record.sums[-1] for record in records])  # [B, J, I]
    dtype = votes.capsules.dtype
    kind = dtype if bias is None else torch.promote_types(dtype, bias.dtype)
    return torch.stack([squash(sums), sums]).to(kind), records


def route_back(
    votes: "LeanVotes", records: list[Record], gradient: Tensor, found: "Gradients"
) -> tuple[RoutingFactors, Tensor | None]:
    """The gradients of the factors and of the bias [J, I]; and those of what the votes are made of, into `found`."""
    by_factors, by_bias = [], []
    for (images, part), record in zip(votes.parts(), records, strict=True):
        routing = _Routing(part, record.factors)
        by_factor, by_sums = routing.backward(record, gradient[:, images], found.of_images(images))
        by_factors.append(by_factor)
        by_bias.append(by_sums)
    joined = (None if each[0] is None else torch.cat(each) for each in zip(*by_factors, strict=True))
    return RoutingFactors(*joined), torch.stack(by_bias).sum(dim=0) if records[0].has_bias else None


def _of_images(factors: RoutingFactors, images: slice) -> RoutingFactors:
    return RoutingFactors(*(None if each is None else each.detach()[images] for each in factors))


class _Routing:
    """Of the votes of some images."""

    def __init__(self, votes: "LeanVotes", factors: RoutingFactors) -> None:
        self.votes, self.factors = votes, factors

    def forward(self, iterations: int, gain: Tensor, bias: Tensor | None) -> Record:
        votes = self.votes
        sums: list[Tensor] = []
        states: list[Tensor] = []
        state = votes.zeros(votes.shape[0], dtype=votes.wide)  # [B, J, I]
        for turn in range(iterations):
            state = state + squash(sums[-1]) if turn else state
            states.append(state)
            raw = torch.zeros_like(state)
            for tile in votes.tiles():
                cast = votes.votes(tile)  # [k, B, J, I]
                couplings = self._couplings(cast, tile, state, turn)
                votes.add_sum(raw, cast, couplings * self._factor(self.factors.votes, tile))
            sums.append(gain * raw if bias is None else gain * raw + bias)
        return Record(sums, states, self.factors, gain, bias is not None)

    def backward(self, record: Record, gradient: Tensor, found: "Gradients") -> tuple[RoutingFactors, Tensor]:
        """The gradients of the factors and, summed over images, of the sums [J, I]; the others into `found`."""
        sums, states, _, gain, _ = record
        votes, last = self.votes, len(sums) - 1
        later = torch.zeros_like(sums[0])  # gradients of later states, added up
        gradients = [torch.empty_like(later)] * len(sums)  # of each iteration's raw sums
        by_bias = torch.zeros_like(later[0])  # [J, I]
        for turn in range(last, -1, -1):
            before = sums[turn].detach().requires_grad_()  # [B, J, I]
            with torch.enable_grad():
                after = squash(before)
            reached = (gradient[0] if turn == last else later).to(after)
            (by_sums,) = torch.autograd.grad(after, before, reached)
            by_sums = by_sums + gradient[1] if turn == last else by_sums
            by_bias += by_sums.sum(dim=0)
            gradients[turn] = gain * by_sums
            if turn:
                for tile in votes.tiles():
                    cast = votes.votes(tile)  # [k, B, J, I]
                    _, by_logits, _ = self._back(cast, tile, states[turn], gradients[turn], turn)
                    votes.add_sum(later, cast, by_logits)
        return self._last_pass(states, gradients, found), by_bias

    def _factor(self, factor: Tensor | None, tile: slice) -> Tensor | float:
        """[k, B, J or 1], or 1."""
        if factor is None:
            return 1.0
        by_capsule = factor[:, tile].transpose(0, 1).to(self.votes.wide)  # [k, B] or [k, B, J]
        return by_capsule.unsqueeze(2) if factor.ndim == 2 else by_capsule

    def _agreement(self, cast: Tensor, vectors: Tensor) -> Tensor:
        """[k, B, J], of votes [k, B, J, I] with vectors [B, J, I]."""
        return torch.sum(cast * vectors.to(cast.dtype), dim=3).to(self.votes.wide)

    def _couplings(self, cast: Tensor, tile: slice, state: Tensor, turn: int) -> Tensor:
        """Couplings, times the initial weights, [k, B, J]."""
        initial = self._factor(self.factors.couplings, tile)
        if turn == 0:
            even = 1 / cast.shape[2] if self.factors.couplings is None else 1.0
            return torch.full(cast.shape[:3], even, dtype=self.votes.wide, device=cast.device) * initial
        agreement = self._agreement(cast, state)  # [k, B, J]
        return torch.softmax(self._factor(self.factors.votes, tile) * agreement, dim=2) * initial

    def _back(
        self, cast: Tensor, tile: slice, state: Tensor, gradient: Tensor, turn: int
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """A vote's weight in the sum and in the agreement's gradient, and the factors' gradients; all [k, B, J]."""
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

    def _last_pass(self, states: list[Tensor], gradients: list[Tensor], found: "Gradients") -> RoutingFactors:
        """The factors' gradients; and those of the inputs, into `found`."""
        votes, dtype = self.votes, self.votes.capsules.dtype
        by_factors = RoutingFactors(*(None if each is None else torch.zeros_like(each) for each in self.factors))
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
            votes.give_back(tile, gradient, found)
        return by_factors
