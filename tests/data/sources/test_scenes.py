"""The built-in source: the same everywhere, labels and masks that agree, and context that matters."""

import dataclasses
import hashlib
import pickle
import subprocess
import sys
from fractions import Fraction

import numpy as np
import PIL
import pytest

from contextcaps.data import DataError, open_source
from contextcaps.data.sources.scenes import ScenesSource
from contextcaps.data.sources.scenes.canvas import Canvas
from contextcaps.data.sources.scenes.dice import Dice, fold, fold_all
from contextcaps.data.sources.scenes.drawing import LEAST_VISIBLE
from contextcaps.data.sources.scenes.layout import Scene, lay_out
from contextcaps.data.sources.scenes.looks import LOOKS, Mood, Thing, draw_thing, thing
from contextcaps.data.sources.scenes.world import CLASSES, KINDS, LOOK_OF, TWINS

INDEX = {name: index for index, name in enumerate(CLASSES)}

FINGERPRINT = """
import hashlib, sys
from contextcaps.data.sources.scenes import ScenesSource
source = ScenesSource(count=300, size=48, seed=5)
for index in map(int, sys.argv[1:]):
    sample = source.sample(index)
    print(index, hashlib.sha256(sample.image.tobytes() + sample.mask().tobytes()).hexdigest())
"""


@pytest.fixture(scope="module")
def source() -> ScenesSource:
    return ScenesSource(count=4000, size=32, seed=1)


@pytest.fixture(scope="module")
def scenes(source: ScenesSource) -> list[Scene]:
    """Scenes laid out, not drawn."""
    laid_out = []
    for index in range(1500):
        kind = int(source._kinds[index])
        light = KINDS[kind].choices[0][source._chosen[index, 0]].light
        present = frozenset(CLASSES[label] for label in source.labels_of(index))
        laid_out.append(lay_out(int(source._states[index]), kind, str(light), present, attempt=0))
    return laid_out


def test_the_world_is_as_large_as_promised():
    assert len(KINDS) >= 6
    assert len(set(CLASSES)) == len(CLASSES) >= 24
    assert len(TWINS) >= 4


def test_another_process_and_another_order_give_the_same_bytes():
    order = [17, 3, 250, 0]
    run = subprocess.run(
        [sys.executable, "-c", FINGERPRINT, *map(str, order)], capture_output=True, text=True, check=True
    )
    source = ScenesSource(count=300, size=48, seed=5)
    here = {}
    for index in sorted(order):
        sample = source.sample(index)
        here[index] = hashlib.sha256(sample.image.tobytes() + sample.mask().tobytes()).hexdigest()
    assert run.stdout.splitlines() == [f"{index} {here[index]}" for index in order]


def test_labels_are_pinned():
    """Labels are integer arithmetic only, so they are the same on every machine and with every version of Pillow."""
    targets = ScenesSource(count=1000, seed=7).targets()
    assert hashlib.sha256(targets.tobytes()).hexdigest()[:16] == "dc39aa5557293c2f"


@pytest.mark.skipif(
    not (11, 2) <= tuple(map(int, PIL.__version__.split(".")[:2])) < (14, 0), reason="another Pillow, other polygons"
)
def test_pixels_are_pinned():
    """If this fails after a change of the drawings, raise `_EDITION` in scenes.py and pin the new bytes; if it fails
    with a new Pillow, say so in the docstring of scenes.py."""
    digest = hashlib.sha256()
    for size in (32, 64, 100, 256):
        source = ScenesSource(count=12, size=size, seed=11)
        for sample in source:
            digest.update(sample.image.tobytes() + sample.mask().tobytes())
    assert digest.hexdigest()[:16] == "583c54663dd7973d"


def test_an_image_depends_on_neither_count_nor_earlier_accesses(source):
    few = ScenesSource(count=4, size=32, seed=1)
    source.sample(2)
    np.testing.assert_array_equal(few.sample(3).image, source.sample(3).image)
    assert few.labels_of(3) == source.labels_of(3)


def test_splits_and_seeds_are_disjoint_streams():
    streams = [ScenesSource(count=500, split=split, seed=seed) for split in ("train", "val", "test") for seed in (0, 1)]
    states = np.concatenate([stream._states for stream in streams])
    assert len(np.unique(states)) == len(states)
    assert [stream.split for stream in streams[::2]] == ["train", "validation", "test"]
    assert len({stream.sample(0).id for stream in streams}) == 3
    assert len({stream.sample(0).image.tobytes() for stream in streams}) == 6
    assert len({stream.fingerprint() for stream in streams}) == 6


def test_the_hash_of_many_is_the_hash_of_each():
    parts = np.arange(50, dtype=np.uint64)
    many = fold_all(np.full(50, fold(0, 9), dtype=np.uint64), parts)
    assert many.tolist() == [fold(fold(0, 9), part) for part in range(50)]
    # The reference generator's outputs for state 1234567: this is splitmix64.
    assert fold(1234567, 0) == 6457827717110365317
    assert fold(1234567, 1) == 3203168211198807973


@pytest.mark.parametrize(("size", "count"), [(32, 120), (47, 40), (64, 60), (100, 20), (256, 10)])
def test_labels_are_the_masks_classes_and_boxes_enclose_them(size, count):
    source = ScenesSource(count=count, size=size, seed=size)
    for index in range(count):
        sample = source.sample(index)
        assert sample.image.shape == (size, size, 3)
        assert sample.image.dtype == np.uint8
        mask = sample.mask()
        assert mask.shape == (size, size)
        assert mask.dtype == np.int32
        assert tuple(np.unique(mask[mask > 0]) - 1) == sample.labels == source.labels_of(index)
        assert set(sample.boxes.labels.tolist()) == set(sample.labels)
        assert sample.boxes.corners.dtype == np.float32
        for label in sample.labels:
            inside = np.zeros_like(mask, dtype=bool)
            for left, top, right, bottom in np.rint(sample.boxes.corners[sample.boxes.labels == label] * size).astype(
                int
            ):
                assert 0 <= left < right <= size
                assert 0 <= top < bottom <= size
                inside[top:bottom, left:right] = True
                edges = mask[top:bottom, left:right] == label + 1
                assert edges[0].any() and edges[-1].any() and edges[:, 0].any() and edges[:, -1].any()  # noqa: PT018
            assert inside[mask == label + 1].all()
        if size == 32:
            assert np.bincount(mask.ravel())[[label + 1 for label in sample.labels]].min() >= LEAST_VISIBLE


def test_size_changes_the_resolution_only():
    small, large = (ScenesSource(count=6, size=size).sample(5) for size in (64, 256))
    reduced = large.image.reshape(64, 4, 64, 4, 3).mean(axis=(1, 3))
    assert np.abs(reduced - small.image).mean() < 4
    assert (large.mask()[2::4, 2::4] == small.mask()).all()


def test_opening_and_labels_need_no_drawing(monkeypatch):
    monkeypatch.setattr("contextcaps.data.sources.scenes.source.draw", lambda *_: pytest.fail("drew a picture"))
    source = ScenesSource(count=2000)
    targets = source.targets()
    assert targets.shape == (2000, len(CLASSES))
    assert all(tuple(np.flatnonzero(targets[index])) == source.labels_of(index) for index in range(50))
    assert source.notes == []  # every class has a positive


def test_the_true_cooccurrence_is_that_of_the_labels():
    source = ScenesSource(count=40000, seed=3)
    marginal, together = source.true_cooccurrence()
    np.testing.assert_array_equal(together, together.T)
    np.testing.assert_array_equal(together.diagonal(), marginal)
    targets = source.targets().astype(np.float64)
    deviation = np.sqrt(together * (1 - together) / len(source))
    assert (np.abs(targets.T @ targets / len(source) - together) <= 5 * deviation + 1e-12).all()


def test_classes_are_neither_rare_nor_everywhere(source):
    marginal, _ = source.true_cooccurrence()
    assert marginal.min() >= 0.02
    assert marginal.max() <= 0.5 + 1e-9
    assert 4 <= marginal.sum() <= 7


def test_the_model_is_well_formed():
    assert sum(kind.percent for kind in KINDS) == 100
    for kind in KINDS:
        named = [*kind.always]
        for choice in kind.choices:
            assert sum(alternative.percent for alternative in choice) == 100
            assert all(alternative.percent >= 0 for alternative in choice)
            named += {name for alternative in choice for name in alternative.classes}
        assert len(named) == len(set(named)), f"{kind.name}: a class is in two choices"


def test_another_attempt_changes_places_only():
    """So that throwing attempts away cannot favour the twin that is seen more easily."""
    present = frozenset(("sky", "sea", "sand", "sun", "boat", "parasol", "ball", "cloud"))
    first, second = (lay_out(42, 0, "day", present, attempt) for attempt in (0, 1))
    assert {(each.x, each.y) for each in first.things}.isdisjoint((each.x, each.y) for each in second.things)
    nowhere = [
        sorted((dataclasses.replace(each, x=0, y=0) for each in scene.things), key=repr) for scene in (first, second)
    ]
    assert nowhere[0] == nowhere[1]
    assert (first.mood, first.horizon, first.details) == (second.mood, second.horizon, second.details)


# Context: twins.


def _lights_given(name: str) -> dict[str, Fraction]:
    """The exact distribution of the light in scenes with a class."""
    weights: dict[str, Fraction] = {}
    for kind in KINDS:
        for alternative in kind.choices[0]:
            present = Fraction(int(name in kind.always))
            for choice in kind.choices[1:]:
                present += Fraction(sum(other.percent for other in choice if name in other.classes), 100)
            present += int(name in alternative.classes)
            weight = kind.percent * alternative.percent * present
            weights[str(alternative.light)] = weights.get(str(alternative.light), Fraction(0)) + weight
    return {light: weight / sum(weights.values()) for light, weight in weights.items()}


@pytest.mark.parametrize("twins", TWINS, ids=" and ".join)
def test_twins_are_identical_in_isolation(twins):
    one, other = twins
    assert LOOK_OF[one] == LOOK_OF[other]
    assert _lights_given(one) == _lights_given(other)
    mood = Mood(light="dusk", wind=7, side=-1, theme=200)
    for state in range(20):
        pair = [dataclasses.replace(thing(name, LOOK_OF[name], mood, Dice(state)), x=0.5, y=0.8) for name in twins]
        assert dataclasses.replace(pair[0], name=other) == pair[1]
        pictures = [Canvas(64, mood.light) for _ in pair]
        for canvas, each in zip(pictures, pair, strict=True):
            canvas.number = 1
            draw_thing(canvas, each)
        np.testing.assert_array_equal(pictures[0].image(), pictures[1].image())
        assert np.asarray(pictures[0].objects).any()


def _furthest_apart(one: np.ndarray, other: np.ndarray) -> float:
    """Kolmogorov–Smirnov statistic over its critical value at a chance of 1 in 100,000."""
    places = np.union1d(one, other)
    ranks = [np.searchsorted(np.sort(values), places, side="right") / len(values) for values in (one, other)]
    return np.abs(ranks[0] - ranks[1]).max() / (2.47 * np.sqrt(1 / len(one) + 1 / len(other)))


@pytest.mark.parametrize("twins", TWINS, ids=" and ".join)
def test_twins_in_scenes_have_the_same_distribution_of_appearance(twins, scenes):
    # One of each class a scene: copies share the scene's mood, so they are not independent draws.
    found: dict[str, list[Thing]] = {name: [] for name in twins}
    for scene in scenes:
        for name in twins:
            found[name] += [each for each in scene.things if each.name == name][:1]
    for attribute in ("size", "hue", "lean", "flip"):
        one, other = (np.asarray([getattr(each, attribute) for each in found[name]]) for name in twins)
        assert min(len(one), len(other)) > 50
        assert _furthest_apart(one, other) < 1, attribute


@pytest.mark.parametrize("twins", TWINS, ids=" and ".join)
def test_company_tells_twins_apart(twins, source):
    """A linear rule on the other labels, fitted on half of the scenes; naive Bayes does not see that a ball keeps
    company with a blanket only by the sea."""
    one, other = (INDEX[name] for name in twins)
    targets = source.targets().astype(np.float64)
    targets = targets[targets[:, one] != targets[:, other]]
    answers, company = targets[:, one] == 1, np.delete(targets, [one, other], axis=1)
    train, test = slice(0, None, 2), slice(1, None, 2)
    weights = np.linalg.lstsq(company[train], 2.0 * answers[train] - 1, rcond=None)[0]
    chance = max(answers[test].mean(), 1 - answers[test].mean())
    assert chance < 0.7
    assert ((company[test] @ weights > 0) == answers[test]).mean() > 0.98


def test_twins_share_a_kind_of_scene(source):
    """Ball and orange both lie on meadows, so that there the neighbours must tell, not the landscape."""
    _, together = source.true_cooccurrence()
    assert together[INDEX["ball"], INDEX["grass"]] > 0.02
    assert together[INDEX["orange"], INDEX["grass"]] > 0.02
    assert together[INDEX["orange"], INDEX["goal"]] == together[INDEX["ball"], INDEX["orange"]] == 0


# Context: exclusion.


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("sea", "road"),
        ("sky", "wall"),
        ("sky", "floor"),
        ("sun", "moon"),
        ("goal", "blanket"),
        ("grass", "sand"),
        *TWINS,
    ],
)
def test_some_classes_never_meet(one, other, source):
    _, together = source.true_cooccurrence()
    targets = source.targets()
    assert together[INDEX[one], INDEX[other]] == 0
    assert not (targets[:, INDEX[one]] & targets[:, INDEX[other]]).any()


# Context: agreement.


def test_one_wind_leans_everything(scenes):
    blown = [[each.lean for each in scene.things if LOOKS[each.look].lean == "wind"] for scene in scenes]
    several = [leans for leans in blown if len(leans) > 1]
    assert len(several) > 100
    assert all(max(leans) - min(leans) <= 2 and (min(leans) > 0 or max(leans) < 0) for leans in several)
    assert {leans[0] > 0 for leans in several} == {True, False}


@pytest.mark.parametrize(
    ("one", "other"),
    [("sofa", "cushion"), ("bed", "cushion"), ("person", "umbrella"), ("parasol", "blanket"), ("house", "house")],
)
def test_neighbours_share_a_hue(one, other, scenes):
    hues = [
        (first.hue, second.hue)
        for scene in scenes
        for first in scene.things
        for second in scene.things
        if (first.name, second.name) == (one, other)
    ]
    first, second = np.asarray(hues).T
    assert len(hues) > 30
    assert np.abs((first - second + 180) % 360 - 180).max() <= 16
    assert np.ptp(first) > 300  # between scenes it varies


def test_the_light_comes_from_where_the_lamp_or_the_sun_is(scenes):
    lights = [(each, scene.mood) for scene in scenes for each in scene.things if each.name in ("sun", "moon", "lamp")]
    assert len(lights) > 200
    assert all((each.x > 0.5) == (mood.side > 0) for each, mood in lights)


@pytest.mark.parametrize("side", [-1, 1])
def test_shadows_fall_away_from_the_light(side):
    ball = thing("ball", "sphere", Mood("day", 5, side, 0), Dice(1))
    canvas = Canvas(128, "day")
    canvas.picture.paste((255, 255, 255), (0, 0, canvas.side, canvas.side))
    canvas.number = 1
    draw_thing(canvas, dataclasses.replace(ball, x=0.5, y=0.7))
    ground = np.asarray(canvas.objects.resize((128, 128), 0)) == 0
    shadow = np.flatnonzero((ground & (canvas.image().sum(axis=2) < 700)).any(axis=0))
    assert len(shadow)
    assert (shadow.mean() < 64) == (side > 0)


def test_things_hide_parts_of_each_other(source):
    hidden = 0
    for index in range(60):
        drawing = source.drawing(index)
        boxes = [each.box for each in drawing.scene.things]
        hidden += any(
            min(a[2], b[2]) > max(a[0], b[0]) and min(a[3], b[3]) > max(a[1], b[1])
            for number, a in enumerate(boxes)
            for b in boxes[:number]
        )
    assert hidden > 20


# Opening.


def test_opens_by_name_with_written_options():
    source = open_source("scenes?count=5&size=40&seed=2&split=val")
    assert (len(source), source.split, source.splits) == (5, "validation", ("train", "validation", "test"))
    assert source[0].image.shape == (40, 40, 3)
    assert source[4].id == "validation-000004"
    assert open_source("scenes", count=3).split == "train"


def test_a_sample_travels_between_processes(source):
    sample = source.sample(0)
    again = pickle.loads(pickle.dumps(sample))
    np.testing.assert_array_equal(again.mask(), sample.mask())


@pytest.mark.parametrize("options", [{"size": 48}, {"count": 41}, {"seed": 1}, {"split": "test"}])
def test_the_fingerprint_changes_with_the_options(options):
    plain = {"size": 32, "count": 40}
    assert ScenesSource(**plain).fingerprint() == ScenesSource(**plain, split="train").fingerprint()
    assert ScenesSource(**{**plain, **options}).fingerprint() != ScenesSource(**plain).fingerprint()


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("scenes", {"size": 31}, "size: expected a whole number from 32 to 256, got 31"),
        ("scenes", {"size": 257}, "size: expected .* got 257"),
        ("scenes", {"size": 64.5}, "size: expected .* got 64.5"),
        ("scenes", {"count": 0}, "count: expected .* got 0"),
        ("scenes", {"count": True}, "count: expected .* got True"),
        ("scenes", {"seed": -1}, "seed: expected .* got -1"),
        ("scenes", {"split": "holiday"}, "no split 'holiday'; it has train, validation, test"),
        ("scenes:somewhere", {}, "have no location"),
        ("scenes?size=big", {}, "option size: expected int, got 'big'"),
        ("scenes", {"kinds": 3}, "scenes has no option 'kinds'"),
    ],
)
def test_wrong_options_are_refused(spec, options, message):
    with pytest.raises(DataError, match=message):
        open_source(spec, **options)
