"""Grids that are really run, in small: killed and resumed, failing, grown; and the command."""

import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
import tyro
from run_here import run_here
from small_run import FLAGS, finals, quick_runs

import contextcaps
from contextcaps.cli import main
from contextcaps.data import DataError
from contextcaps.data.augmentation import AugmentationConfig
from contextcaps.experiments.ablation import ablation as ablation_module
from contextcaps.experiments.ablation import running, watching, worker
from contextcaps.experiments.ablation.ablation import ablate
from contextcaps.experiments.ablation.config import AblateConfig, ablate_command
from contextcaps.experiments.ablation.results import read_epochs, run_folder
from contextcaps.experiments.ablation.running import Job, Runner
from contextcaps.experiments.ablation.watching import Watch
from contextcaps.experiments.ablation.worker import is_finished, is_trained
from contextcaps.experiments.small_scenes import SMALL_TRAINING, ablation_defaults, small_scenes
from contextcaps.models import create_model
from contextcaps.training.config import TrainConfig
from contextcaps.training.failures import DiskFull, Diverged, OutOfMemory, StoppedRun
from contextcaps.training.runs import RunError, RunState
from contextcaps.training.starting import starting_model, with_starting_model

pytestmark = pytest.mark.long

BASE = TrainConfig.from_dict({**FLAGS, "batch_size": 16, "epochs": 1, "ema": 0.0, "model": "capsnet"})


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with quick_runs():
        yield


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


def small(cache: str, **changes) -> TrainConfig:
    return dataclasses.replace(BASE, cache=cache, **changes)


@pytest.fixture
def here(monkeypatch) -> None:
    monkeypatch.setattr(Runner, "run", run_here)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache) -> Path:
    """Two models and two seeds."""
    out = tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Runner, "run", run_here)
        contextcaps.ablate(
            models="capsnet,contextcaps", train=small(cache), seeds=2, out=out, resamples=20, progress=False
        )
    return out


def test_a_whole_grid(whole) -> None:
    document = json.loads((whole / "ablation.json").read_text(encoding="utf-8"))
    assert [model["label"] for model in document["models"]] == ["capsnet", "contextcaps"]
    assert [model["seeds"] for model in document["models"]] == [[0, 1]] * 2
    assert document["models"][1]["pairs"] == 2
    for name in ("ablation.html", "ablation.md", "convergence.png", "differences.png", "classes-contextcaps.png"):
        assert (whole / name).stat().st_size > 0
    divisions = set()
    for model in document["models"]:
        for seed in (0, 1):
            facts = RunState.read(run_folder(whole, model["label"], seed)).facts
            divisions.add(json.dumps(facts["fingerprints"]))
            assert facts["seed"] == seed
            assert facts["memory"]["bytes"] > 0
        assert model["cost"]["step_milliseconds"] > 0
    assert len(divisions) == 1


def test_what_is_finished_is_not_run_again_and_grids_can_grow(whole, cache, capsys, here) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.glob("runs/*/*/metrics.csv")}
    assert len(before) == 4
    models = ["capsnet", "contextcaps", "bare=capsnet:routing.iterations=1"]
    ablation = ablate(models=models, train=small(cache), seeds=2, out=whole, resamples=20)
    assert [model.label for model in ablation.report.models] == ["capsnet", "contextcaps", "bare"]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    said = capsys.readouterr().err
    assert "[5/6] bare, seed 0" in said
    assert "capsnet, seed" not in said


def test_another_plan_is_refused(whole, cache, tmp_path) -> None:
    with pytest.raises(RunError, match=r"holds an ablation with other settings \(lr: 0.001, now 0.01\)"):
        ablate(models="capsnet", train=small(cache, lr=0.01), seeds=2, out=whole)
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="expected an empty or a new folder"):
        ablate(models="capsnet", train=small(cache), out=tmp_path)
    with pytest.raises(RunError, match="got a file"):
        ablate(models="capsnet", train=small(cache), out=tmp_path / "file")


def test_a_plan_that_never_began_binds_nobody(cache, tmp_path, monkeypatch) -> None:
    with pytest.raises(DataError, match="nowhere"):
        ablate(models="capsnet", train=small(cache, data="coco:nowhere"), out=tmp_path)
    monkeypatch.setattr(Runner, "run", lambda runner, jobs: None)
    with pytest.raises(RunError, match="no run is finished"):  # and is not refused
        ablate(models="capsnet", train=small(cache), out=tmp_path, progress=False)


def test_what_was_trained_or_validated_on_is_no_test(cache, tmp_path) -> None:
    data, validated = "scenes?split=train&count=48&size=32", "scenes?split=val&count=48&size=32"
    for tested in (validated, "scenes?size=32&count=48&split=train"):
        with pytest.raises(DataError, match="expected other images to test on"):
            ablate(models="capsnet", train=small(cache, data=data, val_data=validated), test_data=tested, out=tmp_path)


def test_killed_in_the_middle_it_goes_on_to_the_same_result(whole, cache, tmp_path, monkeypatch) -> None:
    """The process of the ablation is killed; its runs end by themselves; the same call goes on."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as in the process of the tests: sums depend on it in their last bits
    out = tmp_path / "out"
    settings = {name: value for name, value in small(cache).to_dict().items() if name not in ("augment", "out")}
    code = (
        "import json, sys; from contextcaps import ablate\n"
        "ablate(models='capsnet', seeds=1, out=sys.argv[1], resamples=20, progress=False, **json.loads(sys.argv[2]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(out), json.dumps(settings)])
    run = run_folder(out, "capsnet", 0)
    _wait_for(lambda: (run / "checkpoints").is_dir() and any((run / "checkpoints").iterdir()), process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    monkeypatch.setattr(Runner, "run", run_here)  # which waits until the run's own process has saved itself
    ablation = ablate(models="capsnet", train=small(cache), seeds=1, out=out, resamples=20, progress=False)
    assert ablation.report.missing == ()
    assert finals(run) == finals(run_folder(whole, "capsnet", 0))


def _wait_for(condition, process: subprocess.Popen, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        assert process.poll() is None, "ended before it could be killed"
        time.sleep(0.01)


def test_a_run_that_fails_does_not_stop_the_others(cache, tmp_path) -> None:
    jobs = [
        Job("bad", tmp_path / "bad", small(cache, out=str(tmp_path / "bad"), precision="fp16"), test=False),
        Job("good", tmp_path / "good", small(cache, out=str(tmp_path / "good")), test=True, resamples=20),
    ]
    with Watch(False) as watch:
        runner = Runner(2, watch)
        runner.run(jobs)
    (failure,) = runner.failures
    assert failure.name == "bad"
    assert failure.why.startswith("precision: expected fp32")
    assert is_finished(tmp_path / "good")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Diverged("the loss is nan"), 3),
        (OutOfMemory("try a smaller batch"), 4),
        (DiskFull("the disk is full"), 1),
        (OSError("no route to host"), 1),
        (RunError("holds a run already"), 2),
        (StoppedRun(Path("run"), 3, 1, 2), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_the_exit_code_of_a_runs_process_says_how_it_ended(error, code, tmp_path, monkeypatch, capsys) -> None:
    def fail(folder: Path, job: dict) -> None:
        raise error

    (tmp_path / "job.json").write_text("{}")
    monkeypatch.setattr(worker, "work", fail)
    monkeypatch.setattr(worker, "_end_with_parent", lambda: None)
    monkeypatch.setattr(sys, "argv", ["worker", str(tmp_path / "run"), str(tmp_path / "job.json")])
    with pytest.raises(SystemExit) as end:
        worker.main()
    assert end.value.code == code
    assert capsys.readouterr().err.strip() == str(error)


def test_all_that_do_not_fit_beside_others_are_done_alone(cache, tmp_path, monkeypatch) -> None:
    """Also where several end between two looks."""
    program = (
        "import json, pathlib, sys; place = pathlib.Path(sys.argv[1]); first = not place.exists(); "
        "place.mkdir(exist_ok=True); (place / 'metrics.csv').touch(); "
        "(place / 'run.json').write_text(json.dumps({'state': 'failed' if first else 'finished'})); "
        "sys.exit(4 if first else 0)"
    )
    monkeypatch.setattr(running, "_WORKER", program)
    monkeypatch.setattr(running, "_PAUSE", 1.0)
    names = ["one", "two", "three"]
    with Watch(False) as watch:
        runner = Runner(3, watch)
        runner.run(Job(name, tmp_path / name, small(cache, out=str(tmp_path / name)), test=False) for name in names)
    assert runner.failures == []
    assert all(is_trained(tmp_path / name) for name in names)


def test_as_many_at_once_as_fit_on_the_gpu(tmp_path) -> None:
    def room(at_once: int | None, *memories: dict) -> int:
        runner = Runner(at_once, Watch(False))
        for number, memory in enumerate(memories):
            folder = tmp_path / str(number)
            folder.mkdir(exist_ok=True)
            (folder / "run.json").write_text(json.dumps({"memory": memory}))
            runner._learn_memory(folder)
        return runner._room()

    gpu = {"where": "GPU", "capacity": 80 * 2**30}
    assert room(None) == 1
    assert room(None, {"where": "process", "bytes": 2**30}) == 1
    assert room(None, {**gpu, "bytes": 2**30}) == 4
    assert room(None, {**gpu, "bytes": 2**30}, {**gpu, "bytes": 30 * 2**30}) == 2  # the hungriest decides
    assert room(None, {**gpu, "bytes": 70 * 2**30}) == 1
    assert room(3, {**gpu, "bytes": 70 * 2**30}) == 3


def test_ctrl_c_saves_and_says_how_to_go_on(cache, tmp_path, monkeypatch) -> None:
    out = tmp_path / "out"
    run = run_folder(out, "capsnet", 0)

    def look(watch: Watch) -> None:
        if (run / "checkpoints").is_dir():
            monkeypatch.undo()
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Watch, "look", look)
    with pytest.raises(KeyboardInterrupt, match=r"the same command goes on.*--report-only"):
        ablate(models="capsnet", train=small(cache, epochs=200), seeds=1, out=out, progress=False)
    assert RunState.read(run).state == "stopped"


@pytest.fixture(scope="module")
def tried(tmp_path_factory, cache) -> Path:
    """Two models with two tries each, of which one was lost at first."""
    out = tmp_path_factory.mktemp("tried")

    def lose_a_try(runner: Runner, jobs: Iterable[Job]) -> None:
        run_here(runner, [job for job in jobs if job.name != "contextcaps, try 2"])

    common = {"seeds": 1, "tries": 2, "try_epochs": 1, "out": out, "resamples": 20, "progress": False}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Runner, "run", lose_a_try)
        lost = ablate(models="capsnet,contextcaps", train=small(cache), **common)
        # What is chosen without one of the tries might not be what is chosen with it.
        assert [model.label for model in lost.report.models] == ["capsnet"]
        assert "try 2 has not come to an end" in lost.failures[0].why
        assert not (out / "runs" / "contextcaps").exists()
        monkeypatch.setattr(Runner, "run", run_here)
        assert ablate(models="capsnet,contextcaps", train=small(cache), **common).failures == ()
    return out


def test_tries_are_made_alike_and_written_down(tried) -> None:
    document = json.loads((tried / "ablation.json").read_text(encoding="utf-8"))
    assert [model["label"] for model in document["models"]] == ["capsnet", "contextcaps"]
    for model in document["models"]:
        tries = model["choice"]["tries"]
        assert len(tries) == 2
        assert model["choice"]["settings"] == max(tries, key=lambda each: each["mAP"])["settings"]
        config = TrainConfig.from_yaml(run_folder(tried, model["label"], 0) / "config.yaml")
        assert {name: getattr(config, name) for name in ("lr", "loss")} == model["choice"]["settings"]
    assert "chosen" in (tried / "ablation.html").read_text(encoding="utf-8")


def test_the_best_try_is_the_first_seeds_run(tried, cache, tmp_path, here) -> None:
    run = run_folder(tried, "capsnet", 0)
    best = max((tried / "tries" / "capsnet").glob("try-?"), key=lambda each: read_epochs(each)[-1]["val_mAP"])
    assert (run / "metrics.csv").read_bytes() == (best / "metrics.csv").read_bytes()
    assert TrainConfig.from_yaml(run / "config.yaml").out == str(run)
    assert is_finished(run)
    assert RunState.read(run).facts["adopted"] == f"tries/capsnet/{best.name}"
    fewer = small(cache, epochs=2)  # tries of one epoch are no runs of two
    ablate(
        models="capsnet",
        train=fewer,
        seeds=1,
        tries=2,
        try_epochs=1,
        out=tmp_path / "fewer",
        resamples=20,
        progress=False,
    )
    assert len((run_folder(tmp_path / "fewer", "capsnet", 0) / "metrics.csv").read_text().splitlines()) == 3


def test_the_command_reports_without_training(whole, capsys) -> None:
    main(["ablate", "--out", str(whole), "--report-only", "--resamples", "20"])
    assert "Test mAP" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--models", "capsnt"], "did you mean 'capsnet'"),
        (["--model", "capsnet"], "--models"),
        (["--at-once", "two"], "at_once: expected a whole number"),
        (["--seeds", "0"], "seeds: expected"),
        (["--tries", "99"], "tries: expected at most 9"),
        (["--out", "nowhere", "--report-only"], "nowhere: no ablation"),
    ],
)
def test_wrong_words_end_in_one_line(words, message, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["ablate", *words])
    assert end.value.code == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert message in said[-1]
    assert not list(tmp_path.iterdir())


def test_scenes_on_a_cpu_are_small() -> None:
    assert ablation_defaults("scenes", "cpu") == ablation_defaults(None, "cpu") == SMALL_TRAINING
    assert SMALL_TRAINING.image_size == 32
    assert small_scenes(32) == "scenes?count=2000&size=32"
    assert ablation_defaults("coco:somewhere", "cpu") is None


def test_small_scenes_from_a_model_are_of_its_size_for_its_backbone(tmp_path, monkeypatch, capsys) -> None:
    """The small defaults are nobody's wish: what the model to start from has comes before them."""
    create_model("gap", 3, 48, "small").save_pretrained(tmp_path / "model")
    create_model("gap", 3, 40, "paper").save_pretrained(tmp_path / "paper")
    asked = []

    def stop(config: AblateConfig, progress: bool) -> None:
        asked.append(with_starting_model(config.train, starting_model(config.train)))
        raise ValueError("enough")

    monkeypatch.setattr(ablation_module, "ablate", stop)
    for words in (["--from", "model"], ["--from=paper"], ["--from", "model", "--image-size", "64"], []):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit):
            main(["ablate", "--models", "gap,csra", "--accelerator", "cpu", *words])
        assert capsys.readouterr().err.endswith("contextcaps: enough\n")
    found = [(train.backbone, train.image_size, train.data, train.lr) for train in asked]
    assert found == [
        ("small", 48, "scenes?count=2000&size=48", 2e-3),
        ("paper", 40, "scenes?count=2000&size=40", 2e-3),
        ("small", 64, "scenes?count=2000&size=64", 2e-3),
        ("small", 32, "scenes?count=2000&size=32", 2e-3),
    ]


def test_the_command_is_spelled_so_that_it_can_be_given_again() -> None:
    augment = AugmentationConfig(flip=0.0, crop_scale=(0.5, 1.0))
    train = small(
        "a cache",
        augmentation=False,
        augment=augment,
        options={"capsules.types": 8, "crf.rank": None},
        out="some/where",
    )
    config = AblateConfig(
        models=("capsnet,contextcaps:types=8", "capsnet-rw"), at_once=2, try_lr=(1.0, 0.1), train=train
    )
    assert tyro.cli(AblateConfig, args=shlex.split(ablate_command(config))[2:]) == config
    assert ablate_command(AblateConfig()) == "contextcaps ablate"


def test_settings_of_both_kinds_replace_a_configurations() -> None:
    config = AblateConfig.from_settings(AblateConfig(seeds=2), seeds=3, epochs=7, out=Path("there"))
    assert (config.seeds, config.train.epochs, config.folder) == (3, 7, Path("there"))
    with pytest.raises(
        ValueError, match="epoch: no such field of a training run's configuration; did you mean 'epochs'"
    ):
        AblateConfig.from_settings(epoch=7)


def test_a_log_tells_how_far_runs_are(tmp_path, capsys, monkeypatch) -> None:
    """Now and then, where there is no terminal to show it on."""
    (tmp_path / "metrics.csv").write_text("epoch,val_mAP\n1,0.25\n2,0.125\n")
    with Watch(True) as watch:
        watch.add("capsnet, seed 0", tmp_path, 8, is_done=False)
        watch.begin("capsnet, seed 0")
        watch.look()
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(watching, "_LOG_SECONDS", 0)
        watch.look()
    assert capsys.readouterr().err == "capsnet, seed 0, epoch 2/8, mAP 25.00 %, 0 s\n"
