"""The whole network: pixels in, class scores out."""

import contextlib
import copy
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from contextcaps.capsules import (
    DecisionField,
    ReconstructionDecoder,
    primary_grid,
    rescale_decisions,
    score_logits,
    unchecked,
)
from contextcaps.capsules.decision_field import require_known
from contextcaps.capsules.guards import require_tensor
from contextcaps.models.backbones import build_backbone
from contextcaps.models.baselines import build_baseline
from contextcaps.models.calibration import calibrate, raw_decisions
from contextcaps.models.config import ModelConfig
from contextcaps.models.efficientnet_lite import ConvNormAct
from contextcaps.models.files import CONFIG_FILE, WEIGHTS_FILE, ModelFileError, read_config
from contextcaps.models.head import CapsuleHead
from contextcaps.models.head_base import Head, ModelOutput, Step, count_weights
from contextcaps.models.saving import read_weights, save_network
from contextcaps.models.unfilled import Unfilled
from contextcaps.out_of_memory import is_out_of_memory

__all__ = ["CapsuleNetwork"]

_PIXELS_AT_ONCE = 1 << 18
"""Pixels, four images of 256×256, that go through the backbone together on a CPU. The memory of larger feature maps
goes back to the system after each layer, and asking for it anew takes longer than the convolutions."""
_IMAGES_AT_ONCE = 16
"""Images that do so at most, however small; measured with the above (docs/results/speed.md#tagging)."""


class CapsuleNetwork(nn.Module):
    """A backbone, a capsule or baseline head, and perhaps a field after it, built from a configuration.

    Takes images [B, C, H, W], as bytes (0…255) or as floats (0…1), and normalises them itself.

    Args:
        config: what to build.
        start: start the weights by the configuration; False leaves out what is measured or read from a file, for
            weights that are loaded right after.
        backbone: weights that the backbone starts from, in the place of published ones.
    """

    def __init__(self, config: ModelConfig, start: bool = True, backbone: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        self.config = config
        self.frozen = False
        """True where the backbone stays as it is."""
        self.backbone = build_backbone(config, start and backbone is None)
        if backbone is not None:
            self.backbone.load_state_dict(backbone)
        self.pixel_mean: Tensor
        self.pixel_std: Tensor
        self.register_buffer("pixel_mean", torch.tensor(config.pixel_mean)[:, None, None])  # [C, 1, 1]
        self.register_buffer("pixel_std", torch.tensor(config.pixel_std)[:, None, None])  # [C, 1, 1]
        features = self._example_features() if start else self._unknown_features()
        self.feature_shape = tuple(features.shape[1:])
        """(C, H, W) of the backbone's features."""
        with torch.device("meta"), Unfilled():  # to count the weights before there is memory for them
            _require_affordable(config, *self._head_and_field(features))
        self.head, self.field = self._head_and_field(features)
        self.decoder: ReconstructionDecoder | None = None
        if config.reconstruction and config.capsules is not None:
            image_shape = (config.in_channels, *config.image_size)
            self.decoder = ReconstructionDecoder(config.num_classes, config.capsules.decision_attributes, image_shape)
        start_length = config.capsules.start_length if config.capsules is not None and start else None
        measurable = not features.is_meta  # without numbers there is nothing to measure
        if start_length is not None and measurable and isinstance(self.head, CapsuleHead):
            self.head.start_alive(features, start_length)

    def _head_and_field(self, features: Tensor) -> tuple[Head, DecisionField | None]:
        """Build both for such features, on the current default device."""
        config, channels = self.config, self.backbone.out_channels
        head: Head
        if config.capsules is not None:
            head = self._capsule_head(features)
        else:
            head = build_baseline(config, channels, (features.shape[-2], features.shape[-1]))
        if config.field is None:
            return head, None
        branch = channels if config.field.global_branch else None
        return head, DecisionField(
            config.num_classes, config.field.iterations, config.field.rank, config.field.groups, branch
        )

    def _capsule_head(self, features: Tensor) -> CapsuleHead:
        config, backbone = self.config, self.backbone
        primary = (backbone.primary_kernel, backbone.primary_stride, backbone.primary_padding)
        try:
            grid = primary_grid((features.shape[-2], features.shape[-1]), *primary)
        except ValueError as error:
            height, width = config.image_size
            raise ValueError(f"image_size: {height}×{width} px is too small for {config.backbone!r}: {error}") from None
        return CapsuleHead(config, backbone.out_channels, primary, grid)

    @property
    def grid(self) -> tuple[int, int]:
        """(H, W) of the primary capsules, or of the features that a baseline head takes."""
        return self.head.grid

    def forward(self, images: Tensor, return_intermediates: bool = False, known: Tensor | None = None) -> ModelOutput:
        """Return scores [B, J] and decisions [B, J, I] of images [B, C, H, W], and on request every step in between.

        Where labels are known, [B, J] with 1 for present, 0 for absent and NaN for the others, a network that can be
        told (`config.takes_known`) takes them into account: its head, or the field between its decisions. What is known
        is its own score.
        """
        return self.from_features(self.features(images), return_intermediates, known)

    def features(self, images: Tensor) -> Tensor:
        """Return the backbone's features [B, C', H', W'] of images [B, C, H, W]."""
        are_bytes = isinstance(images, Tensor) and images.dtype == torch.uint8
        pixels = images / 255 if are_bytes else images
        sizes = {"C": self.config.in_channels}
        if not self.head.takes_any_size:
            sizes |= {"H": self.config.image_size[0], "W": self.config.image_size[1]}
        with _trusting() if are_bytes else contextlib.nullcontext():  # bytes are numbers: to look would wait for a GPU
            require_tensor("images", pixels, "B C H W", **sizes)
        if not torch.is_autocast_enabled(pixels.device.type):
            pixels = pixels.to(self.pixel_mean.dtype)  # that of the weights, where the network is in half precision
        with _trusting():
            parts = [self.backbone((few - self.pixel_mean) / self.pixel_std) for few in self._parts(pixels)]
            return parts[0] if len(parts) == 1 else torch.cat(parts)  # [B, C', H', W']

    def _parts(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Divide images where it is faster and changes nothing: on a CPU, without gradients, in evaluation mode."""
        learns = torch.is_grad_enabled() or self.backbone.training
        if learns or pixels.device.type != "cpu" or torch.compiler.is_compiling():
            return (pixels,)
        height, width = pixels.shape[-2:]
        return pixels.split(min(max(1, _PIXELS_AT_ONCE // (height * width)), _IMAGES_AT_ONCE))

    def from_features(
        self, features: Tensor, return_intermediates: bool = False, known: Tensor | None = None
    ) -> ModelOutput:
        """Return what `forward` does, from features [B, C', H', W'] that `features` gave, in whatever precision."""
        if not torch.is_autocast_enabled(features.device.type):
            features = features.to(self.pixel_mean.dtype)
        if known is not None:
            self.config.require_takes_known()
            require_known(known, features.shape[0], self.config.num_classes)
        with _trusting():
            told = {"known": known} if self.config.head_takes_known else {}
            output = self.head(features, return_intermediates, **told)
            if self.field is not None:
                output = self._in_context(self.field, output, features, known)
            calibration = self.config.calibration
            return output if calibration is None else calibrate(output, calibration, known)

    def freeze_backbone(self) -> None:
        """Keep the backbone as it is: no gradients, and in evaluation mode whatever the rest is in."""
        self.backbone.requires_grad_(False)
        self.backbone.eval()
        self.frozen = True

    def train(self, mode: bool = True) -> "CapsuleNetwork":
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def folded(self, begins_with_zeros: bool = True) -> "CapsuleNetwork":
        """Return a twin for inference whose batch normalisations are folded into the convolutions before them.

        On a CPU it is about 1.4 times as fast. The head and the field are shared with this network, the backbone is a
        copy; the twin can neither be trained nor saved. `begins_with_zeros` is as for `ConvNormAct.fold`.
        """
        twin = copy.copy(self)
        twin._modules = {**self._modules, "backbone": copy.deepcopy(self.backbone).eval()}
        for module in twin.backbone.modules():
            if isinstance(module, ConvNormAct):
                module.fold(begins_with_zeros)
        return twin

    def _in_context(
        self, field: DecisionField, output: ModelOutput, features: Tensor, known: Tensor | None
    ) -> ModelOutput:
        """Let the field correct the head's output by the other classes and by what is known."""
        pooled = None if field.global_branch is None else features.mean(dim=(2, 3))  # [B, C]
        logits = score_logits(output.scores) if output.logits is None else output.logits  # [B, J]
        found = field(logits, known, pooled)
        scores = found.scores.to(output.scores.dtype)  # [B, J]
        decisions = None if output.decisions is None else rescale_decisions(output.decisions, scores)  # [B, J, I]
        return output._replace(scores=scores, decisions=decisions, logits=found.logits)

    def reconstruct(self, decisions: Tensor | None, present: Tensor) -> Tensor:
        """Rebuild images [B, C, H, W] with values 0…1 from the decision capsules [B, J, I] of the present classes."""
        if decisions is None:
            raise ValueError(f"the head {self.config.head} has no decision capsules to rebuild an image from")
        if self.decoder is None:
            raise ValueError("this network has no decoder: create it with reconstruction=True")
        if self.config.calibration is not None:
            decisions = raw_decisions(decisions, self.config.calibration, self.config.scores_are_sigmoids)
        return self.decoder(decisions, present)

    @torch.no_grad()
    def _example_features(self) -> Tensor:
        """Return the backbone's features for two images of seeded noise, one coarse and one fine, that leave no trace.

        They serve to find the grid, and to measure how long the decision capsules start out.
        """
        kept = {name: buffer.clone() for name, buffer in self.backbone.named_buffers()}
        generator = torch.Generator("cpu").manual_seed(0)
        fine = torch.empty(1, self.config.in_channels, *self.config.image_size, device="cpu")  # [1, C, H, W]
        coarse = torch.empty(1, self.config.in_channels, 4, 4, device="cpu")  # [1, C, 4, 4]
        fine.uniform_(generator=generator)
        coarse.uniform_(generator=generator)
        coarse = nn.functional.interpolate(coarse, size=self.config.image_size, mode="bilinear")  # [1, C, H, W]
        pixels = torch.cat([coarse, fine]).to(self.pixel_mean.device)  # [2, C, H, W]
        try:
            with torch.random.fork_rng(devices=[]):
                features = self.backbone((pixels - self.pixel_mean) / self.pixel_std)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            height, width = self.config.image_size
            raise ValueError(
                f"image_size: {height}×{width} px is too small for backbone {self.config.backbone!r} ({error}); "
                "use larger images or another backbone"
            ) from error
        for name, buffer in self.backbone.named_buffers():
            buffer.copy_(kept[name])
        return features

    def _unknown_features(self) -> Tensor:
        """Return a tensor of the shape of the features of two images; their numbers mean nothing."""
        grid = self.backbone.feature_grid(self.config.image_size)
        if grid is None:
            return self._example_features()
        return torch.empty(2, self.backbone.out_channels, *grid, device="meta")  # [2, C, H, W]

    def steps(self) -> list[Step]:
        """Describe the way from image to scores: what each step gives, and how many weights it holds."""
        config = self.config
        steps = [
            Step("image", (config.in_channels, *config.image_size), 0),
            Step(f"backbone {config.backbone}", self.feature_shape, count_weights(self.backbone)),
            *self.head.steps(),
        ]
        if self.field is not None:
            steps.append(Step("field between decisions [J]", (config.num_classes,), count_weights(self.field)))
        if self.decoder is not None:
            steps.append(Step("reconstruction", self.decoder.image_shape, count_weights(self.decoder)))
        return [*steps, Step("scores [J]", (config.num_classes,), 0)]

    def save_pretrained(self, save_directory: str | Path, half: bool = False) -> None:
        """Save weights (safetensors), configuration with class names (JSON) and a model card into a folder.

        A crash leaves the files of before or the new ones. `hf upload OWNER/NAME FOLDER` puts such a folder on the
        Hugging Face Hub.

        Args:
            save_directory: made if it is not there.
            half: write the parameters in half precision (float16), for a file of half the size; they are loaded as
                float32 again.

        Raises:
            ValueError: a weight is too large for half precision.
        """
        save_network(self, self.config, Path(save_directory), half)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        device: str | torch.device = "cpu",
        **download: Any,
    ) -> "CapsuleNetwork":
        """Load a saved network, ready for use (in evaluation mode).

        Args:
            pretrained_model_name_or_path: a folder written by `save_pretrained`, or a model's name on the Hugging Face
                Hub.
            device: where the weights go.
            download: for the Hub, options of `huggingface_hub.hf_hub_download`, such as `revision` and `token`.

        Raises:
            ModelFileError: a file is missing, cut off, or not of this library.
        """
        source = pretrained_model_name_or_path
        if Path(source).is_dir():
            if download:
                raise ValueError(f"{source}: a local folder takes no option {', '.join(download)}")
            config_file, weights_file = Path(source, CONFIG_FILE), Path(source, WEIGHTS_FILE)
        # A misspelt run, such as runs/frist, is not to be asked for on the Hub.
        elif isinstance(source, Path) or source.count("/") != 1 or source.startswith((".", "/", "~", "runs/")):
            raise ModelFileError(
                f"{source}: no such folder; expected one written by save_pretrained (a run's has it as model/)"
            )
        else:
            from contextcaps.models.hub import fetch_network

            config_file, weights_file = fetch_network(source, download)
        config = read_config(config_file)
        network = cls._unfilled(config, config_file, "meta")  # takes no memory, whatever the configuration says
        weights = read_weights(weights_file, network.state_dict())
        if any(buffer.is_meta for name, buffer in network.named_buffers() if name not in weights):
            network = cls._unfilled(config, config_file, "cpu")  # timm has some that are made and not saved
        network.load_state_dict(weights, assign=True)
        return network.to(device).eval()

    @classmethod
    def _unfilled(cls, config: ModelConfig, file: Path, device: str) -> "CapsuleNetwork":
        """Build a network for weights that are loaded right after; errors name the configuration's file."""
        try:
            with torch.device(device), Unfilled():
                return cls(config, start=False)
        except (ValueError, RuntimeError, TypeError, OverflowError) as error:  # such as a weight of 2⁶⁴ numbers
            raise ModelFileError(f"{file}: {' '.join(str(error).split())}") from None


def _trusting() -> contextlib.AbstractContextManager[None]:
    """Switch the guards off: pixels are known to be numbers by now, and looking again costs more than a step."""
    return contextlib.nullcontext() if torch.compiler.is_compiling() else unchecked()


def _require_affordable(config: ModelConfig, head: Head, field: DecisionField | None) -> None:
    """Refuse a head with more weights than `max_weights`; the field after it counts with it."""
    counts: Counter[str] = Counter()
    for name, weight in head.named_parameters():
        counts[name.partition(".")[0]] += weight.numel()
    counts["field"] = count_weights(field)
    total = counts.total()
    if total <= config.max_weights:
        return
    parts = ", ".join(f"{name} {count / 1e6:,.0f} million" for name, count in counts.items() if count > total / 100)
    advice = head.savings()
    if config.field is not None and config.field.rank is None:
        advice.append("field.rank=32")
    advice.append("a larger max_weights")
    raise ValueError(
        f"the head would need {total / 1e6:,.0f} million weights ({parts}), more than max_weights = "
        f"{config.max_weights / 1e6:,.0f} million: {head.extra_repr()}. Try {', or '.join(advice)}"
    )
