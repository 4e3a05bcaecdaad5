"""Guards: when NaN is looked for and when not."""

import threading
from collections.abc import Callable

import pytest
import torch
from contract import STANDARD, VOTES
from operands import draw, draw_probabilities
from torch import Tensor

from contextcaps.capsules import correlate, dynamic_routing, em_routing, mean_field, squash, unchecked


def is_refused(vectors: Tensor) -> bool:
    try:
        squash(vectors)
    except ValueError:
        return True
    return False


NAN = torch.tensor([1.0, float("nan")])


def test_unchecked_lets_not_a_number_pass_and_ends_with_its_block() -> None:
    """Nested blocks and exceptions included."""
    with unchecked():
        with unchecked():
            assert squash(NAN).isnan().all()
        assert not is_refused(NAN)
    assert is_refused(NAN)
    with pytest.raises(RuntimeError, match="inside"), unchecked():
        raise RuntimeError("inside")
    assert is_refused(NAN)


def test_unchecked_still_checks_shapes_and_dtypes() -> None:
    """They cost nothing to look at."""
    with unchecked():
        assert is_refused(torch.ones(2, dtype=torch.int64))
        assert is_refused(torch.tensor(1.0))


def test_unchecked_holds_for_its_own_thread_only() -> None:
    """A server's other threads keep their checks."""
    answers = []
    with unchecked():
        thread = threading.Thread(target=lambda: answers.append(is_refused(NAN)))
        thread.start()
        thread.join()
    assert answers == [True]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), 0.0])
def test_only_not_a_number_is_refused(value: float) -> None:
    """An infinity has a sign and an order; what it does is the operation's business."""
    assert not is_refused(torch.tensor([1.0, value]))


def test_not_a_number_is_found_beside_infinities() -> None:
    """Wherever it stands."""
    for position in range(3):
        vectors = torch.tensor([float("inf"), float("-inf"), 2.0])
        vectors[position] = float("nan")
        assert is_refused(vectors)


ACTIVATIONS, BETA = draw_probabilities("B K", STANDARD, 2), torch.zeros(STANDARD["J"], dtype=torch.float64)
WHOLE_GRAPHS: dict[str, Callable[[Tensor], Tensor]] = {
    "dynamic_routing": lambda votes: dynamic_routing(votes).decisions,
    "em_routing": lambda votes: em_routing(votes, ACTIVATIONS, BETA, BETA).decisions,
    "mean_field": lambda votes: mean_field(votes, torch.ones(4, 4, dtype=votes.dtype)),
    "correlate": lambda votes: correlate(votes, torch.ones(4, 5, dtype=votes.dtype)),
}


@pytest.mark.parametrize("operation", WHOLE_GRAPHS.values(), ids=WHOLE_GRAPHS)
def test_operations_are_captured_as_one_graph(operation: Callable[[Tensor], Tensor]) -> None:
    """The check for NaN would break a compiled graph in two; it is left out there."""
    votes = draw(VOTES, STANDARD, 1)
    compiled = torch.compile(operation, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(votes), operation(votes))
    assert compiled(torch.full_like(votes, float("nan"))).isnan().any()


def test_meta_tensors_pass() -> None:
    """Shapes of a network can be computed without numbers."""
    assert dynamic_routing(torch.empty(2, 6, 4, 3, device="meta")).decisions.shape == (2, 4, 3)
