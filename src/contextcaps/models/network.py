"""The whole network: pixels in, class scores out; saved and loaded as safetensors beside a JSON configuration."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from huggingface_hub import PyTorchModelHubMixin, constants, hf_hub_download
from torch import Tensor, nn

from contextcaps.capsules import ReconstructionDecoder, unchecked
from contextcaps.capsules.guards import require_tensor
from contextcaps.models.backbones import build_backbone
from contextcaps.models.config import ModelConfig
from contextcaps.models.head import CapsuleHead, ModelOutput

__all__ = ["CapsuleNetwork", "ModelFileError", "Step"]

FORMAT = "contextcaps-1"
"""Written into every saved configuration, so that a foreign file is told from one of ours."""


class ModelFileError(ValueError):
    """A saved model that cannot be loaded; the message says which file and why."""


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
        self.register_buffer(
            "pixel_mean", torch.tensor(config.pixel_mean)[:, None, None], persistent=False
        )  # [C, 1, 1]
        self.register_buffer("pixel_std", torch.tensor(config.pixel_std)[:, None, None], persistent=False)  # [C, 1, 1]
        features = self._example_features()
        self.head = CapsuleHead(config, self.backbone.out_channels, primary, _grid(features, primary, config))
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
        image = torch.zeros(1, config.in_channels, *config.image_size, device=self.pixel_mean.device)
        with torch.no_grad():
            features = self.backbone(image)  # [1, C, H, W]
        capsules, classes, attributes = head.capsules, config.num_classes, config.decision_attributes
        votes = (capsules, classes, attributes)
        bias = 0 if head.bias is None else head.bias.numel()
        steps: list[tuple[str, tuple[int, ...], int]] = [
            ("image", tuple(image.shape[1:]), 0),
            (f"backbone {config.backbone}", tuple(features.shape[1:]), _count(self.backbone)),
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

    def _save_pretrained(self, save_directory: Path) -> None:
        """Weights as safetensors and the configuration as JSON, each written beside its place and then moved there."""
        weights = {name: tensor.detach().contiguous() for name, tensor in self.state_dict().items()}
        _replace(
            save_directory / constants.SAFETENSORS_SINGLE_FILE,
            safetensors.torch.save(weights, metadata={"format": "pt", "library": FORMAT}),
        )
        document = {"format": FORMAT, **self.config.to_dict()}
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        _replace(save_directory / constants.CONFIG_NAME, text.encode())

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
            download: options of `huggingface_hub.hf_hub_download`, such as `revision` and `token`.

        Raises:
            ModelFileError: a file is missing, cut off, or not of this library.
        """
        source = str(pretrained_model_name_or_path)
        names = (constants.CONFIG_NAME, constants.SAFETENSORS_SINGLE_FILE)
        if os.path.isdir(source):
            config_file, weights_file = (Path(source, name) for name in names)
        elif isinstance(pretrained_model_name_or_path, Path) or source.count("/") != 1 or source.startswith((".", "/")):
            raise ModelFileError(f"{source}: no such folder; expected one written by save_pretrained")
        else:
            config_file, weights_file = (Path(hf_hub_download(source, name, **download)) for name in names)
        network = cls(_read_config(config_file), start=False)
        _load_weights(network, weights_file)
        return network.to(device).eval()


def _grid(features: Tensor, primary: tuple[int, int, int], config: ModelConfig) -> tuple[int, int]:
    """The grid of primary capsules that these features allow."""
    kernel, stride, padding = primary
    height, width = ((side + 2 * padding - kernel) // stride + 1 for side in features.shape[-2:])
    if min(height, width) < 1:
        raise ValueError(
            f"image_size: {config.image_size[0]}×{config.image_size[1]} px leave backbone {config.backbone!r} a map of "
            f"{features.shape[-2]}×{features.shape[-1]}, too small for its {kernel}×{kernel} primary capsules; "
            "use larger images or another backbone"
        )
    return height, width


def _count(module: nn.Module | None) -> int:
    return 0 if module is None else sum(parameter.numel() for parameter in module.parameters())


def _replace(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _read_config(path: Path) -> ModelConfig:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFileError(f"{path}: no such file; expected a folder written by save_pretrained") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path}: cut off or no JSON ({error}); save or download the model again") from None
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        raise ModelFileError(f'{path}: not a configuration of contextcaps (no "format": "{FORMAT}")')
    try:
        # Published weights of a backbone would only be overwritten: do not fetch them.
        return ModelConfig.from_dict({**document, "pretrained": False})
    except (ValueError, TypeError) as error:
        raise ModelFileError(f"{path}: {error}") from None


def _load_weights(network: CapsuleNetwork, path: Path) -> None:
    try:
        weights = safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise ModelFileError(f"{path}: no such file; expected a folder written by save_pretrained") from None
    except (safetensors.SafetensorError, OSError) as error:
        raise ModelFileError(f"{path}: cut off or no safetensors file ({error}); save or download it again") from None
    expected = network.state_dict()
    problems = [f"{name} is not known" for name in sorted(weights.keys() - expected.keys())]
    problems += [
        f"{name} has shape {list(weights[name].shape)}, expected {list(expected[name].shape)}"
        for name in sorted(expected.keys() & weights.keys())
        if weights[name].shape != expected[name].shape
    ]
    problems += [f"{name} is missing" for name in sorted(expected.keys() - weights.keys())]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        shown = "; ".join(problems[:3])
        raise ModelFileError(f"{path}: weights do not fit the configuration beside them: {shown}{more}")
    network.load_state_dict(weights)
