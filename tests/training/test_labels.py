"""What a network takes from the training labels before its first step: the head's graph, the field's potentials."""

import pytest
import torch

from contextcaps.data.unknown import labels_or_nan
from contextcaps.evaluation.known.label_potentials import fit_potentials
from contextcaps.models import CapsuleNetwork, create_model
from contextcaps.models.baselines.ml_gcn import label_graph
from contextcaps.training.labels import learn_labels

LABELS = (torch.rand(200, 3, generator=torch.Generator().manual_seed(0)) < torch.tensor([0.2, 0.5, 0.7])).float()


def made(name: str = "capsnet", **options: object) -> CapsuleNetwork:
    return create_model(name, 3, 32, "small", **options)


def test_a_field_starts_at_the_potentials_of_the_labels() -> None:
    network = made(field={})
    learn_labels(network, LABELS)
    torch.testing.assert_close(network.field.pairwise.detach(), fit_potentials(LABELS).pairwise)
    torch.testing.assert_close(network.field.prior, LABELS.mean(dim=0))
    assert network.field.trust.item() == 0


@pytest.mark.long
def test_with_groups_where_it_has_them() -> None:
    network = made(field={"groups": 2})
    learn_labels(network, LABELS)
    expected = fit_potentials(LABELS, groups=2)
    torch.testing.assert_close(network.field.pairwise.detach(), expected.pairwise)
    torch.testing.assert_close(network.field.outward.detach(), expected.groups.outward)


@pytest.mark.parametrize("form", [{"start": "zero"}, {"rank": 2}], ids=str)
def test_only_the_prior_where_it_starts_at_zero(form, monkeypatch) -> None:
    monkeypatch.setattr("contextcaps.training.labels.fit_potentials", lambda *_, **__: pytest.fail("fitted"))
    network = made(field=form)
    learn_labels(network, LABELS.to(torch.uint8))
    torch.testing.assert_close(network.field.prior, LABELS.mean(dim=0))
    pairwise = network.field.pairwise
    assert (pairwise[1] if isinstance(pairwise, tuple) else pairwise).abs().max() == 0


def test_a_label_graph_with_and_without_a_field() -> None:
    for options in ({}, {"field": {"start": "zero"}}):
        network = made("ml-gcn", **options)
        learn_labels(network, torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]]))
        assert not torch.equal(network.head.adjacency, torch.eye(3))


@pytest.mark.parametrize("name", ["capsnet", "gap", "contextcaps"])
def test_labels_of_other_classes_are_refused(name) -> None:
    with pytest.raises(ValueError, match=r"targets: expected shape \[n, J=3\], got \[3, 4\]"):
        learn_labels(made(name), torch.ones(3, 4))


def test_unknown_labels_count_in_neither_prior_nor_graph() -> None:
    """The first class is there in one of two images that know it, and wherever the second is known beside it."""
    targets = torch.tensor([[1, 1, 255], [0, 255, 255], [255, 0, 255]], dtype=torch.uint8)
    network = made(field={"start": "zero"})
    learn_labels(network, targets)
    torch.testing.assert_close(network.field.prior, torch.tensor([0.5, 0.5, 0.0]))
    labels = labels_or_nan(torch.tensor([[1, 1, 0], [1, 255, 0], [1, 255, 0], [0, 0, 1]], dtype=torch.uint8))
    graph = label_graph(labels)
    assert graph[0, 1] > 0  # one of one image, not one of three
    assert torch.equal(graph, label_graph(torch.tensor([[1, 1, 0], [0, 0, 1]])))
