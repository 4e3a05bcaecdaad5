"""The Triton kernels give what all votes in memory give: values and all gradients.

On a GPU they run as they are; elsewhere in Triton's interpreter, with fewer and smaller sizes.
"""

import functools

import pytest
import torch
from comparing import DEVICE, GPU, HALF, LIMITS, SHARED, SMALL, error, made_head, needs_triton
from comparing import compare as compare_engines
from hypothesis import given, settings
from hypothesis import strategies as st

import reference

pytest.importorskip("triton")

from contextcaps.capsules import correlation_weights
from contextcaps.capsules.mean_field import MeanFieldCRF
from contextcaps.engines import VoteOperands
from contextcaps.engines.triton import operators, routing, votes
from contextcaps.engines.triton.correlation import weights_by_capsule
from contextcaps.engines.triton.streamed_crf import StreamedCRF
from contextcaps.models import list_models, model_config

pytestmark = [needs_triton, pytest.mark.long]

compare = functools.partial(compare_engines, "triton")

UNKNOWN = ("capsnet-em", "capsnet-rw-crf-literal", "capsnet-rw-crf-corr-literal")  # refused, below
MODELS = [name for name in list_models() if model_config(name, 2).capsules is not None and name not in UNKNOWN]


@pytest.mark.parametrize("model", MODELS)
def test_every_model(model) -> None:
    compare(model, (1, 3, 5, 2), 2)


VARIANTS = {
    "shared votes": SHARED,
    "CORR, shared votes": {"correlation": {}, "routing": None, "initial_routing.mode": "gate", **SHARED},
    "routing joined": {"correlation": {}},
    "low rank": {"crf.rank": 3},
    "one CRF iteration": {"crf.iterations": 1},
    "three CRF iterations": {"crf.iterations": 3},
    "one routing iteration": {"routing.iterations": 1},
    "two routing iterations": {"routing.iterations": 2},
    "four routing iterations": {"routing.iterations": 4},
    "RW as gate": {"initial_routing.mode": "gate"},
    "RW as logits": {"initial_routing.mode": "logits"},
    "no bias": {"capsules.decision_bias": False},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(variant) -> None:
    compare("capsnet-rw-crf", (1, 3, 18, 2), 1, **VARIANTS[variant])


@pytest.mark.parametrize("model", ["capsnet-rw-crf", "contextcaps-rw-crf-corr"])
@pytest.mark.parametrize(
    ("sizes", "batch"),
    [((1, 2, 2, 1), 1), ((1, 16, 33, 3), 2), ((1, 2, 205, 1), 1)],
    ids=["two classes", "33 classes", "205 classes"],
)
def test_odd_sizes(model, sizes, batch) -> None:
    compare(model, sizes, batch)


def test_more_rows_than_a_tile_has() -> None:
    compare("capsnet-rw-crf", (1, 1, 3, 3), 5, **SHARED)  # 5 images at 4 positions, 16 rows a tile


@pytest.mark.skipif(not GPU, reason="too large for the interpreter")
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("model", ["capsnet", "capsnet-rw-crf", "contextcaps-rw-crf-corr"])
@pytest.mark.parametrize(
    ("sizes", "batch"),
    [
        ((32, 8, 150, 16), 128),
        ((32, 8, 80, 16), 65),
        ((8, 8, 171, 16), 33),
        ((4, 8, 300, 16), 20),
        ((4, 8, 520, 16), 20),
        ((4, 8, 1000, 8), 9),
        ((1, 8, 2500, 16), 3),
    ],
    ids=["150 classes", "80 classes", "171 classes", "300 classes", "520 classes", "1000 classes", "2500 classes"],
)
def test_real_sizes(model, sizes, batch, dtype) -> None:
    compare(model, sizes, batch, dtype)


@pytest.mark.parametrize("model", ["capsnet", "capsnet-rw-crf", "contextcaps-rw-crf-corr"])
def test_half_precision(model) -> None:
    compare(model, (1, 8, 21, 2), 2, HALF)


@pytest.mark.parametrize("iterations", [1, 2])
def test_unequal_parts_of_classes_in_several_chunks(iterations, monkeypatch) -> None:
    monkeypatch.setattr(votes, "_STORED", 2 * 48 * 5)  # five rows
    compare("capsnet-rw-crf", (1, 3, 40, 2), 2, HALF, **SHARED, **{"crf.iterations": iterations})


@pytest.mark.parametrize("rank", [None, 4])
def test_many_classes_in_half_precision(rank) -> None:
    compare("capsnet-rw-crf", (1, 8, 205, 2), 1, HALF, **{"crf.rank": rank})


@settings(max_examples=60 if GPU else 3)
@given(
    sizes=st.tuples(*(st.integers(1, most) for most in (3 if GPU else 1, 9)), st.integers(2, 40), st.integers(1, 6)),
    batch=st.integers(1, 5 if GPU else 3),
    model=st.sampled_from(["capsnet-rw", "capsnet-rw-crf", "contextcaps-rw-crf-corr"]),
    shared=st.booleans(),
    seed=st.integers(0, 99),
)
def test_random_sizes(sizes, batch, model, shared, seed) -> None:
    compare(model, sizes, batch, seed=seed, **(SHARED if shared else {}))


@pytest.mark.parametrize(
    "settings", [{}, {"correlation": {}}, {"initial_routing.mode": "gate"}], ids=["couplings", "both", "gate"]
)
def test_more_classes_than_fit_into_registers(settings, monkeypatch) -> None:
    monkeypatch.setattr(routing, "_MOST_ROUTED", 1)
    monkeypatch.setattr(routing, "_BLOCK", 16)
    compare("capsnet-rw", (1, 3, 18, 2), 2, **SHARED, **settings)


def test_more_classes_than_fit_into_registers_without_factors(monkeypatch) -> None:
    monkeypatch.setattr(routing, "_MOST_ROUTED", 1)
    compare("capsnet", (1, 3, 5, 3), 2, HALF)


def operands(capsules, weight, crf=None, dtype=torch.float32) -> VoteOperands:
    return VoteOperands(capsules, weight, crf, dtype)


def test_against_plain_loops() -> None:
    torch.manual_seed(0)
    capsules, weight = torch.randn(2, 3, 4), 0.3 * torch.randn(3, 4, 5, 2)
    crf = MeanFieldCRF(5, 2)
    torch.nn.init.normal_(crf.weight, std=0.2)
    initial = torch.rand(2, 3)
    cast = reference.cast_votes(capsules.numpy(), weight.numpy())
    cast = reference.mean_field(cast, crf.weight.detach().numpy(), 2, centre=True, scale=5.0)
    expected = reference.dynamic_routing(cast, 3, initial=initial.numpy(), initial_as="couplings")
    given = operands(capsules.to(DEVICE), weight.to(DEVICE), crf.to(DEVICE))
    decisions, _ = operators.route(given, 3, torch.ones((), device=DEVICE), couplings=initial.to(DEVICE))
    expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(decisions.cpu().double(), torch.as_tensor(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", ["capsnet-rw-crf", "contextcaps-rw-crf-corr"])
def test_a_second_backward_pass_and_the_same_bits_twice(model) -> None:
    head = made_head(model, "triton", (1, 3, 5, 2)).to(DEVICE)
    capsules = torch.randn(2, head.capsules, 3, device=DEVICE, requires_grad=True)
    total = head.decide(capsules).square().sum()
    first = torch.autograd.grad(total, (capsules, *head.crf.parameters()), retain_graph=True)
    second = torch.autograd.grad(total, (capsules, *head.crf.parameters()))
    third = torch.autograd.grad(head.decide(capsules).square().sum(), (capsules, *head.crf.parameters()))
    for one, two, three in zip(first, second, third, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


@pytest.mark.parametrize("model", ["capsnet-rw-crf", "contextcaps-rw-crf-corr"])
def test_the_same_bits_without_autograd(model) -> None:
    head = made_head(model, "triton", (1, 3, 5, 2)).to(DEVICE)
    capsules = torch.randn(2, head.capsules, 3, device=DEVICE)
    recorded = head.decide(capsules)  # through the dispatcher of custom operators
    with torch.no_grad():  # past it
        assert torch.equal(head.decide(capsules), recorded)
    with torch.inference_mode():
        assert torch.equal(head.decide(capsules), recorded)


def test_votes_are_freed_by_the_backward_pass() -> None:
    capsules = torch.randn(2, 3, 4, device=DEVICE, requires_grad=True)
    weight = torch.randn(3, 4, 5, 2, device=DEVICE)
    sums = operators.weighted_sum(operands(capsules, weight), torch.rand(2, 3, 5, device=DEVICE))
    node = sums.grad_fn
    assert node.votes.shape == (3, 2, 2, 32)
    assert not node.votes.requires_grad
    sums.sum().backward()
    assert node.votes is None


def test_a_backward_pass_to_some_inputs_leaves_nothing_behind() -> None:
    head = made_head("capsnet-rw", "triton", (1, 3, 5, 2)).to(DEVICE)
    capsules = torch.randn(2, head.capsules, 3, device=DEVICE, requires_grad=True)
    (expected,) = torch.autograd.grad(head.decide(capsules).square().sum(), capsules)
    total = head.decide(capsules).square().sum()
    torch.autograd.grad(total, head.routing.bias, retain_graph=True)
    (found,) = torch.autograd.grad(total, capsules)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("model", ["capsnet-rw", "contextcaps-rw-crf-corr"])
def test_frozen_votes_twice(model) -> None:
    frozen, whole = (made_head(model, "triton", (1, 3, 5, 2)).to(DEVICE) for _ in range(2))
    for part in (frozen.votes, frozen.crf):
        if part is not None:
            part.requires_grad_(False)
    torch.manual_seed(1)
    capsules = torch.randn(2, frozen.capsules, 3, device=DEVICE)
    total = frozen.decide(capsules).square().sum()
    names = [name for name, each in frozen.named_parameters() if each.requires_grad]
    left = [each for each in frozen.parameters() if each.requires_grad]
    first, second = (torch.autograd.grad(total, left, retain_graph=True, allow_unused=True) for _ in range(2))
    whole.decide(capsules).square().sum().backward()
    for name, one, other in zip(names, first, second, strict=True):
        expected = whole.get_parameter(name).grad
        assert one is other is expected is None or (torch.equal(one, other) and torch.equal(one, expected))


def test_second_derivatives_are_refused() -> None:
    head = made_head("capsnet-rw", "triton", (1, 3, 5, 2)).to(DEVICE)
    capsules = torch.randn(3, head.capsules, 3, device=DEVICE, requires_grad=True)
    (slope,) = torch.autograd.grad(head.decide(capsules).square().sum(), capsules, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        slope.square().sum().backward()


@pytest.mark.parametrize("iterations", [0, 1, 2, 3])
def test_shared_votes_in_several_chunks(iterations, monkeypatch) -> None:
    monkeypatch.setattr(votes, "_STORED", 2 * 32 * 5)  # five rows
    monkeypatch.setattr(votes, "_STREAMED", 2 * 32 * 5)
    compare("capsnet-rw-crf", (1, 3, 5, 2), 2, **SHARED, **{"crf.iterations": iterations})


@settings(max_examples=60 if GPU else 12)
@given(
    rows=st.integers(1, 6),
    classes=st.integers(2, 70),
    iterations=st.integers(0, 3),
    rank=st.sampled_from([None, 1, 4]),
    more=st.integers(0, 20),
    seed=st.integers(0, 99),
)
def test_rows_of_votes_through_a_crf_that_does_not_fit_on_chip(rows, classes, iterations, rank, more, seed) -> None:
    torch.manual_seed(seed)
    crf = MeanFieldCRF(classes, iterations, rank=rank).double()
    for each in crf.potentials:
        each.data = 0.3 * torch.randn_like(each)
    cast, gradient = torch.randn(2, rows, classes, dtype=torch.float64)
    cast.requires_grad_()
    expected = crf(cast[:, None, :, None])[:, 0, :, 0]  # [n, J]
    wanted = torch.autograd.grad(expected, (cast, *crf.potentials), gradient, allow_unused=True)

    potentials = tuple(each.detach().float().to(DEVICE) for each in crf.potentials)
    streamed = StreamedCRF(potentials, iterations, classes + more)
    # Columns beyond the classes: zeros in the votes, anything in their gradient.
    wide = torch.nn.functional.pad(cast.detach(), (0, more)).float().to(DEVICE)  # [n, JP]
    given = torch.cat([gradient, 100 * torch.randn(rows, more)], dim=1).float().to(DEVICE)
    corrected = streamed.correct(wide)
    assert error(corrected[:, :classes].cpu(), expected) <= 1e-5
    assert not corrected[:, classes:].any()
    assert error(streamed.correct(wide, torch.empty_like(wide)), corrected) <= 1e-6
    found = [streamed.vjp(wide, given)[:, :classes], *streamed.pairwise.gradients()]
    for one, other in zip(found, wanted, strict=True):
        if other is None or float(other.norm()) < 1e-12:
            assert float(one.norm()) <= 1e-5
        else:
            assert error(one.cpu(), other) <= 1e-4


def test_more_attributes_than_fit_on_chip() -> None:
    compare("capsnet-rw-crf", (1, 32, 5, 2), 2)


@pytest.mark.parametrize("model", ["capsnet-rw", "contextcaps-rw-crf-corr"])
def test_kernels_with_wide_offsets(model, monkeypatch) -> None:
    monkeypatch.setattr(routing, "_MOST_COUNTED", 1)
    compare(model, (2, 3, 5, 2), 2, **SHARED)


@pytest.mark.skipif(not GPU, reason="more than 2³¹ votes of one type")
def test_offsets_in_64_bits() -> None:
    torch.manual_seed(0)
    capsules = torch.randn(128, 9216, 1, device=DEVICE, dtype=torch.bfloat16)  # [B, K, A], of one type
    weight = torch.randn(1, 1, 120, 16, device=DEVICE, dtype=torch.bfloat16)  # [D, A, J, I]
    weights = torch.ones(128, 9216, 120, device=DEVICE, dtype=torch.bfloat16)
    found = operators.weighted_sum(operands(capsules, weight, dtype=torch.bfloat16), weights)  # [B, J, I]
    expected = capsules.float().sum(dim=1)[..., None] * weight[0].float()  # [B, J, I]
    assert error(found, expected) <= 1e-2


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU, or none")
def test_on_a_gpu_that_is_not_the_current_one() -> None:
    for model in ("capsnet-rw-crf", "contextcaps-rw-crf-corr"):
        head = made_head(model, "triton").to("cuda:1")
        capsules = torch.randn(3, head.capsules, 3, device="cuda:1", requires_grad=True)
        head.decide(capsules).sum().backward()
        assert bool(capsules.grad.isfinite().all())


@pytest.mark.parametrize("count", [1, 2, 3, 64, 65, 130])
def test_correlation_weights(count) -> None:
    torch.manual_seed(0)
    alpha = torch.randn(2, count - 1, 5) * torch.logspace(-3, 3, 5)
    if count > 3:
        alpha[0, 1, 2] = 0
        alpha[1, 2, :2] = torch.tensor([1e20, -1e-20])
    one, other = alpha.clone().to(DEVICE).requires_grad_(), alpha.double().requires_grad_()
    found = weights_by_capsule(one)
    expected = correlation_weights(other.transpose(1, 2)).transpose(1, 2)
    assert error(found.cpu(), expected) <= 1e-5
    if count > 1:
        gradient = torch.randn(expected.shape, dtype=torch.float64)
        found.backward(gradient.to(found))
        expected.backward(gradient)
        assert error(one.grad.cpu(), other.grad) <= 1e-4


def test_deviations_from_uniform_weights() -> None:
    torch.manual_seed(0)
    deviation = 0.2 * torch.randn(2, 6, 3)
    alpha = torch.arange(1, 7).sqrt()[None, :, None] * (1 + deviation)
    found = weights_by_capsule(deviation.to(DEVICE), uniform=True)
    torch.testing.assert_close(found, weights_by_capsule(alpha.to(DEVICE)))


def test_precisions_that_the_kernels_do_not_know_are_refused() -> None:
    head = made_head("contextcaps-rw-crf-corr", "triton").double().to(DEVICE)
    with pytest.raises(ValueError, match="float32, bfloat16 and float16, not float64"):
        head.decide(torch.zeros(1, head.capsules, SMALL[1], dtype=torch.float64, device=DEVICE))
