"""What an ONNX file says of itself, read before ONNX Runtime sees it, as it may come from anybody.

An ONNX file is a protocol buffer: fields of a number and a value, where a value may hold fields of its own
(https://protobuf.dev/programming-guides/encoding, https://github.com/onnx/onnx/blob/main/onnx/onnx.proto). Only the few
fields that are needed here are looked at; ONNX Runtime checks the rest.
"""

import dataclasses
import math
import zlib
from collections.abc import Iterator
from pathlib import Path

from contextcaps.models.files import ModelFileError, home_of
from contextcaps.plain_files import MOST_BYTES, NotPlain, require_plain

__all__ = ["OnnxFile", "fields_of", "message_of", "read_onnx_file", "require_sealed", "sealed"]

_SEAL = b"contextcaps-crc32"
"""Key of the metadata's last entry: the checksum of all bytes before it."""

_MOST_FILE_BYTES = 2**31 - 1
"""Bytes of a protocol buffer at most."""
_MOST_NODES = 100_000
_MOST_NUMBERS = 2**29
"""Numbers of a weight at most, 2 GiB of float32."""
_MOST_SIDES = 64

# Numbers of fields, by message.
_GRAPH, _OPSET, _METADATA, _TRAINING, _FUNCTION = 7, 8, 14, 20, 25  # of a model
_NODE, _INITIALIZER, _SPARSE = 1, 5, 15  # of a graph
_ATTRIBUTE = 5  # of a node
_TENSOR, _SUBGRAPH, _TENSORS, _SUBGRAPHS = 5, 6, 10, 11  # of an attribute
_DIMS, _TENSOR_NAME, _EXTERNAL, _LOCATION = 1, 8, 13, 14  # of a tensor
_KEY, _VALUE = 1, 2  # of metadata; of an opset, its domain and its version


@dataclasses.dataclass
class OnnxFile:
    """A file's content, and what it says of itself."""

    content: bytes = dataclasses.field(repr=False)
    opset: int = 0
    """Version of ONNX's own operators that it needs."""
    metadata: dict[str, str] = dataclasses.field(default_factory=dict)
    external: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    """Name → shape of each weight that is not in the file."""
    nodes: int = 0


class _Damaged(ValueError):
    """No protocol buffer, or none of a model that is taken; the message says why."""


def read_onnx_file(path: Path, has_weights: bool = True) -> OnnxFile:
    """Read a file.

    Args:
        path: of the file.
        has_weights: refuse one whose weights are elsewhere; ONNX would take them from any path that the file names.

    Raises:
        ModelFileError: it is no ONNX file, or damaged, or larger than one may be, or its weights are elsewhere.
    """
    try:
        size = require_plain(path, home_of(path))
        if size > _MOST_FILE_BYTES:
            raise _Damaged(f"{size:,} bytes; expected at most {_MOST_FILE_BYTES:,}")
        found = OnnxFile(path.read_bytes())
        _read_model(found)
    except FileNotFoundError:
        raise ModelFileError(f"{path}: no such file") from None
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from None
    except NotPlain as error:
        raise ModelFileError(str(error)) from None
    except (_Damaged, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path}: cut off or no ONNX file ({error}); export or download it again") from None
    if has_weights and found.external:
        name = next(iter(found.external))
        raise ModelFileError(
            f"{path}: the weight {name!r} is in another file, which is not followed; expected a file with all of its "
            "weights, as contextcaps export writes it"
        )
    return found


def sealed(content: bytes) -> bytes:
    """Return a model's bytes with their checksum (CRC-32) after them, as one more entry of its metadata.

    Messages may be appended to: a protocol buffer goes on with the fields that follow.
    """
    value = f"{zlib.crc32(content):08x}".encode()
    entry = b"".join(bytes((8 * number + 2, len(text))) + text for number, text in ((_KEY, _SEAL), (_VALUE, value)))
    return content + bytes((8 * _METADATA + 2, len(entry))) + entry


_SEAL_BYTES = len(sealed(b""))


def require_sealed(path: Path, content: bytes) -> None:
    """Refuse a file of which a byte has changed since `sealed`."""
    if sealed(content[:-_SEAL_BYTES]) != content:
        raise ModelFileError(f"{path}: damaged (it has another checksum than it says); export or download it again")


def _read_model(found: OnnxFile) -> None:
    content = memoryview(found.content)
    has_graph, metadata_bytes = False, 0
    for field, value in fields_of(content):
        if field == _GRAPH:
            has_graph = True
            _read_graph(found, message_of(value))
        elif field in (_TRAINING, _FUNCTION):
            raise _Damaged("it has functions or a training, which contextcaps export never writes")
        elif field == _OPSET:
            parts = dict(fields_of(message_of(value)))
            version = parts.get(_VALUE, 0)
            if not bytes(message_of(parts.get(_KEY, memoryview(b"")))) and isinstance(version, int):
                found.opset = version
        elif field == _METADATA:
            parts = dict(fields_of(message_of(value)))
            key, text = (bytes(message_of(parts.get(each, memoryview(b"")))) for each in (_KEY, _VALUE))
            metadata_bytes += len(key) + len(text)
            if metadata_bytes > MOST_BYTES:
                raise _Damaged(f"more than {MOST_BYTES:,} bytes of metadata")
            found.metadata[key.decode()] = text.decode()
    if not has_graph:
        raise _Damaged("it has no graph")


def _read_graph(found: OnnxFile, graph: memoryview) -> None:
    for field, value in fields_of(graph):
        if field == _NODE:
            found.nodes += 1
            if found.nodes > _MOST_NODES:
                raise _Damaged(f"more than {_MOST_NODES:,} operators")
            for inner, attribute in fields_of(message_of(value)):
                if inner == _ATTRIBUTE:
                    _read_attribute(found, message_of(attribute))
        elif field == _INITIALIZER:
            _read_tensor(found, message_of(value))
        elif field == _SPARSE:
            raise _Damaged("it has sparse weights, which contextcaps export never writes")


def _read_attribute(found: OnnxFile, attribute: memoryview) -> None:
    for field, value in fields_of(attribute):
        if field in (_TENSOR, _TENSORS):
            _read_tensor(found, message_of(value))
        elif field in (_SUBGRAPH, _SUBGRAPHS):
            raise _Damaged("it has a loop, or another graph within its graph, which contextcaps export never writes")


def _read_tensor(found: OnnxFile, tensor: memoryview) -> None:
    dims: list[int] = []
    name, is_external = "", False
    for field, value in fields_of(tensor):
        if field == _DIMS:
            dims += [value] if isinstance(value, int) else _packed(value, _MOST_SIDES)
            if len(dims) > _MOST_SIDES:
                raise _Damaged(f"a weight with more than {_MOST_SIDES} axes")
        elif field == _TENSOR_NAME:
            name = bytes(message_of(value)).decode()
        elif field == _EXTERNAL or (field == _LOCATION and value == 1):
            is_external = True
    if math.prod(dims) > _MOST_NUMBERS:  # sides below 0 are 64-bit numbers above it
        raise _Damaged(f"the weight {name[:100]!r} has too many numbers; expected at most {_MOST_NUMBERS:,}")
    if is_external:
        found.external[name] = tuple(dims)


def fields_of(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and the value of each field of a message; values of 32 and 64 bits as bytes.

    Raises:
        ValueError: it is cut off, or no protocol buffer.
    """
    place, end = 0, len(message)
    while place < end:
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == 0:
            value, place = _varint(message, place)
            yield tag >> 3, value
            continue
        if kind == 2:
            length, place = _varint(message, place)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise _Damaged(f"a field of the unknown kind {kind}")
        if place + length > end:
            raise _Damaged("a field reaches beyond its end")
        yield tag >> 3, message[place : place + length]
        place += length


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    """Return a number of 7 bits in each byte, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise _Damaged("it ends within a number")
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise _Damaged("a number of more than 64 bits")


def _packed(values: memoryview, most: int) -> list[int]:
    """Return the numbers of a packed field, of more than so many only one more."""
    found: list[int] = []
    place = 0
    while place < len(values) and len(found) <= most:
        value, place = _varint(values, place)
        found.append(value)
    return found


def message_of(value: int | memoryview) -> memoryview:
    """Return the value of a field that holds a message, a text or bytes.

    Raises:
        ValueError: it is a number.
    """
    if isinstance(value, int):
        raise _Damaged("a number where a message is expected")
    return value
