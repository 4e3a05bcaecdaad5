"""Each baseline head trained, resumed and used: as any network."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from small_run import finals, quick_runs, rows, small_config, small_words

import contextcaps
from contextcaps.cli import main
from contextcaps.models.baselines.ml_gcn import label_graph
from contextcaps.training.data import open_training_parts
from contextcaps.training.failures import StoppedRun
from contextcaps.training.loop import TrainingLoop
from contextcaps.training.trainer import resume, train

pytestmark = pytest.mark.long

SMALL = {
    "ml-decoder": {"ml_decoder.width": 16, "ml_decoder.attention_heads": 2},
    "query2label": {"query2label.width": 16, "query2label.attention_heads": 2},
    "ml-gcn": {"ml_gcn.width": 16},
    "c-tran": {"c_tran.width": 16},
}


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with quick_runs():
        yield


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        ("gap", "bce"),
        ("gap", "margin"),
        ("gmp", "bce"),
        ("ml-decoder", "asl"),
        ("query2label", "bce"),
        ("query2label", "asl"),
        ("ml-gcn", "bce"),
        ("c-tran", "bce"),
    ],
)
def test_two_epochs_lower_the_loss_and_the_model_tags(tmp_path, cache, model, loss) -> None:
    config = small_config(
        tmp_path / "run", cache, model=model, loss=loss, epochs=2, options=SMALL.get(model, {}), ema=0.0
    )
    train(config, progress=False)
    first, second = (float(row["train_loss"]) for row in rows(tmp_path / "run"))
    assert second < first
    tagger = contextcaps.load(tmp_path / "run", device="cpu")
    picture = np.random.default_rng(0).integers(0, 256, (40, 50, 3)).astype(np.uint8)
    (tagging,) = tagger.tag([picture])
    assert tagging.scores.shape == (47,)
    assert "A network for multi-label" in (tmp_path / "run/model/README.md").read_text(encoding="utf-8")


def test_a_head_is_told_labels_in_training_and_use(tmp_path, cache, capsys) -> None:
    """By the commands, without a field between decisions."""
    run = tmp_path / "run"
    settings = {"model": "c-tran", "options": SMALL["c-tran"], "known": 0.5, "epochs": 2, "ema": 0.0}
    main(small_words(run, cache, **settings))
    first, second = (float(row["train_loss"]) for row in rows(run))
    assert second < first
    assert load_file(run / "model/model.safetensors")["head.states"].shape == (2, 16)

    main(["evaluate", str(run), "--known", "0.25,0.5", "--resamples", "10", "--accelerator", "cpu", "--quiet"])
    shares = json.loads((run / "evaluation/test/known.json").read_text(encoding="utf-8"))["shares"]
    assert [share["given"] for share in shares] == [12, 24]  # of 47
    assert all(share["told"]["value"] != share["nothing"]["value"] for share in shares)

    name = contextcaps.load(run, device="cpu").classes[3]
    picture = tmp_path / "picture.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3)).astype(np.uint8)).save(picture)
    capsys.readouterr()
    words = ["--model", str(run), "--known", f"{name}=yes", "--scores", "all", "--format", "jsonl", "--quiet"]
    main(["tag", str(picture), *words])
    row = json.loads(capsys.readouterr().out)
    assert row["given"] == {name: True}
    assert {"name": name, "score": 1.0, "given": True} in row["tags"]


def test_a_label_graph_comes_from_the_training_part_and_survives_a_stop(tmp_path, cache, monkeypatch) -> None:
    settings = {"model": "ml-gcn", "loss": "bce", "epochs": 2, "options": SMALL["ml-gcn"]}
    config = small_config(tmp_path / "whole", cache, **settings)
    train(config, progress=False)
    graph = load_file(tmp_path / "whole/model/model.safetensors")["head.adjacency"]
    training, _ = open_training_parts(config)
    torch.testing.assert_close(graph, label_graph(torch.tensor(training.targets())), rtol=1e-6, atol=1e-6)
    assert not torch.equal(graph, torch.eye(len(graph)))

    attend, seen = TrainingLoop._after_step, []

    def stop_after_eight(loop: TrainingLoop) -> None:
        seen.append(loop.progress.step)
        if len(seen) == 8:
            loop.interruption.asked = True
        attend(loop)

    monkeypatch.setattr(TrainingLoop, "_after_step", stop_after_eight)
    with pytest.raises(StoppedRun):
        train(small_config(tmp_path / "stopped", cache, **settings), progress=False)
    monkeypatch.undo()
    learnt = []
    monkeypatch.setattr("contextcaps.models.baselines.ml_gcn.MLGCNHead.learn_labels", lambda *_: learnt.append(1))
    resume(tmp_path / "stopped", progress=False)
    assert learnt == []
    assert finals(tmp_path / "stopped")["model"] == finals(tmp_path / "whole")["model"]


def test_reconstruction_is_refused_in_one_line(tmp_path, cache) -> None:
    with pytest.raises(ValueError, match=r"^reconstruction: expected none with the head pooling"):
        train(small_config(tmp_path / "run", cache, model="gap", options={}, reconstruction=0.0005), progress=False)
    assert not (tmp_path / "run").exists()
