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
    """Compare an engine with all votes in memory in float64, on the same numbers: decisions and all gradients.

    In half precision it may be twice as far from them as all votes in memory are in that precision: with thousands of
    classes rounding alone takes those beyond the limit. A bias is then judged with its weights, as its gradient is a
    sum of terms of either sign: where they cancel, rounding is large beside what is left.
    """
    exact, other = (made_head(model, each, sizes, **settings) for each in ("plain", engine))
    exact, other = exact.double().to(DEVICE), other.to(DEVICE)
    torch.manual_seed(seed)
    capsules = (0.5 * torch.randn(batch, other.capsules, sizes[1])).to(DEVICE)
    if dtype != torch.float32:  # round first, so that it is the arithmetic that is measured
        capsules = capsules.to(dtype).float()
        for one, two in zip(other.parameters(), exact.parameters(), strict=True):
            one.data = one.data.to(dtype).float()
            two.data = one.data.double()
    gradient = torch.randn(batch, sizes[2], sizes[3], dtype=torch.float64).to(DEVICE)  # [B, J, I]
    with torch.autocast(DEVICE, dtype, enabled=dtype != torch.float32):
        assert other.engine_for(capsules) == engine
    expected = results(exact, capsules.double(), gradient)
    found = results(other, capsules, gradient, dtype)
    limits = {name: LIMITS[dtype] * (3 if value.numel() == 1 else 1) for name, value in expected.items()}
    if dtype != torch.float32:
        plain = made_head(model, "plain", sizes, **settings).to(DEVICE)
        plain.load_state_dict(other.state_dict())
        rounded = by_module(results(plain, capsules, gradient, dtype))
        expected, found = by_module(expected), by_module(found)
        limits = {name: max(LIMITS[dtype], 2 * error(rounded[name], expected[name])) for name in expected}
    assert found.keys() == expected.keys()
    scale = max(float(value.norm()) for name, value in expected.items() if name not in ("decisions", "capsules"))
    for name, value in expected.items():
        if float(value.norm()) < 1e-6 * scale:  # RW as logits, a CRF without iterations
            assert float(found[name].norm()) <= 1e-4 * scale, name
        else:
            distance = error(found[name], value)
            assert distance <= limits[name], f"{name}: {distance:.2e}, at most {limits[name]:.2e}"


def results(
    head: CapsuleHead, capsules: torch.Tensor, gradient: torch.Tensor, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Return the decisions, and their gradients to the capsules and to all weights; zeros for none."""
    capsules = capsules.clone().requires_grad_()
    with torch.autocast(DEVICE, dtype, enabled=dtype != torch.float32):
        decisions = head.decide(capsules)
    decisions.backward(gradient.to(decisions.dtype))
    gradients = {
        name: torch.zeros_like(each) if each.grad is None else each.grad for name, each in head.named_parameters()
    }
    return {"decisions": decisions, "capsules": capsules.grad, **gradients}


def by_module(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Join the tensors of each module, such as a weight and its bias, to one."""
    joined: dict[str, list[torch.Tensor]] = {}
    for name, tensor in tensors.items():
        joined.setdefault(name.rpartition(".")[0] or name, []).append(tensor.flatten())
    return {name: torch.cat(parts) for name, parts in joined.items()}
