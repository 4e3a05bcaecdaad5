"""Read and write whole files by path or address: the local file system, and what fsspec knows (s3://, gs://, http://).

A file is written under a temporary name and renamed, or, in an object store, which shows an object only when all of it
is there, put at once: nobody ever reads half a file.
"""

import contextlib
import os
import uuid
from pathlib import Path
from typing import Any, BinaryIO

from contextcaps.data.cache import synchronise
from contextcaps.plain_files import LARGE, require_plain

__all__ = ["Store", "is_address", "open_input"]

_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp", "https": "aiohttp", "az": "adlfs"}
"""Protocol → the package by which fsspec speaks it."""


def is_address(name: str) -> bool:
    """Return whether a name is an address such as s3://bucket/key.

    >>> is_address("s3://photos/a.jpg"), is_address("/photos/a.jpg")
    (True, False)
    """
    protocol, separator, _ = name.partition("://")
    return bool(separator) and protocol.isalnum()


def file_system(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it.

    Raises:
        ImportError: the package that speaks its protocol is not installed.
        ValueError: nobody knows the protocol.
    """
    import fsspec

    protocol = address.partition("://")[0]
    try:
        system, path = fsspec.url_to_fs(address)
    except ImportError as error:
        package = _PACKAGES.get(protocol, "the package that fsspec names")
        raise ImportError(f"{address}: needs {package} for {protocol}://: pip install {package} ({error})") from None
    except ValueError as error:
        raise ValueError(f"{address}: {error}") from None
    return system, path


def open_input(name: str) -> BinaryIO:
    """Open a file or an address for reading its bytes.

    Raises:
        OSError: it cannot be read, or is not there.
        ValueError: it is no plain file.
    """
    if not is_address(name):
        require_plain(Path(name))  # to open a pipe would wait for whoever writes into it
        return open(name, "rb", buffering=0)
    system, path = file_system(name)
    opened: BinaryIO = system.open(path, "rb")
    return opened


class Store:
    """A folder, here or at an address, whose files are whole or not there.

    Args:
        root: the folder; it is made with its first file.
    """

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/") or "/"
        self._system: Any
        self._system, self._base = file_system(self.root) if is_address(self.root) else (None, self.root)

    def path(self, name: str) -> str:
        """Return a file's path in its file system."""
        return f"{self._base}/{name}"

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole; one of that name is replaced."""
        if self._system is not None:
            self._system.pipe_file(self.path(name), content)
            return
        path = Path(self.path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        # The name is of this attempt alone: another worker may write the same block at the same time.
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            temporary.write_bytes(content)
            synchronise(temporary)  # before it gets its name: a machine that loses power leaves no empty block
            os.replace(temporary, path)
            synchronise(path.parent)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading its bytes, parts of which may then be all that is fetched."""
        return open_input(f"{self.root}/{name}")

    def read(self, name: str) -> bytes | None:
        """Return a file's content; None if there is none."""
        try:
            if self._system is not None:
                content: bytes = self._system.cat_file(self.path(name))
                return content
            require_plain(Path(self.path(name)), most=LARGE)
            return Path(self.path(name)).read_bytes()
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> set[str]:
        """Return the names of all files under a folder, however deep, relative to the store; no temporary ones."""
        return {name for name in self._all(folder) if not name.rpartition("/")[2].startswith(".")}

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            if self._system is not None:
                self._system.rm_file(self.path(name))
            else:
                Path(self.path(name)).unlink()

    def remove_temporary(self, folder: str) -> None:
        """Remove what killed workers have left half-written under a folder."""
        for name in self._all(folder):
            if name.endswith(".tmp"):
                self.remove(name)

    def is_empty(self) -> bool:
        """Return whether there is nothing yet in the folder, or no folder."""
        return not self._all("")

    def _all(self, folder: str) -> list[str]:
        base = self.path(folder).rstrip("/")
        if self._system is not None:
            self._system.invalidate_cache()
            found = self._system.find(base)
            return [f"{folder}{name.removeprefix(base)}".lstrip("/") for name in found]
        return [
            os.path.relpath(os.path.join(place, name), self._base)
            for place, _, names in os.walk(base)
            for name in names
        ]
