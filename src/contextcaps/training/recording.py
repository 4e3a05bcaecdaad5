"""Records of a run as it goes, for the disk and for people: metrics, curves, TensorBoard, a bar or lines."""

import contextlib
import csv
import io
import math
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from contextcaps.atomic import write_atomically
from contextcaps.extras import import_extra
from contextcaps.training.curves import write_curves
from contextcaps.training.memory import peak_memory
from contextcaps.training.runs import Run

__all__ = ["Recorder", "SilentRecorder", "metrics_table"]

_LINE_EVERY = 20.0  # seconds between two lines where there is no bar
_DRAW_EVERY = 10.0  # seconds between two drawings of the curves, which take 0.2 s: as long as a short epoch on a GPU
Record = dict[str, float]


class SilentRecorder:
    """Records and shows nothing: for all processes but one."""

    def begin_epoch(self, epoch: int, batch: int, batches: int) -> None: ...

    def count(self, images: int) -> None: ...

    def show_loss(self, step: int, loss: float, learning_rate: float) -> None: ...

    def validating(self, images: int) -> None: ...

    def end_epoch(self, history: list[Record]) -> None: ...

    def warn(self, message: str) -> None: ...

    def close(self) -> None: ...


class Recorder(SilentRecorder):
    """Writes metrics.csv, timing.csv, curves.png and TensorBoard's files, and shows progress on the error stream.

    metrics.csv is written anew from the whole history after each epoch, so that a resumed run has the same rows as one
    that was never stopped; what differs from run to run, the seconds, is in timing.csv. The curves follow within
    seconds, and at the end.

    Args:
        run: whose folder.
        step: the optimiser's steps so far; TensorBoard forgets what a stopped run wrote after it.
        history: of the epochs so far.
        progress: show something at all.
        describe: the run in a few words, for the curves' title.
    """

    def __init__(self, run: Run, step: int, history: list[Record], progress: bool, describe: str) -> None:
        self.run, self.describe = run, describe
        self.console = Console(stderr=True)
        self.progress = progress
        tensorboard = import_extra("torch.utils.tensorboard", "train", "curves in TensorBoard")
        self.board = tensorboard.SummaryWriter(str(run.folder / "tensorboard"), purge_step=step + 1 if step else None)
        if step == 0:
            self.board.add_text("configuration", f"```\n{run.config.to_yaml()}```")
        self.best = max((record["val_mAP"] for record in history), default=0.0)
        self._to_draw: list[Record] = []
        self._drawn_at = -math.inf
        if history:
            self._write(history)
            self._forget_timing(len(history))
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._started = self._line_at = self._epoch_at = time.monotonic()
        self._images = self._epoch_images = 0
        self._loss: float | None = None
        self._epoch = self._done = self._batches = 0
        self._trained_at = self._epoch_at

    def begin_epoch(self, epoch: int, batch: int, batches: int) -> None:
        """Begin an epoch, or go on with it at a batch."""
        self._epoch, self._done, self._batches = epoch, batch, batches
        self._epoch_at, self._epoch_images = time.monotonic(), 0
        self._trained_at = self._epoch_at
        if not self.progress or not self.console.is_terminal:
            return
        if self._bar is None:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=self.console, expand=True)
            self._bar.start()
            total = self.run.config.epochs * batches
            self._task = self._bar.add_task("training", total=total, completed=epoch * batches + batch, facts="")

    def count(self, images: int) -> None:
        """Count a batch of so many images as done."""
        self._images += images
        self._epoch_images += images
        self._done += 1
        now = time.monotonic()
        where = f"epoch {self._epoch + 1}/{self.run.config.epochs}"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=1, description=where, facts=self._facts(now))
        elif self.progress and now - self._line_at >= _LINE_EVERY:
            self._line_at = now
            batches_left = (self.run.config.epochs - self._epoch) * self._batches - self._done
            left = _duration(batches_left * images * max(now - self._started, 1e-3) / self._images)
            self._print(f"{where}, batch {self._done}/{self._batches}: {self._facts(now)}, {left} left")

    def _facts(self, now: float) -> str:
        loss = "" if self._loss is None else f"loss {self._loss:.3f}, "
        best = f"best mAP {100 * self.best:.1f} %, " if self.best else ""
        return f"{loss}{best}{self._epoch_images / max(now - self._epoch_at, 1e-3):,.0f} images/s"

    def show_loss(self, step: int, loss: float, learning_rate: float) -> None:
        """Show and log the loss of the last batch; the epoch's last call is when its training ended, for timing.csv."""
        self._trained_at = time.monotonic()
        self._loss = loss if self._loss is None else 0.9 * self._loss + 0.1 * loss
        if step % self.run.config.log_steps == 0 or step == 1:
            self.board.add_scalar("train/loss", loss, step)
            self.board.add_scalar("train/learning_rate", learning_rate, step)

    def validating(self, images: int) -> None:
        """Show that the validation is under way."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=f"validating {self._epoch + 1}/{self.run.config.epochs}")

    def end_epoch(self, history: list[Record]) -> None:
        """Record a validated epoch: metrics, curves, timing, memory, TensorBoard, and a line for people."""
        record, seconds = history[-1], time.monotonic() - self._epoch_at
        self._write(history)
        timing = self.run.folder / "timing.csv"
        is_new = not timing.exists()
        with open(timing, "a", encoding="utf-8") as file:
            if is_new:
                file.write("epoch,images,training_seconds,seconds_with_validation,images_per_second,seed\n")
            training, rate = self._trained_at - self._epoch_at, self._epoch_images / max(seconds, 1e-3)
            times = f"{self._epoch_images},{training:.3f},{seconds:.2f},{rate:.1f}"
            file.write(f"{record['epoch']},{times},{self.run.config.seed}\n")
        self.run.record(memory=peak_memory(self.run.facts.get("memory")))
        for name, value in record.items():
            if name not in ("epoch", "step", "learning_rate"):
                part, _, rest = name.partition("_")
                curve = f"{part}/epoch_{rest}" if part == "train" else f"{part}/{rest}"
                self.board.add_scalar(curve, value, int(record["step"]))
        self.board.flush()
        before, self.best = self.best, max(each["val_mAP"] for each in history)
        if self.progress:
            better = " (best so far)" if self.best > before and len(history) > 1 else ""
            self._print(
                f"epoch {record['epoch']:.0f}/{self.run.config.epochs}: loss {record['train_loss']:.3f}, validation "
                f"loss {record['val_loss']:.3f}, mAP {100 * record['val_mAP']:.2f} %{better}, "
                f"constant prior {100 * record['prior_mAP']:.2f} %, {_duration(seconds)}"
            )

    def _write(self, history: list[Record]) -> None:
        """Write metrics.csv and, if it is time, curves.png from the whole history."""
        write_atomically(self.run.folder / "metrics.csv", metrics_table(history, self.run.config.seed))
        self._to_draw = history
        if time.monotonic() - self._drawn_at >= _DRAW_EVERY:
            self._draw()

    def _draw(self) -> None:
        write_curves(self._to_draw, self.run.folder / "curves.png", self.describe, self.run.config.seed)
        self._to_draw, self._drawn_at = [], time.monotonic()

    def _forget_timing(self, epochs: int) -> None:
        """Drop the rows of timing.csv for epochs that will be trained again."""
        path = self.run.folder / "timing.csv"
        if path.exists():
            heading, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if int(line.partition(",")[0]) <= epochs]
            write_atomically(path, "".join([heading, *kept]))

    def warn(self, message: str) -> None:
        """Print a warning, and append it to warnings.log."""
        self._print(f"warning: {message}")
        with open(self.run.folder / "warnings.log", "a", encoding="utf-8") as file:
            file.write(f"{message} (seed {self.run.config.seed})\n")

    def _print(self, text: str) -> None:
        """Print a line on the error stream, above the bar where there is one."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self.board.close()
        if self._to_draw:
            with contextlib.suppress(OSError):  # of a run that fails, the failure is to be told, not the picture's
                self._draw()


def metrics_table(history: list[Record], seed: int) -> str:
    """Return the history as CSV text, one row per epoch, numbers in full."""
    text = io.StringIO()
    columns = [*history[0], "seed"]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for record in history:
        writer.writerow({**{name: repr(value) for name, value in record.items()}, "seed": seed})
    return text.getvalue()


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
