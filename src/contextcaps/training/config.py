"""The configuration of a training run: one dataclass, from which the command line's flags are made."""

import dataclasses
import math
import typing
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from contextcaps.configuration import Configuration
from contextcaps.data.augmentation_config import AugmentationConfig
from contextcaps.data.problems import OnBad, require_utf8
from contextcaps.yaml_files import dump_yaml, parse_yaml

__all__ = ["KEPT", "LossName", "TrainConfig", "spell_options"]

KEPT = ("keep_images", "keep_labels", "hidden_labels", "keep_seed")
"""Fields that say which part of the training data is kept."""

_SIDE = 64

LossName = Literal["margin", "bce", "asl", "spread", "two-way"]
"""Names of the losses in `training/losses.py`."""


def _parse_options(words: list[str]) -> dict[str, Any]:
    """Parse `NAME=VALUE` words to a dictionary; values are read as YAML."""
    options = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"expected NAME=VALUE, got {word!r}")
        try:
            options[name] = parse_yaml(value)
        except ValueError as error:
            raise ValueError(f"{word}: {error}") from None
    return options


def spell_options(options: dict[str, Any]) -> list[str]:
    """Return the words that `_parse_options` reads as these options; each value in one line."""
    return [
        f"{name}={dump_yaml(value, default_flow_style=True, width=math.inf).partition(chr(10))[0]}"
        for name, value in options.items()
    ]


_OptionWords = tyro.constructors.PrimitiveConstructorSpec[dict[str, Any]](
    nargs="*",
    metavar="NAME=VALUE …",
    instance_from_str=_parse_options,
    is_instance=lambda value: isinstance(value, dict),
    str_from_instance=spell_options,
)


@dataclasses.dataclass(frozen=True)
class TrainConfig(Configuration):
    """Everything that a training run depends on."""

    _title: ClassVar[str] = "a training run's configuration"

    data: Annotated[str, tyro.conf.arg(metavar="SOURCE")] = "scenes"
    """Where images come from: scenes (drawings), coco:PATH, yolo:PATH, folders:PATH, table:FILE, hf:NAME, …"""
    val_data: Annotated[str | None, tyro.conf.arg(metavar="SOURCE")] = None
    """Another source to validate on; then all of the first one's training part is trained on."""
    model: str = "contextcaps"
    """Which network; `contextcaps models` lists them."""
    options: Annotated[dict[str, Any], _OptionWords, tyro.conf.arg(name="set")] = dataclasses.field(
        default_factory=dict
    )
    """Settings of the network unlike its preset's, such as capsules.types=8 crf=none field=default."""
    out: Annotated[str | None, tyro.conf.arg(metavar="FOLDER")] = None
    """The run's folder; by default a new one under runs/, named by model and data."""
    seed: int = 0
    """Seed of everything that is random: starting weights, order of images, augmentation, division of the data."""
    split_seed: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Seed of the division of the data, where one is made; by default the seed. So seeds can share parts."""
    val_as_test: bool = False
    """Where data have a training and a validation part only: keep the latter for tests, validate on a part of train."""
    keep_images: float = 1.0
    """Train on a random part of the training images: a share such as 0.05, or a number such as 500."""
    keep_labels: float = 1.0
    """Keep this share of the training part's labels, at random, of present and absent classes alike; the others are
    hidden. Validation and test keep all of theirs."""
    hidden_labels: Literal["unknown", "absent"] = "unknown"
    """What hidden labels become: unknown, which counts nowhere, or absent."""
    keep_seed: int = 0
    """Seed of which images and labels are kept. The same for all seeds of a training, and with it what a smaller share
    keeps a larger one keeps, too."""

    start_from: Annotated[str | None, tyro.conf.arg(name="from", metavar="MODEL")] = None
    """Start from the backbone of a trained model, with a new head: a shipped model such as coco80, a run, a model's
    folder, or hf:OWNER/NAME. Its backbone, image size and normalisation are taken over."""
    image_size: Annotated[int | None, tyro.conf.arg(metavar="PIXELS")] = None
    """Side of the images; images of other sizes and shapes are squashed to it. By default that of --from, or 64."""
    backbone: str = "auto"
    """paper, small, lite0 to lite2 (from ImageNet), timm:NAME, or auto: that of --from, or paper up to 32 px and small
    beyond."""
    freeze: bool = False
    """Leave a pretrained backbone as it is and train the head alone, on features that are computed once and kept in
    the cache."""
    views: int = 4
    """With a frozen backbone: augmented versions of each training image to keep the features of, one for each epoch in
    turn."""
    prepare: bool = True
    """Decode and resize all images once into the cache; without it they are decoded in every epoch."""
    cache: Annotated[str | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Folder for prepared copies, instead of the user's cache."""
    on_bad: OnBad = "stop"
    """Stop at bad data, or skip it and report it."""
    workers: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Images to decode at once; as many as there are cores by default."""

    epochs: int = 20
    """Passes over the training part."""
    batch_size: int = 64
    """Images per step of each process; fewer where there are not as many training images."""
    accumulate: int = 1
    """Batches whose gradients are added up for one step of the optimiser."""
    lr: float = 1e-3
    """Highest learning rate."""
    weight_decay: float = 0.01
    """Weight decay of AdamW, on weight matrices and kernels; biases and norms have none."""
    schedule: Literal["one-cycle", "cosine", "constant"] = "one-cycle"
    """How the learning rate changes: up and down again, warm-up and cosine, or warm-up only."""
    warmup: float = 0.3
    """Share of the steps in which the learning rate rises; 0.05 is usual with cosine."""
    clip: float = 1.0
    """Gradients longer than this are scaled to it; 0 for no clipping."""
    ema: float = 0.0
    """Decay of a running mean of the weights, such as 0.999, which is then validated and exported; 0 for none."""
    loss: Literal["auto", LossName] = "auto"
    """Margin (Sabour), binary cross-entropy, asymmetric (ASL), spread, or two-way loss; auto: margin where scores are
    lengths of capsules, cross-entropy where they are sigmoids (a field between decisions, the baseline heads)."""
    class_weights: Literal["none", "sqrt", "inverse", "effective"] = "none"
    """Let rare classes count more: by the root or inverse of their frequency, or the effective number of images."""
    known: float = 0.0
    """Tell the network up to this share of an image's labels, at random, and train on the others; 0 for never. Needs a
    field between decisions, which contextcaps has and other models get by --set field=default, or the model c-tran."""
    reconstruction: Annotated[float | None, tyro.conf.arg(metavar="WEIGHT")] = None
    """Weight of Sabour's reconstruction loss (squared error per image); 0 for none. By default his 0.0005 for a preset
    with a decoder, which capsnet-literal is, and none for the others."""
    early_stop: int = 0
    """Stop after so many epochs without a better validation mAP; 0 never."""
    augmentation: bool = True
    """Crop, flip and colour the training images."""
    augment: AugmentationConfig = dataclasses.field(default_factory=AugmentationConfig)
    """How strongly."""

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Precision of the computation: auto takes bf16 on a GPU that has it, fp32 otherwise."""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to train; auto takes a GPU if there is one."""
    devices: int = 1
    """Processes on each machine, one per GPU; on a CPU they share its cores."""
    nodes: int = 1
    """Machines. Start the same command on each, with MASTER_ADDR, MASTER_PORT and NODE_RANK set; or use torchrun."""
    shard: bool = False
    """Share the weights and the optimiser's state among the processes (FSDP), for heads too large for one GPU."""
    compile: bool = False
    """Compile the backbone with torch.compile: the first step takes a minute longer, and the later ones less time."""
    deterministic: bool = False
    """Only algorithms that give the same bits again, on a GPU too; slower there. A CPU does in any case."""

    checkpoint_minutes: float = 5.0
    """Save a checkpoint at least this often, besides the end of each epoch."""
    checkpoint_steps: int = 0
    """And after so many steps; 0 for time alone."""
    log_steps: int = 50
    """Steps between two entries of the training loss in TensorBoard, and between looks at the network's health."""

    def __post_init__(self) -> None:
        for name in ("out", "cache"):
            if isinstance(getattr(self, name), Path):
                self._set(**{name: str(getattr(self, name))})
        self._settle_kinds()
        for name in ("data", "val_data", "out", "cache"):
            require_utf8(name, getattr(self, name) or "")  # they are written into the run's files
        if self.start_from is not None and not self.start_from.strip():
            raise ValueError("from: expected a model, got an empty name; name one such as coco80, or leave out --from")
        self._require_at_least(epochs=1, batch_size=1, accumulate=1, devices=1, nodes=1, image_size=1, views=1)
        self._require_at_least(
            seed=0, split_seed=0, keep_seed=0, early_stop=0, checkpoint_steps=0, log_steps=1, workers=1
        )
        for name in ("weight_decay", "clip", "reconstruction"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name}: expected a number of at least 0, got {getattr(self, name)}")
        if not 0 < self.lr <= 1000:
            raise ValueError(f"lr: expected a number above 0 and at most 1000, got {self.lr}")
        for name in ("warmup", "ema", "known"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}: expected a number from 0 to below 1, got {getattr(self, name)}")
        if not 0 < self.keep_labels <= 1:
            raise ValueError(f"keep_labels: expected a share above 0 and at most 1, got {self.keep_labels:g}")
        if not self.keep_images > 0 or (self.keep_images > 1 and self.keep_images % 1):
            raise ValueError(
                "keep_images: expected a share above 0 and at most 1, or a whole number of images, got "
                f"{self.keep_images:g}"
            )
        if self.hidden_labels != "unknown" and self.keep_labels == 1:
            raise ValueError(
                f"hidden_labels: expected unknown where no label is hidden, got {self.hidden_labels}; hide some with "
                "--keep-labels 0.1"
            )
        if not (self.checkpoint_minutes > 0 and math.isfinite(self.checkpoint_minutes)):
            raise ValueError(f"checkpoint_minutes: expected a number above 0, got {self.checkpoint_minutes}")
        for name in ("num_classes", "class_names", "in_channels", "image_size", "backbone", "model", "reconstruction"):
            if name in self.options:
                flag = f"has a flag of its own, --{name.replace('_', '-')}"
                why = flag if name in typing.get_type_hints(TrainConfig) else "comes from the data"
                raise ValueError(f"set: {name} {why}; got {name}={self.options[name]!r}")
        if self.compile and self.freeze:
            raise ValueError("compile: expected false with a frozen backbone, which is computed once, got true")
        if self.freeze:
            refused = {"reconstruction": bool(self.reconstruction), "shard": self.shard, "no-prepare": not self.prepare}
            for name, is_set in refused.items():
                if is_set:
                    raise ValueError(f"freeze: the head is trained on kept features, which does not go with --{name}")
        if self.shard and self.devices * self.nodes == 1:
            raise ValueError("shard: expected more than one process to share among; set devices, too")

    @property
    def side(self) -> int:
        """Return the side of the images in pixels: `image_size`, or the default where it was left open."""
        return _SIDE if self.image_size is None else self.image_size
