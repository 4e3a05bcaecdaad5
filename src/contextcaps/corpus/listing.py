"""List the images of a corpus: files, members of tar shards, cells of Parquet tables. Nothing is decoded here.

A row of the list says what an image is called and where its bytes are. Its columns:

    image  the name in the output, as bytes: a path or address; SHARD.tar/MEMBER; TABLE.parquet#ROW, from 0
    kind   "file", "member" (of a shard), "cell" (of a table), "error"
    path   of the file, shard or table, as bytes
    first  the member's first byte; the cell's row group
    second the member's number of bytes; the cell's row in its group
    error  why there is no image, for the kind "error"
"""

import dataclasses
import glob
import itertools
import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, cast

import pyarrow

from contextcaps.corpus.store import file_system, is_address, open_input
from contextcaps.data.image_files import looks_like_image
from contextcaps.data.parquet_files import as_list, batches, open_parquet
from contextcaps.data.problems import DataError
from contextcaps.data.sources.shard_files import find_shards
from contextcaps.tagging.inputs import NotAnImage, find_images

__all__ = ["LISTING", "Container", "cell_bytes", "find_inputs", "image_column", "list_container", "row_of", "table_of"]

LISTING = pyarrow.schema(
    [
        ("image", pyarrow.binary()),
        ("kind", pyarrow.string()),
        ("path", pyarrow.binary()),
        ("first", pyarrow.int64()),
        ("second", pyarrow.int64()),
        ("error", pyarrow.string()),
    ]
)
"""The schema of the list."""

_MOST_ROWS = 10_000_000  # of a table
_LONGEST_NAME = 4096  # of a path, as Linux takes them
_AT_ONCE = 65_536  # rows that Python holds

Row = tuple[bytes, str, bytes, int, int, str | None]

_COLUMNS = ("image", "bytes", "content", "jpg", "jpeg", "png", "path", "file", "file_name", "filename", "url")
"""Names of columns that are taken for images, or paths of images, the first that is there."""


@dataclasses.dataclass(frozen=True)
class Container:
    """A file that holds many images: a tar shard, or a Parquet table."""

    path: str


def find_inputs(names: Iterable[str]) -> Iterator[str | Container | NotAnImage]:
    """Yield what names on the command line stand for, in their order, sorted within each.

    Besides the names of `find_images`: a file *.tar is a shard, *.parquet a table, `shards:PATTERN` are shards, and an
    address (s3://…) is a file, a folder or a pattern there.
    """
    for name in names:
        if name.startswith("shards:"):
            try:
                yield from (Container(str(path)) for path in find_shards(name.removeprefix("shards:")))
            except DataError as error:
                yield NotAnImage(name, str(error))
        elif is_address(name):
            yield from _at_address(name)
        else:
            for found in find_images([name]):
                if isinstance(found, str) and is_address(found):  # from standard input
                    yield from _at_address(found)
                else:
                    yield _classified(found)


def _classified(found: str | NotAnImage) -> str | Container | NotAnImage:
    if isinstance(found, str) and found.lower().endswith((".tar", ".parquet")):
        return Container(found)
    return found


def _at_address(address: str) -> Iterator[str | Container | NotAnImage]:
    """Yield the files of an address, with the same protocol before their names."""
    if address.startswith(("http://", "https://")):  # web servers have no list of files; a ? belongs to the address
        yield _classified(address)
        return
    system, path = file_system(address)
    try:
        if glob.has_magic(path):
            found = sorted(name for name in system.glob(path) if not system.isdir(name))
        elif system.isdir(path):
            found = sorted(name for name in system.find(path) if _is_wanted(name.removeprefix(path)))
        else:
            found = [path]  # a missing file is reported when it is read
    except OSError as error:
        yield NotAnImage(address, f"cannot be listed ({error.strerror or error})")
        return
    if not found:
        yield NotAnImage(address, "no images at this address")
    for name in found:
        yield _classified(str(system.unstrip_protocol(name)))


def _is_wanted(name: str) -> bool:
    parts = name.strip("/").split("/")
    return looks_like_image(parts[-1]) and not any(part.startswith(".") for part in parts)


def row_of(found: str | NotAnImage) -> Row:
    """Return the row of a file, or of a name that leads to none."""
    if isinstance(found, NotAnImage):
        return _error(found.name, found.why)
    name = os.fsencode(found)
    return name, "file", name, 0, 0, None


def _error(name: str, why: str) -> Row:
    return os.fsencode(name), "error", b"", 0, 0, why.encode("utf-8", "backslashreplace").decode()


def list_container(path: str, column: str | None = None) -> pyarrow.Table:
    """Return the list of a shard or a table; what is wrong with it are rows of the kind "error".

    Args:
        path: the file or address.
        column: of a table, with encoded images or paths; by default the first whose name says so.
    """
    rows: Iterator[Row]
    parts: list[pyarrow.Table] = []
    try:
        rows = _rows_of_table(path, column) if path.lower().endswith(".parquet") else _rows_of_shard(path)
        while part := list(itertools.islice(rows, _AT_ONCE)):
            parts.append(table_of(part))
    except (OSError, ValueError, pyarrow.ArrowException, tarfile.TarError) as error:
        parts = [table_of([_error(path, f"cannot be read ({getattr(error, 'strerror', None) or error})")])]
    return pyarrow.concat_tables(parts or [table_of([_error(path, "no images in it")])])


def table_of(rows: Sequence[Row]) -> pyarrow.Table:
    """Return rows as a table, at least one."""
    columns = zip(*rows, strict=True)
    arrays = [pyarrow.array(values, field.type) for values, field in zip(columns, LISTING, strict=True)]
    return pyarrow.table(arrays, schema=LISTING)


def _rows_of_shard(path: str) -> Iterator[Row]:
    with open_input(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        yield from _members(path, file, size)


def _members(path: str, file: BinaryIO, size: int) -> Iterator[Row]:
    """Yield a shard's images by its headers; then why it ends too early, if it does."""
    images = 0
    try:
        tar = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115  # the file is closed by whoever opened it
    except Exception as error:  # at damaged headers tarfile raises nearly every kind of error
        yield _error(path, f"expected a plain tar archive: {error}")
        return
    while True:
        try:
            info = tar.next()
        except Exception:
            break
        if info is None or info.size < 0:
            break
        cast(Any, tar).members.clear()  # tarfile would keep every header in memory
        if not info.isreg() or info.issparse() or not looks_like_image(info.name) or _is_companion(info.name):
            continue
        name = f"{path}/{info.name}"
        if info.offset_data + info.size > size:
            yield _error(name, f"cut off: {info.size} bytes announced, {size - info.offset_data} there")
            continue
        images += 1
        yield os.fsencode(name), "member", os.fsencode(path), info.offset_data, info.size, None
    file.seek(min(tar.offset, size))  # a header may say that its member is longer than any file
    end = file.read(tarfile.BLOCKSIZE)
    # tarfile takes a broken header, or the end of the file, for the end of the archive.
    if len(end) < tarfile.BLOCKSIZE or any(end):
        yield _error(path, f"cut off or broken at byte {tar.offset}, after {images} images; fetch it again")


def _is_companion(name: str) -> bool:
    """Return whether a member is a mask (name.mask.png, of our shards) or what macOS puts beside files."""
    return name.lower().endswith(".mask.png") or name.rpartition("/")[2].startswith("._")


def _rows_of_table(path: str, column: str | None) -> Iterator[Row]:
    with open_input(path) as file, open_parquet(file) as table:
        if table.metadata.num_rows > _MOST_ROWS:
            raise ValueError(f"{table.metadata.num_rows:,} rows; at most {_MOST_ROWS:,} are read: divide it")
        name = image_column(table.schema_arrow, column)
        kind = table.schema_arrow.field(name).type
        kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
            row = 0
            for group in range(table.num_row_groups):
                for place in range(table.metadata.row_group(group).num_rows):
                    yield f"{path}#{row}".encode(), "cell", os.fsencode(path), group, place, None
                    row += 1
            return
        for row, value in enumerate(cell for batch in batches(table, [name]) for cell in as_list(batch[name])):
            if value is None or len(value) > _LONGEST_NAME:
                why = "is empty" if value is None else f"has a path of {len(value):,} letters"
                yield _error(f"{path}#{row}", f"column {name} {why}")
            else:
                yield row_of(_beside(path, value))


def _beside(table: str, path: str) -> str:
    """Return the path of an image as a table has it: relative ones are relative to the table's folder."""
    if is_address(path) or os.path.isabs(path):
        return path
    return f"{table.rpartition('/')[0]}/{path}" if "/" in table else path


def image_column(schema: pyarrow.Schema, asked: str | None) -> str:
    """Return the column of a table that has its images, or their paths.

    Raises:
        pyarrow.ArrowInvalid: there is none, or there are two.
    """
    candidates = [asked] if asked is not None else _COLUMNS
    found = next((name for name in candidates if name in schema.names), None)
    if found is not None and schema.names.count(found) > 1:
        raise pyarrow.ArrowInvalid(f"the column {found!r} is there twice: rename one of them")
    if found is None:
        raise pyarrow.ArrowInvalid(f"no column with images; it has {', '.join(schema.names[:10])}: --image-column NAME")
    return found


def cell_bytes(value: Any) -> bytes | None:
    """Return the encoded image in a cell: its bytes, or the bytes of the {bytes, path} that Hugging Face writes."""
    if isinstance(value, dict):
        value = value.get("bytes")
    return value if isinstance(value, bytes) else None
