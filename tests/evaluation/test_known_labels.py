"""Labels given away: which, how a training uses them, what co-occurrence alone can do, and how it is measured."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from small_run import finals, small_config
from test_step import CLASSES, batch

import reference
from contextcaps.data.unknown import UNKNOWN, labels_or_nan
from contextcaps.evaluation.known.cooccurrence import fit_cooccurrence
from contextcaps.evaluation.known.measuring import counted_average_precision, give, measure_known, parse_shares
from contextcaps.evaluation.known.revealing import draw_given, known_labels, loss_weights, reveal
from contextcaps.evaluation.metrics.bootstrap import (
    bootstrap_counted_precision,
    bootstrap_mean_average_precision,
    draw_weights,
)
from contextcaps.evaluation.predictions import Predictions
from contextcaps.models import create_model
from contextcaps.models.loading import load_model
from contextcaps.training.loop import TrainingLoop
from contextcaps.training.losses import LOSSES, margin_loss
from contextcaps.training.step import TaggingModule
from contextcaps.training.trainer import resume, train


def with_field(tmp_path, loss: str = "margin", known: float = 0.8, **changes) -> TaggingModule:
    torch.manual_seed(0)
    config = small_config(tmp_path / "run", tmp_path, model="capsnet", loss=loss, known=known, **changes)
    return TaggingModule(create_model("capsnet", CLASSES, 32, "small", capsules={"types": 2}, field={}), config, 10)


def test_reveal_gives_half_of_the_images_some_of_their_labels() -> None:
    torch.manual_seed(0)
    targets = torch.zeros(4000, 20)
    shares = reveal(targets, 0.5).float().mean(dim=1)  # [B]
    assert shares.max() <= 0.5
    # A share below one label in twenty gives none either: half of the images, and a tenth of the others.
    assert (shares == 0).float().mean() == pytest.approx(0.55, abs=0.03)
    told = shares[shares > 0]
    for low in (0.05, 0.15, 0.25, 0.35):  # evenly, by counts of labels
        assert ((told >= low - 0.01) & (told < low + 0.09)).float().mean() == pytest.approx(2 / 9, abs=0.03)
    assert not reveal(torch.zeros(500, 3), 0.999).all(dim=1).any()


def test_given_labels_depend_on_image_and_seed_alone() -> None:
    indices = torch.tensor([0, 3, 4, 9])
    some = draw_given(indices, 10, 0.3, seed=1)
    assert some.sum(dim=1).tolist() == [3] * 4
    assert torch.equal(draw_given(indices[1:3], 10, 0.3, seed=1), some[1:3])
    assert not torch.equal(draw_given(indices, 10, 0.3, seed=2), some)
    more = draw_given(indices, 10, 0.7, seed=1)
    assert (more | ~some).all()  # what is given at a small share is given at a larger one
    assert draw_given(torch.arange(3000), 10, 0.3, seed=1).float().mean(dim=0).numpy() == pytest.approx(0.3, abs=0.03)


def test_weights_keep_the_size_of_a_loss() -> None:
    given = torch.tensor([[True, True, False, False], [False] * 4, [True, True, True, False]])
    everything = torch.zeros_like(given)  # nothing is unknown
    assert loss_weights(given, everything).tolist() == [[0, 0, 2, 2], [1, 1, 1, 1], [0, 0, 0, 4]]
    scores, targets = torch.full((3, 4), 0.5), torch.zeros(3, 4)
    for loss in ("margin", "bce", "asl"):
        torch.testing.assert_close(
            LOSSES[loss](scores, targets, class_weights=loss_weights(given, everything)), LOSSES[loss](scores, targets)
        )


def test_a_training_step_counts_the_labels_that_were_not_given(tmp_path) -> None:
    made, data = with_field(tmp_path, augmentation=False), batch(3, count=16)
    output = made.training_step(data, 0)
    made._seed(data)
    given = reveal(data.targets, 0.8)
    assert 0 < given.sum() < given.numel()
    scores = made.network(data.images, known=known_labels(data.targets, given)).scores
    expected = 0.0
    for b in range(16):
        left = [j for j in range(CLASSES) if not given[b, j]]
        one = reference.margin_loss(scores[b : b + 1, left].detach().numpy(), data.targets[b : b + 1, left].numpy())
        expected += one * CLASSES / len(left) / 16
    assert output["loss"].item() == pytest.approx(expected, rel=1e-5)
    assert torch.equal(made.training_step(data, 0)["loss"], output["loss"])  # every draw depends on the batch alone
    assert (output["scores"] > 0).all()  # what the network thinks itself, not what it was told
    assert (output["scores"] < 1).all()


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_every_weight_has_a_gradient_and_every_loss_takes_known_labels(tmp_path, loss) -> None:
    made = with_field(tmp_path, loss)
    made.class_weights = torch.linspace(0.5, 1.5, CLASSES)
    output = made.training_step(batch(1, count=8), 0)
    output["loss"].backward()
    assert output["loss"].isfinite()
    assert [name for name, each in made.named_parameters() if each.grad is None or not each.grad.isfinite().all()] == []
    assert made.network.field.weight.grad.any()


def test_nothing_is_drawn_where_nothing_is_revealed(tmp_path) -> None:
    made, data = with_field(tmp_path, known=0.0, augmentation=False), batch(3)
    expected = margin_loss(made.network(data.images).scores, data.targets)
    torch.testing.assert_close(made.training_step(data, 0)["loss"], expected)


@pytest.fixture(scope="module")
def field_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("known")
    options = {"capsules.types": 2, "field": {"rank": 4}}
    config = small_config(folder / "run", folder / "cache", options=options, known=0.5, epochs=2)
    train(config, progress=False)
    return config


@pytest.mark.long
def test_a_run_fills_the_prior_and_is_resumed_to_the_same_bits(field_run, tmp_path, monkeypatch) -> None:
    whole = Path(field_run.out)
    network, trained = load_model(whole)
    assert network.field.prior.tolist() == pytest.approx(trained.frequencies, abs=1e-6)
    assert network.field.right.any()
    step = TrainingLoop._step

    def stopping(loop: TrainingLoop) -> None:
        if loop.progress.step == 8:  # in the second epoch, after a checkpoint
            raise RuntimeError("a power cut")
        step(loop)

    with monkeypatch.context() as patched:
        patched.setattr(TrainingLoop, "_step", stopping)
        with pytest.raises(RuntimeError, match="a power cut"):
            train(dataclasses.replace(field_run, out=str(tmp_path / "cut")), progress=False)
    resume(tmp_path / "cut", progress=False)
    assert finals(tmp_path / "cut") == finals(whole)


def test_training_with_known_labels_needs_a_network_that_takes_them(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"known: .*--model c-tran.*--set field=default"):
        train(small_config(tmp_path / "run", tmp_path, model="capsnet", known=0.5), progress=False)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="known: expected a number from 0 to below 1"):
        small_config(tmp_path, tmp_path, known=1.0)


def world(count: int, seed: int) -> torch.Tensor:
    """[n, 6], uint8: two scenes; in the first classes 0 to 2 are frequent, in the second 3 to 5."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.rand(count, 1, generator=generator) < 0.5  # [n, 1]
    likely = torch.cat([first.expand(-1, 3), ~first.expand(-1, 3)], dim=1)  # [n, 6]
    return (torch.rand(count, 6, generator=generator) < torch.where(likely, 0.7, 0.05)).to(torch.uint8)


@pytest.mark.long
def test_cooccurrence_learns_which_classes_go_together() -> None:
    control = fit_cooccurrence(world(2000, 1), seed=0)
    assert control.losses[control.kind] == min(control.losses.values())
    known = torch.full((2, 6), math.nan)
    known[0, 0], known[1, 3] = 1.0, 1.0
    scores = control(known)
    assert (scores[0, 1:3] > 0.5).all()
    assert (scores[0, 3:] < 0.2).all()
    assert (scores[1, :3] < 0.2).all()
    nothing = control(torch.full((1, 6), math.nan))[0]
    assert nothing.numpy() == pytest.approx(world(2000, 1).float().mean(dim=0).numpy(), abs=0.08)
    again = fit_cooccurrence(world(2000, 1), seed=0)
    assert torch.equal(again(known), scores)


@pytest.mark.long
@pytest.mark.parametrize("images", [1, 2, 7])
def test_cooccurrence_of_few_images_is_finite(images) -> None:
    assert fit_cooccurrence(world(images, 1))(torch.full((2, 6), math.nan)).isfinite().all()


def predictions(targets: torch.Tensor, seed: int = 0) -> Predictions:
    noise = torch.rand(targets.shape, generator=torch.Generator().manual_seed(seed))
    classes = tuple(map(str, range(targets.shape[1])))
    return Predictions(0.3 * targets + 0.7 * noise, targets, torch.arange(len(targets)), classes)


def test_figures_are_those_of_plain_loops() -> None:
    found = predictions(world(60, 2))
    control = fit_cooccurrence(world(300, 3))
    known = give(found, 0.5, seed=4)
    said = torch.where(known.isnan(), 0.5 * found.scores + 0.5 * found.targets, known)  # a model that gains
    (share,) = measure_known(found, {0.5: (known, said)}, control, 300, resamples=50, seed=4).shares
    for name, scores in (("told", said), ("nothing", found.scores), ("cooccurrence", control(known))):
        each = []
        for j in range(6):
            rows = [n for n in range(60) if math.isnan(known[n, j])]
            if found.targets[rows, j].any():
                each.append(reference.average_precision(scores[rows, j].numpy(), found.targets[rows, j].numpy()))
        assert getattr(share, name).value == pytest.approx(np.mean(each))
    assert share.gain.value == pytest.approx(share.told.value - share.nothing.value)
    assert share.lead.value == pytest.approx(share.told.value - share.cooccurrence.value)
    assert share.gain.low > 0
    assert (share.given, share.pairs) == (3, 180)
    assert share.positives == int(found.targets[known.isnan()].sum())


def test_given_labels_follow_the_classes_of_the_data() -> None:
    """A model with its classes in another order is told the same labels."""
    found, order = predictions(world(20, 2)), [2, 0, 1, 5, 4, 3]
    other = dataclasses.replace(found, targets=found.targets[:, order])
    plain, turned = give(found, 0.5, seed=1), give(other, 0.5, seed=1, order=order)
    torch.testing.assert_close(turned, plain[:, order], equal_nan=True)


def test_classes_without_a_positive_are_left_out() -> None:
    found = predictions(world(30, 2))
    found.targets[:, 1] = 0
    each = counted_average_precision(found.scores, found.targets, torch.ones(30, 6, dtype=torch.bool))
    assert each.isnan().tolist() == [False, True, False, False, False, False]


def test_resampled_figures_count_what_counts() -> None:
    found = predictions(world(40, 5))
    everything = torch.ones(40, 6, dtype=torch.bool)
    torch.testing.assert_close(
        bootstrap_counted_precision(found.scores, found.targets, everything, resamples=7, seed=1),
        bootstrap_mean_average_precision(found.scores, found.targets, resamples=7, seed=1),
    )
    counted = torch.rand(40, 6, generator=torch.Generator().manual_seed(2)) < 0.5
    drawn = bootstrap_counted_precision(found.scores, found.targets, counted, resamples=7, seed=1)
    weights = draw_weights(40, 7, 1).long()
    for r in range(7):
        images = torch.arange(40).repeat_interleave(weights[:, r])
        each = counted_average_precision(found.scores[images], found.targets[images], counted[images])
        assert float(drawn[r]) == pytest.approx(float(each.nanmean()))


@pytest.mark.parametrize("text", ["", "half", "0.5,", "0,0.5", "1", "0.5;0.7", "-0.1", "nan"])
def test_wrong_shares_are_refused(text) -> None:
    with pytest.raises(ValueError, match="known: expected shares of the labels between 0 and 1"):
        parse_shares(text)


def test_a_share_that_is_no_label_is_refused() -> None:
    found = predictions(world(5, 2))
    for share in (0.01, 0.99):
        with pytest.raises(ValueError, match="choose another share"):
            give(found, share, seed=0)


def test_unknown_labels_are_never_given() -> None:
    torch.manual_seed(0)
    targets = (torch.rand(3000, 8) < 0.3).to(torch.uint8)
    unknown = torch.rand(3000, 8) < 0.5
    targets = targets.masked_fill(unknown, UNKNOWN)
    given = reveal(targets, 0.9)
    assert not (given & unknown).any()
    assert given.any(dim=1).float().mean() > 0.3
    knows = (~unknown).any(dim=1)
    assert (~unknown & ~given)[knows].any(dim=1).all()  # one that is known is always left to be predicted
    assert torch.equal(known_labels(targets, torch.ones_like(unknown)).isnan(), unknown)
    weights = loss_weights(given, unknown)
    assert (weights[given | unknown] == 0).all()
    torch.testing.assert_close(weights.sum(dim=1), (~unknown).sum(dim=1).float())  # as much as all that are known


def test_a_training_step_with_given_and_unknown_labels(tmp_path) -> None:
    made, data = with_field(tmp_path, augmentation=False), batch(3, count=16)
    torch.manual_seed(4)
    unknown = torch.rand(16, CLASSES) < 0.4
    unknown[0] = True
    data = dataclasses.replace(data, targets=data.targets.masked_fill(unknown, UNKNOWN))
    output = made.training_step(data, 0)
    made._seed(data)
    given = reveal(data.targets, 0.8)
    assert given.any()
    scores = made.network(data.images, known=known_labels(data.targets, given)).scores
    expected = 0.0
    for b in range(1, 16):
        left = [j for j in range(CLASSES) if not given[b, j] and not unknown[b, j]]
        one = reference.margin_loss(scores[b : b + 1, left].detach().numpy(), data.targets[b : b + 1, left].numpy())
        expected += one * int((~unknown[b]).sum()) / len(left) / 16
    assert output["loss"].item() == pytest.approx(expected, rel=1e-5)


def test_unknown_labels_are_not_measured() -> None:
    """Known labels are worth what they are worth on the pairs that the data know."""
    targets = world(200, 5)
    unknown = torch.rand(targets.shape, generator=torch.Generator().manual_seed(2)) < 0.3
    marked = targets.to(torch.uint8).masked_fill(unknown, UNKNOWN)
    predictions = Predictions(
        torch.rand(targets.shape, generator=torch.Generator().manual_seed(3)),
        marked,
        torch.arange(len(targets)),
        tuple("abcdef"),
    )
    labels = give(predictions, 0.5, seed=1)
    assert labels[unknown].isnan().all()
    control = fit_cooccurrence(labels_or_nan(marked))
    (share,) = measure_known(predictions, {0.5: (labels, predictions.scores)}, control, 200, resamples=10).shares
    counted = labels.isnan() & ~unknown
    assert (share.given, share.pairs) == (3, int(counted.sum()))
    assert share.positives == int(targets[counted].sum())
    expected = counted_average_precision(predictions.scores, targets.to(torch.uint8), counted).nanmean()
    assert share.told.value == share.nothing.value == pytest.approx(float(expected))
    assert math.isfinite(share.cooccurrence.value)
