"""Write entries of the cache folder so that each appears whole or not at all; data code writes nowhere else.

An entry is a folder. It is filled under a temporary name beside its final one and renamed once everything is on the
disk, so that a killed process leaves the old state or nothing. One process at a time fills an entry: it holds the lock
of the entry's name, and the others wait. The operating system releases a dead process's lock, hence a temporary folder
whose lock is free is stale, and is removed. Where a file system has no locks, several processes may fill the same
entry, each under a temporary name of its own; the first to finish wins.

Every file of an entry has checksums in the entry's `checksums.json`. They are compared when a process first opens the
entry: what a disk has changed since, or a person, is made anew and not used.
"""

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from contextcaps.checksums import block_checksums, first_difference
from contextcaps.data.problems import DataError
from contextcaps.plain_files import parse_json, read_text

__all__ = [
    "cache_folder",
    "entry_lock",
    "open_or_fill",
    "publish",
    "require_whole",
    "synchronise",
    "temporary_folder",
]

Entry = TypeVar("Entry")

_STALE_WITHOUT_LOCKS = 24 * 3600.0  # seconds; older temporary folders have no living owner, where locks cannot tell
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems without locks, such as some network file systems."""
_CHECKSUMS = "checksums.json"
_whole: set[tuple[object, ...]] = set()  # entries that this process has compared, with the state of their files

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.tmp")


def cache_folder(cache_dir: Path | str | None = None) -> Path:
    """Return the folder asked for, $CONTEXTCAPS_CACHE, or contextcaps in $XDG_CACHE_HOME or ~/.cache."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    if os.environ.get("CONTEXTCAPS_CACHE"):
        return Path(os.environ["CONTEXTCAPS_CACHE"]).expanduser()
    user = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore a relative path.
    return (Path(user) if os.path.isabs(user) else Path.home() / ".cache") / "contextcaps"


@contextlib.contextmanager
def entry_lock(folder: Path, name: str, on_wait: Callable[[], None] | None = None) -> Iterator[bool]:
    """Hold the lock of an entry; yield whether there is one, which is False on file systems without locks.

    Args:
        folder: the cache folder.
        name: the entry's name.
        on_wait: called once before waiting for another process. None: do not wait, raise BlockingIOError.
    """
    # Not filelock's soft lock in its place: that one would outlive a killed process.
    lock = FileLock(folder / f".{name}.lock", fallback_to_soft=False)
    try:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            if on_wait is None:
                raise BlockingIOError(errno.EAGAIN, "another process holds the lock", lock.lock_file) from None
            on_wait()
            lock.acquire()
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    try:
        yield lock.is_locked
    finally:
        lock.release()


def open_or_fill(
    final: Path, open_entry: Callable[[], Entry | None], fill: Callable[[Path], None], on_wait: Callable[[], None]
) -> Entry:
    """Open an entry; fill it first if it is missing or damaged. One process at a time does so, the others wait.

    Args:
        final: the entry's folder; its parent, the cache folder, is made if need be.
        open_entry: opens the entry; returns None if it is missing or damaged.
        fill: writes the entry's files into an empty folder.
        on_wait: called once before waiting for another process.
    """
    found = open_entry()
    if found is not None:
        return found
    folder, name = final.parent, final.name
    folder.mkdir(parents=True, exist_ok=True)
    with entry_lock(folder, name, on_wait) as locked:
        _remove_stale(folder, name, locked)
        found = open_entry()  # another process may have filled it while this one waited
        if found is None:
            _discard(final)
            temporary = temporary_folder(folder, name)
            try:
                fill(temporary)
                _write_checksums(temporary)
                publish(temporary, final)
                _whole.add(_state(final))  # as written just now
            finally:
                shutil.rmtree(temporary, ignore_errors=True)  # gone already if all went well
            found = open_entry()
    if found is None:
        raise OSError(errno.EIO, "cannot be read right after it was written", str(final))
    return found


def _write_checksums(folder: Path) -> None:
    checksums = {path.name: block_checksums(path) for path in sorted(folder.iterdir())}
    (folder / _CHECKSUMS).write_text(json.dumps(checksums, separators=(",", ":")), encoding="ascii")


def _state(folder: Path) -> tuple[object, ...]:
    """Return what tells whether a file of an entry was touched."""
    found = [(path.name, path.stat()) for path in sorted(folder.iterdir())]
    return os.path.abspath(folder), *((name, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in found)


def require_whole(folder: Path) -> None:
    """Compare the files of an entry with their checksums; in one process once, as long as no file is changed.

    Raises:
        DataError: a file is missing or not as it was written; the message begins with its path.
    """
    try:
        key = _state(folder)
        if key in _whole:
            return
        checksums: dict[str, list[int]] = parse_json(read_text(folder / _CHECKSUMS))
        if checksums.keys() != {path.name for path in folder.iterdir()} - {_CHECKSUMS}:
            raise ValueError("files are missing, or have no checksums")
        differences = {name: first_difference(folder / name, blocks) for name, blocks in checksums.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{folder}: damaged ({error}); remove it, and it is made anew") from None
    for name, byte in differences.items():
        if byte is not None:
            raise DataError(
                f"{folder / name}: damaged (from byte {byte} on it is not what was written); remove {folder}, and it "
                "is made anew"
            )
    _whole.add(key)


def temporary_folder(folder: Path, name: str) -> Path:
    """Make a new empty folder for filling an entry."""
    temporary = folder / f".{name}.{secrets.token_hex(8)}.tmp"
    temporary.mkdir()
    return temporary


def publish(temporary: Path, final: Path) -> None:
    """Give a filled folder its final name once its content is on the disk; if another was quicker, keep that one."""
    for path in sorted(temporary.iterdir()):
        synchronise(path)
    synchronise(temporary)
    try:
        os.rename(temporary, final)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) and not final.exists():
            raise
        shutil.rmtree(temporary, ignore_errors=True)
    synchronise(final.parent)


def _discard(final: Path) -> None:
    """Remove an entry: first its name, at once, then its files."""
    doomed = final.parent / f".{final.name}.{secrets.token_hex(8)}.tmp"
    try:
        os.rename(final, doomed)
    except FileNotFoundError:
        return
    shutil.rmtree(doomed, ignore_errors=True)


def _remove_stale(folder: Path, own: str, locked: bool) -> None:
    """Remove what killed processes left behind; `locked`: this process holds the lock of the entry `own`."""
    for path in folder.glob(".*.tmp"):
        match = _TEMPORARY.fullmatch(path.name)
        if match is None:
            continue
        if locked and match["name"] == own:
            shutil.rmtree(path, ignore_errors=True)
            continue
        # A BlockingIOError says that it has an owner.
        with contextlib.suppress(OSError), entry_lock(folder, match["name"]) as free:
            if free or time.time() - path.stat().st_mtime > _STALE_WITHOUT_LOCKS:
                shutil.rmtree(path, ignore_errors=True)


def synchronise(path: Path) -> None:
    """Wait until a file or a folder's list of names is on the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows does not open folders
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
