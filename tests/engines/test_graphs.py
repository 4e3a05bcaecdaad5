"""Compilers see through the engines: fake kernels, autograd formulas, no graph break, torch.export."""

import pytest
import torch
from comparing import DEVICE, made_head, needs_triton
from torch.library import opcheck

from contextcaps.engines import lean, lean_correlation

pytestmark = pytest.mark.long

TINY = (1, 2, 3, 2)  # D, A, J, I


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE, requires_grad=True)


def routed() -> tuple[torch.Tensor | None, ...]:
    """Two images, four capsules of two types, three classes, a CRF of low rank; factors and couplings."""
    torch.manual_seed(0)
    gain = torch.ones((), device=DEVICE)
    return leaf(2, 4, 2), leaf(2, 2, 3, 2), leaf(3, 1), leaf(3, 1), leaf(2, 4, 3), leaf(2, 4), leaf(3, 2), gain


def summed() -> tuple[torch.Tensor | None, ...]:
    """The same with a full CRF, and weights."""
    torch.manual_seed(0)
    return leaf(2, 4, 2), leaf(4, 2, 3, 2), leaf(3, 3), None, leaf(2, 4, 3)


def test_operators_of_the_lean_engine() -> None:
    opcheck(lean._route, (*routed(), 1, False, 2))
    opcheck(lean._weighted_sum, (*summed(), 1, False))
    opcheck(lean_correlation.tiled_weights, (leaf(2, 3, 4),))


@needs_triton
def test_operators_of_the_triton_engine() -> None:
    pytest.importorskip("triton")
    from contextcaps.engines.triton import correlation, operators

    # Dispatch under AOTAutograd hands out every result, the votes too, which are the operator's own to write over;
    # a head hands them to nobody: below.
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    opcheck(operators._route, (*routed(), 1, 2, torch.float32), test_utils=tests)
    opcheck(operators._weighted_sum, (*summed(), 1, torch.float32), test_utils=tests)
    opcheck(correlation._weights, (leaf(2, 3, 4), True))


@pytest.mark.parametrize("engine", ["lean", pytest.param("triton", marks=needs_triton)])
@pytest.mark.parametrize("model", ["capsnet-rw-crf", "contextcaps-rw-crf-corr"])
def test_compiled_as_one_graph(engine, model) -> None:
    head = made_head(model, engine, TINY).to(DEVICE)
    capsules = leaf(2, head.capsules, 2)
    leaves = [capsules, *head.votes.parameters(), *head.crf.parameters()]
    expected = head.decide(capsules)
    wanted = torch.autograd.grad(expected.square().sum(), leaves)
    torch.compiler.reset()
    try:
        compiled = torch.compile(head.decide, fullgraph=True, backend="aot_eager")
        found = compiled(capsules)
        gradients = torch.autograd.grad(found.square().sum(), leaves)
    finally:
        torch.compiler.reset()
    torch.testing.assert_close(found, expected)
    for one, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("engine", ["lean", "auto", pytest.param("triton", marks=needs_triton)])
def test_exported(engine) -> None:
    head = made_head("capsnet-rw-crf", engine, TINY).to(DEVICE)
    features = torch.randn(2, 4, 2, 2, device=DEVICE)
    program = torch.export.export(head, (features,))
    own = [str(node.target) for node in program.graph.nodes if "contextcaps" in str(node.target)]
    assert own == ([] if engine == "auto" else [f"contextcaps.{engine}_route.default"])  # auto: for any runtime
    torch.testing.assert_close(program.module()(features).decisions, head(features).decisions)
