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

from contextcaps.checksums import block_checksums
from contextcaps.models.config import ModelConfig
from contextcaps.models.files import (
    CARD,
    CARD_FILE,
    CONFIG_FILE,
    FORMAT,
    GRAPH_FILE,
    WEIGHTS_FILE,
    ModelFileError,
    home_of,
)
from contextcaps.models.weight_files import CHECKSUMS, read_header, require_whole
from contextcaps.plain_files import NotPlain, require_plain

__all__ = ["misfits", "read_weights", "save_network"]

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
        (temporary / CARD_FILE).write_text(CARD, encoding="utf-8")
        (folder / GRAPH_FILE).unlink(missing_ok=True)  # it is of the old weights
        os.replace(temporary / WEIGHTS_FILE, folder / WEIGHTS_FILE)
        os.replace(temporary / CONFIG_FILE, folder / CONFIG_FILE)
        if not (folder / CARD_FILE).exists():  # else somebody may have written into it
            os.replace(temporary / CARD_FILE, folder / CARD_FILE)


def _seal(source: Path, destination: Path) -> None:
    """Copy a safetensors file; add the checksums of its weights to the header, where other programs pass over them."""
    header, start = read_header(source)
    header["__metadata__"][CHECKSUMS] = json.dumps(block_checksums(source, start), separators=(",", ":"))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # so that the weights begin at a multiple of 8
    with source.open("rb") as weights, destination.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        weights.seek(start)
        shutil.copyfileobj(weights, file, 2**24)


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
        require_plain(path, home_of(path))
        with safetensors.safe_open(path, framework="pt") as file:
            problems = misfits(_header(file), dict(sorted(places.items())))
            if problems:
                more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
                shown = "; ".join(problems[:3])
                raise ModelFileError(f"{path}: weights do not fit the configuration beside them: {shown}{more}")
        require_whole(path)
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
