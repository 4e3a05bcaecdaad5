"""The head without votes in memory gives what the plain one gives: values and all gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contextcaps.capsules import cast_votes, dynamic_routing
from contextcaps.capsules.fused import ImplicitVotes, LeanVotes
from contextcaps.capsules.mean_field import MeanFieldCRF
from contextcaps.models import create_model, list_models, model_config
from contextcaps.models.head import CapsuleHead


def made(capsules, weight, crf=None, tile_elements=1 << 10, keep_elements=None) -> ImplicitVotes:
    potentials = () if crf is None else crf.potentials
    backend = LeanVotes(capsules, weight, crf, potentials, tile_elements=tile_elements, keep_elements=keep_elements)
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
    factors = torch.rand(batch, count, classes if by_class else 1, dtype=torch.float64, requires_grad=True)
    initial = torch.rand(batch, count, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(classes, decision, dtype=torch.float64, requires_grad=True)
    crf = a_crf(classes, kind, decision)
    leaves = [capsules, weight, factors, initial, bias, *([] if crf is None else crf.parameters())]

    votes = cast_votes(capsules, weight)
    votes = (votes if crf is None else crf(votes)) * factors.unsqueeze(-1)
    implicit = made(capsules, weight, crf, 7, keep_elements=images * count * classes * decision).scaled(factors)
    results = [dynamic_routing(each, iterations, initial, bias=bias).decisions for each in (implicit, votes)]
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)
    given = torch.randn_like(results[0])
    gradients = [torch.autograd.grad(each, leaves, given, retain_graph=True) for each in results]
    again = torch.autograd.grad(results[0], leaves, given)
    for one, second, other in zip(gradients[0], again, gradients[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
        assert torch.equal(one, second)


def test_no_more_is_kept_than_allowed(monkeypatch) -> None:
    kept = []
    keep = LeanVotes._keep
    monkeypatch.setattr(LeanVotes, "_keep", lambda self: kept.append(keep(self)) or kept[-1])
    capsules = torch.randn(7, 4, 3, requires_grad=True)
    crf = a_crf(3, "full", 2).float()
    votes = made(capsules, torch.randn(4, 3, 3, 2, requires_grad=True), crf, keep_elements=75)  # 24 an image
    assert [(part.start, part.stop) for part in votes.backend.groups()] == [(0, 3), (3, 6), (6, 7)]
    dynamic_routing(votes).decisions.sum().backward()
    assert [each.shape[1] for each in kept] == [3, 3, 1, 3, 3, 1]  # forward, then backward
    kept.clear()
    dynamic_routing(made(capsules, torch.randn(4, 3, 3, 2), crf)).decisions.sum().backward()
    assert [each.shape[1] for each in kept] == [7]  # few enough to be kept from one to the other


@pytest.mark.parametrize("shared", [False, True], ids=["own votes", "shared votes"])
@pytest.mark.parametrize("model", [name for name in list_models() if model_config(name, 2).capsules is not None])
def test_every_model_is_the_same_either_way(model, shared) -> None:
    torch.manual_seed(0)
    own = {"types": 3, "share_votes": shared}
    plain = create_model(model, 7, 32, "small", capsules=own, engine="plain")
    for parameter in plain.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)  # away from where the CRF does nothing
    lean = create_model(model, 7, 32, "small", capsules=own, engine="lean")
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
    plain = create_model("contextcaps", 7, 32, "small", capsules={"types": 3}, engine="plain")
    lean = create_model("contextcaps", 7, 32, "small", capsules={"types": 3}, engine="lean")
    lean.load_state_dict(plain.state_dict())
    images = torch.rand(4, 3, 32, 32)
    with torch.autocast("cpu", torch.bfloat16):
        one, other = lean(images), plain(images)
    torch.testing.assert_close(one.scores, other.scores, rtol=0.03, atol=0.01)
    with torch.autocast("cpu", torch.bfloat16):  # a bias in float32 keeps routed scores from being rounded
        assert {a_head(engine=each).decide(torch.rand(2, 8, 3)).dtype for each in ("plain", "lean")} == {torch.float32}
    one.scores.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in lean.parameters())


def test_tiles_are_small_and_cover_everything() -> None:
    for types, positions, tile in ((5, 1, 2), (2, 6, 4), (3, 1, 100)):
        backend = LeanVotes(torch.zeros(2, types * positions, 3), torch.zeros(types, 3, 4, 5), tile_elements=tile * 40)
        seen = [index for part in backend.tiles() for index in range(part.start, part.stop)]
        assert seen == list(range(types * positions))
        assert all(part.stop - part.start <= max(tile, 1) for part in backend.tiles())


def test_a_second_backward_pass() -> None:
    torch.manual_seed(0)
    capsules = torch.randn(2, 4, 3, requires_grad=True)
    crf = a_crf(3, "full", 2).float()
    votes = made(capsules, torch.randn(4, 3, 3, 2), crf)
    total = votes.weighted_sum(torch.rand(2, 4, 3)).sum()
    (first,) = torch.autograd.grad(total, capsules, retain_graph=True)
    (second,) = torch.autograd.grad(total, capsules)
    assert torch.equal(first, second)


def a_head(**settings) -> CapsuleHead:
    own = {"types": 2, "attributes": 3, "decision_attributes": 4}
    config = model_config("capsnet-rw-crf", 5, 32, "small", capsules=own, **settings)
    torch.manual_seed(0)
    head = CapsuleHead(config, 4, (3, 1, 1), (2, 2))
    for parameter in head.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return head


@pytest.mark.parametrize("normalize", ["classes", "capsules"])
def test_a_backward_pass_to_some_inputs_leaves_nothing_behind(normalize) -> None:
    head = a_head(engine="lean", routing={"normalize": normalize})
    capsules = torch.randn(3, head.capsules, 3, requires_grad=True)
    (expected,) = torch.autograd.grad(head.decide(capsules).square().sum(), capsules)
    total = head.decide(capsules).square().sum()
    torch.autograd.grad(total, head.routing.bias, retain_graph=True)
    (found,) = torch.autograd.grad(total, capsules)
    torch.testing.assert_close(found, expected)


def test_second_derivatives_are_refused() -> None:
    head = a_head(engine="lean")
    capsules = torch.randn(3, head.capsules, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(head.decide(capsules).square().sum(), capsules, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.square().sum().backward()


def test_a_crf_without_iterations() -> None:
    found = []
    for engine in ("plain", "lean"):
        head = a_head(engine=engine, crf={"iterations": 0})
        torch.manual_seed(1)
        capsules = torch.randn(3, head.capsules, 3, requires_grad=True)
        found.append(torch.autograd.grad(head.decide(capsules).square().sum(), (capsules, head.votes.weight)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_many_tiles_add_up_in_half_precision() -> None:
    torch.manual_seed(0)
    capsules, weight = torch.rand(1, 1024, 1), torch.rand(1, 1, 3, 1)  # one type at 1024 positions
    crf = a_crf(3, "full", 1).float()
    expected = []
    for dtype in (torch.float64, torch.bfloat16):
        inputs = [each.detach().to(dtype).requires_grad_() for each in (capsules, weight, *crf.potentials)]
        backend = LeanVotes(inputs[0], inputs[1], crf, tuple(inputs[2:]), tile_elements=1)
        votes = ImplicitVotes(backend, tuple(inputs), (1, 1024, 3, 1))
        total = votes.weighted_sum(torch.ones(1, 1024, 3, dtype=dtype))[0, :2].square().sum()
        expected.append(torch.autograd.grad(total, inputs[1:]))
    for wide, half in zip(*expected, strict=True):
        torch.testing.assert_close(half.double(), wide, rtol=0.02, atol=0.02 * float(wide.abs().max()))


def test_votes_that_are_routed_have_no_other_use() -> None:
    votes = made(torch.randn(2, 4, 3, requires_grad=True), torch.randn(4, 3, 3, 2))
    dynamic_routing(votes)
    with pytest.raises(ValueError, match="no other use"):
        votes.weighted_sum(torch.rand(2, 4, 3))
    with torch.no_grad():
        dynamic_routing(votes)
