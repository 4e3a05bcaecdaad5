"""The configuration of a network: a dataclass with a section for each module, the same in Python, YAML and JSON."""

import dataclasses
from collections import Counter
from typing import Any, ClassVar, Literal

from contextcaps.configuration import Configuration
from contextcaps.models.sections import (
    MOST_CLASSES,
    MOST_WIDE,
    CalibrationConfig,
    CapsuleConfig,
    CorrelationConfig,
    CRFConfig,
    CSRAConfig,
    CTranConfig,
    EMConfig,
    FieldConfig,
    InitialRoutingConfig,
    MLDecoderConfig,
    MLGCNConfig,
    PoolingConfig,
    Query2LabelConfig,
    RoutingConfig,
)

__all__ = ["ModelConfig"]

# Means and deviations of ImageNet's pixels: what backbones trained on photographs expect.
_PHOTO_MEAN, _PHOTO_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# EfficientNet-lite's were trained on (bytes − 127) / 128.
_LITE_MEAN, _LITE_STD = (127 / 255,) * 3, (128 / 255,) * 3

_MOST_PIXELS = 2048 * 2048
"""Most pixels of the images that a network takes."""

_HEADS = ("capsules", "pooling", "csra", "ml_decoder", "query2label", "ml_gcn", "c_tran")
_TAKE_KNOWN = ("c_tran",)  # heads that can be told labels
_OF_CAPSULES = ("routing", "em", "initial_routing", "crf", "correlation")


@dataclasses.dataclass(frozen=True)
class ModelConfig(Configuration):
    """The configuration of a network. Fields left at None are filled in when the object is made.

    A section is None where the network has no such module. There is exactly one head: `capsules`, or one of `pooling`,
    `csra`, `ml_decoder`, `query2label`, `ml_gcn` and `c_tran`. Capsules need something that makes decisions of their
    votes: `routing`, `em`, or `correlation`, which goes along with either, too.
    """

    _title: ClassVar[str] = "a model's configuration"

    num_classes: int
    """J, the number of classes; one decision capsule each."""
    model: str = "capsnet"
    """Name of the preset that this configuration came from; sets nothing on its own."""
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
    """`paper` (two 9×9 convolutions), `small` (a strided residual stem), `lite0`, `lite1` and
    `lite2` (EfficientNet-lite, which always starts from ImageNet; a cell is 32 px wide, with `lite0:16` 16 px),
    `timm:NAME`, or `auto`: paper up to 32 px."""
    pretrained: bool = False
    """Start a timm backbone from its published weights."""
    pretrained_file: str | None = None
    """Start a timm backbone from the weights in this file (safetensors or PyTorch's), rather than from the hub's."""

    capsules: CapsuleConfig | None = dataclasses.field(default_factory=CapsuleConfig)
    """The capsule head; None with another head."""
    routing: RoutingConfig | None = dataclasses.field(default_factory=RoutingConfig)
    """Dynamic routing; None with EM routing, with CORR in its place, or without capsules."""
    em: EMConfig | None = None
    """EM routing in the place of dynamic routing."""
    initial_routing: InitialRoutingConfig | None = None
    """RW, initial routing weights."""
    crf: CRFConfig | None = None
    """Mean-field CRF over the votes."""
    correlation: CorrelationConfig | None = None
    """CORR: in the place of routing, or, where there is one, its weights on the votes that are routed."""
    field: FieldConfig | None = None
    """Mean field between the decisions, after any head."""

    pooling: PoolingConfig | None = None
    """Global pooling and a linear layer in the place of capsules."""
    csra: CSRAConfig | None = None
    """Class-specific residual attention in the place of capsules."""
    ml_decoder: MLDecoderConfig | None = None
    """ML-Decoder in the place of capsules."""
    query2label: Query2LabelConfig | None = None
    """A decoder as Query2Label's in the place of capsules."""
    ml_gcn: MLGCNConfig | None = None
    """A label graph as ML-GCN's in the place of capsules."""
    c_tran: CTranConfig | None = None
    """An encoder as C-Tran's in the place of capsules; it takes known labels."""

    calibration: CalibrationConfig | None = None
    """Scale and shift of all logits, which training fits at its end; None: the scores are the head's or the field's."""

    engine: Literal["auto", "plain", "lean", "triton"] = "auto"
    """How the head computes: all votes in memory (plain), a few at a time (lean) or by Triton kernels. Auto: Triton on
    a GPU in half precision, and otherwise by size. Changes no weight and no result, but for rounding."""
    reconstruction: bool = False
    """Add Sabour's decoder, which rebuilds the image from the decision capsules."""
    max_weights: int = 500_000_000
    """Refuse to build a head with more weights than this."""

    def __post_init__(self) -> None:
        if isinstance(self.image_size, int) and not isinstance(self.image_size, bool):
            self._set(image_size=(self.image_size, self.image_size))
        self._settle_kinds()
        self._require_at_least(num_classes=1, in_channels=1, max_weights=1)
        self._require_at_most(num_classes=MOST_CLASSES, in_channels=MOST_WIDE)
        photo = self.in_channels == 3
        if self.backbone == "auto":
            self._set(backbone="paper" if max(self.image_size) <= 32 else "small")
        lite = self.backbone.startswith("lite")
        if self.pixel_mean is None:
            self._set(pixel_mean=(_LITE_MEAN if lite else _PHOTO_MEAN) if photo else (0.5,) * self.in_channels)
        if self.pixel_std is None:
            self._set(pixel_std=(_LITE_STD if lite else _PHOTO_STD) if photo else (0.5,) * self.in_channels)
        if self.capsules is not None and self.capsules.types is None:
            types = 32 if self.backbone == "paper" else 16
            self._set(capsules=dataclasses.replace(self.capsules, types=types))
        self._check_images()
        self._check_class_names()
        self._check_modules()

    @property
    def head(self) -> str:
        """Name of the section of its head."""
        return next(name for name in _HEADS if getattr(self, name) is not None)

    @property
    def has_published_weights(self) -> bool:
        """True where the backbone starts from published weights."""
        return self.backbone.startswith("lite") or self.pretrained or self.pretrained_file is not None

    @property
    def scores_are_sigmoids(self) -> bool:
        """True where scores are sigmoids of logits, rather than lengths of capsules, before any calibration."""
        return self.capsules is None or self.field is not None

    @property
    def head_takes_known(self) -> bool:
        """True where its head can be told labels."""
        return self.head in _TAKE_KNOWN

    @property
    def takes_known(self) -> bool:
        """True where the network can be told labels: its head, or the field between its decisions."""
        return self.head_takes_known or self.field is not None

    def require_takes_known(self) -> None:
        """Refuse known labels for a network that cannot be told any."""
        if not self.takes_known:
            raise ValueError(
                f"known: this network ({self.model}) cannot be told labels; take one that can, and train it with "
                "--known 0.5: c-tran (--model c-tran), or any with a field between its decisions (--set field=default)"
            )

    @property
    def all_class_names(self) -> tuple[str, ...]:
        """Return the names of the classes; their numbers where they have none."""
        return self.class_names or tuple(str(index) for index in range(self.num_classes))

    @property
    def image_size_text(self) -> str:
        """Return the size of its images for people, such as 64×64 px."""
        height, width = self.image_size
        return f"{height}×{width} px"

    @classmethod
    def _owner(cls, values: dict[str, Any]) -> str:
        return str(values["model"])

    def _check_images(self) -> None:
        """Check that images, their pixels and the backbone agree."""
        height, width = self.image_size
        if min(height, width) < 1:
            raise ValueError(f"image_size: expected a height and a width of at least 1, got {self.image_size}")
        if height * width > _MOST_PIXELS:
            raise ValueError(f"image_size: expected at most {_MOST_PIXELS:,} pixels, got {height:,} × {width:,}")
        for name in ("pixel_mean", "pixel_std"):
            if len(getattr(self, name)) != self.in_channels:
                raise ValueError(f"{name}: expected {self.in_channels} values (in_channels), got {getattr(self, name)}")
        if min(self.pixel_std or (1,)) <= 0:
            raise ValueError(f"pixel_std: expected values above 0, got {self.pixel_std}")
        if self.pretrained and not self.backbone.startswith(("timm:", "lite")):
            raise ValueError(
                f"pretrained: expected False, as timm's backbones alone can do with it, got backbone={self.backbone!r}"
            )
        if self.pretrained_file is not None and not self.backbone.startswith("timm:"):
            raise ValueError(
                f"pretrained_file: expected None, only timm backbones take one, got backbone={self.backbone!r}"
            )
        if self.backbone.startswith("lite") and self.in_channels != 3:
            raise ValueError(
                f"in_channels: expected 3 (colour) with backbone={self.backbone!r}, got {self.in_channels}"
            )

    def _check_modules(self) -> None:
        """Check that the modules that are there go together."""
        heads = [name for name in _HEADS if getattr(self, name) is not None]
        if len(heads) != 1:
            if not heads:
                raise ValueError(f"capsules: expected exactly one head ({', '.join(_HEADS)}), got none")
            raise ValueError(f"{heads[1]}: expected exactly one head, got {' and '.join(heads)}; set {heads[0]}=none")
        if self.capsules is None:
            for name in _OF_CAPSULES:
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}: expected none without capsules, got one with the head {heads[0]}")
            if self.reconstruction:
                raise ValueError(
                    f"reconstruction: expected none with the head {heads[0]}, which has no decision capsules to "
                    "rebuild an image from, got one"
                )
            return
        if self.routing is not None and self.em is not None:
            raise ValueError("em: expected none beside dynamic routing, got both; set routing=none or em=none")
        if self.routing is self.em is self.correlation is None:
            raise ValueError(
                "routing: expected routing, em or correlation to make decisions of votes, got none of them"
            )
        mode = None if self.initial_routing is None else self.initial_routing.mode
        if mode in ("couplings", "logits") and self.routing is None:
            raise ValueError(f"initial_routing.mode: expected 'gate' without dynamic routing, got {mode!r}")
        if self.crf is not None and self.crf.mode == "literal" and self.capsules.start_length is not None:
            raise ValueError(
                f"capsules.start_length: expected none with crf.mode='literal', got {self.capsules.start_length}"
            )

    def _check_class_names(self) -> None:
        names = self.class_names
        if names is None:
            return
        if len(names) != self.num_classes:
            raise ValueError(f"class_names: expected {self.num_classes} names (num_classes), got {len(names)}")
        if len(set(names)) != len(names):
            twice, _ = Counter(names).most_common(1)[0]
            raise ValueError(f"class_names: expected different names, got {twice!r} more than once")
