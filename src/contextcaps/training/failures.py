"""The ways in which a training ends early: one exception for each, its state in run.json, its exit code."""

import contextlib
import errno
import shlex
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch

from contextcaps.exit_codes import ExitCode
from contextcaps.training.runs import FailureKind, Run, now

__all__ = [
    "OUT_OF_MEMORY_ERRORS",
    "DiskFull",
    "Diverged",
    "OutOfMemory",
    "StoppedRun",
    "TrainingFailure",
    "record_failures",
]

OUT_OF_MEMORY_ERRORS = (torch.OutOfMemoryError, MemoryError)
"""The errors of torch and Python that mean it."""


class TrainingFailure(OSError):
    """A training that failed, through no mistake in its input.

    Args:
        message: what happened, where, and what to do.
        folder: the run's; None where there is none, or in another process than rank zero.
    """

    kind: ClassVar[FailureKind] = "error"
    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(self, message: str, folder: Path | None = None) -> None:
        super().__init__(message)
        self.folder = folder


class Diverged(TrainingFailure):
    """The loss or the weights became infinite or no numbers; what was saved before is good."""

    kind = "diverged"
    exit_code = ExitCode.DIVERGED


class OutOfMemory(TrainingFailure):
    """The device or the machine has not enough memory."""

    kind = "out_of_memory"
    exit_code = ExitCode.OUT_OF_MEMORY


class DiskFull(TrainingFailure):
    """There is no room for a checkpoint or another file of the run."""

    kind = "disk_full"


class StoppedRun(KeyboardInterrupt):
    """Somebody stopped the run, and it was saved.

    Args:
        folder: the run's.
        step: steps that were done.
        epoch, epochs: the epoch under way, from 1, and how many there are.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.INTERRUPTED

    def __init__(self, folder: Path, step: int, epoch: int, epochs: int) -> None:
        self.folder, self.step, self.epoch, self.epochs = folder, step, epoch, epochs
        super().__init__(
            f"stopped after step {step} (epoch {epoch} of {epochs}) and saved; go on with: "
            f"contextcaps train --resume {shlex.quote(str(folder))}"
        )


@contextlib.contextmanager
def record_failures(run: Run | None) -> Iterator[None]:
    """Write into the run how a block fails, and raise a `TrainingFailure` where the memory or the disk is full.

    Args:
        run: None in all processes but rank zero.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module")  # nothing is changed in place here
            yield
    except StoppedRun:
        raise
    except KeyboardInterrupt:  # the second one: nothing was saved since the last checkpoint
        _record(run, state="stopped")
        raise
    except BaseException as error:
        failure = _typed(error, run)
        kind = failure.kind if isinstance(failure, TrainingFailure) else "error"
        _record(run, state="failed", failure={"kind": kind, "message": str(failure).partition("\n")[0]})
        if failure is error:
            raise
        raise failure from error


def _record(run: Run | None, **facts: Any) -> None:
    if run is not None and run.facts:
        with contextlib.suppress(OSError):  # of a full disk
            run.record(ended=now(), **facts)


def _typed(error: BaseException, run: Run | None) -> BaseException:
    """The failure that a library's error stands for, or the error itself."""
    if isinstance(error, OUT_OF_MEMORY_ERRORS):
        return OutOfMemory(
            "out of memory; try a smaller --batch-size (with --accumulate for the same step), --precision bf16, or a "
            "smaller head, such as --set capsules.types=8",
            None if run is None else run.folder,
        )
    if run is not None and isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        checkpoints = run.checkpoints
        last = next((path for path in (checkpoints.last, checkpoints.previous) if path.exists()), None)
        kept = "no checkpoint had been saved yet" if last is None else f"the last good checkpoint, {last}, is kept"
        return DiskFull(
            f"{run.folder}: the disk is full; {kept}. Free some space, then go on with: "
            f"contextcaps train --resume {run.folder}",
            run.folder,
        )
    return error


def _show_warning(message: Any, *rest: Any, **named: Any) -> None:
    print(f"warning: {message}", file=sys.stderr, flush=True)
