"""Evaluations on degraded images: files, labels, and that intact copies stay intact."""

import json
from pathlib import Path

import pytest
from small_run import quick_runs, small_config

from contextcaps import cli
from contextcaps.training.evaluate import evaluate
from contextcaps.training.trainer import train


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("degraded")
    with quick_runs():
        train(small_config(folder / "run", folder / "cache", epochs=1, checkpoint_steps=0), progress=False)
    return folder / "run"


@pytest.mark.long
@pytest.mark.parametrize("text", ["small:8", "occlude", "surroundings"])
def test_evaluate_on_degraded_images(text: str, run, tmp_path, capsys) -> None:
    cache = run.parent / "cache"
    intact = {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()}
    words = ["evaluate", str(run), "--degrade", text, "--resamples", "2", "--accelerator", "cpu", "--quiet"]
    cli.main(words)
    name = {"small:8": "small-8", "occlude": "occlude-0.5", "surroundings": "surroundings-0.5"}[text]
    folder = run / "evaluation" / f"test-{name}"
    document = json.loads((folder / "evaluation.json").read_text())
    assert document["facts"]["degraded"].startswith(name.replace("-", ":"))
    assert document["facts"]["part"] == "test"
    assert document["title"].endswith(name.replace("-", ":"))
    assert document["seen"] == {"train": 0, "val": 0, "of": document["images"]}
    if text == "surroundings":
        assert document["positives"] == document["images"] <= 48
        assert document["unknown"] > 0
    else:
        assert (document["images"], document["unknown"]) == (48, 0)
    assert str(folder) in capsys.readouterr().out.replace("\n", "")
    assert all(path.read_bytes() == before for path, before in intact.items())
    other = evaluate(
        run, "scenes?count=20&size=32&split=validation", degrade=text, out=tmp_path, resamples=2, progress=False
    )
    assert other.evaluation.images <= 20
    assert json.loads((tmp_path / "evaluation.json").read_text())["facts"]["degraded"].startswith(
        name.replace("-", ":")
    )


def test_a_degradation_that_is_none_is_one_message_before_the_work(tmp_path, capsys) -> None:
    with pytest.raises(SystemExit):
        cli.main(["evaluate", str(tmp_path / "nowhere"), "--degrade", "smal"])
    assert "degrade: expected one of small, blur" in " ".join(capsys.readouterr().err.split())
