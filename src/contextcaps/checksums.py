"""Checksums (CRC-32) of files, block by block and on several cores: 32 bits find every damage but one in 4 · 10⁹.

They tell damage, not malice: who can change a file can change its checksums, too.
"""

import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = ["block_checksums", "first_difference"]

_BLOCK = 2**22
_READ = 2**18  # bytes at once: they stay in the processor's cache
_THREADS = 4  # more would wait for memory, or for the disk


def block_checksums(path: Path, start: int = 0) -> list[int]:
    """Return the checksum of each block of a file, from byte `start` on; the file is read, and not kept in memory."""

    def checksum(offset: int) -> int:
        found, buffer = 0, memoryview(bytearray(_READ))
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            for _ in range(0, _BLOCK, _READ):
                found = zlib.crc32(buffer[: file.readinto(buffer)], found)  # zlib lets other threads run meanwhile
        return found

    size = path.stat().st_size
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1), "checksum") as pool:
        return list(pool.map(checksum, range(start, size, _BLOCK)))


def first_difference(path: Path, expected: Sequence[int], start: int = 0) -> int | None:
    """Return the byte at which the first block begins whose checksum is not the expected one; None if there is none."""
    count = -(-max(0, path.stat().st_size - start) // _BLOCK)
    if count > len(expected):  # not read: a file with holes may be of any length
        return start + len(expected) * _BLOCK
    found = block_checksums(path, start)
    blocks = [block for block, each in enumerate(expected) if found[block : block + 1] != [each]]
    return start + blocks[0] * _BLOCK if blocks else None
