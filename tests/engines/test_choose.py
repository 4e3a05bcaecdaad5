"""The one place that chooses an engine: what it takes by itself, and what it refuses."""

from unittest import mock

import pytest
import torch

from contextcaps.capsules import DynamicRouting, EMRouting, MeanFieldCRF
from contextcaps.engines import EngineUnavailableError, choose, choose_engine
from contextcaps.models import create_model

WEIGHT = torch.zeros(1, 1, 4, 2)  # [D, A, J, I]: eight votes a capsule


def capsules(votes: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Capsules [1, K, 1] with so many votes, that nobody reads; on a GPU they need none."""
    made = torch.empty(1, 1, 1, dtype=dtype).expand(1, votes // 8, 1)
    if device == "cpu":
        return made
    return mock.Mock(shape=made.shape, device=torch.device(device), dtype=dtype, is_cuda=True)


@pytest.mark.parametrize(("votes", "expected"), [(1 << 21, "plain"), (1 << 22, "lean")])
def test_many_votes_on_a_cpu(votes, expected) -> None:
    assert choose_engine("auto", capsules(votes), WEIGHT, None, DynamicRouting()) == expected
    assert choose_engine("auto", capsules(votes), WEIGHT, None, None) == expected  # CORR in the place of routing


@pytest.mark.parametrize(
    ("votes", "dtype", "literal", "expected"),
    [
        (1 << 19, torch.bfloat16, False, "plain"),
        (1 << 20, torch.bfloat16, False, "triton"),
        (1 << 29, torch.float32, False, "plain"),
        (1 << 30, torch.float32, False, "lean"),
        (1 << 25, torch.bfloat16, True, "plain"),
        (1 << 26, torch.bfloat16, True, "lean"),
    ],
)
def test_on_a_gpu(votes, dtype, literal, expected) -> None:
    crf = MeanFieldCRF(4, literal=literal)
    with mock.patch.object(choose, "why_not_triton", return_value=None):
        assert choose_engine("auto", capsules(votes, "cuda", dtype), WEIGHT, crf, DynamicRouting()) == expected


def test_without_triton() -> None:
    half = capsules(1 << 29, "cuda", torch.bfloat16)
    with mock.patch.object(choose, "why_not_triton", return_value="Triton is not installed"):
        assert choose_engine("auto", half, WEIGHT, None, DynamicRouting()) == "plain"
        with pytest.raises(ValueError, match="expected 'auto', 'lean' or 'plain', got 'triton': Triton is not inst"):
            choose_engine("triton", half, WEIGHT, None, DynamicRouting())


@pytest.mark.parametrize("routing", [EMRouting(4), DynamicRouting(normalize="capsules")])
def test_what_needs_all_votes_at_once(routing) -> None:
    for requested in ("auto", "plain"):
        assert choose_engine(requested, capsules(1 << 24), WEIGHT, None, routing) == "plain"
    for requested in ("lean", "triton"):
        refusal = rf"engine: expected 'auto' or 'plain', got '{requested}': .* needs all votes at once"
        with pytest.raises(EngineUnavailableError, match=refusal):
            choose_engine(requested, capsules(1 << 24), WEIGHT, None, routing)


@pytest.mark.parametrize(
    ("model", "engine", "settings", "reason"),
    [
        ("capsnet-em", "lean", {}, "EM routing needs all votes"),
        ("capsnet-em", "triton", {}, "EM routing needs all votes"),
        ("capsnet", "lean", {"routing": {"normalize": "capsules"}}, "a softmax over capsules needs all votes"),
        ("capsnet-rw-crf-literal", "triton", {}, "not Algorithm 1 to the letter"),
        ("capsnet-rw-crf", "triton", {"crf": {"per_attribute": True}}, "one pairwise matrix for all attributes"),
        ("capsnet-rw-crf", "lean", {"crf": {"per_capsule": True}}, "the CRF has a pairwise matrix for each capsule"),
        ("capsnet-rw-crf", "triton", {"crf": {"per_capsule": True}}, "the CRF has a pairwise matrix for each capsule"),
    ],
)
def test_a_head_is_not_built_for_an_engine_that_does_not_know_it(model, engine, settings, reason) -> None:
    with pytest.raises(EngineUnavailableError, match=f"got '{engine}': .*{reason}"):
        create_model(model, 5, 32, "small", engine=engine, **settings)
