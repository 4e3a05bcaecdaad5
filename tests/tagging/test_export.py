"""Exported files: the same scores and parts as PyTorch's, for every preset; what cannot be written is refused early."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import contextcaps
from contextcaps.cli import main
from contextcaps.models.explainable import explains
from contextcaps.models.loading import shipped_folder
from contextcaps.models.onnx_opening import open_onnx_file
from contextcaps.models.shipped import ship
from contextcaps.models.torch_scorer import TorchScorer
from contextcaps.models.trained import Trained
from contextcaps.tagging.export import export

pytest.importorskip("onnxscript")
LONG = ("gap", "contextcaps", "c-tran")


def saved(folder, name: str):
    """Save a small trained network of a preset, with a field that moves scores where it has one."""
    torch.manual_seed(0)
    given = {"capsules.types": 2} if contextcaps.models.model_config(name, 5, 32, "small").capsules else {}
    network = contextcaps.create_model(name, 5, 32, "small", class_names=tuple("abcde"), **given).eval()
    with torch.no_grad():
        for weight in () if network.field is None else network.field.parameters():
            weight.add_(0.1 * torch.randn(weight.shape))
    network.save_pretrained(folder)
    Trained((0.25,) * 5, (0.1,) * 5, seed=0, data="scenes", epoch=1).write(folder, network.config)
    return network


def presets() -> list:
    """Three kinds of heads in each run of the tests, all of them with `-m slow`: an export takes seconds."""
    marks = {name: pytest.mark.long if name in LONG else pytest.mark.slow for name in contextcaps.list_models()}
    return [pytest.param(name, marks=mark) for name, mark in marks.items()]


@pytest.mark.parametrize("name", presets())
def test_onnx_computes_what_torch_does(name, tmp_path) -> None:
    network = saved(tmp_path / "model", name)
    exported = export(tmp_path / "model", out=tmp_path / "tagger.onnx", explain=explains(network.config))
    assert exported.difference < 1e-4
    scorer, trained = open_onnx_file(exported.path)
    plain = TorchScorer(network, "cpu")
    assert trained == Trained.read(tmp_path / "model", network.config)
    assert scorer.config == network.config
    known = np.array([1, np.nan, 0, np.nan, np.nan], np.float32) if network.config.takes_known else None
    for count in (1, 7, 19):
        images = np.random.default_rng(count).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
        for told in (None, known):
            np.testing.assert_allclose(scorer.scores(images, told), plain.scores(images, told), atol=1e-4)
    if explains(network.config):
        for one, other in zip(scorer.parts(images[0], known), plain.parts(images[0], known), strict=True):
            assert one.constants.keys() == other.constants.keys()
            np.testing.assert_allclose(one.evidence, other.evidence, atol=1e-4)
            np.testing.assert_allclose(one.logits, other.logits, atol=1e-4)


@pytest.mark.long
def test_a_file_is_a_tagger_and_one_without_parts_does_not_explain(tmp_path, capsys) -> None:
    saved(tmp_path / "model", "gap")
    main(["export", str(tmp_path / "model"), "--out", str(tmp_path / "a.onnx")])
    assert "MB" in capsys.readouterr().out
    by_torch, by_onnx = contextcaps.load(tmp_path / "model"), contextcaps.load(tmp_path / "a.onnx")
    images = list(np.random.default_rng(0).integers(0, 256, (9, 40, 30, 3), dtype=np.uint8))
    for one, other in zip(by_torch.tag(images), by_onnx.tag(images), strict=True):
        assert [tag.name for tag in one.tags] == [tag.name for tag in other.tags]
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-4)
    with pytest.raises(ValueError, match="exported without what that needs; export it again with --explain"):
        by_onnx.explain(images[0])
    with pytest.raises(ValueError, match="an ONNX file has no torch network"):
        _ = by_onnx.network
    with pytest.raises(ValueError, match="computed by ONNX Runtime on the CPU"):
        contextcaps.load(tmp_path / "a.onnx", "cuda")
    assert list(tmp_path.glob(".exporting*")) == []


@pytest.mark.long
def test_images_have_any_size_where_the_network_takes_any(tmp_path) -> None:
    network = saved(tmp_path / "model", "gap")
    scorer, _ = open_onnx_file(export(tmp_path / "model", out=tmp_path / "a.onnx").path)
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 45, 71), dtype=np.uint8)
    np.testing.assert_allclose(scorer.scores(images), TorchScorer(network, "cpu").scores(images), atol=1e-4)
    assert scorer.takes_any_size


@pytest.mark.long
def test_torch_export(tmp_path) -> None:
    saved(tmp_path / "model", "gap")
    found = export(tmp_path / "model", "torch", tmp_path / "a.pt2")
    assert found.difference < 1e-5


@pytest.mark.long
def test_a_graph_takes_the_weights_beside_it(tmp_path) -> None:
    """As in the shipped model's folder: the same weights for both, folded as torch folds them."""
    torch.manual_seed(0)
    network = contextcaps.create_model("gap", 3, 64, "lite0").eval()
    for name, buffer in network.named_buffers():
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 2)
    network.save_pretrained(tmp_path / "model")
    Trained((0.25,) * 3, (0.1,) * 3, seed=0, data="scenes", epoch=1).write(tmp_path / "model", network.config)
    folder = ship(tmp_path / "model", "gap", tmp_path / "shipped").folder
    size = (folder / "graph.onnx").stat().st_size
    assert size < 500_000  # the weights are not in it
    images = np.random.default_rng(0).integers(0, 256, (3, 3, 64, 64), dtype=np.uint8)
    both = [contextcaps.load(folder, "cpu", runtime) for runtime in ("onnx", "torch")]
    np.testing.assert_allclose(both[0].scores(images), both[1].scores(images), atol=1e-4)
    contextcaps.create_model("gap", 3, 64, "lite0").save_pretrained(folder)
    assert not (folder / "graph.onnx").exists()  # it was of other weights


@pytest.mark.skipif(shipped_folder("coco80") is None, reason="installed without its model")
def test_the_shipped_model_has_a_graph_of_its_weights() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 3, 224, 224), dtype=np.uint8)
    by_onnx, by_torch = (contextcaps.load("coco80", "cpu", runtime) for runtime in ("onnx", "torch"))
    np.testing.assert_allclose(by_onnx.scores(images), by_torch.scores(images), atol=1e-4)
    assert by_onnx.device == "cpu"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--out", "a.bin"], "--out a.bin: expected a name that ends in .onnx"),
        (["--to", "torch", "--out", "a.onnx"], "--out a.onnx: expected a name that ends in .pt2"),
    ],
)
def test_what_does_not_go_together_is_refused_before_the_work(words, says, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["export", "coco80", *words])
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err


_FORK = """
import os, sys
import numpy as np
import contextcaps
tagger = contextcaps.load(runtime="onnx")
images = np.random.default_rng(0).integers(0, 256, (3, 3, 224, 224), dtype=np.uint8)
before = tagger.scores(images)
child = os.fork()
print(bool(np.allclose(tagger.scores(images), before, atol=1e-5)), flush=True)
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked on this system")
@pytest.mark.skipif(shipped_folder("coco80") is None, reason="installed without its model")
def test_a_forked_process_makes_a_session_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", _FORK], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["True", "True"]
