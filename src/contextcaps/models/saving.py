"""A saved network on disk: weights as safetensors beside a JSON configuration, never pickle."""

import json
import os
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from torch import Tensor, nn

from contextcaps.atomic import write_atomically
from contextcaps.models.config import ModelConfig

__all__ = ["MODEL_CARD", "ModelFileError", "find_files", "load_weights", "read_config", "replace_card", "write_files"]

FORMAT = "contextcaps-1"
"""Written into every saved configuration, so that a foreign file is recognised."""


MODEL_CARD = """---
{{ card_data }}
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


def write_files(weights: dict[str, Tensor], config: ModelConfig, folder: Path) -> None:
    """Write a network's weights and configuration into a folder."""
    tensors = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
    # One entry: safetensors writes several in any order, and the same weights are to be the same bytes.
    metadata = {"format": "pt"}
    safetensors.torch.save_file(tensors, folder / constants.SAFETENSORS_SINGLE_FILE, metadata)
    document = {"format": FORMAT, **config.to_dict()}
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    (folder / constants.CONFIG_NAME).write_text(text, encoding="utf-8")


def replace_card(folder: Path, text: str) -> None:
    """Replace the text of a saved model's README, but for its front matter; one that a person wrote is left alone."""
    path = folder / constants.REPOCARD_NAME
    try:
        _, front, old = path.read_text(encoding="utf-8").split("---\n", 2)
    except (FileNotFoundError, UnicodeDecodeError, ValueError):  # none, or not one of ours
        return
    if old.strip() == MODEL_CARD.split("---\n", 2)[2].strip() or _CARD_MARK in old:
        write_atomically(path, f"---\n{front}---\n\n{_CARD_MARK}\n\n{text}")


def find_files(source: str, is_path: bool, download: dict[str, Any]) -> tuple[Path, Path]:
    """Find the configuration and weights of a saved network, in a local folder or on the Hub."""
    names = (constants.CONFIG_NAME, constants.SAFETENSORS_SINGLE_FILE)
    if os.path.isdir(source):
        if download:
            raise ValueError(f"{source}: a local folder takes no option {', '.join(download)}")
        config, weights = (Path(source, name) for name in names)
        return config, weights
    # A misspelt run, such as runs/frist, is not to be asked for on the Hub.
    if is_path or source.count("/") != 1 or source.startswith((".", "/", "~", "runs/")):
        raise ModelFileError(
            f"{source}: no such folder; expected one written by save_pretrained (a run's has it as model/)"
        )
    try:
        config, weights = (Path(hf_hub_download(source, name, **download)) for name in names)
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        why = str(error).strip().partition("\n")[0]
        raise ModelFileError(f"{source}: no such folder, and not to be had from the Hugging Face Hub: {why}") from None
    return config, weights


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


def load_weights(network: nn.Module, path: Path) -> None:
    """Fill a network from a safetensors file; raise a `ModelFileError` where they do not fit."""
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
