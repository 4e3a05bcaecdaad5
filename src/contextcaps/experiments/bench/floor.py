"""The floor: how fast a head of a given size could be at best on this machine, from counted operations and bytes.

Counted is what every way of computing the head has to do, and nothing that one of them could avoid; so that the floor
is a bound that is not reached, and the share of it says how much there is left to gain at most.
"""

import dataclasses

from contextcaps.experiments.bench.cases import Size, head_config
from contextcaps.experiments.bench.ceilings import Ceilings
from contextcaps.experiments.bench.settings import Mode, Precision
from contextcaps.models.config import ModelConfig

__all__ = ["Work", "count_work", "floor_seconds"]

_FLOAT32 = 4  # bytes; weights, capsules, decisions and gradients are float32, under autocast, too


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of one pass of a head. A multiplication and an addition are two operations."""

    votes: int
    """Operations of casting the votes: 2·A for each vote. Backward the same for the gradient of the capsules and once
    more for that of the weights."""
    crf: int
    """Operations of the CRF's messages: for each vote and iteration 2·J, or 4·r through two factors of rank r.
    Backward three times as much: the messages computed anew (nobody keeps them all), the gradient of the votes, and the
    gradient of the pairwise weights."""
    sums: int
    """Operations of the weighted sums over capsules: 2 for each vote, in each routing iteration, or once with CORR
    alone. Backward twice as much: the gradient of the weights and that of the votes."""
    agreements: int
    """Operations of the routing's agreements: 2 for each vote, in each routing iteration but the last. Backward twice
    as much: the gradient of the decisions and that of the votes."""
    correlation: int
    """Operations of the layer that predicts alpha: 2·N² for each of B·J·(K-1) numbers. Backward twice as much. (The
    map it reads and RW's convolution are less than a thousandth of the rest, and are not counted.)"""
    exponentials: int
    """One for each vote and CRF iteration, and again in the backward pass, where the marginals are computed anew; one
    for each of B·K·J couplings and routing iteration; one for each of CORR's B·K·J weights. The first routing
    iteration has constant couplings and needs none."""
    read: int
    """Bytes: capsules and weights once; for a step also the gradient of the decisions."""
    written: int
    """Bytes: the decisions; for a step also the gradients of capsules and weights."""

    @property
    def operations(self) -> int:
        return self.votes + self.crf + self.sums + self.agreements + self.correlation

    @property
    def bytes(self) -> int:
        return self.read + self.written


def count_work(head: str, size: Size, mode: Mode) -> Work:
    """Count the work of a head (one of `HEADS`) of a size in one forward pass or one training step.

    >>> from contextcaps.experiments.bench.cases import SIZES
    >>> round(count_work("capsnet-rw-crf-corr", SIZES["paper"], "step").operations / 1e12, 2)
    0.87
    """
    config = head_config(head, size)
    step = mode == "step"
    twice_back = 3 if step else 1  # forward, and a backward pass of twice its work
    correlated = config.correlation is not None
    iterations = 0 if config.crf is None else config.crf.iterations
    each_message = 2 * size.classes if size.crf_rank is None else 4 * size.crf_rank
    sums = 1 if config.routing is None else config.routing.iterations
    pairs = size.batch * size.capsules * size.classes  # B·K·J
    alphas = size.batch * size.classes * (size.capsules - 1)  # B·J·(K-1)

    exponentials = iterations * size.votes * (2 if step else 1)
    exponentials += (sums - 1) * pairs
    exponentials += pairs if correlated else 0

    weights = _weights(config, size)
    capsules = size.batch * size.capsules * size.attributes
    decisions = size.batch * size.classes * size.decision_attributes
    return Work(
        votes=2 * size.attributes * size.votes * twice_back,
        crf=each_message * iterations * size.votes * (4 if step else 1),
        sums=2 * size.votes * sums * twice_back,
        agreements=2 * size.votes * (sums - 1) * twice_back,
        correlation=2 * size.side**2 * alphas * twice_back if correlated else 0,
        exponentials=exponentials,
        read=_FLOAT32 * (capsules + weights + (decisions if step else 0)),
        written=_FLOAT32 * (decisions + (capsules + weights if step else 0)),
    )


def _weights(config: ModelConfig, size: Size) -> int:
    """Count the weights: votes [K, A, J, I], bias [J, I], CRF [J, J] or two [J, r], CORR [N², J, K-1]."""
    found = (size.capsules * size.attributes + 1) * size.classes * size.decision_attributes
    if config.crf is not None:
        found += size.classes * (size.classes if size.crf_rank is None else 2 * size.crf_rank)
    if config.correlation is not None:
        found += size.side**2 * size.classes * (size.capsules - 1)
    return found


def floor_seconds(work: Work, ceilings: Ceilings, precision: Precision) -> float:
    """Return the least time of the machine: operations, bytes and exponentials at its rates, all three at once."""
    times = [work.operations / ceilings.operations[precision], work.bytes / ceilings.bandwidth]
    if ceilings.exponentials is not None:
        times.append(work.exponentials / ceilings.exponentials)
    return max(times)
