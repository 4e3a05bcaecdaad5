"""The configuration of a network: one dataclass, validated, the same object in Python, YAML and JSON."""

import dataclasses
import math
from typing import ClassVar, Literal

from contextcaps.configuration import Configuration

__all__ = ["ModelConfig"]

# Means and deviations of ImageNet's pixels: what backbones trained on photographs expect.
_PHOTO_MEAN, _PHOTO_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# EfficientNet-lite's were trained on (bytes − 127) / 128.
_LITE_MEAN, _LITE_STD = (127 / 255,) * 3, (128 / 255,) * 3


@dataclasses.dataclass(frozen=True)
class ModelConfig(Configuration):
    """Everything that a network is built from. Fields left at None are filled in when the object is made."""

    _title: ClassVar[str] = "a model's configuration"

    num_classes: int
    """J, the number of classes; one decision capsule each."""
    model: str = "contextcaps"
    """Name of the preset that this configuration came from; says nothing on its own."""
    class_names: tuple[str, ...] | None = None
    """Names of the classes in the order of the scores; None for unnamed ones."""

    image_size: tuple[int, int] = (64, 64)
    """Height and width of the images in pixels; a single number stands for a square."""
    in_channels: int = 3
    """Channels of the images: 3 for colour, 1 for grey."""
    pixel_mean: tuple[float, ...] | None = None
    """Taken off each channel of images scaled to 0…1; None: the backbone's, ImageNet's for colour, 0.5 otherwise."""
    pixel_std: tuple[float, ...] | None = None
    """Divides each channel after that; None: the backbone's, ImageNet's for colour, 0.5 otherwise."""

    backbone: str = "auto"
    """`paper` (two 9×9 convolutions), `small` (a strided residual stem), `lite0` (EfficientNet-lite0, which always
    starts from ImageNet; a cell is 32 px wide, with `lite0:16` 16 px), `timm:NAME`, or `auto`: paper up to 32 px."""
    pretrained: bool = False
    """Start a timm backbone from its published weights."""
    pretrained_file: str | None = None
    """Start a timm backbone from the weights in this file (safetensors or PyTorch's), rather than from the hub's."""

    head: Literal["capsules", "gap", "gmp", "ml-decoder", "query2label", "ml-gcn"] = "capsules"
    """What scores the classes: capsules, which the fields below are of, or a rival: global average or max pooling and a
    linear layer, ML-Decoder, a decoder as Query2Label's, or a label graph as ML-GCN's."""
    head_width: int = 256
    """Of a rival: width of its queries or label embeddings."""
    head_layers: int | None = None
    """Layers of a decoder; None: its paper's, 1 for ML-Decoder and 2 for Query2Label."""
    attention_heads: int = 8
    """Of a decoder's attention; they share its width."""
    query_groups: int = 100
    """ML-Decoder's queries at most; more classes than these share them."""
    dropout: float = 0.1
    """Of a decoder."""

    types: int | None = None
    """D, capsule types in each grid cell; None: the paper's 32 with the paper's backbone, 16 with others."""
    attributes: int = 8
    """A, attributes of a primary capsule."""
    decision_attributes: int = 16
    """I, attributes of a decision capsule."""
    share_votes: bool = False
    """Share the vote weights among all grid positions of a type: fewer weights, and, with routing, any image size."""

    aggregation: Literal["routing", "correlation", "routing+correlation"] = "routing"
    """How votes become decisions: by routing, by the correlation module's weights, or by routing the weighted votes."""
    routing: Literal["dynamic", "em"] = "dynamic"
    """Which routing: Sabour's dynamic routing or Hinton's EM routing."""
    routing_iterations: int = 3
    """Iterations of the routing; 1 weighs all votes alike."""
    em_inverse_temperature: float = 0.075
    """How sharply a class's cost decides about its activation in EM routing: λ rises towards this times J/K, since a
    cost grows with the capsules that a class can have. K is that of `image_size`, whatever size is tagged later."""
    normalize: Literal["classes", "capsules"] = "classes"
    """What the softmax of dynamic routing runs over: classes (Sabour) or capsules. EM routing has its own."""
    decision_bias: bool = True
    """Add a learnable bias to each decision capsule before the squash. EM routing has none."""

    initial_routing: Literal["none", "couplings", "gate", "logits"] = "none"
    """RW, and what it is taken for; see `dynamic_routing`. Logits over classes, the literal reading, are a no-op."""
    initial_kernel_size: int = 5
    """f, side of the kernel that RW convolves with."""
    initial_start: float | None = 1.0
    """The weight that RW gives every capsule at the start; None for the paper's plain random kernel without bias."""

    crf: Literal["none", "centred", "literal"] = "none"
    """Mean-field CRF over the votes: none, centred and scaled, or Algorithm 1 to the letter."""
    crf_iterations: int = 2
    """Its mean-field iterations."""
    crf_per_attribute: bool = False
    """One pairwise matrix per attribute rather than one for all."""
    crf_rank: int | None = None
    """Rank of the pairwise matrix; None for a full one."""

    correlation_start: Literal["uniform", "literal"] = "uniform"
    """CORR starts at uniform weights, or from the paper's plain layer (nearly all weight on one capsule)."""
    correlation_rank: int | None = None
    """Rank of the layer that predicts alpha; None for the full one of N² · J · (K-1) weights."""

    field: Literal["none", "decisions"] = "none"
    """Mean field between the classes, after the head: none, or between the decisions. It can be told known labels."""
    field_iterations: int = 2
    """Its mean-field iterations."""
    field_rank: int | None = None
    """Rank of its pairwise matrix; None for a full one."""
    field_symmetric: bool = False
    """Let what one class says to another be what it hears from it."""
    field_start: Literal["labels", "zero"] = "labels"
    """Start its pairwise matrix at what the training labels say of each other, or at zero (always, if of low rank)."""
    field_groups: int = 0
    """Hidden units for potentials of higher order between the classes, besides the pairwise ones; 0 for none."""
    field_unary: Literal["head", "scene"] = "head"
    """What it begins with: what the head says of each class, or that and what the scene as a whole, the mean of the
    backbone's features, says of it."""
    field_scenes: int = 0
    """Further pairwise matrices, of rank 8, that each image mixes for itself by its features; 0 for none."""

    backend: Literal["auto", "fused", "lean", "plain"] = "auto"
    """How the head computes: by Triton kernels (fused), all votes in memory (plain) or a few at a time (lean). Auto:
    fused on a GPU in half precision, and otherwise by size. Changes no weight and no result, but for rounding."""
    start_length: float | None = 0.1
    """Mean length of the decision capsules at the start, before any agreement, reached by a gain on the sums of votes.
    EM routing reaches it by its cost β_a. None: as in Sabour's code, at which many classes begin dead."""
    reconstruction: bool = False
    """Add Sabour's decoder, which rebuilds the image from the decision capsules."""
    max_weights: int = 500_000_000
    """Refuse to build a head with more weights than this."""

    def __post_init__(self) -> None:
        if isinstance(self.image_size, int) and not isinstance(self.image_size, bool):
            self._set(image_size=(self.image_size, self.image_size))
        self._settle_kinds()
        photo = self.in_channels == 3
        if self.backbone == "auto":
            self._set(backbone="paper" if max(self.image_size) <= 32 else "small")
        lite = self.backbone.startswith("lite0")
        if self.pixel_mean is None:
            self._set(pixel_mean=(_LITE_MEAN if lite else _PHOTO_MEAN) if photo else (0.5,) * self.in_channels)
        if self.pixel_std is None:
            self._set(pixel_std=(_LITE_STD if lite else _PHOTO_STD) if photo else (0.5,) * self.in_channels)
        if self.types is None:
            self._set(types=32 if self.backbone == "paper" else 16)
        self._check_values()

    @property
    def scores_are_sigmoids(self) -> bool:
        """Of logits, rather than lengths of capsules."""
        return self.head != "capsules" or self.field != "none"

    def _check_values(self) -> None:
        """Each value is in its range, and those that depend on each other agree."""
        least = {"num_classes": 1, "in_channels": 1, "types": 1, "attributes": 1, "decision_attributes": 1}
        least |= {"routing_iterations": 1, "initial_kernel_size": 1, "crf_iterations": 0, "max_weights": 1}
        least |= {"crf_rank": 1, "correlation_rank": 1, "field_iterations": 1, "field_rank": 1, "field_scenes": 0}
        least |= {"field_groups": 0}
        least |= {"head_width": 1, "head_layers": 1, "attention_heads": 1, "query_groups": 1}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ValueError(f"{name}: expected a whole number of at least {bound}, got {value}")
        if min(self.image_size) < 1:
            raise ValueError(f"image_size: expected a height and a width of at least 1, got {self.image_size}")
        if self.initial_kernel_size % 2 == 0:
            raise ValueError(f"initial_kernel_size: expected an odd number, got {self.initial_kernel_size}")
        if not self.em_inverse_temperature > 0:
            raise ValueError(f"em_inverse_temperature: expected a number above 0, got {self.em_inverse_temperature}")
        if self.start_length is not None and not 0 < self.start_length < 1:
            raise ValueError(f"start_length: expected a length between 0 and 1, or None, got {self.start_length}")
        for name in ("pixel_mean", "pixel_std"):
            if len(getattr(self, name)) != self.in_channels:
                raise ValueError(f"{name}: expected {self.in_channels} values (in_channels), got {getattr(self, name)}")
        if min(self.pixel_std or (1,)) <= 0:
            raise ValueError(f"pixel_std: expected values above 0, got {self.pixel_std}")
        self._check_class_names()
        routes_dynamically = self.aggregation != "correlation" and self.routing == "dynamic"
        if self.initial_routing in ("couplings", "logits") and not routes_dynamically:
            raise ValueError(
                f"initial_routing: expected 'gate' or 'none' without dynamic routing, got {self.initial_routing!r} "
                f"with aggregation={self.aggregation!r} and routing={self.routing!r}"
            )
        if self.crf == "literal" and self.start_length is not None:
            raise ValueError(f"start_length: expected None with crf='literal', got {self.start_length}")
        if self.crf_rank is not None and self.crf_per_attribute:
            raise ValueError("crf_rank: expected None together with crf_per_attribute, got both")
        if self.pretrained and not self.backbone.startswith(("timm:", "lite0")):
            raise ValueError(
                f"pretrained: expected False, only timm backbones have weights, got backbone={self.backbone!r}"
            )
        if self.pretrained_file is not None and not self.backbone.startswith("timm:"):
            raise ValueError(
                f"pretrained_file: expected None, only timm backbones take one, got backbone={self.backbone!r}"
            )
        if self.backbone.startswith("lite0") and self.in_channels != 3:
            raise ValueError(f"in_channels: expected 3 (colour) with backbone='lite0', got {self.in_channels}")
        self._check_rival()

    def _check_rival(self) -> None:
        """What only heads without capsules have, or have not."""
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: expected a number from 0 to below 1, got {self.dropout}")
        if self.head in ("ml-decoder", "query2label"):
            unit = math.lcm(self.attention_heads, 4 if self.head == "query2label" else 1)
            if self.head_width % unit:
                raise ValueError(
                    f"head_width: expected a multiple of {unit} with head={self.head!r} and "
                    f"attention_heads={self.attention_heads}, got {self.head_width}"
                )
        if self.head != "capsules" and self.reconstruction:
            raise ValueError(
                f"reconstruction: expected none with head={self.head!r}, which has no decision capsules to rebuild an "
                "image from, got one"
            )

    def _check_class_names(self) -> None:
        names = self.class_names
        if names is None:
            return
        if len(names) != self.num_classes:
            raise ValueError(f"class_names: expected {self.num_classes} names (num_classes), got {len(names)}")
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"class_names: expected different names, got {twice!r} more than once")
