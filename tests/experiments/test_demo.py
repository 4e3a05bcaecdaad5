"""The demo in small: everything is written, what is finished is used again, what was killed goes on."""

import dataclasses
import io
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import tyro
from PIL import Image
from rich.console import Console
from run_here import run_here

import contextcaps
from contextcaps.data import open_source
from contextcaps.experiments.ablation.config import AblateConfig
from contextcaps.experiments.ablation.grid import Plan
from contextcaps.experiments.ablation.results import run_folder
from contextcaps.experiments.ablation.running import Runner
from contextcaps.experiments.demo import Demo, run_demo, show_demo
from contextcaps.experiments.demo_config import MODELS, DemoConfig
from contextcaps.training.loop import TrainingLoop
from contextcaps.training.runs import Run, RunError

pytestmark = pytest.mark.long

SMALL = DemoConfig(quiet=True, images=64, validation_images=24, test_images=30, epochs=2, tagged_size=64)


@pytest.fixture(autouse=True)
def here(monkeypatch) -> None:
    monkeypatch.setattr(Runner, "run", run_here)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> DemoConfig:
    return dataclasses.replace(SMALL, cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, small) -> Demo:
    """A demo that nobody stopped."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Runner, "run", run_here)
        return run_demo(dataclasses.replace(small, out=tmp_path_factory.mktemp("whole") / "demo"))


class Killed(BaseException):
    """Stands for a SIGKILL in this process: nothing catches it."""


def figures(demo: Demo) -> list[dict]:
    """What must be the same again: everything but time and place."""
    document = json.loads(demo.ablation.files["figures"].read_text(encoding="utf-8"))
    return [
        {name: value for name, value in model.items() if name not in ("cost", "runs")} for model in document["models"]
    ]


def test_everything_is_written(whole) -> None:
    assert {path.name for path in whole.folder.iterdir() if not path.name.startswith(".")} == {
        *("grid.json", "runs", "ablation.html", "ablation.md", "ablation.json"),
        *("differences.png", "convergence.png", "classes-contextcaps.png", "tagged.html", "images"),
    }
    with Image.open(whole.folder / "convergence.png") as picture:
        assert min(picture.size) >= 300
        assert any("0" in picture.text[key] for key in ("Seed", "Description") if key in picture.text)
    page = whole.gallery.read_text("utf-8")
    assert page.count("<figure>") == page.count("data:image/png;base64,") == 6
    verdicts = [tag.verdict for image in whole.tagged for tag in image.tags]
    for verdict in ("right", "wrong", "missed"):
        assert page.count(f'<li class="is-{verdict}"') == verdicts.count(verdict)
    for model in MODELS:
        run = run_folder(whole.folder, model, 0)
        assert Run.open(run).facts["state"] == "finished"
        assert (run / "evaluation" / "test" / "evaluation.md").is_file()
    assert [model.label for model in whole.ablation.report.models] == list(MODELS)
    assert whole.ablation.report.images == SMALL.test_images


def test_both_networks_get_the_same(whole) -> None:
    one, other = (Run.open(run_folder(whole.folder, model, 0)).config for model in MODELS)
    assert dataclasses.replace(one, model=other.model, out=other.out, loss=other.loss) == other
    assert (one.accelerator, one.precision) == ("cpu", "fp32")  # the same bits again
    losses = [model.runs[0].loss for model in whole.ablation.report.models]
    assert losses == ["margin", "bce"]  # on lengths, and on a field's sigmoids


def test_the_tagged_images_are_chosen_by_seed_and_judged_by_the_truth(whole) -> None:
    source = open_source("scenes", split="test", count=SMALL.test_images, size=SMALL.tagged_size)
    chosen = sorted(np.random.default_rng(0).choice(30, 6, replace=False).tolist())
    assert [image.path.stem for image in whole.tagged] == [source[index].id for index in chosen]
    tagger = contextcaps.load(whole.run, "cpu")
    paths = [image.path for image in whole.tagged]
    for index, image, tagging in zip(chosen, whole.tagged, tagger.tag(paths), strict=True):
        truth = {source.classes[label] for label in source.labels_of(index)}
        said = {tag.name for tag in tagging.tags}
        assert set(image.truth) == truth
        assert {tag.name for tag in image.tags if tag.verdict == "right"} == truth & said
        assert {tag.name for tag in image.tags if tag.verdict == "wrong"} == said - truth
        assert {tag.name for tag in image.tags if tag.verdict == "missed"} == truth - said
        assert np.array_equal(Image.open(image.path), source[index].image)


def test_a_second_call_trains_nothing(whole, monkeypatch) -> None:
    before = figures(whole)
    monkeypatch.setattr(TrainingLoop, "_after_step", lambda loop: pytest.fail("trained again"))
    assert figures(run_demo(whole.config)) == before


def test_a_killed_one_goes_on(tmp_path, small, whole, monkeypatch) -> None:
    """In the second run, before its second epoch."""
    attend, steps = TrainingLoop._after_step, 0

    def act_and_die(loop) -> None:
        nonlocal steps
        attend(loop)
        steps += 1
        if steps == 6:
            raise Killed

    config = dataclasses.replace(small, out=tmp_path / "demo")
    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "_after_step", act_and_die)
        with pytest.raises(Killed):
            run_demo(config)
    assert figures(run_demo(config)) == figures(whole)


def test_folders_that_hold_something_else(tmp_path, whole) -> None:
    with pytest.raises(RunError, match=r"holds an ablation with other settings \(epochs: 2, now 3\)"):
        run_demo(dataclasses.replace(whole.config, epochs=3))
    with pytest.raises(RunError, match="expected an empty or a new folder"):
        run_demo(dataclasses.replace(whole.config, out=_with_scenes(tmp_path / "one").parent))
    _with_scenes(tmp_path / "two").rename(tmp_path / "two" / "other")
    (tmp_path / "two" / "scenes").write_text("", encoding="utf-8")
    with pytest.raises(RunError, match="got a file"):
        run_demo(dataclasses.replace(whole.config, out=tmp_path / "two"))


def _with_scenes(folder: Path) -> Path:
    """Make a folder that holds something else in the place of the demo's training, and return that."""
    (folder / "scenes").mkdir(parents=True)
    (folder / "scenes" / "letter.txt").write_text("Dear reader", encoding="utf-8")
    return folder / "scenes"


def test_the_demo_is_an_ablation_that_can_grow(whole) -> None:
    (command,) = (command for command, _ in whole.next_steps() if command.startswith("contextcaps ablate"))
    grown = tyro.cli(AblateConfig, args=shlex.split(command)[2:])
    assert grown == dataclasses.replace(whole.config.ablation(), seeds=3)
    assert Plan.from_config(grown).differences(whole.ablation.report.plan) == []


def test_sizes_are_no_flags() -> None:
    assert tyro.cli(DemoConfig, args=["--out", "here", "--seed", "3", "--quiet"]) == DemoConfig(
        Path("here"), 3, quiet=True
    )
    with pytest.raises(SystemExit):
        tyro.cli(DemoConfig, args=["--images", "3"])


@pytest.mark.parametrize("width", [60, 100])
def test_what_is_shown_is_whole(whole, width) -> None:
    """Nothing is cut off where there are fewer columns."""
    stream = io.StringIO()
    show_demo(whole, Console(file=stream, width=width))
    text = stream.getvalue()
    shown, _, commands = text.partition("What to try next")
    assert "…" not in shown
    assert all(heading in shown for heading in ("95 % interval", "weights", "images/s", "constant prior"))
    assert whole.ablation.files["page"].name in shown
    assert whole.gallery.name in shown
    for command, _ in whole.next_steps():
        assert command in commands
