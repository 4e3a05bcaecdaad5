"""Heads that differ in their engine alone, and the comparison of what they compute."""

import os

import pytest
import torch

from contextcaps.models.head import CapsuleHead
from contextcaps.models.registry import model_config

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
HALF = torch.bfloat16 if GPU else torch.float16  # the interpreter's matrix products know no bfloat16
LIMITS = {torch.float32: 1e-4, HALF: 1e-2}

SMALL = (2, 3, 5, 4)  # D, A, J, I

needs_triton = pytest.mark.skipif(
    not GPU and os.environ.get("TRITON_INTERPRET") != "1", reason="no GPU, and no interpreter asked for"
)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """|found - expected| / |expected|."""
    found, expected = found.detach().double(), expected.detach().double()
    assert bool(found.isfinite().all())
    return float((found - expected).norm() / expected.norm().clamp_min(1e-30))


SHARED = {"capsules.share_votes": True}


def made_head(model: str, engine: str, sizes: tuple[int, ...] = SMALL, **settings) -> CapsuleHead:
    """A head on a grid of 2×2, away from where the CRF does nothing."""
    types, attributes, classes, decision = sizes
    own = {"capsules.types": types, "capsules.attributes": attributes, "capsules.decision_attributes": decision}
    config = model_config(model, classes, 32, "small", engine=engine, **own, **settings)
    torch.manual_seed(0)
    head = CapsuleHead(config, 4, (3, 1, 1), (2, 2))
    for parameter in head.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return head


def compare(
    engine: str, model: str, sizes=SMALL, batch: int = 3, dtype=torch.float32, seed: int = 0, **settings
) -> None:
    """An engine against all votes in memory, in float64, on the same numbers: decisions and all gradients."""
    plain, other = (made_head(model, each, sizes, **settings) for each in ("plain", engine))
    plain, other = plain.double().to(DEVICE), other.to(DEVICE)
    torch.manual_seed(seed)
    capsules = (0.5 * torch.randn(batch, other.capsules, sizes[1])).to(DEVICE)
    if dtype != torch.float32:  # round first, so that it is the arithmetic that is measured
        capsules = capsules.to(dtype).float()
        for one, two in zip(other.parameters(), plain.parameters(), strict=True):
            one.data = one.data.to(dtype).float()
            two.data = one.data.double()
    inputs = capsules.clone().requires_grad_(), capsules.double().requires_grad_()
    with torch.autocast(DEVICE, dtype, enabled=dtype != torch.float32):
        assert other.engine_for(inputs[0]) == engine
        found = other.decide(inputs[0])
    expected = plain.decide(inputs[1])
    gradient = torch.randn(expected.shape, dtype=torch.float64).to(DEVICE)
    found.backward(gradient.to(found.dtype))
    expected.backward(gradient)
    limit = LIMITS[dtype]
    assert error(found, expected) <= limit
    assert error(inputs[0].grad, inputs[1].grad) <= limit
    scale = max(float(p.grad.norm()) for p in plain.parameters() if p.grad is not None)
    for (name, one), two in zip(other.named_parameters(), plain.parameters(), strict=True):
        assert one.grad is not None or two.grad is None, name
        if two.grad is None or float(two.grad.norm()) < 1e-6 * scale:  # RW as logits, a CRF without iterations
            assert one.grad is None or float(one.grad.norm()) <= 1e-4 * scale, name
        elif name == "initial.bias" and dtype != torch.float32:
            # A sum of terms of either sign: where they cancel, rounding is large beside what is left.
            left = max(two.grad.norm(), 0.1 * plain.initial.kernel.grad.norm())
            assert float((one.grad - two.grad).norm() / left) <= 3 * limit, name
        else:
            assert error(one.grad, two.grad) <= (limit if two.numel() > 1 else 3 * limit), name
