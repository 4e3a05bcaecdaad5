"""Saved models: what is written, and clear errors for what cannot be read."""

import json
import os
import pickle
import random

import pytest
import safetensors.torch
import torch

from contextcaps.models import CapsuleNetwork, ModelFileError, create_model


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    model = create_model(
        "contextcaps-rw-crf-corr", 3, 32, "small", capsules={"types": 2}, class_names=("bed", "lamp", "sea")
    )
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_what_is_written(folder) -> None:
    """Weights as safetensors, configuration and class names as JSON, a model card; no pickle, nothing left over."""
    assert {path.name for path in folder.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    document = json.loads((folder / "config.json").read_text())
    assert document["format"] == "contextcaps-1"
    assert document["class_names"] == ["bed", "lamp", "sea"]
    assert document["correlation"] == {"start": "uniform", "rank": None}
    assert document["routing"] is None
    with pytest.raises(pickle.UnpicklingError), (folder / "model.safetensors").open("rb") as stored:
        pickle.load(stored)


def test_other_programs_read_the_weights_and_their_header(folder) -> None:
    with safetensors.safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata()["format"] == "pt"
        assert json.loads(file.metadata()["contextcaps-crc32"])
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    assert all(torch.equal(weights[name], each) for name, each in network_weights(folder).items())


def network_weights(folder) -> dict[str, torch.Tensor]:
    return CapsuleNetwork.from_pretrained(folder).state_dict()


def test_a_single_bit_anywhere_is_seen(folder) -> None:
    """Of 200 files with one bit changed none is loaded with other weights; a bit in an unused place may be passed."""
    path = folder / "model.safetensors"
    whole, before = path.read_bytes(), network_weights(folder)
    generator = random.Random(0)
    refused = 0
    places = [generator.randrange(len(whole)) for _ in range(150)] + [generator.randrange(4000) for _ in range(50)]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        try:
            found = network_weights(folder)
        except ModelFileError:
            refused += 1
        else:
            assert all(torch.equal(found[name], each) for name, each in before.items())
    assert refused >= 195


def test_weights_without_checksums_are_loaded(folder) -> None:
    weights, before = safetensors.torch.load_file(folder / "model.safetensors"), network_weights(folder)
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    assert all(torch.equal(found, before[name]) for name, found in network_weights(folder).items())


def test_saving_again_replaces(folder) -> None:
    model = CapsuleNetwork.from_pretrained(folder)
    with torch.no_grad():
        model.head.bias.fill_(0.25)
    model.save_pretrained(folder)
    assert float(CapsuleNetwork.from_pretrained(folder).head.bias.detach().mean()) == 0.25


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_truncated_files(folder, name, share) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelFileError, match=rf"{name}: cut off"):
        CapsuleNetwork.from_pretrained(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_files(folder, name) -> None:
    (folder / name).unlink()
    with pytest.raises(ModelFileError, match=rf"{name}: no such file"):
        CapsuleNetwork.from_pretrained(folder)


def test_foreign_files(folder) -> None:
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text('{"architectures": ["BertModel"], "hidden_size": 768}')
    with pytest.raises(ModelFileError, match="not a configuration of contextcaps"):
        CapsuleNetwork.from_pretrained(folder)
    (folder / "config.json").write_text(config.replace('"mode": "gate"', '"mode": "random"'))
    with pytest.raises(ModelFileError, match=r"config\.json: initial_routing\.mode: expected one of"):
        CapsuleNetwork.from_pretrained(folder)
    (folder / "config.json").write_text(config)
    safetensors.torch.save_file({"bert.weight": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"do not fit .*bert\.weight is not known"):
        CapsuleNetwork.from_pretrained(folder)
    torch.save({"weight": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"model\.safetensors: cut off or no safetensors file"):
        CapsuleNetwork.from_pretrained(folder)


def test_weights_of_another_size(folder) -> None:
    config = (folder / "config.json").read_text().replace('"decision_attributes": 16', '"decision_attributes": 8')
    (folder / "config.json").write_text(config)
    with pytest.raises(ModelFileError, match=r"head\.bias has shape \[3, 16\], expected \[3, 8\]"):
        CapsuleNetwork.from_pretrained(folder)


def test_a_crash_while_saving_leaves_the_old_model(folder, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    model = CapsuleNetwork.from_pretrained(folder)
    monkeypatch.setattr(safetensors.torch, "save_file", fail)
    with pytest.raises(OSError, match="no space left"):
        model.save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_configuration_that_cannot_be_built_names_its_file(folder) -> None:
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"backbone": "small"', '"backbone": "huge"'))
    with pytest.raises(ModelFileError, match=r"config\.json: backbone: expected 'paper'"):
        CapsuleNetwork.from_pretrained(folder)


def test_options_of_a_download_mean_nothing_for_a_folder(folder) -> None:
    with pytest.raises(ValueError, match="a local folder takes no option devize"):
        CapsuleNetwork.from_pretrained(folder, devize="cuda")


def test_no_such_folder(tmp_path) -> None:
    with pytest.raises(ModelFileError, match="no such folder"):
        CapsuleNetwork.from_pretrained(tmp_path / "nowhere")
    with pytest.raises(ModelFileError, match="no such folder"):
        CapsuleNetwork.from_pretrained("./nowhere/at-all")


def test_half_precision_halves_the_file_and_is_loaded_as_float32(folder, tmp_path) -> None:
    model = CapsuleNetwork.from_pretrained(folder)
    model.save_pretrained(tmp_path / "half", half=True)
    written = safetensors.torch.load_file(tmp_path / "half" / "model.safetensors")
    parameters = dict(model.named_parameters())
    assert {written[name].dtype for name in parameters} == {torch.float16}
    assert torch.equal(written["pixel_mean"], model.pixel_mean)  # a buffer stays as it is
    sizes = [(path / "model.safetensors").stat().st_size for path in (tmp_path / "half", folder)]
    assert sizes[0] < 0.55 * sizes[1]
    loaded = CapsuleNetwork.from_pretrained(tmp_path / "half")
    for name, weight in loaded.named_parameters():
        assert weight.dtype == torch.float32
        torch.testing.assert_close(weight, parameters[name], rtol=1e-3, atol=1e-7)
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(loaded(images).scores, model(images).scores, rtol=0, atol=1e-3)


def test_a_weight_beyond_half_precision_is_refused_by_name(folder, tmp_path) -> None:
    model = CapsuleNetwork.from_pretrained(folder)
    with torch.no_grad():
        model.head.bias[0, 0] = -1e6
    with pytest.raises(ValueError, match=r"^half: the weight head\.bias has a value of 1e\+06, more than the 65,504"):
        model.save_pretrained(tmp_path / "half", half=True)
    assert not (tmp_path / "half").exists()


@pytest.mark.skipif(os.name != "posix", reason="files have no modes")
def test_others_may_read_a_saved_model(folder) -> None:
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1
