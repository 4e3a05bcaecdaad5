"""Files of a saved model's folder, read without torch: its configuration, its README, and what they are called."""

from pathlib import Path
from typing import Any

from contextcaps.atomic import write_atomically
from contextcaps.models.config import ModelConfig
from contextcaps.plain_files import NotPlain, parse_json, read_text

__all__ = [
    "CARD",
    "CARD_FILE",
    "CONFIG_FILE",
    "FORMAT",
    "GRAPH_FILE",
    "WEIGHTS_FILE",
    "ModelFileError",
    "config_from_document",
    "home_of",
    "read_config",
    "read_in_folder",
    "replace_card",
]

CARD_FILE, CONFIG_FILE, WEIGHTS_FILE = "README.md", "config.json", "model.safetensors"
"""Files of a model's folder; the Hugging Face Hub knows them by these names."""

FORMAT = "contextcaps-1"
"""Written into every saved configuration, so that a foreign file is recognised."""

GRAPH_FILE = "graph.onnx"
"""A file of this name has the same network for ONNX Runtime, without its weights, which are those beside it."""

CARD = """---
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


def replace_card(folder: Path, text: str) -> None:
    """Replace the text of a saved model's README, but for its front matter; one that a person wrote is left alone."""
    path = folder / CARD_FILE
    try:
        _, front, old = path.read_text(encoding="utf-8").split("---\n", 2)
    except (FileNotFoundError, UnicodeDecodeError, ValueError):  # none, or not one of ours
        return
    if old.strip() == CARD.split("---\n", 2)[2].strip() or _CARD_MARK in old:
        write_atomically(path, f"---\n{front}---\n\n{_CARD_MARK}\n\n{text}")


def read_config(path: Path) -> ModelConfig:
    """Read the configuration in a JSON file; raise a `ModelFileError` where it is wrong."""
    try:
        document = parse_json(read_in_folder(path))
    except FileNotFoundError:
        raise ModelFileError(f"{path}: no such file; expected a folder written by save_pretrained") from None
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from None
    except NotPlain as error:
        raise ModelFileError(str(error)) from None
    except ValueError as error:  # also of text that is no UTF-8
        raise ModelFileError(f"{path}: cut off or no JSON ({error}); save or download the model again") from None
    return config_from_document(path, document)


def config_from_document(path: Path, document: Any) -> ModelConfig:
    """Return the configuration that a document of JSON's types holds; errors name the file that it came from."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ModelFileError(f'{path}: not a configuration of contextcaps (no "format": "{FORMAT}")')
    try:
        # Published weights of a backbone would only be overwritten: do not fetch them.
        fields = {name: value for name, value in document.items() if name != "format"}
        return ModelConfig.from_dict({**fields, "pretrained": False})
    except (ValueError, TypeError) as error:
        raise ModelFileError(f"{path}: {error}") from None


def read_in_folder(path: Path) -> str:
    """Read a text file of a model's folder; errors are those of `contextcaps.plain_files.read_text`."""
    return read_text(path, home_of(path))


def home_of(path: Path) -> Path:
    """Return what links of a model's file may not lead out of: its folder, or the repository's in the Hub's cache."""
    folder = path.parent
    return folder.parent.parent if folder.parent.name == "snapshots" else folder  # there all files are links
