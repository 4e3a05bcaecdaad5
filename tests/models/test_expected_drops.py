"""The expected drop of entropy of the other labels, compared with a plain loop over classes, answers and classes."""

import math

import pytest
import torch
from test_leave_one_out import network_of

from contextcaps.models import told as module
from contextcaps.models.expected_drops import expected_drops

NOT_KNOWN = math.nan
LABELS = torch.tensor(
    [[1.0, 0, NOT_KNOWN, NOT_KNOWN, 0, NOT_KNOWN], [NOT_KNOWN] * 6, [1, 0, 0, 1, NOT_KNOWN, 0], [1, 0, 0, 1, 1, 0]]
)


def entropy(p: float) -> float:
    return -sum(each * math.log2(each) for each in (p, 1 - p) if each > 0)


def one_by_one(network, image, labels) -> tuple[list[float], list[float]]:
    """Calls of the whole network, two for each label that may be asked."""
    plain = network(image, known=labels[None]).scores[0].tolist()
    drops = []
    for c, label in enumerate(labels.tolist()):
        if not math.isnan(label):
            drops.append(math.nan)
            continue
        chance, scores = plain[c], {}
        for answer in (1.0, 0.0):
            known = labels.clone()
            known[c] = answer
            scores[answer] = network(image, known=known[None]).scores[0].tolist()
        drop = 0.0
        for j, (present, absent) in enumerate(zip(scores[1.0], scores[0.0], strict=True)):
            if j != c:
                drop += entropy(chance * present + (1 - chance) * absent)
                drop -= chance * entropy(present) + (1 - chance) * entropy(absent)
        drops.append(drop)
    return drops, plain


@pytest.mark.parametrize("at_once", [1, 4096], ids=["a class at once", "all classes at once"])
@pytest.mark.parametrize(
    ("name", "options"),
    [("contextcaps", {}), ("contextcaps", {"field": {"groups": 3}}), ("gap", {"field": {"rank": 2}}), ("c-tran", {})],
    ids=str,
)
@torch.no_grad()
def test_the_same_as_a_plain_loop(name, options, at_once, monkeypatch) -> None:
    monkeypatch.setattr(module, "_NUMBERS_AT_ONCE", at_once)
    monkeypatch.setattr(module, "_IMAGES_AT_ONCE", at_once)
    network, images = network_of(name, **options), torch.rand(4, 3, 32, 32)
    drops, scores = expected_drops(network, network.features(images), LABELS)
    expected = [one_by_one(network, image[None], labels) for image, labels in zip(images, LABELS, strict=True)]
    torch.testing.assert_close(drops, torch.tensor([each for each, _ in expected]), rtol=0, atol=1e-4, equal_nan=True)
    torch.testing.assert_close(scores, torch.tensor([each for _, each in expected]), rtol=0, atol=1e-5)
    assert drops.nan_to_num().min() > -1e-6
    assert drops.nan_to_num().max() > 1e-6


@torch.no_grad()
def test_a_class_without_relations_settles_nothing() -> None:
    network = network_of("contextcaps")
    network.field.weight[2] = 0  # it sends no message
    drops, _ = expected_drops(network, network.features(torch.rand(3, 3, 32, 32)), torch.full((3, 6), NOT_KNOWN))
    torch.testing.assert_close(drops[:, 2], torch.zeros(3), rtol=0, atol=1e-5)


def test_a_network_that_cannot_be_told_is_refused() -> None:
    network = network_of("gap")
    with pytest.raises(ValueError, match="field=default"), torch.no_grad():
        expected_drops(network, network.features(torch.rand(1, 3, 32, 32)), torch.full((1, 6), NOT_KNOWN))
