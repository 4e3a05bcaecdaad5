"""Decode an image in a process of its own, which can be killed: a file that nobody knows the time of.

Such a process has so many seconds of the processor and so much memory for an image; what needs more, and what its
decoder crashes at, is one bad image. It starts in some 0.2 s, and is kept for the next one. It loads no torch, and no
code from the working folder. Ctrl-C does not reach it; whoever waits for it kills it: `stoppable`.

    request:  {"size": …, "path": …}, or "path": null and the file's bytes in a second message
    answer:   the header, or {"error": why}
    request:  {"decode": true}
    answer:   the pixels' shape, then strips of them, then {"error": null or why}

What needs no such process does not come here. Where none can be had (Windows, an interpreter inside another program),
the image is decoded in this one.
"""

import atexit
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from contextcaps.data.image_opening import BadImage, Header, as_bad_image, checked_file, open_image, strips

__all__ = ["SECONDS", "DecodedElsewhere", "Stopped", "can_be_elsewhere", "elsewhere", "serve", "stoppable"]

Result = TypeVar("Result")

SECONDS = 10
"""Most seconds of the processor for an image; a slower machine, or one that is busy, takes longer by the clock."""

_BYTES = 3 * 2**30  # of memory for it, above what the process begins with
_POLL = 0.1  # seconds between two looks at whether to stop

_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from contextcaps.data.decoding_process import serve
serve(int(sys.argv[1]))
"""


class Stopped(BaseException):
    """Ends the wait for an image that nobody wants any more."""


_local = threading.local()
_idle: list["_Process"] = []
_lock = threading.Lock()


def stoppable(function: Callable[..., Result], stop: threading.Event) -> Callable[..., Result]:
    """Return a function that ends with `Stopped` while it waits for an image, as soon as an event is set."""

    def run(*arguments: Any) -> Result:
        _local.stop = stop
        try:
            return function(*arguments)
        finally:
            _local.stop = None

    return run


class _Process:
    """Is one such process, seen from here."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        root = str(Path(__file__).parents[2])
        places = json.dumps([root, *(each for each in sys.path if os.path.isabs(each) and each != root)])
        words = [sys.executable, "-I", "-c", _START, str(theirs.fileno()), places]
        quiet = subprocess.DEVNULL
        try:
            self.process = subprocess.Popen(
                words,
                stdin=quiet,
                stdout=quiet,
                stderr=quiet,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, "MALLOC_ARENA_MAX": "2"},
            )
        finally:
            theirs.close()

    def ask(self, **request: Any) -> None:
        self.connection.send_bytes(json.dumps(request).encode())

    def answer(self) -> bytes:
        """Wait for the next message."""
        stop: threading.Event | None = getattr(_local, "stop", None)
        while not self.connection.poll(_POLL):
            if stop is not None and stop.is_set():
                raise Stopped
        return self.connection.recv_bytes()

    def facts(self) -> dict[str, Any]:
        """Wait for the next message, which is not pixels; raise what it says was wrong."""
        found: dict[str, Any] = json.loads(self.answer())
        if found.get("error") is not None:
            raise BadImage(found["error"])
        return found

    def end(self) -> int:
        """Kill it, if it has not ended; return how it ended."""
        self.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(0 if self.process.poll() is not None else 0.05)
        self.process.kill()
        return self.process.wait()


class DecodedElsewhere:
    """Is an image that another process has open."""

    def __init__(self, process: _Process) -> None:
        facts = process.facts()
        self.header = Header(**{**facts, "upright": tuple(facts["upright"])})
        self._process: _Process | None = process

    def pixels(self) -> np.ndarray:
        """Return the first frame's pixels as stored, [H, W, 3], uint8; to be called once."""
        process, self._process = self._process, None
        assert process is not None
        process.ask(decode=True)
        height, width = process.facts()["shape"]
        pixels, top = np.empty((height, width, 3), np.uint8), 0
        while len(strip := np.frombuffer(process.answer(), np.uint8)):
            rows = len(strip) // (3 * width)
            pixels[top : top + rows] = strip.reshape(rows, width, 3)
            top += rows
        process.facts()
        return pixels

    def close(self) -> None:
        """Let the other process close it."""
        if self._process is not None:
            self._process.ask(decode=False)


def can_be_elsewhere() -> bool:
    """Return whether there can be such processes."""
    return hasattr(os, "fork") and bool(sys.executable)


@contextmanager
def elsewhere(image: bytes | Path, size: tuple[int, int] | None) -> Iterator[DecodedElsewhere]:
    """Let another process open an image; a JPEG is then decoded no larger than a size upright needs."""
    process, is_whole = _take(), False
    try:
        if isinstance(image, bytes):
            process.ask(size=size, path=None, seconds=SECONDS)
            process.connection.send_bytes(image)
        else:
            process.ask(size=size, path=os.path.abspath(image), seconds=SECONDS)
        try:
            opened = DecodedElsewhere(process)
            yield opened
            opened.close()
        except BadImage:
            is_whole = True  # the other process has said so, or waits to be asked for the pixels
            raise
        is_whole = True
    except (EOFError, OSError) as error:
        raise BadImage(_why(process.end())) from error
    finally:
        if is_whole:
            with _lock:
                _idle.append(process)
        else:
            process.end()


def _take() -> _Process:
    """Return a process that waits, or a new one."""
    while True:
        with _lock:
            process = _idle.pop() if _idle else None
        if process is None:
            return _Process()
        if process.process.poll() is None:
            return process
        process.end()


def _why(code: int) -> str:
    """Say why an image has none, from how its process ended."""
    if code == -signal.SIGXCPU:
        return f"it takes more than {SECONDS} seconds to decode (a decompression bomb?)"
    return "damaged image: the program that decodes it crashed at it"


def _forget() -> None:
    """In a forked process: those that wait are the parent's."""
    global _lock
    _lock = threading.Lock()
    for process in _idle:
        process.connection.close()
    _idle.clear()


def _end_all() -> None:
    while _idle:
        _idle.pop().end()


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def serve(descriptor: int) -> None:
    """Decode images for whoever is at the other end of a connection, until it is closed."""
    import resource

    connection = Connection(descriptor)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError, StopIteration):  # Linux alone has this file
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        begun = next(int(line.split()[1]) for line in lines if line.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (begun * 1024 + _BYTES, resource.RLIM_INFINITY))
    with contextlib.suppress(EOFError, OSError):  # nobody is there any more
        while True:
            request = json.loads(connection.recv_bytes())
            image = connection.recv_bytes() if request["path"] is None else Path(request["path"])
            used = resource.getrusage(resource.RUSAGE_SELF)
            seconds = int(used.ru_utime + used.ru_stime) + 1 + request["seconds"]
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
            size = request["size"]
            try:
                _answer(connection, image, None if size is None else (size[0], size[1]))
            except BadImage as error:
                connection.send_bytes(json.dumps({"error": str(error)}).encode())


def _answer(connection: Connection, image: bytes | Path, size: tuple[int, int] | None) -> None:
    """Open an image, send its header, and its pixels if they are asked for."""

    def tell(**facts: Any) -> None:
        connection.send_bytes(json.dumps(facts).encode())

    with as_bad_image(), checked_file(image) as file, open_image(file) as opened:
        tell(**dataclasses.asdict(Header.of(opened, size)))
        if not json.loads(connection.recv_bytes())["decode"]:
            return
        opened.load()
        tell(shape=(opened.height, opened.width))
        try:
            for strip in strips(opened):
                connection.send_bytes(strip.reshape(-1).data)
        finally:
            connection.send_bytes(b"")
        tell(error=None)
