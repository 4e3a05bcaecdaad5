"""A saved network on disk: weights as safetensors beside a JSON configuration, never pickle."""

import json
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from contextcaps.atomic import write_atomically
from contextcaps.models.config import ModelConfig

__all__ = [
    "CARD_FILE",
    "CONFIG_FILE",
    "WEIGHTS_FILE",
    "ModelFileError",
    "load_weights",
    "misfits",
    "read_config",
    "replace_card",
    "save_network",
]

CARD_FILE, CONFIG_FILE, WEIGHTS_FILE = "README.md", "config.json", "model.safetensors"
"""Files of a model's folder; the Hugging Face Hub knows them by these names."""

FORMAT = "contextcaps-1"
"""Written into every saved configuration, so that a foreign file is recognised."""


_CARD = """---
library_name: contextcaps
license: apache-2.0
pipeline_tag: image-classification
tags:
- capsule-network
- multi-label
---

# A contextcaps model

A network for multi-label image tagging, saved by contextcaps. `config.json` has its settings and class names:

    from contextcaps import CapsuleNetwork

    model = CapsuleNetwork.from_pretrained("this folder")

Nothing is said here about how it was trained, or how well it does.
"""
"""README of a saved model, unless somebody writes a better one."""

_CARD_MARK = "<!-- Written by contextcaps, and again with each export; without this line it stays as it is. -->"


class ModelFileError(ValueError):
    """A saved model that cannot be loaded; the message names the file and the reason."""


def save_network(network: nn.Module, config: ModelConfig, folder: Path, half: bool) -> None:
    """Write a network's weights, configuration and card into a folder; a card that is there stays.

    Each file is written elsewhere and moved into its place when all are complete, so that a crash leaves the old files
    or the new ones.

    Args:
        network: with its weights.
        config: that it was built from.
        folder: made if it is not there.
        half: write float16 parameters. Buffers, such as the statistics of batch normalisation, stay as they are.
    """
    halved = {name for name, weight in network.named_parameters() if weight.is_floating_point()} if half else set()
    tensors = {}
    for name, tensor in network.state_dict().items():
        kept = tensor.detach().contiguous()
        tensors[name] = _as_half(name, kept) if name in halved else kept
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as made:
        temporary = Path(made)
        # One entry: safetensors writes several in any order, and the same weights are to be the same bytes.
        safetensors.torch.save_file(tensors, temporary / WEIGHTS_FILE, {"format": "pt"})
        document = {"format": FORMAT, **config.to_dict()}
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        (temporary / CONFIG_FILE).write_text(text, encoding="utf-8")
        # safetensors lets nobody but the owner read it.
        (temporary / WEIGHTS_FILE).chmod(stat.S_IMODE((temporary / CONFIG_FILE).stat().st_mode))
        (temporary / CARD_FILE).write_text(_CARD, encoding="utf-8")
        os.replace(temporary / WEIGHTS_FILE, folder / WEIGHTS_FILE)
        os.replace(temporary / CONFIG_FILE, folder / CONFIG_FILE)
        if not (folder / CARD_FILE).exists():  # else somebody may have written into it
            os.replace(temporary / CARD_FILE, folder / CARD_FILE)


def _as_half(name: str, weight: torch.Tensor) -> torch.Tensor:
    """Return a weight in float16; refuse one that does not fit."""
    halved = weight.to(torch.float16)
    if bool((halved.isinf() & weight.isfinite()).any()):
        most = float(weight[weight.isfinite()].abs().max())
        raise ValueError(
            f"half: the weight {name} has a value of {most:.3g}, more than the {torch.finfo(torch.float16).max:,.0f} "
            "that float16 holds; save the model without half"
        )
    return halved


def replace_card(folder: Path, text: str) -> None:
    """Replace the text of a saved model's README, but for its front matter; one that a person wrote is left alone."""
    path = folder / CARD_FILE
    try:
        _, front, old = path.read_text(encoding="utf-8").split("---\n", 2)
    except (FileNotFoundError, UnicodeDecodeError, ValueError):  # none, or not one of ours
        return
    if old.strip() == _CARD.split("---\n", 2)[2].strip() or _CARD_MARK in old:
        write_atomically(path, f"---\n{front}---\n\n{_CARD_MARK}\n\n{text}")


def read_config(path: Path) -> ModelConfig:
    """Read the configuration in a JSON file; raise a `ModelFileError` where it is wrong."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFileError(f"{path}: no such file; expected a folder written by save_pretrained") from None
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path}: cut off or no JSON ({error}); save or download the model again") from None
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        raise ModelFileError(f'{path}: not a configuration of contextcaps (no "format": "{FORMAT}")')
    try:
        # Published weights of a backbone would only be overwritten: do not fetch them.
        return ModelConfig.from_dict({**document, "pretrained": False})
    except (ValueError, TypeError) as error:
        raise ModelFileError(f"{path}: {error}") from None


def misfits(weights: Mapping[str, Tensor], places: Mapping[str, Tensor]) -> list[str]:
    """Return how weights differ by name and shape from the places that they are to fill; nothing where they fit."""
    problems = [f"{name} is not known" for name in weights if name not in places]
    problems += [
        f"{name} has shape {list(weights[name].shape)}, expected {list(place.shape)}"
        for name, place in places.items()
        if name in weights and weights[name].shape != place.shape
    ]
    return problems + [f"{name} is missing" for name in places if name not in weights]


def load_weights(network: nn.Module, path: Path) -> None:
    """Fill a network from a safetensors file, each weight in the network's own type, whatever it has in the file.

    Raises:
        ModelFileError: the file cannot be read, or its weights do not fit.
    """
    try:
        weights = safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise ModelFileError(f"{path}: no such file; expected a folder written by save_pretrained") from None
    except (safetensors.SafetensorError, OSError) as error:
        raise ModelFileError(f"{path}: cut off or no safetensors file ({error}); save or download it again") from None
    problems = misfits(dict(sorted(weights.items())), dict(sorted(network.state_dict().items())))
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        shown = "; ".join(problems[:3])
        raise ModelFileError(f"{path}: weights do not fit the configuration beside them: {shown}{more}")
    network.load_state_dict(weights)  # float16 becomes float32 here
