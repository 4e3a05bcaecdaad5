"""A run's folder, and the state in its run.json."""

from pathlib import Path

import pytest
from small_run import small_config

from contextcaps.training.runs import Run, RunError, RunState


@pytest.fixture
def run(tmp_path) -> Run:
    return Run.create(small_config(tmp_path / "run", tmp_path))


def test_before_the_training_has_begun(run) -> None:
    assert RunState.read(run.folder) == RunState(None, None, {})
    assert Run.open(run.folder).facts == {}


def test_what_is_recorded_is_read(run) -> None:
    run.record(state="failed", failure={"kind": "diverged", "message": "the loss is nan"})
    state = RunState.read(run.folder)
    assert (state.state, state.failure.kind, state.has_diverged) == ("failed", "diverged", True)
    assert Run.open(run.folder).facts == state.facts == {"seed": 0, **run.facts}
    run.record(state="running", failure=None)
    assert RunState.read(run.folder).failure is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"damaged \(Expecting"),
        ("[]", "expected an object, got list"),
        ('{"state": "done"}', "state: expected one of running, finished, stopped, failed, got 'done'"),
        ('{"failure": "the loss is nan"}', "failure: expected dict, got str"),
        ('{"failure": {"kind": "diverged"}}', "message"),
        ('{"failure": {"kind": "bad luck", "message": ""}}', "failure: expected one of diverged"),
        ('{"parameters": "many"}', "parameters: expected int, got str"),
        ('{"memory": {"where": "GPU"}}', "memory: expected bytes and capacity"),
        ('{"memory": {"where": "process", "bytes": "many"}}', r"memory\.bytes: expected int, got str"),
        ('{"images": {"train": []}}', r"images\.train: expected int, got list"),
        ('{"versions": {"torch": 2}}', r"versions\.torch: expected str, got int"),
        ('{"failure": {"kind": "error", "message": ["a"]}}', r"failure\.message: expected str, got list"),
        ('{"command": "train"}', "command: expected list, got str"),
        ('{"seed": true}', "seed: expected int, got bool"),
        ('{"seed": 1' + 5000 * "0" + "}", "a whole number of 5001 digits"),
        (100_000 * "[", "nested too deeply"),
        ('{"images": null}', "images: expected dict, got NoneType"),
        ('{"state": {}}', "state: expected one of"),
    ],
)
def test_a_damaged_file_is_one_line(run, content, message) -> None:
    Path(run.folder, "run.json").write_text(content)
    for read in (Run.open, RunState.read):
        with pytest.raises(RunError, match=message) as told:
            read(run.folder)
        assert "\n" not in str(told.value)
        assert f"remove it, and write it anew with: contextcaps train --resume {run.folder}" in str(told.value)
