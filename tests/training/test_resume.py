"""A run that was stopped at any moment and resumed ends as one that was never stopped, bit for bit."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from small_run import finals, quick_runs, rows, small_config, small_words

from contextcaps.training.checkpoints import CheckpointError, Checkpoints
from contextcaps.training.failures import DiskFull, Diverged, StoppedRun
from contextcaps.training.loop import TrainingLoop
from contextcaps.training.runs import Run, RunError, RunState
from contextcaps.training.trainer import resume, train

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with quick_runs():
        yield


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache):
    """A run that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(small_config(folder, cache), progress=False)
    return finals(folder)


class Killed(BaseException):
    """Stands for a SIGKILL in this process: nothing catches it."""


def die_after(monkeypatch, method: str, when, folder: Path, cache: Path, **changes) -> None:
    """Train into a folder until, after a call of a method of the loop, `when` is true of the loop: then be killed."""
    original = getattr(TrainingLoop, method)

    def call_and_die(loop, *arguments, **named) -> None:
        original(loop, *arguments, **named)
        if when(loop):
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, method, call_and_die)
        with pytest.raises(Killed):
            train(small_config(folder, cache, **changes), progress=False)


def test_the_same_seed_gives_the_same_bits_and_resuming_the_end_changes_nothing(tmp_path, cache, whole) -> None:
    train(small_config(tmp_path / "run", cache), progress=False)
    assert finals(tmp_path / "run") == whole
    resume(tmp_path / "run", progress=False)
    assert finals(tmp_path / "run") == whole


def test_another_seed_gives_others(tmp_path, cache, whole) -> None:
    train(small_config(tmp_path / "run", cache, seed=1), progress=False)
    assert finals(tmp_path / "run")["model"] != whole["model"]


@pytest.mark.parametrize("step", [1, 6, 7, 17])
def test_killed_after_a_step(tmp_path, cache, whole, monkeypatch, step) -> None:
    """The first step, the end of an epoch, the beginning of the next, and a step in the last one."""
    die_after(monkeypatch, "_after_step", lambda loop: loop.progress.step == step, tmp_path / "run", cache)
    resume(tmp_path / "run", progress=False)
    assert finals(tmp_path / "run") == whole


@pytest.mark.parametrize("moment", ["before the file has its name", "between the names", "before it is the best"])
def test_killed_while_saving(tmp_path, cache, whole, monkeypatch, moment) -> None:
    """The eighth checkpoint: the end of the second epoch is the twelfth, the first epoch's end the sixth."""
    replace, count = os.replace, 0

    def replace_or_die(source, target, *rest) -> None:
        nonlocal count
        name = os.path.basename(target)
        if name == "last.ckpt":
            count += 1
        if (
            (moment == "before the file has its name" and name == "previous.ckpt" and count == 8)
            or (moment == "between the names" and name == "last.ckpt" and count == 8)
            or (moment == "before it is the best" and name == "best.ckpt" and count >= 6)
        ):
            raise Killed
        replace(source, target, *rest)

    monkeypatch.setattr(os, "replace", replace_or_die)
    with pytest.raises(Killed):
        train(small_config(tmp_path / "run", cache), progress=False)
    monkeypatch.undo()
    resume(tmp_path / "run", progress=False)
    assert finals(tmp_path / "run") == whole


def test_killed_again_and_again(tmp_path, cache, whole, monkeypatch) -> None:
    """With a checkpoint at every second step, so that steps are lost and made again."""
    attend, alive = TrainingLoop._after_step, 0

    def act_and_die(loop) -> None:
        nonlocal alive
        attend(loop)
        alive += 1
        if alive == 3:
            raise Killed

    config = small_config(tmp_path / "run", cache, checkpoint_steps=2)
    monkeypatch.setattr(TrainingLoop, "_after_step", act_and_die)
    with pytest.raises(Killed):
        train(config, progress=False)
    for _ in range(50):
        alive = 0
        try:
            resume(tmp_path / "run", progress=False)
        except Killed:
            continue
        break
    assert finals(tmp_path / "run") == whole


def test_killed_while_gradients_accumulate(tmp_path, cache, monkeypatch) -> None:
    """Checkpoints lie between steps of the optimiser; four does not divide the six batches, and the fifth is lost."""
    settings = {"accumulate": 4, "epochs": 2}
    train(small_config(tmp_path / "whole", cache, **settings), progress=False)
    trained: list[int] = []

    def fifth(loop) -> bool:
        trained.append(loop.progress.batch)
        return len(trained) == 5

    die_after(monkeypatch, "_train_batch", fifth, tmp_path / "run", cache, **settings)
    assert Checkpoints(tmp_path / "run" / "checkpoints").load()["progress"]["batch"] == 4
    resume(tmp_path / "run", progress=False)
    assert finals(tmp_path / "run") == finals(tmp_path / "whole")


@pytest.mark.parametrize("left", [0.0, 0.5, 0.999])
def test_a_truncated_checkpoint_is_passed_over(tmp_path, left) -> None:
    checkpoints = Checkpoints(tmp_path)
    for number in range(2):
        checkpoints.save({"a": torch.full((1000,), number)})
    os.truncate(checkpoints.last, int(checkpoints.last.stat().st_size * left))
    with pytest.warns(UserWarning, match=r"last\.ckpt: damaged.*going on from previous\.ckpt"):
        assert int(checkpoints.load()["a"][0]) == 0


@pytest.mark.filterwarnings("default::UserWarning")
def test_a_truncated_checkpoint_costs_one_step(tmp_path, cache, whole, monkeypatch, capsys) -> None:
    die_after(monkeypatch, "_after_step", lambda loop: loop.progress.step == 9, tmp_path / "run", cache)
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    os.truncate(last, int(last.stat().st_size * 0.999))
    resume(tmp_path / "run", progress=False)
    told = capsys.readouterr().err
    assert "last.ckpt" in told
    assert "going on from previous.ckpt" in told
    assert finals(tmp_path / "run") == whole


@pytest.mark.filterwarnings("default::UserWarning")
def test_a_truncated_last_and_best_then_a_stop(tmp_path, cache, whole, monkeypatch, capsys) -> None:
    """The best one shares the last one's file after each epoch that is the best."""
    folder = tmp_path / "run"
    die_after(monkeypatch, "_save", _epoch_ended_at(12), folder, cache)
    last = folder / "checkpoints" / "last.ckpt"
    os.truncate(last, last.stat().st_size // 2)
    train_batch, count = TrainingLoop._train_batch, 0

    def train_and_signal(loop, *arguments) -> None:
        nonlocal count
        count += 1
        if count == 1:
            os.kill(os.getpid(), signal.SIGINT)
        train_batch(loop, *arguments)

    monkeypatch.setattr(TrainingLoop, "_train_batch", train_and_signal)
    with pytest.raises(StoppedRun, match="--resume"):
        resume(folder, progress=False)
    monkeypatch.undo()
    checkpoints = Checkpoints(folder / "checkpoints")
    assert checkpoints.read(checkpoints.last)
    assert checkpoints.read(checkpoints.previous)
    resume(folder, progress=False)
    assert finals(folder) == whole


def _epoch_ended_at(step: int):
    return lambda loop: loop.progress.step == step and loop.progress.batch == 0


@pytest.mark.parametrize("step", [12, 18])
def test_killed_right_after_the_end_of_an_epoch_was_saved(tmp_path, cache, whole, monkeypatch, step) -> None:
    """18 is the last one: nothing is left but the export."""
    die_after(monkeypatch, "_save", _epoch_ended_at(step), tmp_path / "run", cache)
    resume(tmp_path / "run", progress=False)
    assert finals(tmp_path / "run") == whole


def test_killed_before_the_end_of_the_last_epoch_was_saved(tmp_path, cache, whole, monkeypatch) -> None:
    """Its metrics were written already, and are written again."""
    save = TrainingLoop._save

    def save_or_die(loop, best=False) -> None:
        if loop.progress.epoch == 3:
            raise Killed
        save(loop, best)

    monkeypatch.setattr(TrainingLoop, "_save", save_or_die)
    with pytest.raises(Killed):
        train(small_config(tmp_path / "run", cache), progress=False)
    monkeypatch.undo()
    assert len(rows(tmp_path / "run")) == 3
    resume(tmp_path / "run", progress=False)
    assert finals(tmp_path / "run") == whole
    timing = (tmp_path / "run" / "timing.csv").read_text().splitlines()
    assert [line.partition(",")[0] for line in timing] == ["epoch", "1", "2", "3"]


def test_streaming_past_bad_images_resumes_as_well(tmp_path, monkeypatch) -> None:
    """A batch of which no image can be read is passed over, and counted."""
    from PIL import Image

    lines = ["image,labels"]
    for number in range(40):
        name = f"{number}.png"
        if number % 8 == 3:
            (tmp_path / name).write_bytes(b"no image")
        else:
            Image.new("RGB", (32, 32), (6 * number, 99, 255 - 6 * number)).save(tmp_path / name)
        lines.append(f"{name},{'dark' if number < 20 else 'light'}")
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    settings = {"data": f"table:{tmp_path / 'table.csv'}", "prepare": False, "on_bad": "skip", "batch_size": 1}
    settings |= {"epochs": 2, "accumulate": 3, "model": "capsnet"}
    train(small_config(tmp_path / "whole", tmp_path, **settings), progress=False)
    die_after(monkeypatch, "_step", lambda loop: loop.progress.step == 14, tmp_path / "run", tmp_path, **settings)
    resume(tmp_path / "run", progress=False)
    assert finals(tmp_path / "run") == finals(tmp_path / "whole")


def test_no_whole_checkpoint_is_an_error(tmp_path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"a": torch.ones(3)})
    checkpoints.save({"a": torch.zeros(3)})
    for path in (checkpoints.last, checkpoints.previous):
        os.truncate(path, 100)
    with pytest.raises(CheckpointError, match="no whole checkpoint is left"):
        checkpoints.load()


def test_a_changed_byte_is_noticed(tmp_path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"a": torch.arange(1000)})
    content = bytearray(checkpoints.last.read_bytes())
    place = content.find(torch.arange(500, 502).numpy().tobytes())
    content[place] ^= 1
    checkpoints.last.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoints.read(checkpoints.last)


class _Strange:
    """Something that is no tensor and no plain value."""


@pytest.mark.parametrize(
    "content",
    [
        pytest.param({"a": _Strange()}, id="what only unpickling makes"),  # would be code to run
        pytest.param([torch.zeros(3)], id="a list"),
        pytest.param(b"PK\x03\x04" + 100 * b"\0", id="no archive"),
    ],
)
def test_whatever_is_no_checkpoint_is_passed_over(tmp_path, content) -> None:
    checkpoints = Checkpoints(tmp_path)
    for number in range(2):
        checkpoints.save({"a": torch.full((10,), number)})
    if isinstance(content, bytes):
        checkpoints.last.write_bytes(content)
    else:
        torch.save(content, checkpoints.last)
    with pytest.warns(UserWarning, match=r"last\.ckpt: damaged.*going on from previous\.ckpt"):
        assert int(checkpoints.load()["a"][0]) == 0


def test_a_pickle_damaged_behind_a_right_checksum_is_passed_over(tmp_path) -> None:
    """For 100 archives with one byte of the pickle changed, and its checksum with it: whole, or passed over."""
    checkpoints = Checkpoints(tmp_path)
    for number in range(2):
        checkpoints.save({"a": torch.full((10,), number), "progress": {"step": number, "history": [{"mAP": 0.5}]}})
    whole, previous = checkpoints.last.read_bytes(), checkpoints.previous.read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(100):
        checkpoints.previous.write_bytes(previous)
        with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(checkpoints.last, "w") as new:
            for name in old.namelist():
                content = bytearray(old.read(name))
                if name.endswith("data.pkl"):
                    content[generator.integers(len(content))] = generator.integers(256)
                new.writestr(name, bytes(content))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert isinstance(checkpoints.load(), dict)


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path, cache, whole, monkeypatch) -> None:
    import builtins

    opened, count = builtins.open, 0

    class Full:
        def __init__(self, file) -> None:
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *error) -> None:
            self.file.close()

        def write(self, content) -> None:
            self.file.write(content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")

    def open_full(path, mode="r", *rest, **named):
        nonlocal count
        file = opened(path, mode, *rest, **named)
        if str(path).endswith(".last.ckpt.tmp"):
            count += 1
            if count == 9:
                return Full(file)
        return file

    monkeypatch.setattr(builtins, "open", open_full)
    with pytest.raises(DiskFull, match=r"the disk is full; the last good checkpoint, .*last\.ckpt, is kept.*--resume"):
        train(small_config(tmp_path / "run", cache), progress=False)
    monkeypatch.undo()
    assert RunState.read(tmp_path / "run").failure.kind == "disk_full"
    folder = tmp_path / "run" / "checkpoints"
    assert not list(folder.glob(".*.tmp"))
    assert Checkpoints(folder).load()["progress"]["step"] == 8
    resume(tmp_path / "run", progress=False)
    assert finals(tmp_path / "run") == whole


def test_a_signal_finishes_the_step_saves_and_says_how_to_go_on(tmp_path, cache, whole, monkeypatch) -> None:
    """SIGTERM; SIGINT is sent in the tests above and below."""
    train_batch, count, number = TrainingLoop._train_batch, 0, signal.SIGTERM

    def train_and_signal(loop, *arguments) -> None:
        nonlocal count
        count += 1
        if count == 9:
            os.kill(os.getpid(), number)
        train_batch(loop, *arguments)

    monkeypatch.setattr(TrainingLoop, "_train_batch", train_and_signal)
    before = signal.getsignal(number)
    with pytest.raises(StoppedRun, match=rf"step 9 .*contextcaps train --resume {tmp_path}") as stopped:
        train(small_config(tmp_path / "run", cache, checkpoint_steps=0), progress=False)
    assert (stopped.value.folder, stopped.value.step, stopped.value.epoch) == (tmp_path / "run", 9, 2)
    assert signal.getsignal(number) is before
    monkeypatch.undo()
    assert Run.open(tmp_path / "run").facts["state"] == "stopped"
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()  # the best so far can be used
    resume(tmp_path / "run", progress=False)
    assert finals(tmp_path / "run") == whole


def test_a_signal_during_the_validation(tmp_path, cache, whole, monkeypatch) -> None:
    from contextcaps.training.validation import Validation

    call, count = Validation.__call__, 0

    def call_and_signal(validation, network, check) -> None:
        nonlocal count
        count += 1
        if count == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return call(validation, network, check)

    monkeypatch.setattr(Validation, "__call__", call_and_signal)
    with pytest.raises(StoppedRun, match="step 12"):
        train(small_config(tmp_path / "run", cache), progress=False)
    monkeypatch.undo()
    assert len(rows(tmp_path / "run")) == 1
    resume(tmp_path / "run", progress=False)
    assert finals(tmp_path / "run") == whole


def test_stopped_before_it_began(tmp_path, cache, monkeypatch) -> None:
    """While images are prepared, say: nothing is left, and the same command can be given again."""
    from contextcaps.training.data import Part

    def interrupted(part, config, progress=True) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Part, "prepare", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(small_config(tmp_path / "run", cache), progress=False)
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_no_number_stops_the_run(tmp_path, cache, monkeypatch) -> None:
    from contextcaps.training.step import TaggingModule

    step = TaggingModule.training_step

    def spoil(module, batch, index):
        if (batch.batch.epoch, batch.batch.step) == (1, 2):
            next(module.network.head.votes.parameters()).data[0] = float("nan")
        return step(module, batch, index)

    monkeypatch.setattr(TaggingModule, "training_step", spoil)
    with pytest.raises(Diverged, match=r"the loss is nan at step 9 \(epoch 2\); the last good checkpoint is .*last"):
        train(small_config(tmp_path / "run", cache), progress=False)
    state = Checkpoints(tmp_path / "run" / "checkpoints").load()
    assert state["progress"]["step"] == 8
    assert all(bool(weight.isfinite().all()) for weight in state["network"].values())
    assert RunState.read(tmp_path / "run").has_diverged


@pytest.mark.parametrize(("clip", "step"), [(1.0, 8), (0.0, 12)])
def test_a_gradient_that_is_no_number_is_never_saved(tmp_path, cache, monkeypatch, clip, step) -> None:
    """Also in the last step of an epoch, after which no loss would tell."""
    take = TrainingLoop._step

    def spoil(loop) -> None:
        if loop.progress.step + 1 == step:
            loop.network.head.votes.weight.grad.fill_(float("nan"))
        take(loop)

    monkeypatch.setattr(TrainingLoop, "_step", spoil)
    with pytest.raises(Diverged, match=rf"no numbers any more at step {step} .*the last good checkpoint is"):
        train(small_config(tmp_path / "run", cache, clip=clip, ema=0.0), progress=False)
    state = Checkpoints(tmp_path / "run" / "checkpoints").load()
    assert state["progress"]["step"] == step - 1
    assert all(bool(weight.isfinite().all()) for weight in state["network"].values())


def test_two_trainings_in_one_folder(tmp_path, cache) -> None:
    config = small_config(tmp_path / "run", cache, epochs=1)
    run = Run.create(config)
    with pytest.raises(RunError, match="holds a run already"):
        train(config, progress=False)
    with run.locked(), pytest.raises(RunError, match="another training is writing into this run"):
        resume(tmp_path / "run", progress=False)
    resume(tmp_path / "run", progress=False)  # one that was killed before its first checkpoint
    assert len(rows(tmp_path / "run")) == 1


def test_changed_data_are_refused(tmp_path, cache, capsys) -> None:
    config = small_config(tmp_path / "run", cache, epochs=1)
    train(config, progress=False)
    run = Run.open(tmp_path / "run")
    run.record(fingerprints={"train": "other", "val": "other"})
    resume(tmp_path / "run", progress=False)  # touched or moved, but the same images and labels
    assert "moved, copied or touched since this run began" in capsys.readouterr().err
    facts = tmp_path / "run" / "run.json"  # of a run that began before contents were written down
    older = {name: value for name, value in json.loads(facts.read_text()).items() if name != "contents"}
    facts.write_text(json.dumps({**older, "fingerprints": {"train": "other", "val": "other"}}))
    with pytest.raises(RunError, match="have changed since this run began"):
        resume(tmp_path / "run", progress=False)
    run = Run.open(tmp_path / "run")
    run.record(fingerprints={"train": "other", "val": "other"}, contents={"train": "other", "val": "other"})
    with pytest.raises(RunError, match="have changed since this run began"):
        resume(tmp_path / "run", progress=False)


def test_a_real_kill(tmp_path, cache, whole) -> None:
    """SIGKILL to the command itself, once some steps are saved."""
    words = [sys.executable, "-m", "contextcaps.cli"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*words, *small_words(tmp_path / "run", cache), "--quiet"], env=environment, stderr=subprocess.DEVNULL
    )
    previous = tmp_path / "run" / "checkpoints" / "previous.ckpt"
    deadline = time.monotonic() + 240
    while not previous.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert previous.exists()
    resume(tmp_path / "run", progress=False)
    assert finals(tmp_path / "run") == whole
