"""Exceptions for a training that ends early, with their exit codes and their record in run.json; Ctrl-C."""

import contextlib
import errno
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

from contextcaps.exit_codes import ExitCode
from contextcaps.out_of_memory import is_out_of_memory
from contextcaps.training.runs import FailureKind, Run, now

__all__ = [
    "DiskFull",
    "Diverged",
    "Interruption",
    "LostProcess",
    "OutOfMemory",
    "StoppedRun",
    "TrainingFailure",
    "record_failures",
]


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


class LostProcess(TrainingFailure):
    """Another process of the same training has ended, and this one cannot go on without it."""


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


class Interruption:
    """Catches SIGINT and SIGTERM inside its block: the first sets `asked`, a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():  # signals reach no other
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
        print("\ncontextcaps: stopping after this step; once more to stop at once", file=sys.stderr, flush=True)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def record_failures(run: Run | None) -> Iterator[None]:
    """Write into the run how a block fails, and raise a `TrainingFailure` where the memory or the disk is full.

    What torch.compile could not do becomes a `ValueError`, since --compile asked for it.

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
    """Return the failure that a library's error stands for, or the error itself."""
    if is_out_of_memory(error):
        return OutOfMemory(
            "out of memory; a run keeps its settings, so train anew in another folder (--out) with a smaller "
            "--batch-size (and --accumulate for the same step), --precision bf16, or a smaller head, such as "
            "--set capsules.types=8",
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
    if _is_of_lost_process(error):
        go_on = "" if run is None else f"; go on with: contextcaps train --resume {run.folder}"
        return LostProcess(
            f"another process of this training has ended (killed, or out of memory?); what it said is above{go_on}",
            None if run is None else run.folder,
        )
    if _is_of_compiler(error):
        why = str(getattr(error, "inner_exception", error)).strip().partition("\n")[0]
        return ValueError(
            f"compile: torch.compile failed ({why}); it needs a C++ compiler, and Triton on a GPU: install what is "
            "missing, or train without --compile"
        )
    return error


def _is_of_lost_process(error: BaseException) -> bool:
    """Return whether an error says that a process of the group has gone; Gloo says so in its text alone."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not isinstance(error, RuntimeError):
        return False
    text = str(error)
    by_gloo = "gloo/transport" in text or "Connection closed by peer" in text or "Connection reset by peer" in text
    return by_gloo or isinstance(error, distributed.DistBackendError | distributed.DistNetworkError)


def _is_of_compiler(error: BaseException) -> bool:
    """Return whether torch.compile raised an error; its module is there only once something is to be compiled."""
    module = sys.modules.get("torch._dynamo.exc")
    return module is not None and isinstance(error, module.BackendCompilerFailed)


def _show_warning(message: Any, *rest: Any, **named: Any) -> None:
    print(f"warning: {message}", file=sys.stderr, flush=True)
