"""Potentials fitted to labels alone find what the labels were drawn from."""

import torch

from contextcaps.capsules import DecisionField
from contextcaps.evaluation.known import label_potentials
from contextcaps.evaluation.known.label_potentials import fit_potentials


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


def test_the_same_twice() -> None:
    labels = labels_of_a_chain(300)
    assert torch.equal(fit_potentials(labels).pairwise, fit_potentials(labels).pairwise)


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


def labels_of_a_group(images: int) -> torch.Tensor:
    """[n, 4]: the fourth class is there when exactly one of the first two is, which no pair of classes tells."""
    first = (torch.rand(images, 3, generator=torch.Generator().manual_seed(0)) < 0.5).float()  # [n, 3]
    return torch.cat([first, (first[:, :1] != first[:, 1:2]).float()], dim=1)


def test_groups_tell_what_pairs_cannot() -> None:
    labels = labels_of_a_group(2000)
    found = fit_potentials(labels, groups=32)
    field = DecisionField(4, groups=32)
    field.set_prior(labels.mean(dim=0))
    field.start_at(found.pairwise, found.groups)
    assert field.pairwise.abs().max() < 1.5
    known = labels[:200].clone()
    known[:, 3] = torch.nan
    with torch.no_grad():
        nothing = torch.zeros(200, 4)
        said = field(nothing, known).scores[:, 3]  # [n], without an image
        assert torch.equal(field(nothing).scores, torch.full((200, 4), 0.5))
    assert ((said > 0.5) == labels[:200, 3].bool()).float().mean() > 0.95


def test_unknown_labels_tell_nothing() -> None:
    """With four of ten labels unknown the same potentials are found; taken for absent ones, weaker ones would be."""
    labels = labels_of_a_chain(8000)
    unknown = torch.rand(labels.shape, generator=torch.Generator().manual_seed(1)) < 0.4
    found = fit_potentials(labels.masked_fill(unknown, torch.nan)).pairwise
    expected = 2 * torch.tensor(0.9 / 0.1).log()
    assert abs(found[0, 1] - expected) < 1
    assert abs(found[1, 0] - expected) < 1
    assert found[2].abs().max() < 0.4
    assert fit_potentials(labels.masked_fill(unknown, 0.0)).pairwise[0, 1] < found[0, 1] - 1
    nothing = fit_potentials(torch.full((20, 3), torch.nan)).pairwise
    assert torch.equal(nothing, torch.zeros(3, 3))
