"""The head without votes in memory gives what the plain one gives: values and all gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contextcaps.capsules import cast_votes, dynamic_routing
from contextcaps.capsules.fused import ImplicitVotes, LeanVotes
from contextcaps.capsules.mean_field import MeanFieldCRF
from contextcaps.models import create_model, list_models, model_config


def made(capsules, weight, crf=None, tile_elements=1 << 10) -> ImplicitVotes:
    potentials = () if crf is None else crf.potentials
    correct = None if crf is None else crf.correct
    backend = LeanVotes(capsules, weight, correct, potentials, tile_elements=tile_elements)
    return ImplicitVotes(backend, (capsules, weight, *potentials), (*capsules.shape[:2], *weight.shape[2:]))


def a_crf(classes: int, kind: str, attributes: int) -> MeanFieldCRF | None:
    if kind == "none":
        return None
    settings = {
        "full": {},
        "low rank": {"rank": 2},
        "per attribute": {"attributes": attributes},
        "literal": {"literal": True},
    }
    crf = MeanFieldCRF(classes, 2, **settings[kind]).double()
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return crf


KINDS = ("none", "full", "low rank", "per attribute", "literal")


@given(
    sizes=st.tuples(*(st.integers(1, most) for most in (3, 4, 3)), st.integers(2, 5), st.integers(1, 4)),
    shared=st.integers(1, 3),
    kind=st.sampled_from(KINDS),
    tile=st.integers(1, 200),
    seed=st.integers(0, 99),
)
def test_sums_and_agreements_with_all_gradients(sizes, shared, kind, tile, seed) -> None:
    batch, types, attributes, classes, decision = sizes
    torch.manual_seed(seed)
    count = types * shared
    capsules = torch.randn(batch, count, attributes, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(types, attributes, classes, decision, dtype=torch.float64, requires_grad=True)
    crf = a_crf(classes, kind, decision)
    weights = torch.randn(batch, count, classes, dtype=torch.float64, requires_grad=True)
    vectors = torch.randn(batch, classes, decision, dtype=torch.float64, requires_grad=True)
    leaves = [capsules, weight, weights, vectors, *([] if crf is None else crf.parameters())]

    votes = cast_votes(capsules, weight)
    votes = votes if crf is None else crf(votes)
    expected = (torch.einsum("bkj,bkji->bji", weights, votes), torch.einsum("bkji,bji->bkj", votes, vectors))
    implicit = made(capsules, weight, crf, tile)
    actual = (implicit.weighted_sum(weights), implicit.agreement(vectors))
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    given = [torch.randn_like(each) for each in expected]
    gradients = [torch.autograd.grad(found, leaves, given, allow_unused=True) for found in (actual, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", ["none", "full"])
def test_gradcheck_through_the_routing(kind) -> None:
    torch.manual_seed(0)
    capsules = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 3, 3, 2, dtype=torch.float64, requires_grad=True)
    initial = torch.rand(2, 4, dtype=torch.float64, requires_grad=True)
    crf = a_crf(3, kind, 2)
    potentials = [] if crf is None else list(crf.parameters())

    def route(capsules, weight, initial, *potentials):
        return dynamic_routing(made(capsules, weight, crf, 20), 3, initial).decisions

    assert torch.autograd.gradcheck(route, (capsules, weight, initial, *potentials))


@pytest.mark.parametrize("shared", [False, True], ids=["own votes", "shared votes"])
@pytest.mark.parametrize("model", [name for name in list_models() if model_config(name, 2).head == "capsules"])
def test_every_model_is_the_same_either_way(model, shared) -> None:
    torch.manual_seed(0)
    plain = create_model(model, 7, 32, "small", types=3, backend="plain", share_votes=shared)
    for parameter in plain.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)  # away from where the CRF does nothing
    lean = create_model(model, 7, 32, "small", types=3, backend="lean", share_votes=shared)
    lean.load_state_dict(plain.state_dict())
    plain, lean = plain.double(), lean.double()
    images = torch.rand(3, 3, 32, 32, dtype=torch.float64)
    outputs = [network(images) for network in (plain, lean)]
    torch.testing.assert_close(outputs[1].decisions, outputs[0].decisions, rtol=1e-9, atol=1e-11)
    for output in outputs:
        (output.scores.square().sum() + output.decisions.sum()).backward()
    for (name, one), other in zip(lean.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(
            one.grad, other.grad, rtol=1e-7, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_half_precision_and_autocast() -> None:
    torch.manual_seed(0)
    plain = create_model("contextcaps", 7, 32, "small", types=3, backend="plain")
    lean = create_model("contextcaps", 7, 32, "small", types=3, backend="lean")
    lean.load_state_dict(plain.state_dict())
    images = torch.rand(4, 3, 32, 32)
    with torch.autocast("cpu", torch.bfloat16):
        one, other = lean(images), plain(images)
    torch.testing.assert_close(one.scores, other.scores, rtol=0.03, atol=0.01)
    one.scores.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in lean.parameters())


def test_tiles_are_small_and_cover_everything() -> None:
    for types, positions, tile in ((5, 1, 2), (2, 6, 4), (3, 1, 100)):
        backend = LeanVotes(torch.zeros(2, types * positions, 3), torch.zeros(types, 3, 4, 5), tile_elements=tile * 40)
        seen = [index for part in backend._tiles() for index in range(part.start, part.stop)]
        assert seen == list(range(types * positions))
        assert all(part.stop - part.start <= max(tile, 1) for part in backend._tiles())


def test_a_second_backward_pass() -> None:
    torch.manual_seed(0)
    capsules = torch.randn(2, 4, 3, requires_grad=True)
    crf = a_crf(3, "full", 2).float()
    votes = made(capsules, torch.randn(4, 3, 3, 2), crf)
    total = votes.weighted_sum(torch.rand(2, 4, 3)).sum()
    (first,) = torch.autograd.grad(total, capsules, retain_graph=True)
    (second,) = torch.autograd.grad(total, capsules)
    assert torch.equal(first, second)
