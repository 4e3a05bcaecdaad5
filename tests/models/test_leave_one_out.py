"""Each class with all other labels told: the same numbers as a call of the network for each class, at once."""

import math

import pytest
import torch

import contextcaps
from contextcaps.models import told as module
from contextcaps.models.leave_one_out import leave_one_out
from contextcaps.models.sections import CalibrationConfig

SIZES = {"c-tran": {"c_tran": {"width": 16, "layers": 1}}}


def network_of(name: str, **options):
    """A network whose field has potentials, as after training, and that is calibrated."""
    torch.manual_seed(4)
    own = {"capsules": {"types": 2}} if "caps" in name else SIZES.get(name, {})
    calibration = CalibrationConfig(scale=0.7, shift=-0.3)
    network = contextcaps.create_model(name, 6, 32, "small", **own, calibration=calibration, **options)
    if network.field is not None:
        with torch.no_grad():
            network.field.set_prior(torch.linspace(0.05, 0.6, 6))
            for weight in network.field.parameters():
                weight.add_(0.3 * torch.randn(weight.shape))
    return network.eval()


def told_one_by_one(network, images, labels) -> torch.Tensor:
    """J calls of the whole network, each with one label left out."""
    columns = []
    for j in range(labels.shape[1]):
        known = labels.clone()
        known[:, j] = math.nan
        columns.append(network(images, known=known).scores[:, j])
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize("at_once", [1, 4096], ids=["a class at once", "all classes at once"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("contextcaps", {}),
        ("contextcaps", {"field": {"groups": 3}}),
        ("gap", {"field": {"rank": 2}}),
        ("c-tran", {}),
        ("c-tran", {"field": {}}),
    ],
    ids=str,
)
def test_the_same_as_a_call_for_each_class(name, options, at_once, monkeypatch) -> None:
    monkeypatch.setattr(module, "_NUMBERS_AT_ONCE", at_once)
    monkeypatch.setattr(module, "_IMAGES_AT_ONCE", at_once)
    network = network_of(name, **options)
    images = torch.rand(3, 3, 32, 32)
    labels = torch.tensor([[1.0, 0, 0, 1, 0, 1], [0, 0, 0, 0, 0, 0], [1, math.nan, 0, 1, math.nan, 0]])
    with torch.no_grad():
        alone, found = leave_one_out(network, network.features(images), labels)
        expected = told_one_by_one(network, images, labels)
        plain = network(images).scores
    torch.testing.assert_close(alone, plain, rtol=0, atol=1e-5)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert (found - plain).abs().max() > 0.01  # the others do have a say


def test_backbone_and_head_run_once_for_all_classes(monkeypatch) -> None:
    network = network_of("contextcaps")
    calls = []
    for part in (network.backbone, network.head):
        monkeypatch.setattr(part, "forward", lambda *words, was=part.forward: calls.append(1) or was(*words))
    leave_one_out(network, network.features(torch.rand(2, 3, 32, 32)), torch.zeros(2, 6))
    assert len(calls) == 2


def test_a_network_that_cannot_be_told_gives_its_scores() -> None:
    network = network_of("gap")
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        for found in leave_one_out(network, network.features(images), torch.ones(2, 6)):
            torch.testing.assert_close(found, network(images).scores)
