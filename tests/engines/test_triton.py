"""The Triton kernels give what the plain head gives: values and all gradients.

On a GPU they run as they are; elsewhere in Triton's interpreter, with fewer and smaller sizes.
"""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference

pytest.importorskip("triton")

from contextcaps.capsules import correlation_weights
from contextcaps.capsules.fused import ImplicitVotes, compact_votes, triton_votes
from contextcaps.capsules.fused.correlation import fused_correlation_weights
from contextcaps.capsules.fused.outer import OuterSum
from contextcaps.capsules.fused.streamed_field import StreamedField
from contextcaps.capsules.fused.triton_votes import FusedVotes
from contextcaps.capsules.mean_field import MeanFieldCRF
from contextcaps.models import list_models
from contextcaps.models.head import CapsuleHead
from contextcaps.models.registry import model_config

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
HALF = torch.bfloat16 if GPU else torch.float16  # the interpreter's matrix products know no bfloat16
LIMITS = {torch.float32: 1e-4, HALF: 1e-2}

pytestmark = pytest.mark.skipif(
    not GPU and os.environ.get("TRITON_INTERPRET") != "1", reason="no GPU, and no interpreter asked for"
)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """|found - expected| / |expected|."""
    found, expected = found.detach().double(), expected.detach().double()
    assert bool(found.isfinite().all())
    return float((found - expected).norm() / expected.norm().clamp_min(1e-30))


def made_head(model: str, engine: str, sizes: tuple[int, ...], **settings) -> CapsuleHead:
    """A head on a grid of 2×2, away from where the CRF does nothing."""
    types, attributes, classes, decision = sizes
    own = {"capsules.types": types, "capsules.attributes": attributes, "capsules.decision_attributes": decision}
    config = model_config(model, classes, 32, "small", engine=engine, **own, **settings)
    torch.manual_seed(0)
    head = CapsuleHead(config, 4, (3, 1, 1), (2, 2))
    for parameter in head.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return head


def compare(model: str, sizes=(2, 3, 5, 4), batch: int = 3, dtype=torch.float32, seed: int = 0, **settings) -> None:
    """Fused against plain in float64, on the same numbers."""
    plain, fused = (made_head(model, engine, sizes, **settings) for engine in ("plain", "triton"))
    plain, fused = plain.double().to(DEVICE), fused.to(DEVICE)
    torch.manual_seed(seed)
    capsules = (0.5 * torch.randn(batch, fused.capsules, sizes[1])).to(DEVICE)
    if dtype != torch.float32:  # round first, so that it is the arithmetic that is measured
        capsules = capsules.to(dtype).float()
        for one, other in zip(fused.parameters(), plain.parameters(), strict=True):
            one.data = one.data.to(dtype).float()
            other.data = one.data.double()
    inputs = capsules.clone().requires_grad_(), capsules.double().requires_grad_()
    with torch.autocast(DEVICE, dtype, enabled=dtype != torch.float32):
        assert fused.backend_for(inputs[0]) == "triton"
        found = fused.decide(inputs[0])
    expected = plain.decide(inputs[1])
    gradient = torch.randn_like(expected)
    found.backward(gradient.to(found.dtype))
    expected.backward(gradient)
    limit = LIMITS[dtype]
    assert error(found, expected) <= limit
    assert error(inputs[0].grad, inputs[1].grad) <= limit
    scale = max(float(p.grad.norm()) for p in plain.parameters() if p.grad is not None)
    for (name, one), other in zip(fused.named_parameters(), plain.parameters(), strict=True):
        if other.grad is None or float(other.grad.norm()) < 1e-6 * scale:  # RW as logits: nothing but rounding
            assert one.grad is None or float(one.grad.norm()) <= 1e-4 * scale, name
        elif name == "initial.bias" and dtype != torch.float32:
            # A sum of terms of either sign: where they cancel, rounding is large beside what is left.
            left = max(other.grad.norm(), 0.1 * plain.initial.kernel.grad.norm())
            assert float((one.grad - other.grad).norm() / left) <= 3 * limit, name
        else:
            assert error(one.grad, other.grad) <= (limit if other.numel() > 1 else 3 * limit), name


CAPSULE_MODELS = [
    name for name in list_models() if name.startswith(("capsnet", "contextcaps")) and name != "capsnet-em"
]


@pytest.mark.parametrize("shared", [False, True], ids=["own votes", "shared votes"])
@pytest.mark.parametrize("model", CAPSULE_MODELS)
def test_every_model(model, shared) -> None:
    compare(model, **{"capsules.share_votes": shared})


VARIANTS = {
    "routing joined": {"correlation": {}},
    "low rank": {"crf.rank": 3},
    "per attribute": {"crf.per_attribute": True},
    "one CRF iteration": {"crf.iterations": 1},
    "three CRF iterations": {"crf.iterations": 3},
    "one routing iteration": {"routing.iterations": 1},
    "two routing iterations": {"routing.iterations": 2},
    "four routing iterations": {"routing.iterations": 4},
    "normalised over capsules": {"routing.normalize": "capsules"},
    "RW as gate": {"initial_routing.mode": "gate"},
    "no bias": {"capsules.decision_bias": False},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(variant) -> None:
    compare("capsnet-rw-crf", (2, 3, 18, 4), **VARIANTS[variant])


@pytest.mark.parametrize("model", ["capsnet-rw-crf", "contextcaps"])
@pytest.mark.parametrize(
    ("sizes", "batch"),
    [((1, 2, 2, 1), 1), ((1, 8, 17, 3), 1), ((1, 16, 33, 2), 2), ((1, 2, 205, 2), 2), ((3, 1, 3, 5), 17)],
    ids=["two classes", "17 classes", "33 classes", "205 classes", "17 images"],
)
def test_odd_sizes(model, sizes, batch) -> None:
    compare(model, sizes, batch)


@pytest.mark.skipif(not GPU, reason="too large for the interpreter")
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("model", ["capsnet", "capsnet-rw-crf", "contextcaps"])
@pytest.mark.parametrize(
    ("sizes", "batch"),
    [
        ((32, 8, 150, 16), 128),
        ((32, 8, 80, 16), 65),
        ((8, 8, 171, 16), 33),
        ((4, 8, 300, 16), 20),
        ((4, 8, 520, 16), 20),
        ((4, 8, 1000, 8), 9),
    ],
    ids=["150 classes", "80 classes", "171 classes", "300 classes", "520 classes", "1000 classes"],
)
def test_real_sizes(model, sizes, batch, dtype) -> None:
    compare(model, sizes, batch, dtype)


@pytest.mark.parametrize("model", ["capsnet", "capsnet-rw-crf", "contextcaps"])
def test_half_precision(model) -> None:
    compare(model, (4, 8, 21, 8), 5, HALF)


@pytest.mark.parametrize("iterations", [1, 2])
def test_unequal_parts_of_classes_in_several_chunks(iterations, monkeypatch) -> None:
    monkeypatch.setattr(compact_votes, "_STORED", 4 * 48 * 5)  # five rows
    compare("capsnet-rw-crf", (1, 3, 40, 4), 4, HALF, **{"capsules.share_votes": True, "crf.iterations": iterations})


@pytest.mark.parametrize("rank", [None, 4])
def test_many_classes_in_half_precision(rank) -> None:
    compare("capsnet-rw-crf", (1, 8, 205, 4), 2, HALF, crf={"rank": rank})


@settings(max_examples=60 if GPU else 6)
@given(
    sizes=st.tuples(*(st.integers(1, most) for most in (3, 9)), st.integers(2, 40), st.integers(1, 6)),
    batch=st.integers(1, 5),
    model=st.sampled_from(["capsnet-rw", "capsnet-rw-crf", "contextcaps"]),
    shared=st.booleans(),
    seed=st.integers(0, 99),
)
def test_random_sizes(sizes, batch, model, shared, seed) -> None:
    compare(model, sizes, batch, seed=seed, **{"capsules.share_votes": shared})


def test_against_plain_loops() -> None:
    torch.manual_seed(0)
    capsules, weight = torch.randn(2, 3, 4), 0.3 * torch.randn(3, 4, 5, 2)
    crf = MeanFieldCRF(5, 2)
    torch.nn.init.normal_(crf.weight, std=0.2)
    initial = torch.rand(2, 3)
    votes = reference.cast_votes(capsules.numpy(), weight.numpy())
    votes = reference.mean_field(votes, crf.weight.detach().numpy(), 2, centre=True, scale=5.0)
    expected = reference.dynamic_routing(votes, 3, initial=initial.numpy(), initial_as="couplings")
    crf = crf.to(DEVICE)
    inputs = (capsules.to(DEVICE), weight.to(DEVICE), *crf.potentials)
    implicit = ImplicitVotes(FusedVotes(*inputs[:2], crf), inputs, (2, 3, 5, 2))
    decisions, _ = implicit.route(3, initial.to(DEVICE).unsqueeze(2), None, 1.0)
    expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(decisions.cpu().double(), torch.as_tensor(expected), rtol=1e-5, atol=1e-6)


def test_a_second_backward_pass_and_the_same_bits_twice() -> None:
    head = made_head("capsnet-rw-crf", "triton", (2, 3, 5, 4)).to(DEVICE)
    capsules = torch.randn(3, head.capsules, 3, device=DEVICE, requires_grad=True)
    total = head.decide(capsules).square().sum()
    first = torch.autograd.grad(total, (capsules, *head.crf.parameters()), retain_graph=True)
    second = torch.autograd.grad(total, (capsules, *head.crf.parameters()))
    third = torch.autograd.grad(head.decide(capsules).square().sum(), (capsules, *head.crf.parameters()))
    for one, two, three in zip(first, second, third, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


@pytest.mark.parametrize("normalize", ["classes", "capsules"])
def test_a_backward_pass_to_some_inputs_leaves_nothing_behind(normalize) -> None:
    head = made_head("capsnet-rw", "triton", (2, 3, 5, 4), routing={"normalize": normalize}).to(DEVICE)
    capsules = torch.randn(3, head.capsules, 3, device=DEVICE, requires_grad=True)
    (expected,) = torch.autograd.grad(head.decide(capsules).square().sum(), capsules)
    total = head.decide(capsules).square().sum()
    torch.autograd.grad(total, head.routing.bias, retain_graph=True)
    (found,) = torch.autograd.grad(total, capsules)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("model", ["capsnet-rw", "contextcaps"])
def test_frozen_votes_twice(model) -> None:
    head = made_head(model, "triton", (2, 3, 5, 4)).to(DEVICE)
    for part in (head.votes, head.crf):
        if part is not None:
            part.requires_grad_(False)
    total = head.decide(torch.randn(3, head.capsules, 3, device=DEVICE)).square().sum()
    left = [each for each in head.parameters() if each.requires_grad]
    first, second = (torch.autograd.grad(total, left, retain_graph=True, allow_unused=True) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert one is other is None or torch.equal(one, other)


def test_second_derivatives_are_refused() -> None:
    head = made_head("capsnet-rw", "triton", (2, 3, 5, 4)).to(DEVICE)
    capsules = torch.randn(3, head.capsules, 3, device=DEVICE, requires_grad=True)
    (slope,) = torch.autograd.grad(head.decide(capsules).square().sum(), capsules, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.square().sum().backward()


@pytest.mark.parametrize("iterations", [0, 1, 2, 3])
def test_shared_votes_in_several_chunks(iterations, monkeypatch) -> None:
    monkeypatch.setattr(compact_votes, "_STORED", 4 * 32 * 5)  # five rows
    monkeypatch.setattr(compact_votes, "_STREAMED", 4 * 32 * 5)
    compare("capsnet-rw-crf", (2, 3, 5, 4), 4, **{"capsules.share_votes": True, "crf.iterations": iterations})


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
    votes, gradient = torch.randn(2, rows, classes, dtype=torch.float64)
    votes.requires_grad_()
    expected = crf(votes[:, None, :, None])[:, 0, :, 0]  # [n, J]
    wanted = torch.autograd.grad(expected, (votes, *crf.potentials), gradient, allow_unused=True)

    field = StreamedField(crf, tuple(each.detach().float().to(DEVICE) for each in crf.potentials), classes + more)
    # Columns beyond the classes: zeros in the votes, anything in their gradient.
    wide = torch.nn.functional.pad(votes.detach(), (0, more)).float().to(DEVICE)  # [n, JP]
    given = torch.cat([gradient, 100 * torch.randn(rows, more)], dim=1).float().to(DEVICE)
    corrected = field.correct(wide)
    assert error(corrected[:, :classes].cpu(), expected) <= 1e-5
    assert not corrected[:, classes:].any()
    assert error(field.correct(wide, torch.empty_like(wide)), corrected) <= 1e-6
    found = [field.pull_back(wide, given)[:, :classes], *field.pairwise.gradients()]
    for one, other in zip(found, wanted, strict=True):
        if other is None or float(other.norm()) < 1e-12:
            assert float(one.norm()) <= 1e-5
        else:
            assert error(one.cpu(), other) <= 1e-4


@pytest.mark.parametrize("rows", [1, 63, 64, 200])
def test_sum_of_outer_products(rows) -> None:
    torch.manual_seed(0)
    total = OuterSum(5, 3, torch.device(DEVICE))
    left, right = torch.randn(2, rows, 5, device=DEVICE), torch.randn(2, rows, 3, device=DEVICE)
    for one, other in zip(left, right, strict=True):
        total.add(one, other)
    expected = torch.einsum("trj,trm->jm", left.double(), right.double())
    assert error(total.value.cpu(), expected.cpu()) <= 1e-5


def test_a_literal_crf_without_iterations() -> None:
    compare("capsnet-rw-crf", crf={"mode": "literal", "iterations": 0}, **{"capsules.start_length": None})


def test_more_attributes_than_fit_on_chip() -> None:
    compare("capsnet-rw-crf", (1, 32, 5, 2), 2)


@pytest.mark.parametrize("settings", [{}, {"routing.normalize": "capsules"}], ids=["routed", "sums and agreements"])
def test_kernels_with_wide_offsets(settings, monkeypatch) -> None:
    monkeypatch.setattr(triton_votes, "_MOST_COUNTED", 1)
    compare("capsnet-rw", **{"capsules.share_votes": True}, **settings)


@pytest.mark.skipif(not GPU, reason="more than 2³¹ votes of one type")
def test_offsets_in_64_bits() -> None:
    torch.manual_seed(0)
    capsules = torch.randn(128, 9216, 1, device=DEVICE, dtype=torch.bfloat16)  # [B, K, A], of one type
    weight = torch.randn(1, 1, 120, 16, device=DEVICE, dtype=torch.bfloat16)  # [D, A, J, I]
    votes = ImplicitVotes(FusedVotes(capsules, weight), (capsules, weight), (128, 9216, 120, 16))
    found = votes.weighted_sum(torch.ones(128, 9216, 120, device=DEVICE, dtype=torch.bfloat16))  # [B, J, I]
    expected = capsules.float().sum(dim=1)[..., None] * weight[0].float()  # [B, J, I]
    assert error(found, expected) <= 1e-2


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU, or none")
def test_on_a_gpu_that_is_not_the_current_one() -> None:
    for model in ("capsnet-rw-crf", "contextcaps"):
        head = made_head(model, "triton", (2, 3, 5, 4)).to("cuda:1")
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
    found = fused_correlation_weights(one)
    expected = correlation_weights(other.transpose(1, 2)).transpose(1, 2)
    assert error(found.cpu(), expected) <= 1e-5
    if count > 1:
        gradient = torch.randn_like(expected)
        found.backward(gradient.to(found))
        expected.backward(gradient)
        assert error(one.grad.cpu(), other.grad) <= 1e-4


def test_deviations_from_uniform_weights() -> None:
    torch.manual_seed(0)
    deviation = 0.2 * torch.randn(2, 6, 3)
    alpha = torch.arange(1, 7).sqrt()[None, :, None] * (1 + deviation)
    found = fused_correlation_weights(deviation.to(DEVICE), uniform=True)
    torch.testing.assert_close(found, fused_correlation_weights(alpha.to(DEVICE)))


def test_compiled_and_with_autocast() -> None:
    head = made_head("contextcaps", "triton", (2, 3, 5, 4)).to(DEVICE)
    capsules = torch.randn(3, head.capsules, 3, device=DEVICE)
    expected = head.decide(capsules)
    compiled = torch.compile(head.decide, backend="eager")
    torch.testing.assert_close(compiled(capsules), expected)


def test_says_what_it_takes() -> None:
    head = made_head("contextcaps", "auto", (2, 3, 5, 4))
    assert head.backend_for(torch.zeros(1, head.capsules, 3)) == "plain"
    fused = made_head("contextcaps", "triton", (2, 3, 5, 4))
    with pytest.raises(ValueError, match="float32, bfloat16 and float16, not float64"):
        fused.double().decide(torch.zeros(1, head.capsules, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match="EM routing needs all votes"):
        made_head("capsnet", "triton", (2, 3, 5, 4), routing=None, em={}).decide(torch.zeros(1, head.capsules, 3))
