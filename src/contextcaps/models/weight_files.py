"""Weights in safetensors files, without torch: their checksums, and reading them as arrays."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from contextcaps.checksums import first_difference
from contextcaps.models.files import ModelFileError, home_of
from contextcaps.plain_files import NotPlain, parse_json, require_plain

__all__ = ["CHECKSUMS", "WeightFile", "read_header", "require_whole"]

CHECKSUMS = "contextcaps-crc32"
"""Name of the weights' checksums in a safetensors file's header."""


def require_whole(path: Path) -> None:
    """Refuse a safetensors file whose weights do not have the checksums in its header; many files have none."""
    header, start = read_header(path)
    checksums = header.get("__metadata__", {}).get(CHECKSUMS)
    try:
        byte = None if checksums is None else first_difference(path, parse_json(checksums), start)
    except (ValueError, TypeError):
        byte = 0  # they are damaged themselves
    if byte is not None:
        raise ModelFileError(
            f"{path}: damaged (from byte {byte} on it is not what was written); save or download it again"
        )


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the header of a safetensors file, and the byte at which the weights begin."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length)), 8 + length


class WeightFile:
    """An open safetensors file, whose weights are read one by one as arrays of float32.

    Raises:
        ModelFileError: it cannot be read, or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            require_plain(path, home_of(path))
            self._file = safetensors.safe_open(path, framework="numpy")
            self._slices = {name: self._file.get_slice(name) for name in self._file.keys()}  # noqa: SIM118  # no dictionary
            require_whole(path)
        except FileNotFoundError:
            raise ModelFileError(f"{path}: no such file; expected a folder written by save_pretrained") from None
        except NotPlain as error:
            raise ModelFileError(str(error)) from None
        except (safetensors.SafetensorError, OSError) as error:
            raise ModelFileError(
                f"{path}: cut off or no safetensors file ({error}); save or download it again"
            ) from None

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a weight by the file's header; None where there is none of that name."""
        return tuple(self._slices[name].get_shape()) if name in self._slices else None

    def read(self, name: str) -> np.ndarray:
        """Return a weight as float32."""
        if self._slices[name].get_dtype() not in ("F16", "F32", "F64"):
            raise ModelFileError(f"{self.path}: {name} has type {self._slices[name].get_dtype()}, expected numbers")
        return np.array(self._file.get_tensor(name), dtype=np.float32, order="C")
