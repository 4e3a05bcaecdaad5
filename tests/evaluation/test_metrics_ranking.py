"""Average precision: the reference, scikit-learn and torchmetrics, ties, and how much it holds at a time."""

import math
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import reference
from contextcaps.evaluation.metrics import average_precision, micro_curve
from contextcaps.extras import import_extra

AVERAGES = ("macro", "micro", "samples", None)
TINY = 2_000  # chunk_bytes: a few pairs at a time


@st.composite
def scored(draw: st.DrawFn, images: int = 25, classes: int = 6) -> tuple[Tensor, Tensor]:
    """Scores with many ties, and targets of any density."""
    n, width = draw(st.integers(1, images)), draw(st.integers(1, classes))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    levels = draw(st.sampled_from([1, 2, 3, 7, 10_000]))
    scores = torch.randint(levels, (n, width), generator=generator) / levels
    return scores, (torch.rand(n, width, generator=generator) < draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))).int()


def literal(scores: Tensor, targets: Tensor, average: str | None) -> list[float] | float:
    """By the reference's loops."""
    lists = {
        "macro": list(zip(scores.T, targets.T, strict=True)),
        None: list(zip(scores.T, targets.T, strict=True)),
        "samples": list(zip(scores, targets, strict=True)),
        "micro": [(scores.flatten(), targets.flatten())],
    }[average]
    values = [
        reference.average_precision(one.numpy(), truth.numpy()) if truth.any() else math.nan for one, truth in lists
    ]
    defined = [value for value in values if not math.isnan(value)]
    return values if average is None else float(np.mean(defined)) if defined else math.nan


@pytest.mark.parametrize("average", AVERAGES, ids=str)
@given(data=scored(), chunk_bytes=st.sampled_from([1, TINY, 2**28]))
def test_is_the_reference_whatever_the_pieces(average, data, chunk_bytes) -> None:
    scores, targets = data
    result = average_precision(scores, targets, average, chunk_bytes=chunk_bytes)
    assert result.dtype == torch.float64
    assert result.shape == ((scores.shape[1],) if average is None else ())
    np.testing.assert_allclose(result.numpy(), literal(scores, targets, average), rtol=0, atol=1e-12)


@given(data=scored())
def test_agrees_with_scikit_learn(data) -> None:
    scores, targets = data
    classes, images = targets.any(0), targets.any(1)
    if not targets.any():
        return
    for average, (part, truth) in {
        "macro": (scores[:, classes], targets[:, classes]),
        "micro": (scores, targets),
        "samples": (scores[images], targets[images]),
    }.items():
        if truth.shape[1] == 1 and average == "samples":
            continue  # scikit-learn takes one column as one ranking
        expected = average_precision_score(truth.numpy(), part.numpy(), average=average)
        assert float(average_precision(scores, targets, average)) == pytest.approx(expected, abs=1e-12)


@given(data=scored())
def test_agrees_with_torchmetrics(data) -> None:
    functional = import_extra("torchmetrics.functional.classification", "dev", "a third opinion")
    scores, targets = data
    if scores.shape[1] == 1 or not targets.any():
        return
    for average in ("macro", "micro", None):
        expected = functional.multilabel_average_precision(scores, targets, scores.shape[1], average=average or "none")
        ours = average_precision(scores, targets, average).float()
        if average is None:
            present = targets.any(0)  # torchmetrics gives 0 for a class without a positive
            expected, ours = expected[present], ours[present]
        if average != "macro" or targets.any(0).all():
            torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


def test_by_hand() -> None:
    scores = torch.tensor([[0.9, 0.5, 0.1], [0.8, 0.5, 0.3], [0.7, 0.5, 0.2]])
    targets = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 0]])
    each = average_precision(scores, targets, None)
    assert each[:2].tolist() == pytest.approx([(1 + 2 / 3) / 2, 1 / 3])
    assert math.isnan(each[2])
    assert float(average_precision(scores, targets)) == pytest.approx((5 / 6 + 1 / 3) / 2)
    assert float(average_precision(scores, targets, "samples")) == pytest.approx((1 + 1 / 2 + 1) / 3)
    assert float(average_precision(scores, targets, "micro")) == pytest.approx((1 + 2 / 3 + 3 / 6) / 3)


@pytest.mark.parametrize("average", AVERAGES, ids=str)
def test_takes_arrays_of_any_kind(average, tmp_path) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(40, 5, generator=generator).half()
    targets = torch.rand(40, 5, generator=generator) < 0.3
    expected = average_precision(scores.double(), targets, average)
    stored = np.memmap(tmp_path / "scores", dtype=">f4", mode="w+", shape=(5, 40))
    stored[:] = scores.T.float().numpy()
    stored.flush()
    read_only = np.memmap(tmp_path / "scores", dtype=">f4", mode="r", shape=(5, 40))
    for given_scores in (scores, scores.float(), scores.T.contiguous().T, scores.numpy(), read_only.T):
        for given_targets in (targets, targets.to(torch.uint8), targets.numpy(), targets.numpy().astype(np.uint16)):
            result = average_precision(given_scores, given_targets, average)
            torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)
    flipped = average_precision(scores.numpy()[::-1], targets.numpy()[::-1], average)  # negative strides
    torch.testing.assert_close(flipped, expected, rtol=0, atol=1e-12)


def test_scores_need_not_be_chances() -> None:
    scores = torch.tensor([[-torch.inf, 3.0], [0.0, torch.inf], [-0.0, -5.0]])
    targets = torch.tensor([[0, 0], [1, 1], [0, 0]])
    assert average_precision(scores, targets, None).tolist() == [0.5, 1.0]


@pytest.mark.parametrize("average", AVERAGES, ids=str)
def test_nothing_to_find(average) -> None:
    for shape in ((4, 3), (0, 3)):
        assert average_precision(torch.rand(shape), torch.zeros(shape, dtype=torch.bool), average).isnan().all()


@pytest.mark.parametrize(
    ("scores", "targets", "average", "message"),
    [
        (torch.rand(3), torch.ones(3), "macro", r"scores: expected shape \[n, J\], got \[3\]"),
        (torch.rand(3, 2), torch.ones(2, 3), "macro", r"targets: expected shape \[n=3, J=2\], got \[2, 3\]"),
        (torch.ones(3, 2).int(), torch.ones(3, 2), "macro", "scores: expected half, single or double precision"),
        ([[0.5]], torch.ones(1, 1), "macro", "scores: expected a tensor or a NumPy array, got list"),
        (torch.full((3, 2), torch.nan), torch.ones(3, 2), "macro", "NaN in 6 of 6 pairs of classes 0 to 1"),
        (torch.full((3, 2), torch.nan), torch.ones(3, 2), "micro", "NaN in 6 of 6 pairs of images 0 to 2"),
        (torch.rand(3, 2), torch.full((3, 2), 2), "samples", r"targets: expected 0, 1 and 255 \(unknown\) only"),
        (torch.rand(3, 2), np.full((3, 2), 0.5), "micro", r"targets: expected 0, 1 and 255 \(unknown\) only"),
        (torch.rand(3, 2), torch.ones(3, 2), "weighted", "average: expected one of"),
    ],
    ids=["vector", "shape", "integer", "list", "nan", "nan in images", "two", "half", "average"],
)
def test_refuses(scores, targets, average, message) -> None:
    with pytest.raises(ValueError, match=message):
        average_precision(scores, targets, average)


class Recorded(np.ndarray):
    """An array that notes how much is read of it at a time."""

    pieces: list[tuple[int, ...]]

    def __getitem__(self, key: object) -> np.ndarray:
        piece = np.asarray(super().__getitem__(key))
        self.pieces.append(piece.shape)
        return piece


class Live(TorchDispatchMode):
    """Follows how many bytes of tensors are alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, tuple[int, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self.held[id(tensor)] = (storage.data_ptr(), storage.nbytes())
                weakref.finalize(tensor, self.held.pop, id(tensor), None)
        self.peak = max(self.peak, sum(dict(self.held.values()).values()))
        return result


@pytest.mark.parametrize("average", AVERAGES, ids=str)
def test_reads_and_holds_a_bounded_piece_at_a_time(average) -> None:
    generator = np.random.default_rng(0)
    n, classes, chunk_bytes = 3000, 60, 2**20
    scores = generator.random((n, classes), dtype=np.float32).view(Recorded)
    scores.pieces = []
    targets = (generator.random((n, classes)) < 0.02).astype(np.uint8)
    with Live() as live:
        result = average_precision(scores, targets, average, chunk_bytes=chunk_bytes)
    assert sum(map(math.prod, scores.pieces)) == scores.size * (2 if average == "micro" else 1)
    assert max(map(math.prod, scores.pieces)) * 96 <= chunk_bytes
    positives = 64 * int(targets.sum()) if average == "micro" else 0
    results = 8 * 4 * max(n, classes)  # what is gathered over the pieces
    assert live.peak <= chunk_bytes + positives + results
    assert live.peak > chunk_bytes // 20  # it was watched
    torch.testing.assert_close(result, average_precision(np.asarray(scores), targets, average), rtol=0, atol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("average", AVERAGES, ids=str)
def test_on_a_device(average) -> None:
    scores, targets = torch.rand(500, 20), torch.rand(500, 20) < 0.1
    result = average_precision(scores, targets, average, device="cuda", chunk_bytes=100_000)
    assert result.device.type == "cpu"
    torch.testing.assert_close(result, average_precision(scores, targets, average), rtol=0, atol=1e-12)


@given(data=scored())
def test_the_curve_is_precision_and_recall(data) -> None:
    scores, targets = data
    curve = micro_curve(scores, targets, chunk_bytes=TINY)
    for threshold, precision, recall in zip(curve.thresholds, curve.precision, curve.recall, strict=True):
        said = scores >= threshold
        correct = int((said & (targets == 1)).sum())
        assert float(precision) == pytest.approx(correct / int(said.sum()))
        assert float(recall) == pytest.approx(correct / int(targets.sum()))
    assert curve.thresholds.tolist() == sorted(set(scores[targets == 1].tolist()))
