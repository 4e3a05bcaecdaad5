"""Networks built without random numbers, which saved weights then fill."""

import pytest
import torch

from contextcaps.models import CapsuleNetwork, create_model, list_models, model_config
from contextcaps.models.unfilled import Unfilled


@pytest.mark.parametrize("name", list_models())
def test_a_loaded_network_gives_the_scores_of_the_saved_one(name, tmp_path) -> None:
    torch.manual_seed(1)
    capsules = {"capsules.types": 2} if model_config(name, 4).capsules is not None else {}
    network = create_model(name, 4, 32, "small", **capsules).eval()
    network.save_pretrained(tmp_path)
    images = torch.rand(2, 3, 32, 32)
    drawn = torch.random.get_rng_state()
    loaded = CapsuleNetwork.from_pretrained(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), drawn)  # loading draws nothing
    assert torch.equal(loaded(images).scores, network(images).scores)
    assert loaded.feature_shape == network.feature_shape


def test_nothing_is_drawn() -> None:
    drawn = torch.random.get_rng_state()
    with Unfilled():
        layer = torch.nn.Linear(3, 2)
        assert torch.nn.init.xavier_normal_(tensor=layer.weight) is layer.weight
        assert torch.empty(2, 3).normal_().shape == torch.randn(2, 3).shape
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert not torch.equal(torch.nn.Linear(3, 2).weight, layer.weight)
