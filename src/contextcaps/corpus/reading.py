"""Read and decode the images of a list, in order; what cannot be read is its row's error, never the end of the run."""

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow

from contextcaps.corpus.listing import cell_bytes, image_column
from contextcaps.corpus.store import is_address, open_input
from contextcaps.data.decoding import map_in_order
from contextcaps.data.decoding_limits import MAX_BYTES
from contextcaps.data.images import BadImage
from contextcaps.data.parquet_files import batches, open_parquet
from contextcaps.tagging.inputs import NotAnImage
from contextcaps.tagging.pixels import pixels_of

__all__ = ["decoded_rows"]


def decoded_rows(
    listed: pyarrow.Table, size: tuple[int, int], column: str | None = None, workers: int = 2
) -> tuple[list[str], np.ndarray, list[str]]:
    """Decode the images of some rows of the list.

    A local file is read by the decoder, as `contextcaps tag` does; the limits of `data/decoding_limits.py` hold for all
    images that this process decodes at once.

    Args:
        listed: rows of `LISTING`.
        size: (height, width) to squash them to.
        column: of tables, with the images.
        workers: images to decode at once.

    Returns:
        The names; pixels [n, H, W, 3], uint8, zeros where there is an error; the errors, "" where there is none. With
        channels last, as decoders give them: convolutions may round otherwise for another layout.
    """
    rows = listed.to_pylist()
    names = [os.fsdecode(row["image"]) for row in rows]
    pixels = np.zeros((len(rows), *size, 3), np.uint8)  # [n, H, W, 3]
    errors = [""] * len(rows)

    def decode(task: tuple[int, Any]) -> None:
        index, image = task
        try:
            if isinstance(image, _Remote):
                image = image.read()
            pixels[index] = pixels_of(image, size).transpose(1, 2, 0)  # [H, W, 3]
        except (BadImage, MemoryError) as error:
            errors[index] = str(error) or "there is not enough memory to read it"

    with ThreadPoolExecutor(workers, "decode") as pool:
        for _ in map_in_order(pool, decode, enumerate(_images(rows, column)), 2 * workers):
            pass
    return names, pixels, errors


class _Remote:
    """A file at an address, which a thread of the decoder fetches."""

    def __init__(self, address: str) -> None:
        self.address = address

    def read(self) -> bytes:
        try:
            with open_input(self.address) as file:
                return file.read(MAX_BYTES + 1)  # one more is refused
        except (OSError, ValueError) as error:
            raise BadImage(f"cannot be read ({error})") from None


def _images(rows: list[dict[str, Any]], column: str | None) -> Iterator[Any]:
    """Yield each row's image as `pixels_of` takes it. A shard or table is opened once for neighbouring rows."""
    with contextlib.ExitStack() as stack:
        opened: tuple[bytes, Any] | None = None
        group: tuple[bytes, int, _Cells] | None = None
        for row in rows:
            kind, path, first, second = row["kind"], row["path"], row["first"], row["second"]
            name = os.fsdecode(path)
            if kind == "error":
                yield NotAnImage(os.fsdecode(row["image"]), row["error"])
            elif kind == "file":
                yield _Remote(name) if is_address(name) else name
            else:
                try:
                    if opened is None or opened[0] != path:
                        stack.close()
                        opened = (path, stack.enter_context(open_input(name)))
                    if kind == "member":
                        yield _member(opened[1], first, second)
                        continue
                    if group is None or group[:2] != (path, first):
                        group = (path, first, _Cells(opened[1], first, column))
                    yield group[2].image(second)
                except (OSError, ValueError, pyarrow.ArrowException) as error:
                    opened, group = None, None
                    yield NotAnImage(name, f"cannot be read ({getattr(error, 'strerror', None) or error})")


def _member(file: Any, offset: int, size: int) -> bytes | NotAnImage:
    if size > MAX_BYTES:
        return NotAnImage("", f"{size:,} bytes: files of more than {MAX_BYTES:,} are not decoded")
    file.seek(offset)
    content = file.read(size)
    if len(content) != size:
        return NotAnImage("", f"expected {size} bytes at byte {offset}, got {len(content)}")
    return bytes(content)


class _Cells:
    """The images of a row group, some of which are in memory at a time; asked for in order.

    Args:
        file: the table.
        group: its number.
        column: with the images.
    """

    def __init__(self, file: Any, group: int, column: str | None) -> None:
        file.seek(0)
        table = open_parquet(file)
        self._name = image_column(table.schema_arrow, column)
        self._batches = batches(table, [self._name], [group])
        self._first, self._cells = 0, next(self._batches, None)

    def image(self, place: int) -> bytes | NotAnImage:
        """Return the bytes of an image."""
        while self._cells is not None and place >= self._first + len(self._cells):
            self._first += len(self._cells)
            self._cells = next(self._batches, None)
        content = None
        if self._cells is not None and place >= self._first:
            content = cell_bytes(self._cells[self._name][place - self._first].as_py())
        return NotAnImage("", "no encoded image in this cell") if content is None else content
