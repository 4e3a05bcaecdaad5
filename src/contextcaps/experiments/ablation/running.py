"""The runs of a grid as processes: several at once where they fit, failures noted, the rest going on."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Any

from contextcaps.atomic import write_atomically
from contextcaps.exit_codes import ExitCode
from contextcaps.experiments.ablation.grid import check_run
from contextcaps.experiments.ablation.results import runs_beside
from contextcaps.experiments.ablation.watching import Watch
from contextcaps.experiments.ablation.worker import has_diverged, is_finished, is_trained
from contextcaps.training.config import TrainConfig
from contextcaps.training.runs import Run, RunState

__all__ = ["AtOnce", "Failure", "Job", "Runner"]

AtOnce = int | None
"""How many at once; None: as many as fit on the GPU, by the memory of those that have run, and 1 on a CPU."""

_MOST_AT_ONCE = 4  # beyond, processes on one GPU only wait for each other
_CONTEXT = 0.75 * 2**30  # bytes of GPU memory that a process needs before its first tensor
_WORKER = "from contextcaps.experiments.ablation.worker import main; main()"
_PAUSE = 0.2  # seconds between two looks


@dataclasses.dataclass(frozen=True)
class Job:
    """One run to be done."""

    name: str
    """Such as "contextcaps, seed 1"."""
    folder: Path
    config: TrainConfig
    test: bool
    test_data: str | None = None
    resamples: int | None = None

    @property
    def is_done(self) -> bool:
        if self.test:
            return is_finished(self.folder)
        return is_trained(self.folder) or has_diverged(self.folder)  # a try that diverged is an answer, too

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    def order(self) -> dict[str, Any]:
        """Return what `worker.work` does it by."""
        return {
            "config": self.config.to_dict(),
            "test": self.test,
            "test_data": self.test_data,
            "resamples": self.resamples,
        }

    def last_line(self) -> str:
        """Return the last line of its log, which tells a person what went wrong, if something did."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        return "no output"


@dataclasses.dataclass(frozen=True)
class Failure:
    """A run that failed."""

    name: str
    why: str
    log: Path


@dataclasses.dataclass
class _Running:
    job: Job
    process: subprocess.Popen
    log: IO[bytes]
    begun: float


class Runner:
    """Does jobs.

    Args:
        at_once: how many at a time.
        watch: told what happens.
    """

    def __init__(self, at_once: AtOnce, watch: Watch) -> None:
        self.at_once, self.watch = at_once, watch
        self.failures: list[Failure] = []
        self._running: list[_Running] = []
        self._stops = 0
        self._peak: dict[str, float] = {}  # bytes and capacity, of the hungriest run so far

    def run(self, jobs: Iterable[Job]) -> None:
        """Do all jobs that are not done.

        Raises:
            KeyboardInterrupt: somebody pressed Ctrl-C; the runs under way were saved.
        """
        waiting = []
        for job in jobs:
            if (job.folder / "config.yaml").is_file():
                check_run(job.config, Run.open(job.folder).config)
            self.watch.add(job.name, job.folder, job.config.epochs, job.is_done)
            self._learn_memory(job.folder)
            if not job.is_done:
                waiting.append(job)
        alone: list[Job] = []  # did not fit beside others
        with self._signals():
            while waiting or self._running or alone:
                if not waiting and not self._running:
                    waiting, alone, self.at_once = alone, [], 1
                while waiting and len(self._running) < self._room() and not self._stops:
                    self._start(waiting.pop(0))
                time.sleep(_PAUSE)
                shared = len(self._running) > 1  # before any is taken off: two may end in one look
                for ended in [each for each in self._running if each.process.poll() is not None]:
                    self._running.remove(ended)
                    if self._take_result(ended, shared):
                        alone.append(ended.job)
                self.watch.look()
                if self._stops and not self._running:
                    raise KeyboardInterrupt

    def _room(self) -> int:
        """Return how many may run now."""
        if self.at_once is not None:
            return self.at_once
        for each in self._running:
            self._learn_memory(each.job.folder)
        if not self._peak:
            return 1
        return max(1, min(_MOST_AT_ONCE, int(0.9 * self._peak["capacity"] // (self._peak["bytes"] + _CONTEXT))))

    def _learn_memory(self, folder: Path) -> None:
        """Note what a run has needed of a GPU, if it was more than that of the runs before."""
        memory = RunState.read(folder).facts.get("memory", {})
        if memory.get("where") == "GPU" and memory["bytes"] > self._peak.get("bytes", 0):
            self._peak = {"bytes": memory["bytes"], "capacity": memory["capacity"]}

    def _start(self, job: Job) -> None:
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        order = job.folder.with_name(f"{job.folder.name}.json")
        now = max(len(self._running), self._room() - 1 if self.at_once else 0)
        # Gone on with, a run has times from before, too.
        content = {**job.order(), "beside": max(now, runs_beside(job.folder))}
        write_atomically(order, json.dumps(content, indent=2) + "\n")
        environment = {"GOMP_SPINCOUNT": "1000", **os.environ}  # as the command line has it
        if self._room() > 1 and "OMP_NUM_THREADS" not in environment:
            environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // self._room()))
        log = open(job.log, "ab")  # noqa: SIM115  # closed when the process has ended
        words = [sys.executable, "-c", _WORKER, str(job.folder), str(order)]
        # A session of its own: Ctrl-C reaches this process alone, which then asks the others to stop.
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, start_new_session=True
        )
        self._running.append(_Running(job, process, log, time.monotonic()))
        self.watch.begin(job.name)

    def _take_result(self, ended: _Running, shared: bool) -> bool:
        """Note how a process has ended; return whether its run should be tried again alone."""
        ended.log.close()
        if ended.process.stdin is not None:
            ended.process.stdin.close()
        job, seconds = ended.job, time.monotonic() - ended.begun
        code = ended.process.returncode
        if code == ExitCode.DONE and job.is_done:
            self.watch.end(job.name, seconds)
            return False
        if self._stops:
            return False
        why = job.last_line()
        if job.is_done:
            self.watch.fail(job.name, why)
            return False
        if code < 0:
            why = f"killed by signal {-code}; {why}"
        if shared and code == ExitCode.OUT_OF_MEMORY:
            self.watch.say(f"{job.name}: out of memory beside others; it is done alone later")
            return True
        self.failures.append(Failure(job.name, why, job.log))
        self.watch.fail(job.name, why)
        return False

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Ask all runs to stop and save on Ctrl-C or termination, and kill them on a second one."""
        before: dict[signal.Signals, Any] = {}

        def note(number: int, frame: FrameType | None) -> None:
            self._stops += 1
            self.watch.say("stopping: the runs under way are saved; once more to stop at once")
            self._signal(signal.SIGTERM if self._stops == 1 else signal.SIGKILL)

        with contextlib.suppress(ValueError):  # signals reach the main thread alone
            for each in (signal.SIGINT, signal.SIGTERM):
                before[each] = signal.signal(each, note)
        try:
            yield
        finally:
            self._signal(signal.SIGTERM)
            for each, handler in before.items():
                signal.signal(each, handler)

    def _signal(self, number: signal.Signals) -> None:
        for each in self._running:
            if each.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    each.process.send_signal(number)
