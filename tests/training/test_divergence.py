"""Why a loss is no number: each cause is told from the others, and the advice can be followed."""

import math

import pytest
import torch
from torch import nn

from contextcaps.training.divergence import diagnose_non_finite


def diagnose(**settings: object) -> str:
    usual = {
        "step": 7,
        "loss": torch.tensor(math.nan),
        "network": nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)),
        "precision": "bf16",
        "learning_rate": 0.003,
        "gradient_norms": [1.0, 1.2, 0.9, 1.1],
    }
    return diagnose_non_finite(**{**usual, **settings})


def test_each_cause() -> None:
    """With all that come after it in the order present as well."""
    broken = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    broken[1].weight.data[0, 0] = math.inf
    growing = {"gradient_norms": [1.0, 1.2, 0.9, 250.0]}
    half = {"precision": "fp16", **growing}
    for message in (diagnose(network=broken, **half), diagnose(**half)):
        assert "65504" in message
        assert "--precision bf16" in message
    for message in (diagnose(network=broken, **growing), diagnose(**growing)):
        assert "from a norm of 1 to 250" in message
        assert "lower `--lr` than 0.003" in message
    for settings in (half, growing, {}):
        assert "1.weight is not finite, so an update up to step 7" in diagnose(network=broken, **settings)
        assert "1.weight" not in diagnose(**settings)
    assert "gradients before step 7 are in order, so the loss of nan" in diagnose()
    assert "the loss of inf" in diagnose(loss=math.inf)
    for message in (diagnose(network=broken, **half), diagnose(**growing), diagnose(network=broken), diagnose()):
        assert "train anew with" in message  # a run cannot be resumed with other settings
        assert "checkpoint" not in message


def test_running_statistics_count_too() -> None:
    network = nn.BatchNorm1d(3)
    network.running_var[1] = math.nan
    assert "running_var is not finite" in diagnose(network=network)


@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ([], "in order"),
        ([3.0], "in order"),
        ([torch.tensor(1.0), torch.tensor(2.0)], "in order"),
        ([1.0, 1.0, math.inf], "grew beyond all numbers"),
        ([math.nan], "grew beyond all numbers"),
        ([1.0, 1.0, 40.0, math.nan, math.nan], "grew from a norm of 1 to 40"),
    ],
    ids=["none", "one", "tensors", "infinite at last", "NaN alone", "growing, then NaN"],
)
def test_few_or_broken_norms(norms: list[float], expected: str) -> None:
    assert expected in diagnose(gradient_norms=norms)
