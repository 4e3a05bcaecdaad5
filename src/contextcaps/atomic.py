"""Write files that are whole or not there: whatever fails, an earlier version stays."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["replace_atomically", "require_place", "write_atomically"]


@contextlib.contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; move what was written there to `path`, or remove it after an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all; text is encoded as UTF-8, its line ends as they are."""
    with replace_atomically(path) as temporary:
        temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


def require_place(path: Path, name: str) -> None:
    """Raise ValueError, before any work, if a file cannot be written to a path.

    Args:
        path: of the file, which may be there already.
        name: what the user knows it by, such as a flag.
    """
    if path.is_dir():
        raise ValueError(f"{name} {path}: expected a file, got a folder")
    if not path.parent.is_dir():
        raise ValueError(f"{name} {path}: its folder is not there; make {path.parent} first")
    if not os.access(os.path.realpath(path.parent), os.W_OK | os.X_OK):
        raise ValueError(f"{name} {path}: {path.parent} may not be written to; choose another place")
