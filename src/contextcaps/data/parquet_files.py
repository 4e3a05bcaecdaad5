"""Read Parquet tables that may come from anybody, some rows at a time.

A kilobyte of Parquet can be gigabytes of text: each text stands once in a dictionary, and millions of rows point to it.
Here texts stay in their dictionaries; what they would take in the rows is counted before they are.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet

__all__ = ["as_list", "batches", "bytes_in_rows", "open_parquet"]

_MOST_ROWS = 65_536
_BYTES = 2**26
"""Rows, and bytes of them by the mean, that are read at once."""


def open_parquet(file: Any) -> Any:
    """Open a table so that its texts and bytes stay in dictionaries; give its path, or an open file.

    Raises:
        pyarrow.ArrowException: it is no such table, or damaged.
    """
    metadata = pyarrow.parquet.read_metadata(file)
    columns = [metadata.schema.column(index) for index in range(metadata.num_columns)]
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    return pyarrow.parquet.ParquetFile(file, metadata=metadata, read_dictionary=texts)


def batches(table: Any, columns: Sequence[str] | None = None, groups: Sequence[int] | None = None) -> Iterator[Any]:
    """Yield the rows of an open table in order, some at a time."""
    chosen = range(table.num_row_groups) if groups is None else groups
    sizes = [table.metadata.row_group(group).total_byte_size for group in chosen]
    rows = sum(table.metadata.row_group(group).num_rows for group in chosen)
    at_once = min(_MOST_ROWS, max(1, _BYTES * max(1, rows) // max(1, *sizes, sum(sizes))))
    yield from table.iter_batches(at_once, row_groups=list(chosen), columns=columns, use_threads=False)


def as_list(array: Any) -> list[Any]:
    """Return an array's values as Python's; those of a dictionary are the same objects in all rows."""
    if not pyarrow.types.is_dictionary(array.type):
        found: list[Any] = array.to_pylist()
        return found
    values = [*array.dictionary.to_pylist(), None]
    return [values[index] for index in array.indices.fill_null(len(values) - 1).to_numpy().tolist()]


def bytes_in_rows(array: Any) -> int:
    """Return how many bytes an array's values take when each row has its own."""
    kind = array.type
    if pyarrow.types.is_dictionary(kind):
        lengths = pyarrow.compute.binary_length(array.dictionary)
        found = pyarrow.compute.sum(lengths.take(array.indices)).as_py() or 0
        return int(found) + 8 * len(array)
    if pyarrow.types.is_struct(kind):
        return sum(bytes_in_rows(each) for each in array.flatten())
    if pyarrow.types.is_map(kind):
        return bytes_in_rows(array.keys) + bytes_in_rows(array.items)
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind):
        return bytes_in_rows(array.flatten()) + 8 * len(array)
    return int(array.nbytes)
