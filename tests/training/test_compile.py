"""Training with a compiled backbone: the same losses, resumed, and refused where there is no compiler."""

from pathlib import Path

import pytest
import torch
import torch._dynamo.exc
import torch._inductor.config
from small_run import quick_runs, rows, small_words

import contextcaps
from contextcaps.cli import main
from contextcaps.training import processes, trainer
from contextcaps.training.loop import TrainingLoop
from contextcaps.training.step import TaggingModule

SETTINGS = {"data": "scenes?count=60&size=32", "backbone": "small", "image_size": 32, "model": "gap", "epochs": 2}
SETTINGS |= {"batch_size": 20, "accelerator": "cpu", "progress": False}


class Killed(BaseException):
    """Stands for a SIGKILL in this process: nothing catches it."""


def losses(run: Path) -> list[float]:
    """The training loss of each epoch."""
    return [float(row["train_loss"]) for row in rows(run)]


@pytest.mark.long
def test_a_compiled_backbone_trains_to_the_same_loss_and_goes_on_compiled(tmp_path: Path, monkeypatch) -> None:
    trained: list[TaggingModule] = []
    settings = {**SETTINGS, "cache": str(tmp_path / "cache")}
    end_epoch = TrainingLoop._end_epoch

    def end_and_die(loop: TrainingLoop) -> None:
        end_epoch(loop)
        raise Killed

    def spied(*arguments) -> TaggingModule:
        trained.append(TaggingModule(*arguments))
        return trained[-1]

    monkeypatch.setattr(trainer, "TaggingModule", spied)
    plain, whole, killed = (tmp_path / name for name in ("plain", "whole", "killed"))
    with quick_runs():
        contextcaps.train(compile=False, out=str(plain), **settings)
        contextcaps.train(compile=True, out=str(whole), **settings)
        with monkeypatch.context() as patch:
            patch.setattr(TrainingLoop, "_end_epoch", end_and_die)
            with pytest.raises(Killed):
                contextcaps.train(compile=True, out=str(killed), **settings)
        assert len(losses(killed)) == 1
        contextcaps.resume(killed, progress=False)
    is_compiled = [module.network.backbone._compiled_call_impl is not None for module in trained]
    assert is_compiled == [False, True, True, True]
    assert len(losses(plain)) == 2
    assert losses(whole) == pytest.approx(losses(plain), rel=1e-4)
    assert losses(killed) == pytest.approx(losses(whole), rel=1e-4)


def test_without_a_compiler_it_is_refused_in_one_line_and_nothing_is_left(tmp_path: Path, capsys) -> None:
    words = small_words(tmp_path / "run", tmp_path / "cache", compile=True)
    with torch._inductor.config.patch({"cpp.cxx": (None, "/nonexistent")}), pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    said = "needs a C++ compiler (tried /nonexistent); install one, or train without --compile"
    assert capsys.readouterr().err == f"contextcaps: compile: {said}\n"
    assert not list(tmp_path.iterdir())


def test_what_torch_cannot_compile_ends_in_one_line_and_leaves_no_run(tmp_path: Path, capsys, monkeypatch) -> None:
    """As on a GPU without Triton, which shows in the first step only."""

    def fail(loop: TrainingLoop) -> None:
        raise torch._dynamo.exc.BackendCompilerFailed(lambda: None, RuntimeError("no Triton\nhere"), None)

    monkeypatch.setattr(processes, "_require_compiler", lambda: None)
    monkeypatch.setattr(TrainingLoop, "run", fail)
    with pytest.raises(SystemExit) as end:
        main([*small_words(tmp_path / "run", tmp_path / "cache", compile=True, model="gap", options={}), "--quiet"])
    assert end.value.code == 2
    *before, said = capsys.readouterr().err.splitlines()
    assert all(line.startswith(("warning: ", "note: ")) for line in before), before
    assert said.startswith("contextcaps: compile: torch.compile failed (no Triton); it needs a C++ compiler, and ")
    assert not (tmp_path / "run").exists()
