"""Blocks of a corpus as Ray Data reads them: a read task for each, which decodes its images."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ray.data import Datasource, ReadTask
from ray.data.block import BlockAccessor, BlockMetadata

__all__ = ["BlockDatasource"]


class BlockDatasource(Datasource):
    """The blocks of a corpus that are still to be done.

    Args:
        decode: decodes a block, to columns.
        blocks: their numbers.
        rows: images of a block.
        of_image: bytes of a decoded image.
    """

    def __init__(
        self, decode: Callable[[int], dict[str, Any]], blocks: Sequence[int], rows: int, of_image: int
    ) -> None:
        super().__init__()
        self.decode, self.blocks, self.rows, self.of_image = decode, blocks, rows, of_image

    def estimate_inmemory_data_size(self) -> int:
        return len(self.blocks) * self.rows * self.of_image

    def get_read_tasks(self, parallelism: int, *args: Any, **options: Any) -> list[ReadTask]:
        """Return a task for each block, whatever the parallelism: a block must not be cut."""
        metadata = BlockMetadata(self.rows, self.rows * self.of_image, None, None)
        return [ReadTask(functools.partial(_read, self.decode, block), metadata) for block in self.blocks]


def _read(decode: Callable[[int], dict[str, Any]], block: int) -> Iterable[Any]:
    return [BlockAccessor.batch_to_block(decode(block))]
