"""The capsule head: feature map → primary capsules → votes → CRF → routing or correlation → decisions and scores."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from contextcaps.capsules import (
    CorrelationModule,
    DynamicRouting,
    EMRouting,
    InitialRouting,
    LowLevelMap,
    MeanFieldCRF,
    PrimaryCapsules,
    Votes,
    lengths,
    squash,
)
from contextcaps.capsules.correlation import weighted_sum
from contextcaps.capsules.routing import InitialAs
from contextcaps.engines import (
    Engine,
    EngineName,
    VoteOperands,
    choose_engine,
    computing_dtype,
    load_engine,
    require_engine,
)
from contextcaps.models.config import ModelConfig
from contextcaps.models.head_base import Head, Intermediates, ModelOutput, Step, count_weights

__all__ = ["CapsuleHead"]


class _Aggregation(NamedTuple):
    """Decisions, and the steps from votes to them; shapes as in `Intermediates`."""

    decisions: Tensor
    sums: Tensor
    initial: Tensor | None
    couplings: Tensor | None
    routing_logits: Tensor | None
    correlation_weights: Tensor | None


class CapsuleHead(Head):
    """Decision capsules from a feature map, with the modules that a configuration asks for.

    Args:
        config: the network's configuration.
        in_channels: channels of the feature map.
        primary: kernel, stride and padding of the primary capsules' convolution.
        grid: (H, W) of the primary capsules.
    """

    def __init__(
        self, config: ModelConfig, in_channels: int, primary: tuple[int, int, int], grid: tuple[int, int]
    ) -> None:
        super().__init__(config, grid)
        own = config.capsules
        if own is None:
            raise ValueError(f"capsules: expected a configuration with capsules, got one of {config.model!r}")
        types, classes, attributes = own.types or 0, config.num_classes, own.decision_attributes
        self.capsules = types * grid[0] * grid[1]  # K

        self.primary = PrimaryCapsules(in_channels, types, own.attributes, *primary)
        self.initial: InitialRouting | None = None
        self.initial_mode = None if config.initial_routing is None else config.initial_routing.mode
        if config.initial_routing is not None:
            self.initial = InitialRouting(grid, types, config.initial_routing.kernel_size, config.initial_routing.start)
        self.votes = Votes(types if own.share_votes else self.capsules, own.attributes, classes, attributes)
        self.crf: MeanFieldCRF | None = None
        if config.crf is not None:
            per_capsule = self.capsules if config.crf.per_capsule else None
            per_attribute = attributes if config.crf.per_attribute or config.crf.per_capsule else None
            literal = config.crf.mode == "literal"
            self.crf = MeanFieldCRF(
                classes, config.crf.iterations, per_attribute, config.crf.rank, literal, per_capsule
            )
        self.gain: Tensor
        """A single number that the sums of votes are multiplied with; set once, by `start_alive`."""
        self.register_buffer("gain", torch.ones(()))
        self.low_level_map: LowLevelMap | None = None
        self.correlation: CorrelationModule | None = None
        if config.correlation is not None:
            self.low_level_map = LowLevelMap(types, own.attributes, grid)
            self.correlation = CorrelationModule(
                grid, self.capsules, classes, config.correlation.rank, config.correlation.start
            )
        self.routing: DynamicRouting | EMRouting | None = None
        self.bias: nn.Parameter | None = None
        bias_shape = (classes, attributes) if own.decision_bias else None
        if config.em is not None:
            inverse_temperature = config.em.inverse_temperature * classes / self.capsules
            self.routing = EMRouting(classes, config.em.iterations, inverse_temperature)
        elif config.routing is not None:
            # A gate is applied before the routing, which then has no initial weights.
            initial_as: InitialAs = "logits" if self.initial_mode == "logits" else "couplings"
            self.routing = DynamicRouting(config.routing.iterations, initial_as, config.routing.normalize, bias_shape)
        elif bias_shape is not None:
            self.bias = nn.Parameter(torch.zeros(bias_shape))  # [J, I]
        require_engine(config.engine, self.votes.weight, self.crf, self.routing)
        of_the_grid = self.correlation is not None or (config.crf is not None and config.crf.per_capsule)
        self.takes_any_size = own.share_votes and not of_the_grid

    def forward(self, features: Tensor, return_intermediates: bool = False) -> ModelOutput:
        capsules = self.primary(features)  # [B, K, A]
        grid = self.primary.grid_of(features) if self.takes_any_size else self.grid
        if not return_intermediates:
            decisions = self.decide(capsules, grid)  # [B, J, I]
            return ModelOutput(lengths(decisions), decisions)
        votes = self.votes(capsules)  # [B, K, J, I]
        corrected = votes if self.crf is None else self.crf(votes)  # [B, K, J, I]
        steps = self._aggregate(capsules, corrected, grid)
        intermediates = Intermediates(
            capsules,
            steps.initial,
            votes,
            None if self.crf is None else corrected,
            steps.couplings,
            steps.routing_logits,
            steps.correlation_weights,
            steps.sums,
        )
        return ModelOutput(lengths(steps.decisions), steps.decisions, intermediates)

    def engine_for(self, capsules: Tensor) -> EngineName:
        """Return how the votes of capsules [B, K, A] are computed: `config.engine`, or what "auto" comes to."""
        return choose_engine(self.config.engine, capsules, self.votes.weight, self.crf, self.routing)

    def decide(self, capsules: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """Return decisions [B, J, I] of primary capsules [B, K, A], on the head's own grid or another (H, W)."""
        grid = self.grid if grid is None else grid
        engine = self.engine_for(capsules)
        if engine != "plain":
            return self._decide_by_engine(load_engine(engine), capsules, grid)
        votes = self.votes(capsules)  # [B, K, J, I]
        return self._aggregate(capsules, votes if self.crf is None else self.crf(votes), grid).decisions

    def _decide_by_engine(self, engine: Engine, capsules: Tensor, grid: tuple[int, int]) -> Tensor:
        """Return the decisions of `_aggregate` by an engine, which never has all votes as a tensor."""
        dtype = computing_dtype(capsules)
        votes = VoteOperands(capsules, self.votes.weight, self.crf, dtype)
        initial = None if self.initial is None else self.initial(capsules, grid)  # [B, K]
        weights = None  # [B, K, J]
        if self.correlation is not None and self.low_level_map is not None:
            weights = engine.correlation_weights(self.correlation, self.low_level_map(capsules), dtype)
        factors = self._vote_factors(initial, weights)  # [B, K] or [B, K, J]
        if self.routing is None:
            assert factors is not None
            sums = self.gain * engine.weighted_sum(votes, factors)  # [B, J, I]
            return squash(sums if self.bias is None else sums + self.bias)
        assert isinstance(self.routing, DynamicRouting)
        couplings = initial if self.initial_mode == "couplings" else None  # [B, K]
        if initial is not None and self.initial_mode == "logits":
            # The same for all classes, they cancel in the softmax: a constant 1 whose gradient is zero.
            cancelled = torch.softmax(initial.unsqueeze(-1), dim=2)  # [B, K, 1]
            factors = cancelled.squeeze(2) if factors is None else factors * cancelled
        decisions, _ = engine.route(votes, self.routing.iterations, self.gain, self.routing.bias, factors, couplings)
        return decisions

    def _aggregate(self, capsules: Tensor, votes: Tensor, grid: tuple[int, int]) -> _Aggregation:
        """Make decisions of votes (after the CRF, where there is one), with RW, CORR and routing as configured."""
        initial = None if self.initial is None else self.initial(capsules, grid)  # [B, K]
        weights = None  # [B, J, K]
        if self.correlation is not None and self.low_level_map is not None:
            weights = self.correlation.weights(self.low_level_map(capsules))
        factors = self._vote_factors(initial, None if weights is None else weights.transpose(1, 2))  # [B, K(, J)]
        if self.routing is None:
            assert factors is not None
            # A vote's factor may as well scale its weight in the sum, which is I times smaller.
            sums = self.gain * weighted_sum(votes, factors.transpose(1, 2))  # [B, J, I]
            sums = sums if self.bias is None else sums + self.bias  # [B, J, I]
            return _Aggregation(squash(sums), sums, initial, None, None, weights)
        if factors is not None:
            per_class = factors.unsqueeze(-1) if factors.ndim == 2 else factors  # [B, K, 1 or J]
            votes = votes * per_class.unsqueeze(-1).to(votes.dtype)  # [B, K, J, I]
        if isinstance(self.routing, EMRouting):
            clusters = self.routing(votes, lengths(capsules))
            return _Aggregation(clusters.decisions, clusters.means, initial, clusters.couplings, None, weights)
        routed = self.routing(votes, None if self.initial_mode == "gate" else initial, self.gain)
        return _Aggregation(routed.decisions, routed.sums, initial, routed.couplings, routed.logits, weights)

    def _vote_factors(self, initial: Tensor | None, weights: Tensor | None) -> Tensor | None:
        """Return what votes are multiplied with before they are summed: RW as a gate, CORR's weights, both or nothing.

        Args:
            initial: [B, K], RW's weights; they are factors of the votes only as a gate.
            weights: [B, K, J], CORR's. Where CORR joins routing they are scaled by √K, so that uniform weights leave
                the votes as they are.

        Returns:
            [B, K], or with CORR [B, K, J].
        """
        gate = initial if self.initial_mode == "gate" else None  # [B, K]
        if weights is None:
            return gate
        if self.routing is not None:
            weights = weights * self.capsules**0.5  # [B, K, J]
        return weights if gate is None else weights * gate.unsqueeze(-1)  # [B, K, J]

    @property
    def decision_bias(self) -> Tensor | None:
        """The bias [J, I] before the squash; None where there is none."""
        return self.routing.bias if isinstance(self.routing, DynamicRouting) else self.bias

    def vote_weights(self, steps: Intermediates) -> Tensor:
        """Return the weight of each vote in the sums before the squash, [B, K, J], or [B, K, 1] for all classes alike.

        With votes after the CRF, where there is one, sums = Σ_k weights_kj · votes_kj + decision_bias_j. The weights
        are the gain times the couplings of the last iteration, RW's gate and CORR's weights, as far as there are any.
        """
        weights = steps.correlation_weights  # [B, J, K]
        factors = self._vote_factors(steps.initial, None if weights is None else weights.transpose(1, 2))  # [B, K(, J)]
        per_class = factors.unsqueeze(-1) if factors is not None and factors.ndim == 2 else factors  # [B, K, 1 or J]
        if steps.couplings is None:
            assert per_class is not None
            return self.gain * per_class  # [B, K, 1 or J]
        return self.gain * (steps.couplings if per_class is None else steps.couplings * per_class)  # [B, K, J]

    @torch.no_grad()
    def start_alive(self, features: Tensor, target: float) -> None:
        """Set the gain (of EM routing: the costs) so that decisions start with the mean length `target`.

        The length is that of these features' decisions before any agreement. The squash is quadratic near zero and
        couplings are 1/J, so that a start which suits ten classes leaves a thousand of them dead; and how large a sum
        of K votes gets depends on how much they agree. So it is measured, as in Mishkin and Matas, "All You Need Is a
        Good Init", 2016, rather than computed. The sums are scaled, not the votes: large votes would make the first
        agreement decide everything. The CRF starts as the identity and has no part in this. EM routing has no squash:
        its cost β_a is set, for activations after all iterations.
        """
        capsules = self.primary(features)  # [B, K, A]
        if isinstance(self.routing, EMRouting):
            # Of the votes as cast: gate and CORR leave them alone at their usual starts, if not at literal ones.
            if bool(capsules.any()):
                self.routing.start_at(target, self.votes(capsules), lengths(capsules))
            return
        self.gain.fill_(1.0)
        sizes = lengths(self._sums_before_agreement(capsules)).double()  # [B, J]
        if not bool((sizes > 0).any()):
            return  # nothing comes out of the backbone for noise: no gain would help
        # The mean squashed length rises with the gain from 0 to 1: halve the interval around the target.
        low, high = 1e-9, 1e9
        for _ in range(100):
            middle = (low * high) ** 0.5
            squares = (middle * sizes).square()  # [B, J]
            low, high = (low, middle) if float((squares / (1 + squares)).mean()) > target else (middle, high)
        self.gain.fill_(low)

    def _sums_before_agreement(self, capsules: Tensor) -> Tensor:
        """Return sums [B, J, I] with all couplings alike: the first iteration's, or with RW the later ones'."""
        votes = self.votes(capsules)  # [B, K, J, I]
        if not isinstance(self.routing, DynamicRouting):
            return self._aggregate(capsules, votes, self.grid).sums
        iterations, self.routing.iterations = self.routing.iterations, 1
        try:
            sums = self._aggregate(capsules, votes, self.grid).sums
        finally:
            self.routing.iterations = iterations
        if self.initial_mode == "couplings" and iterations > 1:
            sums = sums / (self.config.num_classes if self.routing.normalize == "classes" else self.capsules)
        return sums

    def steps(self) -> list[Step]:
        capsules, classes = self.capsules, self.config.num_classes
        _, attributes, _, decision_attributes = self.votes.weight.shape
        votes = (capsules, classes, decision_attributes)
        steps = [Step("primary capsules [K, A]", (capsules, attributes), count_weights(self.primary))]
        if self.initial is not None:
            steps.append(Step(f"RW as {self.initial_mode} [K]", (capsules,), count_weights(self.initial)))
        steps.append(Step("votes [K, J, I]", votes, count_weights(self.votes)))
        if self.crf is not None:
            mode = "literal" if self.crf.literal else "centred"
            steps.append(Step(f"CRF, {mode} [K, J, I]", votes, count_weights(self.crf)))
        if self.correlation is not None:
            weights = count_weights(self.correlation, self.low_level_map)
            steps.append(Step("CORR weights [J, K]", (classes, capsules), weights))
        by = "CORR" if self.routing is None else "em routing" if self.config.em is not None else "dynamic routing"
        weights = count_weights(self.routing, self.bias)
        return [*steps, Step(f"decisions by {by} [J, I]", (classes, decision_attributes), weights)]

    def savings(self) -> list[str]:
        config, found = self.config, ["a backbone or image size with a smaller grid"]
        if config.capsules is not None and not config.capsules.share_votes:
            found.append("capsules.share_votes=true")
        if config.capsules is not None and (config.capsules.types or 0) > 8:
            found.append(f"capsules.types={(config.capsules.types or 0) // 2}")
        if config.correlation is not None and config.correlation.rank is None:
            found.append("correlation.rank=16")
        if config.crf is not None and config.crf.per_capsule:
            found.append("crf.per_capsule=false")
        elif config.crf is not None and config.crf.rank is None:
            found.append("crf.rank=32")
        return found

    def extra_repr(self) -> str:
        height, width = self.grid
        return f"grid={height}×{width}, K={self.capsules}, J={self.config.num_classes}"
