"""What goes wrong in a training, told in one message that says what is left, and written into the run."""

import contextlib
import errno
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from contextcaps.training.loop import StoppedRun
from contextcaps.training.runs import Run, now

__all__ = ["failures_told"]


@contextlib.contextmanager
def failures_told(run: Run | None) -> Iterator[None]:
    """A block whose failures are recorded in the run; those of the disk and the memory become an `OSError`.

    Args:
        run: None in all processes but the first.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module")  # nothing is changed in place here
            yield
    except StoppedRun:
        raise
    except BaseException as error:
        if run is not None and run.facts:
            with contextlib.suppress(OSError):  # of a full disk
                run.record(state="failed", ended=now(), failure=str(error).partition("\n")[0])
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
            raise OSError(
                "out of memory; try a smaller --batch-size (with --accumulate for the same step), --precision bf16, "
                "or a smaller head, such as --set capsules.types=8"
            ) from error
        if run is not None and isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(run) from error
        raise


def _disk_full(run: Run) -> OSError:
    checkpoints = run.checkpoints
    last = next((path for path in (checkpoints.last, checkpoints.previous) if path.exists()), None)
    kept = "no checkpoint had been saved yet" if last is None else f"the last good checkpoint, {last}, is kept"
    return OSError(
        f"{run.folder}: the disk is full; {kept}. Free some space, then go on with: "
        f"contextcaps train --resume {run.folder}"
    )


def _show_warning(message: Any, *rest: Any, **named: Any) -> None:
    print(f"warning: {message}", file=sys.stderr, flush=True)
