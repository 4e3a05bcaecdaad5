"""Sections of a network's configuration: the options of each module, checked with the module."""

import dataclasses
import math
from typing import ClassVar, Literal

from contextcaps.configuration import Configuration

__all__ = [
    "CRFConfig",
    "CalibrationConfig",
    "CapsuleConfig",
    "CorrelationConfig",
    "EMConfig",
    "FieldConfig",
    "InitialRoutingConfig",
    "MLDecoderConfig",
    "MLGCNConfig",
    "CSRAConfig",
    "CTranConfig",
    "PoolingConfig",
    "Query2LabelConfig",
    "RoutingConfig",
]

MOST_STEPS = 100
"""Most iterations, layers and the like, each of which takes time of its own."""
MOST_WIDE = 65_536
"""Most numbers in a vector, capsules of a cell and the like; weights have a limit of their own."""
MOST_CLASSES = 1_000_000
"""Most classes; each has a name, a threshold and a row in every table."""


@dataclasses.dataclass(frozen=True)
class CapsuleConfig(Configuration):
    """The capsule head: primary capsules, their votes, and decision capsules."""

    _title: ClassVar[str] = "the capsules"

    types: int | None = None
    """D, capsule types in each grid cell; None: the paper's 32 with the paper's backbone, 16 with others."""
    attributes: int = 8
    """A, attributes of a primary capsule."""
    decision_attributes: int = 16
    """I, attributes of a decision capsule."""
    share_votes: bool = False
    """Share the vote weights among all grid positions of a type: fewer weights, and, with routing, any image size."""
    decision_bias: bool = True
    """Add a learnable bias to each decision capsule before the squash. EM routing has none."""
    start_length: float | None = 0.1
    """Mean length of the decision capsules at the start, before any agreement, reached by a gain on the sums of votes.
    EM routing reaches it by its cost β_a. None: as in Sabour's code, at which many classes begin dead."""

    def __post_init__(self) -> None:
        self._settle_kinds()
        self._require_at_least(types=1, attributes=1, decision_attributes=1)
        self._require_at_most(types=MOST_WIDE, attributes=MOST_WIDE, decision_attributes=MOST_WIDE)
        if self.start_length is not None and not 0 < self.start_length < 1:
            raise ValueError(f"start_length: expected a length between 0 and 1, or none, got {self.start_length}")


@dataclasses.dataclass(frozen=True)
class RoutingConfig(Configuration):
    """Sabour's dynamic routing."""

    _title: ClassVar[str] = "the dynamic routing"

    iterations: int = 3
    """Routing iterations; 1 weighs all votes alike."""
    normalize: Literal["classes", "capsules"] = "classes"
    """What the softmax runs over: classes (Sabour) or capsules."""

    def __post_init__(self) -> None:
        self._settle_kinds()
        self._require_at_least(iterations=1)
        self._require_at_most(iterations=MOST_STEPS)


@dataclasses.dataclass(frozen=True)
class EMConfig(Configuration):
    """Hinton's EM routing."""

    _title: ClassVar[str] = "the EM routing"

    iterations: int = 3
    """Routing iterations."""
    inverse_temperature: float = 0.075
    """How sharply a class's cost decides about its activation: λ rises towards this times J/K, since a cost grows with
    the capsules that a class can have. K is that of `image_size`, whatever size is tagged later."""

    def __post_init__(self) -> None:
        self._settle_kinds()
        self._require_at_least(iterations=1)
        self._require_at_most(iterations=MOST_STEPS)
        if not self.inverse_temperature > 0:
            raise ValueError(f"inverse_temperature: expected a number above 0, got {self.inverse_temperature}")


@dataclasses.dataclass(frozen=True)
class InitialRoutingConfig(Configuration):
    """RW: trainable initial routing weights."""

    _title: ClassVar[str] = "the initial routing"

    mode: Literal["couplings", "gate", "logits"] = "couplings"
    """What RW is taken for; see `dynamic_routing`. Logits over classes, the literal reading, are a no-op."""
    kernel_size: int = 5
    """f, side of the kernel that RW convolves with."""
    start: float | None = 1.0
    """The weight that RW gives every capsule at the start; None for the paper's plain random kernel without bias."""

    def __post_init__(self) -> None:
        self._settle_kinds()
        self._require_at_least(kernel_size=1)
        self._require_at_most(kernel_size=MOST_STEPS)
        if self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size: expected an odd number, got {self.kernel_size}")


@dataclasses.dataclass(frozen=True)
class CRFConfig(Configuration):
    """The mean-field CRF over the votes."""

    _title: ClassVar[str] = "the CRF"

    mode: Literal["centred", "literal"] = "centred"
    """Centred and scaled, or Algorithm 1 to the letter."""
    iterations: int = 2
    """Mean-field iterations."""
    per_attribute: bool = False
    """One pairwise matrix per attribute rather than one for all."""
    per_capsule: bool = False
    """One pairwise matrix per capsule and attribute: K · I · J² weights, 415 million at the paper's size."""
    rank: int | None = None
    """Rank of the pairwise matrix; None for a full one."""

    def __post_init__(self) -> None:
        self._settle_kinds()
        self._require_at_least(iterations=0, rank=1)
        self._require_at_most(iterations=MOST_STEPS, rank=MOST_WIDE)
        for name in ("per_attribute", "per_capsule"):
            if self.rank is not None and getattr(self, name):
                raise ValueError(f"rank: expected none together with {name}, got both")


@dataclasses.dataclass(frozen=True)
class CorrelationConfig(Configuration):
    """CORR, the correlation module: it takes the place of a routing, or weighs the votes before one that is there."""

    _title: ClassVar[str] = "the correlation module"

    start: Literal["uniform", "literal"] = "uniform"
    """Start at uniform weights, or from the paper's plain layer (nearly all weight on one capsule)."""
    rank: int | None = None
    """Rank of the layer that predicts alpha; None for the full one of N² · J · (K-1) weights."""

    def __post_init__(self) -> None:
        self._settle_kinds()
        self._require_at_least(rank=1)
        self._require_at_most(rank=MOST_WIDE)


@dataclasses.dataclass(frozen=True)
class FieldConfig(Configuration):
    """The mean field between the classes' decisions, after the head; it takes known labels."""

    _title: ClassVar[str] = "the field between decisions"

    iterations: int = 2
    """Mean-field iterations."""
    rank: int | None = None
    """Rank of its pairwise matrix; None for a full one."""
    start: Literal["labels", "zero"] = "labels"
    """Start its pairwise matrix at potentials fitted to the training labels, or at zero (always, if of low rank)."""
    groups: int = 0
    """Hidden units for potentials of higher order between the classes, besides the pairwise ones; 0 for none."""
    global_branch: bool = False
    """Add global average pooling of the backbone's features and a linear layer to the head's logits."""

    def __post_init__(self) -> None:
        self._settle_kinds()
        self._require_at_least(iterations=1, rank=1, groups=0)
        self._require_at_most(iterations=MOST_STEPS, rank=MOST_WIDE, groups=MOST_WIDE)


@dataclasses.dataclass(frozen=True)
class PoolingConfig(Configuration):
    """Global pooling and a linear layer in the place of capsules."""

    _title: ClassVar[str] = "the pooling head"

    mode: Literal["average", "max"] = "average"
    """What the features are pooled by."""

    def __post_init__(self) -> None:
        self._settle_kinds()


@dataclasses.dataclass(frozen=True)
class CSRAConfig(Configuration):
    """Class-specific residual attention in the place of capsules; the defaults are the authors' for COCO."""

    _title: ClassVar[str] = "the residual attention"

    temperatures: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0)
    """T of each attention head's softmax over positions."""
    max_head: bool = True
    """One more attention head, which looks at the position with the highest score alone."""
    attention_weight: float = 0.5
    """λ, the weight of the attended logit beside the average one."""

    def __post_init__(self) -> None:
        self._settle_kinds()
        if len(self.temperatures) > MOST_STEPS:
            raise ValueError(f"temperatures: expected at most {MOST_STEPS}, got {len(self.temperatures)}")
        if min(self.temperatures, default=1) <= 0:
            raise ValueError(f"temperatures: expected numbers above 0, got {self.temperatures}")
        if not self.temperatures and not self.max_head:
            raise ValueError("temperatures: expected at least one, or max_head=true, got none")
        if not 0 <= self.attention_weight < math.inf:
            raise ValueError(f"attention_weight: expected a number of at least 0, got {self.attention_weight}")


@dataclasses.dataclass(frozen=True)
class MLDecoderConfig(Configuration):
    """ML-Decoder in the place of capsules."""

    _title: ClassVar[str] = "the ML-Decoder"

    width: int = 256
    """Width of its queries."""
    layers: int = 1
    """Decoder layers."""
    attention_heads: int = 8
    """Attention heads, which share the width."""
    query_groups: int = 100
    """Queries at most; more classes than these share them."""
    dropout: float = 0.1
    """Dropout probability inside the decoder."""

    def __post_init__(self) -> None:
        self._settle_kinds()
        self._require_at_least(width=1, layers=1, attention_heads=1, query_groups=1)
        self._require_at_most(width=MOST_WIDE, layers=MOST_STEPS, attention_heads=MOST_WIDE, query_groups=MOST_CLASSES)
        _require_probability(self.dropout)
        _require_multiple(self.width, self.attention_heads)


@dataclasses.dataclass(frozen=True)
class Query2LabelConfig(Configuration):
    """A decoder as Query2Label's in the place of capsules."""

    _title: ClassVar[str] = "the Query2Label decoder"

    width: int = 256
    """Width of its label embeddings."""
    layers: int = 2
    """Decoder layers."""
    attention_heads: int = 8
    """Attention heads, which share the width."""
    dropout: float = 0.1
    """Dropout probability inside the decoder."""

    def __post_init__(self) -> None:
        self._settle_kinds()
        _check_transformer(self)


@dataclasses.dataclass(frozen=True)
class MLGCNConfig(Configuration):
    """A label graph as ML-GCN's in the place of capsules."""

    _title: ClassVar[str] = "the label graph (ML-GCN)"

    width: int = 256
    """Width of its label embeddings."""

    def __post_init__(self) -> None:
        self._settle_kinds()
        self._require_at_least(width=1)
        self._require_at_most(width=MOST_WIDE)


@dataclasses.dataclass(frozen=True)
class CTranConfig(Configuration):
    """An encoder as C-Tran's in the place of capsules, which takes known labels; defaults are the authors', but width.

    That is 256, as that of the decoders; theirs is 2048, the channels of their backbone.
    """

    _title: ClassVar[str] = "the C-Tran encoder"

    width: int = 256
    """Width of its tokens, inside the feed-forward, too."""
    layers: int = 3
    """Encoder layers."""
    attention_heads: int = 4
    """Attention heads, which share the width."""
    dropout: float = 0.1
    """Dropout probability inside the encoder."""

    def __post_init__(self) -> None:
        self._settle_kinds()
        _check_transformer(self)


@dataclasses.dataclass(frozen=True)
class CalibrationConfig(Configuration):
    """Platt scaling of the scores, sigmoid(scale · logit + shift).

    It is the same for all classes, so that no ranking changes. Training fits it to the validation images at its end; a
    network in training has none, and `TaggingModule` refuses one.
    """

    _title: ClassVar[str] = "the calibration"

    scale: float = 1.0
    """Multiplies all logits: the inverse of a temperature."""
    shift: float = 0.0
    """Is added to all logits after that."""

    def __post_init__(self) -> None:
        self._settle_kinds()
        if self.scale <= 0:
            raise ValueError(f"scale: expected a number above 0, got {self.scale}")


def _check_transformer(own: "Query2LabelConfig | CTranConfig") -> None:
    own._require_at_least(width=1, layers=1, attention_heads=1)
    own._require_at_most(width=MOST_WIDE, layers=MOST_STEPS, attention_heads=MOST_WIDE)
    _require_probability(own.dropout)
    _require_multiple(own.width, math.lcm(own.attention_heads, 4))  # 4: sines and cosines of row and column


def _require_probability(dropout: float) -> None:
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout: expected a number from 0 to below 1, got {dropout}")


def _require_multiple(width: int, unit: int) -> None:
    if width % unit:
        raise ValueError(f"width: expected a multiple of {unit}, for its attention heads, got {width}")
