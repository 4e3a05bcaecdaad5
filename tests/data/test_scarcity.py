"""Labels and images that are kept of a training part: shares, nesting, and that a draw depends on nothing else."""

import itertools

import numpy as np
import pytest
from memory_source import blank_source

from contextcaps.data import Subset, open_source
from contextcaps.data.hashed_draws import draw
from contextcaps.data.scarcity import HiddenLabels, keep_images
from contextcaps.data.unknown import UNKNOWN

CLASSES = tuple(f"class {index}" for index in range(20))
IDS = [f"image {number}" for number in range(500)]


def targets() -> np.ndarray:
    """[500, 20], a fifth present, some unknown already."""
    generator = np.random.default_rng(0)
    found = (generator.random((500, 20)) < 0.2).astype(np.uint8)
    found[generator.random((500, 20)) < 0.05] = UNKNOWN
    return found


def test_draws_are_even_and_independent() -> None:
    drawn = draw("labels", IDS, CLASSES)  # [500, 20]
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = np.histogram(drawn, bins=10, range=(0, 1))[0]
    assert abs(counts - 1000).max() < 120  # 4 standard deviations
    correlations = np.corrcoef(drawn.T) - np.eye(20)
    assert abs(correlations).max() < 0.2
    assert not (draw("labels", IDS, CLASSES, seed=1) == drawn).any()
    assert not (draw("images", IDS, CLASSES) == drawn).any()


@pytest.mark.parametrize("kept", [0.05, 0.1, 0.3, 0.5])
def test_a_share_of_present_and_absent_labels_stays_known(kept: float) -> None:
    given = targets()
    hidden = HiddenLabels(CLASSES, kept).hide(given, IDS)
    for value in (0, 1):
        of_value = given == value
        deviation = (kept * (1 - kept) / of_value.sum()) ** 0.5
        assert (hidden[of_value] == value).mean() == pytest.approx(kept, abs=4 * deviation)
        assert set(np.unique(hidden[of_value])) == {value, UNKNOWN}
    assert (hidden[given == UNKNOWN] == UNKNOWN).all()
    assert hidden.dtype == np.uint8


def test_what_is_known_at_a_share_is_known_at_every_larger_one() -> None:
    known = [HiddenLabels(CLASSES, kept).hide(targets(), IDS) != UNKNOWN for kept in (0.05, 0.1, 0.3, 0.5, 0.9)]
    for fewer, more in itertools.pairwise(known):
        assert (more | ~fewer).all()
        assert more.sum() > fewer.sum()


def test_hidden_as_absent_hides_the_same_labels() -> None:
    given = targets()
    unknown = HiddenLabels(CLASSES, 0.3).hide(given, IDS)
    absent = HiddenLabels(CLASSES, 0.3, "absent").hide(given, IDS)
    newly = (unknown == UNKNOWN) & (given != UNKNOWN)
    assert (absent[newly] == 0).all()
    assert (absent[~newly] == given[~newly]).all()


def test_the_draw_depends_on_neither_order_of_images_nor_of_classes() -> None:
    given, order, columns = targets(), np.random.default_rng(1).permutation(500)[:100], np.arange(20)[::-1]
    whole = HiddenLabels(CLASSES, 0.3).hide(given, IDS)
    some = HiddenLabels(tuple(CLASSES[j] for j in columns), 0.3).hide(given[order][:, columns], [IDS[i] for i in order])
    assert (some == whole[order][:, columns]).all()
    assert (HiddenLabels(CLASSES, 0.3, seed=1).hide(given, IDS) != whole).any()


def test_kept_images_are_nested_and_as_many_as_asked_for() -> None:
    source = blank_source([[index % 3] for index in range(200)], 3)
    parts = [keep_images(source, wanted) for wanted in (0.01, 0.05, 40, 0.25, 1.0, 1000)]
    assert [len(part) for part in parts] == [2, 10, 40, 50, 200, 200]
    for fewer, more in itertools.pairwise(parts):
        assert set(fewer.indices) <= set(more.indices)
    assert parts[1].indices == sorted(parts[1].indices)
    assert keep_images(source, 0.25, seed=1).indices != parts[3].indices
    assert parts[1].assumptions == ["10 of its 200 images kept, drawn at random"]
    # The ids alone decide: the same images of the source in another order.
    turned = Subset(source, list(range(200))[::-1], "train")
    again = keep_images(turned, 0.05)
    assert {again.sample(index).id for index in range(10)} == {parts[1].sample(index).id for index in range(10)}


def test_every_source_knows_its_ids(tmp_path) -> None:
    source = open_source("scenes?count=3&size=32", split="train")
    subset = Subset(source, [2, 0], "some")
    assert (
        [subset.id_of(index) for index in range(2)] == [subset[0].id, subset[1].id] == ["train-000002", "train-000000"]
    )
    assert blank_source([[0], [0]], 1).id_of(1) == "00001"  # it has no `id_of` of its own
