"""A saved network on disk: weights as safetensors beside a JSON configuration, never pickle."""

import json
import os
import shutil
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from contextcaps.atomic import write_atomically
from contextcaps.checksums import block_checksums, first_difference
from contextcaps.models.config import ModelConfig
from contextcaps.plain_files import NotPlain, parse_json, read_text, require_plain

__all__ = [
    "CARD_FILE",
    "CONFIG_FILE",
    "WEIGHTS_FILE",
    "ModelFileError",
    "misfits",
    "read_config",
    "read_in_folder",
    "read_weights",
    "replace_card",
    "save_network",
]

CARD_FILE, CONFIG_FILE, WEIGHTS_FILE = "README.md", "config.json", "model.safetensors"
"""Files of a model's folder; the Hugging Face Hub knows them by these names."""

FORMAT = "contextcaps-1"
"""Written into every saved configuration, so that a foreign file is recognised."""

_CHECKSUMS = "contextcaps-crc32"
"""Name of the weights' checksums in a safetensors file's header."""

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


_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "BOOL": torch.bool,
}
"""Types of weights by their names in safetensors; networks have no others."""
_FRACTIONS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Shaped(Protocol):
    """Anything with a shape and a type, such as a tensor."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def dtype(self) -> torch.dtype | None: ...


class _Described(NamedTuple):
    """Shape and type of a weight in a file; None for a type that no network has."""

    shape: torch.Size
    dtype: torch.dtype | None


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
        safetensors.torch.save_file(tensors, temporary / "unsealed", {"format": "pt"})
        _seal(temporary / "unsealed", temporary / WEIGHTS_FILE)
        document = {"format": FORMAT, **config.to_dict()}
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        (temporary / CONFIG_FILE).write_text(text, encoding="utf-8")
        (temporary / CARD_FILE).write_text(_CARD, encoding="utf-8")
        os.replace(temporary / WEIGHTS_FILE, folder / WEIGHTS_FILE)
        os.replace(temporary / CONFIG_FILE, folder / CONFIG_FILE)
        if not (folder / CARD_FILE).exists():  # else somebody may have written into it
            os.replace(temporary / CARD_FILE, folder / CARD_FILE)


def _seal(source: Path, destination: Path) -> None:
    """Copy a safetensors file; add the checksums of its weights to the header, where other programs pass over them."""
    header, start = _read_header(source)
    header["__metadata__"][_CHECKSUMS] = json.dumps(block_checksums(source, start), separators=(",", ":"))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # so that the weights begin at a multiple of 8
    with source.open("rb") as weights, destination.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        weights.seek(start)
        shutil.copyfileobj(weights, file, 2**24)


def _require_whole(path: Path) -> None:
    """Refuse a safetensors file whose weights do not have the checksums in its header; many files have none."""
    header, start = _read_header(path)
    checksums = header.get("__metadata__", {}).get(_CHECKSUMS)
    try:
        byte = None if checksums is None else first_difference(path, parse_json(checksums), start)
    except (ValueError, TypeError):
        byte = 0  # they are damaged themselves
    if byte is not None:
        raise ModelFileError(
            f"{path}: damaged (from byte {byte} on it is not what was written); save or download it again"
        )


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the header of a safetensors file, and the byte at which the weights begin."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length)), 8 + length


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
        document = parse_json(read_in_folder(path))
    except FileNotFoundError:
        raise ModelFileError(f"{path}: no such file; expected a folder written by save_pretrained") from None
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from None
    except NotPlain as error:
        raise ModelFileError(str(error)) from None
    except ValueError as error:  # also of text that is no UTF-8
        raise ModelFileError(f"{path}: cut off or no JSON ({error}); save or download the model again") from None
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        raise ModelFileError(f'{path}: not a configuration of contextcaps (no "format": "{FORMAT}")')
    try:
        # Published weights of a backbone would only be overwritten: do not fetch them.
        return ModelConfig.from_dict({**document, "pretrained": False})
    except (ValueError, TypeError) as error:
        raise ModelFileError(f"{path}: {error}") from None


def read_in_folder(path: Path) -> str:
    """Read a text file of a model's folder; errors are those of `contextcaps.plain_files.read_text`."""
    return read_text(path, _home(path))


def _home(path: Path) -> Path:
    """Return what links of a model's file may not lead out of: its folder, or the repository's in the Hub's cache."""
    folder = path.parent
    return folder.parent.parent if folder.parent.name == "snapshots" else folder  # there all files are links


def misfits(weights: Mapping[str, Shaped], places: Mapping[str, Tensor]) -> list[str]:
    """Return how weights differ by name, shape and type from the places that they are to fill; nothing where they fit.

    Numbers with a fraction fit such a place in any precision.
    """
    problems = [f"{name} is not known" for name in weights if name not in places]
    for name, place in places.items():
        if name not in weights:
            continue
        found = weights[name]
        if found.shape != place.shape:
            problems.append(f"{name} has shape {list(found.shape)}, expected {list(place.shape)}")
        elif found.dtype != place.dtype and not (found.dtype in _FRACTIONS and place.dtype in _FRACTIONS):
            problems.append(f"{name} has type {_type_name(found.dtype)}, expected {_type_name(place.dtype)}")
    return problems + [f"{name} is missing" for name in places if name not in weights]


def _type_name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def read_weights(path: Path, places: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read a safetensors file's weights, each in its place's type, whatever it has in the file.

    Names, shapes and types are compared by the file's header alone, before there is memory for any weight.

    Args:
        path: of the file.
        places: what the weights are for, by name; they may be on the meta device.

    Raises:
        ModelFileError: the file cannot be read, or its weights do not fit.
    """
    try:
        require_plain(path, _home(path))
        with safetensors.safe_open(path, framework="pt") as file:
            problems = misfits(_header(file), dict(sorted(places.items())))
            if problems:
                more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
                shown = "; ".join(problems[:3])
                raise ModelFileError(f"{path}: weights do not fit the configuration beside them: {shown}{more}")
        _require_whole(path)
        weights = safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise ModelFileError(f"{path}: no such file; expected a folder written by save_pretrained") from None
    except NotPlain as error:
        raise ModelFileError(str(error)) from None
    except (safetensors.SafetensorError, OSError) as error:
        raise ModelFileError(f"{path}: cut off or no safetensors file ({error}); save or download it again") from None
    # float16 becomes float32 here; a copy, as safetensors maps the file itself.
    return {name: weight.to(places[name].dtype, copy=True) for name, weight in weights.items()}


def _header(file: Any) -> dict[str, Shaped]:
    """Return shape and type of each weight of an open safetensors file, by name."""
    slices = {name: file.get_slice(name) for name in sorted(file.keys())}
    return {
        name: _Described(torch.Size(each.get_shape()), _TYPES.get(each.get_dtype())) for name, each in slices.items()
    }
