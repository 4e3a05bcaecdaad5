"""Checkpoints on disk: written whole or not at all, and known to be whole before they are used.

The folder holds `last.ckpt`, the one before it as `previous.ckpt`, and `best.ckpt`. Each is what `torch.save` writes, a
zip archive in which every part has a checksum: a file that was cut off or changed is told from a whole one.
"""

import contextlib
import io
import os
import shutil
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from contextcaps.data.cache import synchronise
from contextcaps.plain_files import NotPlain, require_plain

__all__ = ["CheckpointError", "Checkpoints"]


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message says which and why."""


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: made when the first one is saved.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last, self.previous = folder / "last.ckpt", folder / "previous.ckpt"
        self.best = folder / "best.ckpt"

    def save(self, state: dict[str, Any], best: bool = False) -> None:
        """Write a state as the last checkpoint, and let the one that was it be the previous.

        A crash at any moment leaves a whole last or previous one.

        Args:
            state: tensors and plain values.
            best: let it be the best one, too.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / ".last.ckpt.tmp"
        try:
            buffer = io.BytesIO()  # torch's own writer would not say why a disk refused
            torch.save(state, buffer)
            with open(temporary, "wb") as file:
                file.write(buffer.getbuffer())
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            temporary.unlink(missing_ok=True)  # makes room again on a full disk
            raise
        if self.last.exists():
            os.replace(self.last, self.previous)
        os.replace(temporary, self.last)
        if best:
            self.mark_best()
        with contextlib.suppress(OSError):  # some file systems cannot
            synchronise(self.folder)

    def mark_best(self) -> None:
        """Let the last checkpoint be the best one, too; it takes no room of its own where the disk has links."""
        temporary = self.folder / ".best.ckpt.tmp"
        temporary.unlink(missing_ok=True)
        try:
            os.link(self.last, temporary)
        except OSError:
            shutil.copyfile(self.last, temporary)
        os.replace(temporary, self.best)

    def load(self) -> dict[str, Any] | None:
        """Return the newest whole state, whose file is the last one from now on; None if none was ever saved.

        A damaged one is passed over, with a warning.

        Raises:
            CheckpointError: there are some, and none is whole.
        """
        damaged = []
        for path in (self.last, self.previous):
            if not path.exists():
                continue
            try:
                state = self.read(path)
            except CheckpointError as error:
                damaged.append(str(error))
                continue
            for message in damaged:
                warnings.warn(f"{message}; going on from {path.name} instead", stacklevel=2)
            if path != self.last:
                os.replace(path, self.last)  # or the next one to be saved would replace the only whole one
            return state
        if damaged:
            raise CheckpointError(f"{'; '.join(damaged)}; no whole checkpoint is left in {self.folder}")
        return None

    def read(self, path: Path) -> dict[str, Any]:
        """Return one file's state, on the CPU.

        Raises:
            CheckpointError: it is missing, cut off or changed.
        """
        try:
            require_plain(path)
            with zipfile.ZipFile(path) as archive:
                bad = archive.testzip()
            if bad is not None:
                raise CheckpointError(f"{path}: damaged checkpoint ({bad} does not match its checksum)")
            state = torch.load(path, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise CheckpointError(f"{path}: no such checkpoint") from None
        except (CheckpointError, MemoryError):
            raise
        except NotPlain as error:
            raise CheckpointError(str(error)) from None
        except Exception as error:  # at damaged files zipfile and torch raise nearly every kind of error
            why = str(error).partition("\n")[0] or type(error).__name__
            raise CheckpointError(f"{path}: damaged or truncated checkpoint ({why})") from None
        if not isinstance(state, dict):
            raise CheckpointError(f"{path}: damaged checkpoint (expected names and values, got {type(state).__name__})")
        return state
