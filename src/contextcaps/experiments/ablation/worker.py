"""One run of an ablation in a process of its own: trains or goes on, then measures on the test part.

It ends with the process that started it: that one holds the other end of its standard input.
"""

import io
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from contextcaps.atomic import write_atomically
from contextcaps.data.cache import entry_lock
from contextcaps.exit_codes import ExitCode
from contextcaps.training.config import TrainConfig
from contextcaps.training.evaluate import evaluate
from contextcaps.training.failures import TrainingFailure
from contextcaps.training.runs import Run, RunState
from contextcaps.training.trainer import resume, train

__all__ = ["PREDICTIONS", "has_diverged", "is_finished", "is_trained", "main", "work"]

PREDICTIONS = "test_predictions.npz"
"""In a run: scores [n, J], targets [n, J], indices [n] and classes [J] of the images that it was tested on."""


def is_trained(folder: Path) -> bool:
    """Return whether the training in a run's folder has come to its end."""
    return RunState.read(folder).state == "finished" and (folder / "metrics.csv").exists()


def has_diverged(folder: Path) -> bool:
    """Return whether the training in a run's folder has ended in infinite or undefined loss or weights."""
    return RunState.read(folder).has_diverged


def is_finished(folder: Path) -> bool:
    """Return whether a run is trained and tested."""
    return is_trained(folder) and (folder / PREDICTIONS).exists()


def work(folder: Path, job: dict[str, Any]) -> None:
    """Do what is left to do of a run.

    Args:
        folder: the run's.
        job: `config`, the fields of `TrainConfig`; `test`, whether to measure it then; `test_data`, `resamples`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with entry_lock(folder, "run", on_wait=lambda: print("waiting for a process that still saves this run")):
        pass
    if not is_trained(folder):
        if (folder / "config.yaml").is_file():
            resume(folder)
        else:
            train(TrainConfig.from_dict(job["config"]))
    if job["test"] and not is_finished(folder):
        _test(folder, job)


def _test(folder: Path, job: dict[str, Any]) -> None:
    """Measure on the test part; what is needed to compare runs image by image is written last, whole or not at all."""
    measured = evaluate(
        folder,
        job["test_data"],
        out=folder / "evaluation" / "test",
        accelerator=Run.open(folder).config.accelerator,
        resamples=job["resamples"],
    )
    found = measured.predictions
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        scores=found.scores.numpy(),
        targets=found.targets.numpy(),
        indices=found.indices.numpy(),
        classes=np.array(found.classes),
    )
    write_atomically(folder / PREDICTIONS, buffer.getvalue())


def _end_with_parent() -> None:
    """Stop as if asked to once nobody holds the other end of the standard input; a training then saves itself."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Do the job of the command line's second word in the run of its first, and end with the exit code of its failure.

    What went wrong is the last line of the output, for people.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder, job = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    try:
        work(folder, job)
    except KeyboardInterrupt as stopped:
        _end(stopped, ExitCode.INTERRUPTED)
    except TrainingFailure as failure:
        _end(failure, failure.exit_code)
    except (ValueError, ImportError) as error:
        _end(error, ExitCode.BAD_INPUT)
    except OSError as error:
        _end(error, ExitCode.FAILED)


def _end(error: BaseException, code: ExitCode) -> None:
    print(" ".join(str(error).split()) or "stopped", file=sys.stderr)
    raise SystemExit(code) from None
