"""The lean engine gives what all votes in memory give: values and all gradients."""

from unittest import mock

import pytest
import torch
from comparing import SHARED, made_head
from hypothesis import given
from hypothesis import strategies as st

from contextcaps.capsules import cast_votes, correlation_weights, dynamic_routing
from contextcaps.capsules.mean_field import MeanFieldCRF
from contextcaps.engines import VoteOperands, lean, lean_votes
from contextcaps.engines.lean_correlation import tiled_weights
from contextcaps.engines.lean_votes import LeanVotes
from contextcaps.engines.pairwise import OuterSum
from contextcaps.models import create_model, list_models, model_config

KINDS = ("none", "full", "low rank", "per attribute", "literal", "literal, low rank")
ONE = torch.ones((), dtype=torch.float64)


def a_crf(classes: int, kind: str, attributes: int, iterations: int = 2) -> MeanFieldCRF | None:
    if kind == "none":
        return None
    settings = {
        "full": {},
        "low rank": {"rank": 2},
        "per attribute": {"attributes": attributes},
        "literal": {"literal": True},
        "literal, low rank": {"literal": True, "rank": 2},
    }
    crf = MeanFieldCRF(classes, iterations, **settings[kind]).double()
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return crf


def operands(capsules, weight, crf=None) -> VoteOperands:
    return VoteOperands(capsules, weight, crf, capsules.dtype)


def in_tiles(tile: int = 1 << 10, kept: int = 1 << 24):
    """So many votes at a time, and kept at most."""
    return mock.patch.multiple(lean_votes, TILE_ON_CPU=tile, KEPT_ON_CPU=kept)


@given(
    sizes=st.tuples(*(st.integers(1, most) for most in (3, 4, 3)), st.integers(2, 5), st.integers(1, 4)),
    shared=st.integers(1, 3),
    kind=st.sampled_from(KINDS),
    crf_iterations=st.integers(0, 3),
    tile=st.integers(1, 200),
    seed=st.integers(0, 99),
)
def test_weighted_sums_with_all_gradients(sizes, shared, kind, crf_iterations, tile, seed) -> None:
    batch, types, attributes, classes, decision = sizes
    torch.manual_seed(seed)
    count = types * shared
    capsules = torch.randn(batch, count, attributes, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(types, attributes, classes, decision, dtype=torch.float64, requires_grad=True)
    crf = a_crf(classes, kind, decision, crf_iterations)
    weights = torch.randn(batch, count, classes, dtype=torch.float64, requires_grad=True)
    leaves = [capsules, weight, weights, *([] if crf is None else crf.parameters())]

    votes = cast_votes(capsules, weight)
    votes = votes if crf is None else crf(votes)
    expected = torch.einsum("bkj,bkji->bji", weights, votes)
    gradient = torch.randn(expected.shape, dtype=torch.float64)
    with in_tiles(tile):
        actual = lean.weighted_sum(operands(capsules, weight, crf), weights)
        found = torch.autograd.grad(actual, leaves, gradient)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
    wanted = torch.autograd.grad(expected, leaves, gradient, allow_unused=True)
    for one, other in zip(found, wanted, strict=True):
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
        return lean.route(operands(capsules, weight, crf), 3, ONE, couplings=initial)

    with in_tiles(20):
        assert torch.autograd.gradcheck(route, (capsules, weight, initial, *potentials))


@given(
    sizes=st.tuples(*(st.integers(1, most) for most in (5, 4, 3)), st.integers(2, 5), st.integers(1, 4)),
    shared=st.integers(1, 3),
    kind=st.sampled_from(KINDS),
    images=st.integers(1, 5),
    by_class=st.booleans(),
    iterations=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_routing_a_few_images_at_a_time(sizes, shared, kind, images, by_class, iterations, seed) -> None:
    batch, types, attributes, classes, decision = sizes
    torch.manual_seed(seed)
    count = types * shared
    capsules = torch.randn(batch, count, attributes, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(types, attributes, classes, decision, dtype=torch.float64, requires_grad=True)
    shape = (batch, count, classes) if by_class else (batch, count)
    factors = torch.rand(shape, dtype=torch.float64, requires_grad=True)
    initial = torch.rand(batch, count, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(classes, decision, dtype=torch.float64, requires_grad=True)
    gain = torch.tensor(1.7, dtype=torch.float64)
    crf = a_crf(classes, kind, decision)
    leaves = [capsules, weight, factors, initial, bias, *([] if crf is None else crf.parameters())]

    votes = cast_votes(capsules, weight)
    votes = votes if crf is None else crf(votes)
    votes = votes * factors.view(batch, count, -1, 1)
    expected = dynamic_routing(votes, iterations, initial, bias=bias, gain=gain)
    with in_tiles(7, kept=images * count * classes * decision):
        found = lean.route(operands(capsules, weight, crf), iterations, gain, bias, factors, initial)
        results = [found, (expected.decisions, expected.sums)]
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
        given = [torch.randn(batch, classes, decision, dtype=torch.float64) for _ in range(2)]
        gradients = [torch.autograd.grad(each, leaves, given, retain_graph=True) for each in results]
        again = torch.autograd.grad(found, leaves, given)
    for one, second, other in zip(gradients[0], again, gradients[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
        assert torch.equal(one, second)


def test_no_more_is_kept_than_allowed(monkeypatch) -> None:
    kept = []
    keep = LeanVotes._keep
    monkeypatch.setattr(LeanVotes, "_keep", lambda self: kept.append(keep(self)) or kept[-1])
    capsules, weight = torch.randn(7, 4, 3, requires_grad=True), torch.randn(4, 3, 3, 2, requires_grad=True)
    votes = operands(capsules, weight, a_crf(3, "full", 2).float())
    with in_tiles(kept=75):  # 24 an image
        lean.route(votes, 3, ONE)[0].sum().backward()
    assert [each.shape[1] for each in kept] == [3, 3, 1, 3, 3, 1]  # forward, then backward
    kept.clear()
    lean.route(votes, 3, ONE)[0].sum().backward()
    assert [each.shape[1] for each in kept] == [7]  # few enough to be kept from one to the other


@pytest.mark.parametrize("shared", [False, True], ids=["own votes", "shared votes"])
@pytest.mark.parametrize(
    "model",
    [name for name in list_models() if (config := model_config(name, 2)).capsules is not None and config.em is None],
)
def test_every_model_is_the_same_either_way(model, shared) -> None:
    settings = SHARED if shared else {}
    plain, other = (made_head(model, engine, **settings).double() for engine in ("plain", "lean"))
    results = []
    for head in (plain, other):
        torch.manual_seed(1)
        features = torch.randn(3, 4, 2, 2, dtype=torch.float64, requires_grad=True)
        output = head(features)
        total = output.scores.square().sum() + output.decisions.sum()
        gradients = torch.autograd.grad(total, [features, *head.parameters()], allow_unused=True)
        results.append([output.decisions, *gradients])
    for one, two in zip(*results, strict=True):
        assert (one is None) == (two is None)
        if one is not None:
            torch.testing.assert_close(two, one, rtol=1e-7, atol=1e-9)


def test_half_precision_and_autocast() -> None:
    torch.manual_seed(0)
    plain = create_model("contextcaps-rw-crf-corr", 7, 32, "small", capsules={"types": 3}, engine="plain")
    other = create_model("contextcaps-rw-crf-corr", 7, 32, "small", capsules={"types": 3}, engine="lean")
    other.load_state_dict(plain.state_dict())
    images = torch.rand(4, 3, 32, 32)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = other(images), plain(images)
    torch.testing.assert_close(found.scores, expected.scores, rtol=0.03, atol=0.01)
    with torch.autocast("cpu", torch.bfloat16):  # a bias in float32 keeps routed scores from being rounded
        heads = [made_head("capsnet-rw-crf", each) for each in ("plain", "lean")]
        assert {head.decide(torch.rand(2, 8, 3)).dtype for head in heads} == {torch.float32}
    found.scores.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in other.parameters())


def test_tiles_are_small_and_cover_everything() -> None:
    for types, positions, tile in ((5, 1, 2), (2, 6, 4), (3, 1, 100)):
        with in_tiles(tile * 40):
            votes = LeanVotes(torch.zeros(2, types * positions, 3), torch.zeros(types, 3, 4, 5), None, keep=False)
        seen = [index for part in votes.tiles() for index in range(part.start, part.stop)]
        assert seen == list(range(types * positions))
        assert all(part.stop - part.start <= max(tile, 1) for part in votes.tiles())


def test_a_second_backward_pass() -> None:
    torch.manual_seed(0)
    capsules = torch.randn(2, 4, 3, requires_grad=True)
    votes = operands(capsules, torch.randn(4, 3, 3, 2), a_crf(3, "full", 2).float())
    total = lean.weighted_sum(votes, torch.rand(2, 4, 3)).sum()
    (first,) = torch.autograd.grad(total, capsules, retain_graph=True)
    (second,) = torch.autograd.grad(total, capsules)
    assert torch.equal(first, second)


def test_a_backward_pass_to_some_inputs_leaves_nothing_behind() -> None:
    head = made_head("capsnet-rw-crf", "lean")
    capsules = torch.randn(3, head.capsules, 3, requires_grad=True)
    (expected,) = torch.autograd.grad(head.decide(capsules).square().sum(), capsules)
    total = head.decide(capsules).square().sum()
    torch.autograd.grad(total, head.routing.bias, retain_graph=True)
    (found,) = torch.autograd.grad(total, capsules)
    torch.testing.assert_close(found, expected)


def test_second_derivatives_are_refused() -> None:
    head = made_head("capsnet-rw-crf", "lean")
    capsules = torch.randn(3, head.capsules, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(head.decide(capsules).square().sum(), capsules, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        slope.square().sum().backward()


def test_a_frozen_head() -> None:
    head = made_head("contextcaps-rw-crf-corr", "lean").requires_grad_(False)
    capsules = torch.randn(3, head.capsules, 3, requires_grad=True)
    head.decide(capsules).sum().backward()
    assert capsules.grad is not None
    assert not head.decide(capsules.detach()).requires_grad


def test_many_tiles_add_up_in_half_precision() -> None:
    torch.manual_seed(0)
    capsules, weight = torch.rand(1, 1024, 1), torch.rand(1, 1, 3, 1)  # one type at 1024 positions
    crf = a_crf(3, "full", 1).float()
    found = []
    for dtype in (torch.float64, torch.bfloat16):
        given, weights = (each.detach().to(dtype).requires_grad_() for each in (capsules, weight))
        crf = crf.to(dtype)
        with in_tiles(1):
            sums = lean.weighted_sum(operands(given, weights, crf), torch.ones(1, 1024, 3, dtype=dtype))
            found.append(torch.autograd.grad(sums[0, :2].square().sum(), (weights, crf.weight)))
    for wide, half in zip(*found, strict=True):
        torch.testing.assert_close(half.double(), wide, rtol=0.02, atol=0.02 * float(wide.abs().max()))


@pytest.mark.parametrize("count", [1, 2, 3, 65])
def test_correlation_weights(count, monkeypatch) -> None:
    monkeypatch.setattr("contextcaps.engines.lean_correlation._AT_A_TIME", 2 * count)  # one class at a time
    torch.manual_seed(0)
    alpha = torch.randn(2, 5, count - 1, dtype=torch.float64) * torch.logspace(-3, 3, 5).unsqueeze(-1)
    if count > 3:
        alpha[0, 2, 1] = 0
        alpha[1, :2, 2] = torch.tensor([1e20, -1e-20])
    one, other = alpha.clone().requires_grad_(), alpha.clone().requires_grad_()
    found, expected = tiled_weights(one), correlation_weights(other)
    torch.testing.assert_close(found, expected)
    gradient = torch.randn_like(expected)
    found.backward(gradient)
    if count > 1:
        expected.backward(gradient)
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 63, 64, 200])
def test_sum_of_outer_products(rows) -> None:
    torch.manual_seed(0)
    left, right = torch.randn(2, rows, 5, dtype=torch.float64), torch.randn(2, rows, 3, dtype=torch.float64)
    expected = torch.einsum("trj,trm->jm", left, right)
    for parts in (1, 8):  # on a CPU and as on a GPU
        total = OuterSum(5, 3, left)
        total.parts, total._shape = parts, (parts, 5, 3)
        for one, other in zip(left, right, strict=True):
            total.add(one, other)
        torch.testing.assert_close(total.value, expected)


def test_wrong_operands_are_refused() -> None:
    votes = operands(torch.randn(2, 4, 3), torch.randn(4, 3, 5, 2))
    with pytest.raises(ValueError, match=r"weights: expected shape \[B=2, K=4, J=5\], got \[2, 4\]"):
        lean.weighted_sum(votes, torch.rand(2, 4))
    with pytest.raises(ValueError, match=r"factors: expected shape \[B=2, K=4\], got \[2, 5\]"):
        lean.route(votes, 3, ONE, factors=torch.rand(2, 5))
    with pytest.raises(ValueError, match=r"bias: expected shape \[J=5, I=2\], got \[5, 3\]"):
        lean.route(votes, 3, ONE, torch.rand(5, 3))
    with pytest.raises(ValueError, match="gain: expected a number without a gradient"):
        lean.route(votes, 3, torch.ones((), requires_grad=True))
