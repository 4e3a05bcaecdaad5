"""Potentials fitted to labels alone find what the labels were drawn from."""

import torch

from contextcaps.evaluation.known import label_potentials
from contextcaps.evaluation.known.label_potentials import fit_potentials
from contextcaps.models import create_model


def labels_of_a_chain(images: int) -> torch.Tensor:
    """[n, 3]: the second class follows the first in nine of ten images; the third is on its own."""
    generator = torch.Generator().manual_seed(0)
    first = torch.rand(images, generator=generator) < 0.3
    flipped = torch.rand(images, generator=generator) < 0.1
    third = torch.rand(images, generator=generator) < 0.5
    return torch.stack([first, first ^ flipped, third], dim=1).float()


def test_classes_that_go_together_and_those_that_do_not() -> None:
    found = fit_potentials(labels_of_a_chain(4000)).pairwise
    expected = 2 * torch.tensor(0.9 / 0.1).log()  # the log-odds ratio of the two
    assert abs(found[0, 1] - expected) < 1
    assert abs(found[1, 0] - expected) < 1
    assert found[2].abs().max() < 0.4
    assert found[:, 2].abs().max() < 0.4
    assert torch.equal(torch.diagonal(found), torch.zeros(3))


def test_few_images_with_nothing_hidden_among_those_held_out() -> None:
    labels = torch.tensor([[1, 0], [0, 1], [1, 1], [0, 0]])
    assert fit_potentials(labels, seed=0).pairwise.isfinite().all()  # this seed hides nothing of the one held out


def test_symmetric_and_the_same_twice() -> None:
    found = fit_potentials(labels_of_a_chain(300), symmetric=True).pairwise
    assert torch.equal(found, found.T)
    assert torch.equal(found, fit_potentials(labels_of_a_chain(300), symmetric=True).pairwise)


def test_many_classes_get_fewer_steps(monkeypatch) -> None:
    steps = []
    step = torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self, *given: steps.append(1) or step(self, *given))
    fit_potentials(labels_of_a_chain(300))
    assert len(steps) == 600
    steps.clear()
    monkeypatch.setattr(label_potentials, "_MOST_WORK", 6 * 270 * 3**2 * 50)  # 270 images are fitted to
    fit_potentials(labels_of_a_chain(300))
    assert len(steps) == 50


def test_a_network_takes_them_from_the_training_labels() -> None:
    labels = labels_of_a_chain(300)
    network = create_model("capsnet", 3, 32, "small", types=2, field="decisions")
    network.learn_labels(labels)
    torch.testing.assert_close(network.field.pairwise.detach(), fit_potentials(labels).pairwise)
    torch.testing.assert_close(network.field.prior, labels.mean(dim=0))
    started = create_model("capsnet", 3, 32, "small", types=2, field="decisions", field_start="zero")
    started.learn_labels(labels)
    assert started.field.weight.abs().max() == 0


def labels_of_a_group(images: int) -> torch.Tensor:
    """[n, 4]: the fourth class is there when exactly one of the first two is, which no pair of classes tells."""
    first = (torch.rand(images, 3, generator=torch.Generator().manual_seed(0)) < 0.5).float()  # [n, 3]
    return torch.cat([first, (first[:, :1] != first[:, 1:2]).float()], dim=1)


def test_groups_tell_what_pairs_cannot() -> None:
    labels = labels_of_a_group(2000)
    network = create_model("capsnet", 4, 32, "small", types=2, field="decisions", field_groups=32)
    network.learn_labels(labels)
    assert network.field.pairwise.abs().max() < 1.5
    known = labels[:200].clone()
    known[:, 3] = torch.nan
    with torch.no_grad():
        nothing = torch.zeros(200, 4)
        said = network.field(nothing, known).scores[:, 3]  # [n], without an image
        assert torch.equal(network.field(nothing).scores, torch.full((200, 4), 0.5))
    assert ((said > 0.5) == labels[:200, 3].bool()).float().mean() > 0.95
