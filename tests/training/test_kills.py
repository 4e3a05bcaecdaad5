"""Twenty runs, each killed at a random moment and resumed until it ends: twenty identical finals. Takes minutes."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_run import finals, small_words

from contextcaps.training.checkpoints import Checkpoints

_KILLS = 20
_LONGER = {
    "data": "scenes?count=96&size=32",
    "batch_size": 16,
    "epochs": 4,
}
"""So that most kills fall into the training."""


def start(words: list[str]) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "contextcaps.cli", *words, "--quiet"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_for(path: Path, process: subprocess.Popen) -> float:
    """When a process has made a file."""
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.005)
    return time.monotonic()


@pytest.mark.slow
def test_twenty_kills_at_random_moments(tmp_path: Path, capsys) -> None:
    dice, cache = random.Random(0), tmp_path / "cache"
    whole = start(small_words(tmp_path / "whole", cache, **_LONGER))
    begun = wait_for(tmp_path / "whole" / "config.yaml", whole)
    assert whole.wait() == 0
    seconds = time.monotonic() - begun
    expected = finals(tmp_path / "whole")
    kills = attempts = 0
    while kills < _KILLS:
        attempts += 1
        folder = tmp_path / f"run-{attempts}"
        process = start(small_words(folder, cache, **_LONGER))
        wait_for(folder / "config.yaml", process)
        moment = dice.uniform(0, seconds)
        try:
            process.wait(moment)
            continue  # it was quicker this time: no kill
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        kills += 1
        state = Checkpoints(folder / "checkpoints").load()
        step = 0 if state is None else state["progress"]["step"]
        resumed = start(["train", "--resume", str(folder)])
        _, errors = resumed.communicate()
        assert resumed.returncode == 0, errors
        assert finals(folder) == expected
        with capsys.disabled():
            print(f"kill {kills}: {moment:.1f} s after the run began, at step {step}; resumed, identical")
