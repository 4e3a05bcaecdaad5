"""Splits: every sample once, exact sizes, every class in every part where that is possible, given splits kept."""

import itertools
import math
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_source import MemorySource, blank_source

from contextcaps.data import DataError, register_source
from contextcaps.data.splits import FRACTIONS, iterative_split, open_splits, split_source

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


@st.composite
def small_tables(draw: st.DrawFn) -> tuple[np.ndarray, dict[str, float]]:
    """Targets of few samples and classes, and the shares of two or three parts."""
    parts = draw(st.integers(2, 3))
    samples, classes = draw(st.integers(parts, 8)), draw(st.integers(1, 5))
    targets = draw(
        st.lists(st.lists(st.booleans(), min_size=classes, max_size=classes), min_size=samples, max_size=samples)
    )
    weights = draw(st.lists(st.integers(1, 8), min_size=parts, max_size=parts))
    return np.array(targets, dtype=np.uint8), {f"part {k}": weight / sum(weights) for k, weight in enumerate(weights)}


@given(small_tables(), st.integers(0, 3))
def test_every_sample_once_and_sizes_exact(table: tuple[np.ndarray, dict[str, float]], seed: int) -> None:
    targets, fractions = table
    parts = iterative_split(targets, fractions, seed)
    assert list(parts) == list(fractions)
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(len(targets)))
    for name, indices in parts.items():
        assert (np.diff(indices) > 0).all()
        assert len(indices) >= 1
        exact = fractions[name] * len(targets)
        if all(share * len(targets) >= 1 for share in fractions.values()):
            assert abs(len(indices) - exact) < 1


@given(small_tables(), st.integers(0, 3))
def test_every_part_has_every_class_where_any_division_does(
    table: tuple[np.ndarray, dict[str, float]], seed: int
) -> None:
    """Against all divisions of the same sizes: if one of them leaves no class out, so does ours."""
    targets, fractions = table
    parts = iterative_split(targets, fractions, seed)
    ours = np.empty(len(targets), dtype=int)
    for k, indices in enumerate(parts.values()):
        ours[indices] = k
    sizes = tuple(len(indices) for indices in parts.values())
    enough = targets.sum(axis=0) >= len(parts)

    def covers(part_of: np.ndarray) -> bool:
        return all(targets[part_of == k].any(axis=0)[enough].all() for k in range(len(parts)))

    others = (np.array(each) for each in itertools.product(range(len(parts)), repeat=len(targets)))
    possible = any(covers(each) for each in others if tuple(np.bincount(each, minlength=len(parts))) == sizes)
    assert covers(ours) == possible


@given(st.lists(st.integers(3, 40), min_size=1, max_size=12), st.integers(0, 3))
def test_single_labels_are_spread_like_the_samples(counts: list[int], seed: int) -> None:
    """With one label each nothing stands in the way: a positive in every part, and the rest in proportion."""
    targets = np.eye(len(counts), dtype=np.uint8)[np.repeat(np.arange(len(counts)), counts)]
    parts = iterative_split(targets, {"train": 0.6, "val": 0.2, "test": 0.2}, seed)
    room = {name: len(indices) for name, indices in parts.items()}
    possible = all(size >= len(counts) for size in room.values())
    for name, indices in parts.items():
        found = targets[indices].sum(axis=0)
        if possible:
            assert (found >= 1).all()
        exact = np.array(counts) * len(indices) / len(targets)
        assert np.abs(found - exact).max() <= 3, name


def test_a_class_with_as_many_positives_as_parts_has_one_in_each() -> None:
    """By shares alone, all three of the rare class would go to train, which lacks 2.4 of them."""
    targets = np.zeros((100, 2), dtype=np.uint8)
    targets[:, 0], targets[:3, 1] = 1, 1
    for seed in range(5):
        parts = iterative_split(targets, FRACTIONS, seed)
        assert [int(targets[indices, 1].sum()) for indices in parts.values()] == [1, 1, 1]


def test_a_class_with_one_positive_goes_to_the_largest_part() -> None:
    targets = np.ones((20, 2), dtype=np.uint8)
    targets[1:, 1] = 0
    assert 0 in iterative_split(targets, FRACTIONS)["train"]


def test_unlabelled_samples_are_handed_out_too() -> None:
    parts = iterative_split(np.zeros((10, 3)), {"train": 0.7, "test": 0.3})
    assert {name: len(indices) for name, indices in parts.items()} == {"train": 7, "test": 3}


def test_seeds() -> None:
    targets = np.random.default_rng(0).random((200, 10)) < 0.2
    once, again, other = (iterative_split(targets, FRACTIONS, seed) for seed in (1, 1, 2))
    assert all((once[name] == again[name]).all() for name in FRACTIONS)
    assert any((once[name] != other[name]).any() for name in FRACTIONS)


def test_long_tail_at_full_size() -> None:
    """Measured on two cores: 100,000 samples of 1,000 classes in about 3 s; here a tenth of that."""
    random = np.random.default_rng(0)
    chances = np.minimum(0.3, 4 / np.arange(1, 501) ** 1.3)
    targets = (random.random((20_000, 500), dtype=np.float32) < chances).astype(np.uint8)
    start = time.perf_counter()
    parts = iterative_split(targets, FRACTIONS)
    print(f"20,000 × 500 in {time.perf_counter() - start:.2f} s")
    whole = targets.sum(axis=0)
    for name, indices in parts.items():
        found = targets[indices].sum(axis=0)
        assert (found[whole >= 3] >= 1).all()
        exact = whole * FRACTIONS[name]
        assert (np.abs(found - exact) <= np.maximum(3, 0.1 * exact)).all()


@pytest.mark.parametrize(
    ("targets", "fractions", "message"),
    [
        (np.ones(3), {"train": 1.0}, r"targets: expected shape \[n, J\], got \[3\]"),
        (np.ones((3, 1)), {"train": 0.5, "test": 0.4}, "fractions: expected numbers above 0 that add up to 1"),
        (np.ones((3, 1)), {"train": 1.0, "test": 0.0}, "fractions: expected"),
        (np.ones((3, 1)), {}, "fractions: expected"),
        (np.ones((1, 1)), {"train": 0.5, "test": 0.5}, r"at least as many samples as parts \(2\), got 1"),
    ],
)
def test_refusals(targets: np.ndarray, fractions: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        iterative_split(targets, fractions)


def test_split_source() -> None:
    source = blank_source([[index % 4] for index in range(40)] + [[4]], 5)
    parts = split_source(source, {"train": 0.75, "test": 0.25}, seed=3)
    assert [len(part) for part in parts.values()] == [31, 10]
    assert {sample.id for part in parts.values() for sample in part} == {sample.id for sample in source}
    assert parts["train"].split == "train"
    assert parts["train"].notes == []
    assert parts["test"].notes == ["1 of 5 classes have no positive in test: class 4"]
    with pytest.raises(DataError, match="memory: expected at least as many samples as parts"):
        split_source(blank_source([[0]], 1))


def opened_kind(splits: dict[str, int], classes: int = 3) -> str:
    """Register a kind of source with these given splits and their sizes; its name."""
    kind = "memory-" + "-".join([str(classes), *splits])

    @register_source(kind)
    class Kind(MemorySource):
        def __init__(self, location: str, *, on_bad: str = "stop", split: str | None = None) -> None:
            size = splits[split] if split is not None else sum(splits.values()) or 30
            image = np.zeros((4, 4, 3), np.uint8)
            super().__init__([image] * size, [[index % classes] for index in range(size)], [*"abcdef"[:classes]])
            self.name, self.splits, self.split = kind, tuple(splits), split

    return kind


def test_given_splits_are_kept_under_their_plain_names() -> None:
    parts = open_splits(opened_kind({"training": 12, "validation": 6, "testing": 9, "extra": 5}))
    assert {name: (part.split, len(part)) for name, part in parts.items()} == {
        "train": ("training", 12),
        "val": ("validation", 6),
        "test": ("testing", 9),
    }


def test_a_missing_validation_part_is_carved_out_of_train() -> None:
    parts = open_splits(opened_kind({"train": 90, "test": 9}))
    assert {name: len(part) for name, part in parts.items()} == {"train": 80, "val": 10, "test": 9}
    again = open_splits(opened_kind({"train": 90, "test": 9}))
    assert parts["val"].fingerprint() == again["val"].fingerprint()


def test_train_and_validation_only_stay_as_they_are() -> None:
    parts = open_splits(opened_kind({"train2017": 12, "val2017": 6, "trainval": 18}))
    assert {name: (part.split, len(part)) for name, part in parts.items()} == {
        "train": ("train2017", 12),
        "val": ("val2017", 6),
    }


def test_a_validation_part_can_be_kept_for_tests() -> None:
    """Then what is validated on is carved out of train; a test part that is there already changes nothing."""
    parts = open_splits(opened_kind({"train": 90, "val": 6}), val_as_test=True)
    assert {name: (part.split, len(part)) for name, part in parts.items()} == {
        "train": ("train", 80),
        "val": ("val", 10),
        "test": ("val", 6),
    }
    whole = opened_kind({"train": 90, "val": 6, "test": 5})
    assert {name: len(part) for name, part in open_splits(whole, val_as_test=True).items()} == {
        "train": 90,
        "val": 6,
        "test": 5,
    }


@pytest.mark.parametrize(
    ("splits", "options"), [({}, {}), ({"train": 30}, {}), ({"train": 9, "val": 30}, {"split": "val"})]
)
def test_without_given_splits_the_source_is_divided(splits: dict[str, int], options: dict[str, str]) -> None:
    parts = open_splits(opened_kind(splits), seed=1, **options)
    assert {name: len(part) for name, part in parts.items()} == {"train": 24, "val": 3, "test": 3}


def test_a_part_named_in_the_spec_is_divided() -> None:
    parts = open_splits(opened_kind({"train": 9, "val": 30}) + "?split=val")
    assert {name: len(part) for name, part in parts.items()} == {"train": 24, "val": 3, "test": 3}


@pytest.mark.parametrize("name", ["validation", "test", "default", "trainval"])
def test_a_single_part_under_any_name_is_divided_with_a_note(name: str) -> None:
    parts = open_splits(opened_kind({name: 30}), seed=1)
    assert {part: len(each) for part, each in parts.items()} == {"train": 24, "val": 3, "test": 3}
    assert parts["train"].assumptions == [f"{name} is the only part there is: divided into train, val and test"]
    assert open_splits(opened_kind({"train": 30}))["train"].assumptions == []


def test_no_training_part_among_several() -> None:
    kind = opened_kind({"validation": 6, "test": 6})
    told = f"{kind}: expected a training part, got only validation, test; .*split=validation"
    with pytest.raises(DataError, match=told):
        open_splits(kind)


def test_parts_of_different_classes() -> None:
    @register_source("memory-differing")
    class Differing(MemorySource):
        def __init__(self, location: str, *, on_bad: str = "stop", split: str | None = None) -> None:
            super().__init__([np.zeros((4, 4, 3), np.uint8)], [[0]], ["a"] if split == "train" else ["b"])
            self.splits, self.split = ("train", "val"), split

    with pytest.raises(DataError, match="expected the same classes in all parts, got 1 in train and 1 in val"):
        open_splits("memory-differing")


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the data pack")
def test_corel5k() -> None:
    """374 words, most of them rare: train and test are kept, and val has each word that train has twice or more."""
    parts = open_splits(f"shards:{SHARED / 'corel5k'}")
    assert {name: len(part) for name, part in parts.items()} == {"train": 4000, "val": 500, "test": 499}
    train, val = (parts[name].targets().sum(axis=0) for name in ("train", "val"))
    assert (val[train + val >= 2] >= 1).all()
    assert (train[train + val >= 1] >= 1).all()
    assert math.isclose(val.sum() / (train + val).sum(), 1 / 9, rel_tol=0.02)


def test_unknown_labels_have_no_say() -> None:
    """The division is that of the known positives, and an unknown label does not stand in for one."""
    labels = [[index % 4] for index in range(40)]
    unknown = [[4] if index < 10 else [] for index in range(40)]
    names = ["a", "b", "c", "d", "never known"]
    images = [np.full((8, 8, 3), 127, np.uint8)] * 40
    parts = split_source(MemorySource(images, labels, names, unknown=unknown))
    plain = split_source(MemorySource(images, labels, names))
    assert {name: part.indices for name, part in parts.items()} == {name: part.indices for name, part in plain.items()}
    for part in parts.values():
        assert not part.notes
        assert set(np.flatnonzero((part.targets() == 1).any(axis=0)).tolist()) == {0, 1, 2, 3}
