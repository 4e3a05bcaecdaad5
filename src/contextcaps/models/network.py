"""The whole network: pixels in, class scores out."""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import PyTorchModelHubMixin, constants
from torch import Tensor, nn

from contextcaps.capsules import ReconstructionDecoder, primary_grid, unchecked
from contextcaps.capsules.guards import require_tensor
from contextcaps.models.backbones import build_backbone
from contextcaps.models.config import ModelConfig
from contextcaps.models.head import CapsuleHead, ModelOutput
from contextcaps.models.saving import MODEL_CARD, ModelFileError, find_files, load_weights, read_config, write_files

__all__ = ["CapsuleNetwork", "Step"]


class Step(NamedTuple):
    """One step of a network's way from image to scores."""

    name: str
    shape: tuple[int, ...]
    """Shape of what the step gives for one image."""
    weights: int
    """Weights that the step holds."""


class CapsuleNetwork(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="contextcaps",
    license="apache-2.0",
    pipeline_tag="image-classification",
    tags=["multi-label", "capsule-network"],
    model_card_template=MODEL_CARD,
):
    """A backbone and a capsule head, built from a configuration.

    Takes images [B, C, H, W], as bytes (0…255) or as floats (0…1), and normalises them itself.

    Args:
        config: what to build.
        start: start the weights as the configuration says; False leaves the scaled start out, for weights that are
            loaded right after.
    """

    def __init__(self, config: ModelConfig, start: bool = True) -> None:
        super().__init__()
        self.config = config
        self.backbone = build_backbone(config)
        primary = (self.backbone.primary_kernel, self.backbone.primary_stride, self.backbone.primary_padding)
        self.pixel_mean: Tensor
        self.pixel_std: Tensor
        self.register_buffer("pixel_mean", torch.tensor(config.pixel_mean)[:, None, None])  # [C, 1, 1]
        self.register_buffer("pixel_std", torch.tensor(config.pixel_std)[:, None, None])  # [C, 1, 1]
        features = self._example_features()
        self.feature_shape = tuple(features.shape[1:])
        """(C, H, W) of the backbone's features."""
        try:
            grid = primary_grid((features.shape[-2], features.shape[-1]), *primary)
        except ValueError as error:
            height, width = config.image_size
            raise ValueError(f"image_size: {height}×{width} px is too small for {config.backbone!r}: {error}") from None
        self.head = CapsuleHead(config, self.backbone.out_channels, primary, grid)
        self.decoder: ReconstructionDecoder | None = None
        if config.reconstruction:
            image_shape = (config.in_channels, *config.image_size)
            self.decoder = ReconstructionDecoder(config.num_classes, config.decision_attributes, image_shape)
        start_length = config.start_length if start and config.routing != "em" else None
        if start_length is not None and not features.is_meta:  # without numbers there is nothing to measure
            self.head.start_alive(features, start_length)

    @property
    def grid(self) -> tuple[int, int]:
        """(H, W) of the primary capsules."""
        return self.head.grid

    def forward(self, images: Tensor, return_intermediates: bool = False) -> ModelOutput:
        """Scores [B, J] and decisions [B, J, I] of images [B, C, H, W], and on request every step in between."""
        pixels = images / 255 if isinstance(images, Tensor) and images.dtype == torch.uint8 else images
        sizes = {"C": self.config.in_channels}
        if not self.head.takes_any_size:
            sizes |= {"H": self.config.image_size[0], "W": self.config.image_size[1]}
        require_tensor("images", pixels, "B C H W", **sizes)
        if not torch.is_autocast_enabled(pixels.device.type):
            pixels = pixels.to(self.pixel_mean.dtype)  # that of the weights, where the network is in half precision
        # The pixels are known to be numbers by now; looking again at every step would cost more than the step.
        trusting = contextlib.nullcontext() if torch.compiler.is_compiling() else unchecked()
        with trusting:
            return self.head(self.backbone((pixels - self.pixel_mean) / self.pixel_std), return_intermediates)

    def reconstruct(self, decisions: Tensor, present: Tensor) -> Tensor:
        """Images [B, C, H, W] with values 0…1 rebuilt from the decision capsules [B, J, I] of the present classes."""
        if self.decoder is None:
            raise ValueError("this network has no decoder: create it with reconstruction=True")
        return self.decoder(decisions, present)

    @torch.no_grad()
    def _example_features(self) -> Tensor:
        """The backbone's features for two images of seeded noise, one coarse and one fine, that leave no trace.

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
            height, width = self.config.image_size
            raise ValueError(
                f"image_size: {height}×{width} px is too small for backbone {self.config.backbone!r} ({error}); "
                "use larger images or another backbone"
            ) from error
        for name, buffer in self.backbone.named_buffers():
            buffer.copy_(kept[name])
        return features

    def steps(self) -> list[Step]:
        """The way from image to scores: what each step gives, and how many weights it holds."""
        config, head = self.config, self.head
        capsules, classes, attributes = head.capsules, config.num_classes, config.decision_attributes
        votes = (capsules, classes, attributes)
        bias = 0 if head.bias is None else head.bias.numel()
        steps: list[tuple[str, tuple[int, ...], int]] = [
            ("image", (config.in_channels, *config.image_size), 0),
            (f"backbone {config.backbone}", self.feature_shape, _count(self.backbone)),
            ("primary capsules [K, A]", (capsules, config.attributes), _count(head.primary)),
        ]
        if head.initial is not None:
            steps.append((f"RW as {config.initial_routing} [K]", (capsules,), _count(head.initial)))
        steps.append(("votes [K, J, I]", votes, _count(head.votes)))
        if head.crf is not None:
            steps.append((f"CRF, {config.crf} [K, J, I]", votes, _count(head.crf)))
        if head.correlation is not None:
            weights = _count(head.correlation) + _count(head.low_level_map)
            steps.append(("CORR weights [J, K]", (classes, capsules), weights))
        by = f"{config.routing} routing" if head.routing is not None else "CORR"
        steps.append((f"decisions by {by} [J, I]", (classes, attributes), _count(head.routing) + bias))
        if self.decoder is not None:
            steps.append(("reconstruction", self.decoder.image_shape, _count(self.decoder)))
        steps.append(("scores [J]", (classes,), 0))
        return [Step(*step) for step in steps]

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> str | None:
        """Save weights (safetensors), configuration with class names (JSON) and a model card into a folder.

        Each file is written elsewhere and moved into its place when all are complete, so that a crash leaves the old
        files or the new ones.

        Args:
            save_directory: made if it is not there.
            options: those of `huggingface_hub.ModelHubMixin.save_pretrained`, such as `push_to_hub=True`.
        """
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as temporary:
            address = super().save_pretrained(temporary, **{"repo_id": folder.name, **options})
            card = folder / constants.REPOCARD_NAME
            kept = {card.name} if card.exists() else set()  # somebody may have written into it
            for path in sorted(Path(temporary).iterdir(), reverse=True):  # weights before the configuration
                if path.name not in kept:
                    os.replace(path, folder / path.name)
        return address

    def _save_pretrained(self, save_directory: Path) -> None:
        write_files(self.state_dict(), self.config, save_directory)

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
        source = str(pretrained_model_name_or_path)
        config_file, weights_file = find_files(source, isinstance(pretrained_model_name_or_path, Path), download)
        config = read_config(config_file)
        try:
            network = cls(config, start=False)
        except ValueError as error:
            raise ModelFileError(f"{config_file}: {error}") from None
        load_weights(network, weights_file)
        return network.to(device).eval()


def _count(module: nn.Module | None) -> int:
    return 0 if module is None else sum(parameter.numel() for parameter in module.parameters())
