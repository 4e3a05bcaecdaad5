"""One run of an ablation in a process of its own: trains or goes on, then measures on the test part.

It ends with the process that started it: that one holds the other end of its standard input.
"""

import contextlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

__all__ = ["PREDICTIONS", "has_diverged", "is_finished", "is_trained", "main", "work"]

PREDICTIONS = "test_predictions.npz"
"""In a run: scores [n, J], targets [n, J], indices [n] and classes [J] of the images that it was tested on."""


def is_trained(folder: Path) -> bool:
    """Whether the training in a run's folder has come to its end."""
    with contextlib.suppress(OSError, ValueError):
        facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return facts.get("state") == "finished" and (folder / "metrics.csv").exists()
    return False


def has_diverged(folder: Path) -> bool:
    """Whether the training in a run's folder has ended because its loss or weights became infinite or no numbers."""
    with contextlib.suppress(OSError, ValueError):
        facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        failure = str(facts.get("failure", ""))
        return facts.get("state") == "failed" and failure.startswith(("the loss is", "the weights are no numbers"))
    return False


def is_finished(folder: Path) -> bool:
    """Whether a run is trained and tested."""
    return is_trained(folder) and (folder / PREDICTIONS).exists()


def work(folder: Path, job: dict[str, Any]) -> None:
    """Do what is left to do of a run.

    Args:
        folder: the run's.
        job: `config`, the fields of `TrainConfig`; `test`, whether to measure it then; `test_data`, `resamples`.
    """
    from contextcaps.data.cache import entry_lock
    from contextcaps.training.config import TrainConfig
    from contextcaps.training.trainer import resume, train

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
    import io

    import numpy as np

    from contextcaps.atomic import write_atomically
    from contextcaps.evaluation.evaluate import evaluate
    from contextcaps.training.runs import Run

    config = Run.open(folder).config
    measured = evaluate(
        folder,
        job["test_data"],
        out=folder / "evaluation" / "test",
        accelerator=config.accelerator,
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
    """Do the job of the command line's second word in the run of its first; what goes wrong is the last line said."""
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command line has it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder, job = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    try:
        work(folder, job)
    except KeyboardInterrupt as stopped:
        print(str(stopped) or "stopped", file=sys.stderr)
        raise SystemExit(130) from None
    except (ValueError, ImportError, OSError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        raise SystemExit(1) from None
