"""A model's folder from a stranger: refused in one sentence, in little time and memory, whatever it asks for."""

import json
import os
import resource
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

from contextcaps.models import CapsuleNetwork, ModelConfig, ModelFileError, create_model
from contextcaps.models.loading import load_model

MEGABYTE = 2**20


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    create_model("contextcaps", 3, 32, "small", capsules={"types": 2}).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def change(folder: Path, **values: object) -> None:
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**document, **values}))


def refusal(folder: Path) -> str:
    """Return the one sentence with which a folder is refused, soon and without memory."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    with pytest.raises(ModelFileError) as caught:
        load_model(folder)
    assert time.perf_counter() - began < 10
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 300 * MEGABYTE
    message = str(caught.value)
    assert message.startswith(str(folder))
    assert "\n" not in message
    assert len(message) < 1500
    return message


NO_CAPSULES = {"capsules": None, "correlation": None, "initial_routing": None, "crf": None, "routing": None}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"image_size": [5000, 5000]}, "image_size: expected at most 4,194,304 pixels, got 5,000 × 5,000"),
        ({"image_size": [1, 10**12]}, "image_size: expected at most"),
        ({**NO_CAPSULES, "query2label": {"layers": 10**6}}, "layers: expected a whole number of at most 100"),
        ({**NO_CAPSULES, "ml_decoder": {"layers": 10**6}}, "layers: expected a whole number of at most 100"),
        ({"correlation": None, "routing": {"iterations": 10**9}}, "iterations: expected a whole number of at most 100"),
        ({"field": {"iterations": 10**9}}, "field.iterations: expected a whole number of at most 100"),
        ({"crf": {"iterations": 10**9}}, "crf.iterations: expected a whole number of at most 100"),
        ({"num_classes": 10**12}, "num_classes: expected a whole number of at most 1,000,000"),
        ({"in_channels": 10**15}, "in_channels: expected a whole number of at most 65,536"),
        ({"initial_routing": {"mode": "gate", "kernel_size": 10**9 + 1}}, "kernel_size: expected"),
        ({**NO_CAPSULES, "csra": {"temperatures": [1.0] * 10**6}}, "temperatures: expected at most 100"),
        # Within all bounds, and far from the weights: nothing of it is ever in memory.
        ({"num_classes": 10**6, "max_weights": 2**62}, "weights do not fit the configuration beside them"),
        ({**NO_CAPSULES, "ml_gcn": {"width": 65536}, "num_classes": 10**6}, "config.json: the head would need"),
        (
            {**NO_CAPSULES, "query2label": {"layers": 100, "width": 65536}, "max_weights": 2**62},
            "weights do not fit the configuration beside them",
        ),
        (
            {"capsules": {"types": 65536, "attributes": 65536, "decision_attributes": 65536}, "max_weights": 2**62},
            "weights do not fit the configuration beside them",
        ),
    ],
)
def test_a_configuration_that_asks_for_too_much(folder, values, expected) -> None:
    change(folder, **values)
    assert expected in refusal(folder)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"num_classes": 1' + 5000 * "0", "a whole number of 5001 digits; expected one of at most 19"),
        ('"num_classes": 1' + 400 * "0", "a whole number of 401 digits; expected one of at most 19"),
        ('"pixel_mean": [1' + 400 * "0" + "]", "a whole number of 401 digits"),
        ('"pixel_mean": [1e400]', "expected a list of numbers"),
        ('"class_names": ' + 100_000 * "[" + 100_000 * "]", "nested too deeply"),
        ('"class_names": ' + 900 * "[" + 900 * "]", "class_names: expected a list of names"),
        ('"backbone": "' + 10_000_000 * "x" + '"', "backbone: expected a name, got 'xxx"),
    ],
)
def test_json_with_traps(folder, text, expected) -> None:
    (folder / "config.json").write_text(f'{{"format": "contextcaps-1", "num_classes": 3, {text}}}')
    assert expected in refusal(folder)


def test_facts_with_traps(folder) -> None:
    for text in ('{"seed": 1' + 5000 * "0" + "}", 100_000 * "["):
        (folder / "trained.json").write_text(text)
        assert "trained.json: cut off or not written by contextcaps" in refusal(folder)


def test_a_file_too_long_for_what_it_is(folder) -> None:
    with (folder / "config.json").open("wb") as file:
        file.truncate(2**40)  # holes: it takes no room on the disk
    assert "bytes; expected a text file of at most" in refusal(folder)


FILES = ("config.json", "model.safetensors", "trained.json")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in this system's folders")
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_plain_file(folder, tmp_path, name) -> None:
    path = folder / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)  # to open it would wait for ever
    assert f"{path}: a pipe; expected a plain file" in refusal(folder)
    path.unlink()
    path.symlink_to("/dev/zero")  # to read it would never end
    assert f"{path}: a device; expected a plain file" in refusal(folder)
    path.unlink()
    secret = tmp_path / "secret.txt"
    secret.write_text("{}")
    path.symlink_to(secret)
    assert f"{path}: a link out of {folder}; links are followed only inside it" in refusal(folder)


def test_links_inside_the_folder_and_to_it_are_followed(folder, tmp_path) -> None:
    for name in ("config.json", "model.safetensors"):
        (folder / name).rename(folder / f"kept-{name}")
        (folder / name).symlink_to(f"kept-{name}")
    (tmp_path / "link").symlink_to(folder)
    assert CapsuleNetwork.from_pretrained(tmp_path / "link").config.num_classes == 3


def test_a_snapshot_in_the_hubs_cache_is_links_into_its_repository(folder, tmp_path) -> None:
    repository = tmp_path / "models--ann--beaches"
    snapshot = repository / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).rename(repository / "blobs" / name)
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert CapsuleNetwork.from_pretrained(snapshot).config.num_classes == 3


def test_weights_of_another_type(folder) -> None:
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    weights["head.routing.bias"] = weights["head.routing.bias"].to(torch.int64)
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    assert "head.routing.bias has type int64, expected float32" in refusal(folder)
    weights["head.routing.bias"] = weights["head.routing.bias"].to(torch.float8_e4m3fn)
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    assert "head.routing.bias has type None, expected float32" in refusal(folder)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("num_classes: 0x" + 5000 * "f", "line 1: a number of 5002 digits"),
        ("num_classes: " + 50_000 * "1:" + "1", "a number of 100001 digits"),
        ("pixel_mean: [" + 500 * "1:" + "1.5]", "a number of 1003 digits"),
        ("class_names: " + 50_000 * "[", "nested too deeply"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nclass_names: *b", "line 2: aliases are not read"),
    ],
)
def test_yaml_with_traps(tmp_path, text, expected) -> None:
    path = tmp_path / "network.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"^{path}: ") as caught:
        ModelConfig.from_yaml(path)
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in this system's folders")
def test_a_pipe_is_no_configuration(tmp_path) -> None:
    os.mkfifo(tmp_path / "network.yaml")
    with pytest.raises(ValueError, match=r"network\.yaml: a pipe; expected a plain file"):
        ModelConfig.from_yaml(tmp_path / "network.yaml")


def test_many_class_names_with_one_twice() -> None:
    names = (*map(str, range(999_999)), "999998")
    began = time.perf_counter()
    with pytest.raises(ValueError, match="class_names: expected different names, got '999998' more than once"):
        ModelConfig(num_classes=1_000_000, class_names=names)
    assert time.perf_counter() - began < 10
