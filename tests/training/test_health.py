"""The monitor: silent about what is healthy, finds each failure, tells it once, and says the same after a resume."""

import itertools
import json
import math

import pytest
import torch
from torch import Tensor, nn

import contextcaps
from contextcaps.training.health import Monitor, Statistics, _chance, judge_result
from contextcaps.training.losses import length_cross_entropy, margin_loss

CLASSES = 30
FREQUENCIES = [0.05] * CLASSES


def draw_targets(seed: int, images: int = 32, classes: int = CLASSES, frequency: float = 0.05) -> Tensor:
    return (torch.rand(images, classes, generator=torch.Generator().manual_seed(seed)) < frequency).to(torch.uint8)


def draw_scores(seed: int, targets: Tensor, mean: float = 0.1, spread: float = 0.03, signal: float = 0.0) -> Tensor:
    noise = torch.randn(targets.shape, generator=torch.Generator().manual_seed(1000 + seed))
    return (mean + spread * noise + signal * targets).clamp(0, 1)


def look_at_batches(monitor: Monitor, count: int = 12, start: int = 0, **settings: float) -> list[str]:
    """The kinds that are told in so many batches."""
    told = []
    for step in range(start, start + count):
        targets = draw_targets(step)
        told += [
            finding.kind for finding in monitor.look_at_batch(step, draw_scores(step, targets, **settings), targets)
        ]
    return told


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"signal": 0.5}, []),
        ({}, []),  # noise is for the mAP to judge
        ({"mean": 0.02, "spread": 0.01}, []),  # short, but alive
        ({"mean": 0.002, "spread": 0.001}, ["dead"]),
        ({"mean": 0.0, "spread": 0.0}, ["dead"]),
        ({"mean": 0.3, "spread": 1e-5}, ["constant"]),
        ({"mean": 0.3, "spread": 0.0}, ["constant"]),
        ({"mean": 0.02, "spread": 1e-7}, ["constant"]),
        ({"mean": 0.995, "spread": 0.001}, ["saturated"]),
        ({"mean": 1.0, "spread": 0.0}, ["saturated"]),
    ],
    ids=[
        "learning",
        "noise",
        "short",
        "near zero",
        "zero",
        "nearly constant",
        "constant",
        "short and constant",
        "near one",
        "one",
    ],
)
def test_batches_and_validation_are_judged(settings: dict[str, float], expected: list[str]) -> None:
    assert look_at_batches(Monitor(FREQUENCIES, "capsnet"), **settings) == expected
    targets = draw_targets(1, 500)
    scores = draw_scores(1, targets, **settings)
    findings = Monitor(FREQUENCIES, "capsnet").look_at_validation(5, scores, targets, 0.5, 0.05)
    assert [finding.kind for finding in findings] == expected
    for finding in findings:
        assert finding.message.startswith("validation, epoch 5: ")
        assert "`--" in finding.message, "says what to try"


def test_some_dead_classes_are_counted() -> None:
    monitor = Monitor(FREQUENCIES, "capsnet")
    targets = draw_targets(1, 500)
    scores = draw_scores(1, targets)
    scores[:, :5] *= 0.01
    assert monitor.look_at_validation(1, scores, targets, 0.5, 0.05) == []  # a sixth is below the share
    scores[:, :9] *= 0.01
    (finding,) = monitor.look_at_validation(2, scores, targets, 0.5, 0.05)
    assert "9 of 30 classes that were present (30%)" in finding.message
    assert "500 images" in finding.message
    assert "--set capsules.start_length=0.1" in finding.message
    (finding,) = Monitor(FREQUENCIES, "ml-gcn", sigmoids=True).look_at_validation(2, scores, targets, 0.5, 0.05)
    assert "are dead" in finding.message
    assert "start_length" not in finding.message  # which a head without capsules has not


def test_rare_classes_may_score_as_little_as_they_are_frequent() -> None:
    """A cross-entropy that knows nothing yet says the frequency; a dead capsule says less."""
    targets = draw_targets(1, 2000, frequency=0.003)
    calibrated = draw_scores(1, targets, mean=0.003, spread=0.0005)
    assert Monitor([0.003] * CLASSES, "capsnet").look_at_validation(1, calibrated, targets, 0.5, 0.003) == []
    (finding,) = Monitor([0.003] * CLASSES, "capsnet").look_at_validation(1, calibrated / 10, targets, 0.5, 0.003)
    assert finding.kind == "dead"


def test_classes_without_positives_are_not_judged() -> None:
    """Nothing keeps a class alive that no image shows."""
    frequencies = [0.0] * 20 + [0.05] * 10
    targets = draw_targets(1, 500)
    targets[:, :20] = 0
    scores = draw_scores(1, targets)
    scores[:, :20] = 0
    assert Monitor(frequencies, "capsnet").look_at_validation(1, scores, targets, 0.5, 0.05) == []


def test_the_network_moving_is_not_a_reaction_to_the_image() -> None:
    """Constant within each batch, though different from batch to batch."""
    monitor = Monitor(FREQUENCIES, "capsnet")
    told = [
        finding.kind
        for step in range(10)
        for finding in monitor.look_at_batch(step, torch.full((32, CLASSES), 0.1 + 0.05 * step), draw_targets(step))
    ]
    assert told == ["constant"]


def test_few_images_are_not_judged() -> None:
    """Neither one batch, nor batches of one image, in which nothing can vary."""
    assert look_at_batches(Monitor(FREQUENCIES, "capsnet"), count=2, mean=0.0, spread=0.0) == []
    monitor = Monitor(FREQUENCIES, "capsnet")
    scores = torch.full((1, CLASSES), 0.3)
    assert not any(monitor.look_at_batch(step, scores, draw_targets(step, 1)) for step in range(100))


def test_small_batches_are_judged_once_there_are_enough_images() -> None:
    """However small batches are, a window holds enough images, and no more batches than that needs."""
    monitor = Monitor(FREQUENCIES, "capsnet")
    told = [
        step
        for step in range(1, 200)
        for _ in monitor.look_at_batch(step, torch.full((2, CLASSES), 1e-4), draw_targets(step, 2))
    ]
    assert told == [24]
    assert len(monitor.state_dict()["window"]) == 24


def test_when_to_look() -> None:
    assert [step for step in range(1, 301) if Monitor.is_time(step, 50)] == [*range(5, 101, 5), 150, 200, 250, 300]
    assert [step for step in range(1, 110) if Monitor.is_time(step, 2)] == [*range(2, 110, 2)]
    assert [step for step in range(1, 1001) if Monitor.is_time(step, 400)] == [*range(5, 101, 5), 400, 800]


@pytest.mark.parametrize("images", [8, 64])
def test_dead_capsules_are_told_within_thirty_steps(images: int) -> None:
    monitor = Monitor(FREQUENCIES, "capsnet")
    told = [
        step
        for step in range(1, 101)
        if monitor.is_time(step, 50)
        for _ in monitor.look_at_batch(step, torch.full((images, CLASSES), 1e-4), draw_targets(step, images))
    ]
    assert told == [15 if images == 64 else 30]


def test_scores_that_are_no_numbers_are_left_to_the_diagnosis() -> None:
    monitor = Monitor(FREQUENCIES, "capsnet")
    assert monitor.look_at_batch(1, torch.full((32, CLASSES), math.nan), draw_targets(1)) == []
    assert look_at_batches(monitor) == []
    assert monitor.look_at_validation(3, torch.full((9, CLASSES), math.inf), draw_targets(1, 9), math.nan, 0.1) == []


def test_other_classes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scores: expected shape \[B, J=30\], got \[32, 29\]"):
        Monitor(FREQUENCIES, "capsnet").look_at_batch(1, torch.zeros(32, 29), torch.zeros(32, 29))


@pytest.mark.parametrize(
    ("epoch", "value", "prior", "found"),
    [
        (2, 0.05, 0.05, True),
        (2, 0.0549, 0.05, True),
        (2, 0.07, 0.05, False),
        (1, 0.05, 0.05, False),  # too early
        (20, 0.02, 0.05, True),
        (5, math.nan, 0.05, False),
        (5, 0.05, math.nan, False),
        (5, 0.96, 0.94, False),  # little is left to gain
        (5, 0.94, 0.94, True),
    ],
)
def test_results_of_the_priors_level(epoch: int, value: float, prior: float, found: bool) -> None:
    targets = draw_targets(1, 5000, frequency=prior if math.isfinite(prior) else 0.05)
    findings = judge_result(epoch, targets, value, prior, "capsnet")
    assert [finding.kind for finding in findings] == ["prior"] * found
    if found:
        assert f"is {'hardly' if value > prior * 1.001 else 'no'} better than guessing" in findings[0].message
        assert f"{100 * value:.1f} %" in findings[0].message
        assert f"{100 * prior:.1f} %" in findings[0].message
        assert "contextcaps data inspect" in findings[0].message


@pytest.mark.parametrize(("images", "positives"), [(5, 1), (6, 3), (7, 7), (1, 1)])
def test_chance_is_the_mean_over_all_orders(images: int, positives: int) -> None:
    """Average precision by its definition, over every order of the images."""
    precisions = [
        sum((index + 1) / rank for index, rank in enumerate(ranks)) / positives
        for ranks in itertools.combinations(range(1, images + 1), positives)
    ]
    targets = torch.zeros(images, 2)
    targets[:positives, 0] = 1  # the other class has no positive and is left out
    assert _chance(targets) == pytest.approx(sum(precisions) / len(precisions))


def test_random_scores_on_few_images_are_found() -> None:
    """Random scores have a higher mAP than constant ones where images are few; it is still guessing."""
    targets = torch.zeros(50, CLASSES)
    targets[0] = 1
    (finding,) = judge_result(3, targets, 0.085, 0.02, "capsnet")
    assert "random scores: 9.0 %" in finding.message


def test_each_kind_is_told_once_until_it_has_come_back() -> None:
    monitor = Monitor(FREQUENCIES, "capsnet")
    dead = {"mean": 0.002, "spread": 0.001}
    assert look_at_batches(monitor, 40, **dead) == ["dead"]
    assert look_at_batches(monitor, 40) == []
    assert look_at_batches(monitor, 40, **dead) == ["dead"]


def test_a_kind_at_the_edge_is_told_once() -> None:
    """Now there, now not, in turns shorter than the window."""
    monitor = Monitor(FREQUENCIES, "capsnet")
    told = []
    for turn in range(10):
        told += look_at_batches(monitor, 3, 3 * turn, mean=0.002, spread=0.001)
        told += look_at_batches(monitor, 1, 3 * turn)
    assert told.count("dead") <= 1


def test_what_batches_told_validation_does_not_repeat() -> None:
    monitor = Monitor(FREQUENCIES, "capsnet")
    assert look_at_batches(monitor, mean=0.002, spread=0.001) == ["dead"]
    targets = draw_targets(1, 500)
    scores = draw_scores(1, targets, mean=0.002, spread=0.001)
    findings = monitor.look_at_validation(3, scores, targets, 0.05, 0.05)
    assert [finding.kind for finding in findings] == ["prior"]
    assert monitor.look_at_validation(4, scores, targets, 0.05, 0.05) == []


@pytest.mark.parametrize("stop", [0, 2, 5, 14, 30])
def test_a_resumed_monitor_says_the_same(stop: int) -> None:
    def look(monitor: Monitor, steps: range) -> list[tuple[int, object]]:
        told = []
        for step in steps:
            targets = draw_targets(step)
            mean = 0.002 if step < 15 or step > 40 else 0.1
            scores = draw_scores(step, targets, mean=mean, spread=mean / 3)
            told += [(step, finding) for finding in monitor.look_at_batch(step, scores, targets)]
            if step % 10 == 9:
                told += [(step, f) for f in monitor.look_at_validation(step // 10, scores, targets, 0.05, 0.05)]
        return told

    whole = look(Monitor(FREQUENCIES, "capsnet"), range(60))
    assert len(whole) >= 3
    first, second = Monitor(FREQUENCIES, "capsnet"), Monitor(FREQUENCIES, "capsnet")
    told = look(first, range(stop))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))  # plain values
    assert told + look(second, range(stop, 60)) == whole


def picture_batch(seed: int, classes: int, images: int = 16) -> tuple[Tensor, Tensor]:
    """Each class a coarse pattern, those present added up under noise."""
    targets = draw_targets(seed, images, classes)
    patterns = torch.rand(classes, 3, 8, 8, generator=torch.Generator().manual_seed(7))
    pictures = torch.einsum("nj,jchw->nchw", targets.float(), patterns)  # [B, 3, 8, 8]
    noise = torch.rand(images, 3, 32, 32, generator=torch.Generator().manual_seed(seed + 500))
    return (nn.functional.interpolate(pictures, size=32) / 4 + 0.3 * noise).clamp(0, 1), targets


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "loss", "classes", "expected"),
    [
        ("capsnet", margin_loss, 40, []),
        ("capsnet", length_cross_entropy, 40, []),
        ("contextcaps-rw-crf-corr", margin_loss, 40, []),
        ("capsnet", margin_loss, 5, []),
        ("capsnet-rw-crf-literal", margin_loss, 40, ["constant"]),
        ("capsnet-rw-crf-literal", margin_loss, 80, ["dead"]),  # lengths of K / J²: with so few capsules also short
        ("capsnet-rw-crf-corr-literal", margin_loss, 80, ["dead"]),
    ],
)
def test_early_training_of_real_networks(name: str, loss, classes: int, expected: list[str]) -> None:
    """No alarm while a healthy network starts; the presets to the letter are found within ten looks."""
    torch.manual_seed(0)
    network = contextcaps.create_model(
        name, num_classes=classes, image_size=32, backbone="small", capsules={"types": 4}
    )
    optimiser = torch.optim.AdamW(network.parameters(), 1e-3)
    monitor = Monitor([0.05] * classes, name)
    told = []
    for step in range(12):
        images, targets = picture_batch(step, classes)
        scores = network(images).scores
        optimiser.zero_grad()
        loss(scores, targets).backward()
        optimiser.step()
        told += monitor.look_at_batch(step, scores, targets)
    assert [finding.kind for finding in told] == expected
    for finding in told:
        assert "https://contextcaps.readthedocs.io/en/latest/decisions/mean-field-crf/" in finding.message
        assert f"--model {name.removesuffix('-literal')}`" in finding.message


def test_chance_and_positives_of_known_labels_alone() -> None:
    """Each class by the images that know it; an unknown label is no positive."""
    targets = torch.tensor([[1, 1], [0, 255], [0, 255], [1, 0], [255, 255]], dtype=torch.uint8)
    first, second = (_chance(column[column != 255, None]) for column in targets.T)
    assert _chance(targets) == pytest.approx((first + second) / 2)
    assert Statistics.of(torch.rand(5, 2), targets).positives.tolist() == [2, 1]
