"""Degraded images: what is done to the pixels, which labels are left, and that intact copies stay intact."""

import numpy as np
import pytest
from memory_source import MemorySource, blank_source
from picture_source import PatternSource, PictureSource

from contextcaps.data import Boxes, DataError, StreamLoader, open_source, prepare
from contextcaps.data.degradation import Degradation, DegradedSource
from contextcaps.data.images import decode
from contextcaps.data.prepared import prepared_folder
from contextcaps.data.unknown import UNKNOWN

HEIGHT, WIDTH = 40, 60


def degraded(source, text: str) -> DegradedSource:
    return DegradedSource(source, Degradation.parse(text))


def noise(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)


def boxed(count: int = 30) -> MemorySource:
    """Images of class 0 in two boxes, class 1 in one, class 2 all over the image; class 3 is absent, 4 unknown."""
    corners = [(0.1, 0.1, 0.3, 0.3), (0.5, 0.6, 0.71, 0.83), (0.6, 0.1, 0.9, 0.4), (0.0, 0.0, 1.0, 1.0)]
    boxes = Boxes.from_lists([0, 0, 1, 2], corners)
    return MemorySource(
        [noise(seed) for seed in range(count)],
        [[0, 1, 2]] * count,
        ["cat", "dog", "floor", "moon", "fog"],
        boxes=[boxes] * count,
        unknown=[[4]] * count,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("smal", "expected one of small, blur, occlude, surroundings, uncovered, got 'smal'; did you mean 'small'"),
        ("", "a strength may follow, as in small:48"),
        ("small:many", "expected a number after small:, got 'many'"),
        ("small:0", "small: expected a side of at least 1 in whole pixels, got 0"),
        ("small:8.5", "whole pixels, got 8.5"),
        ("blur:0", "blur: expected a share of the image between 0 and 1, got 0"),
        ("occlude:1", "occlude: expected a share"),
        ("blur:nan", "blur: expected a share"),
    ],
)
def test_wrong_words(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Degradation.parse(text)


def test_small_is_what_a_small_file_would_be() -> None:
    pixels = degraded(boxed(), "small:16")[0].image
    assert (pixels == decode(noise(), 16)).all()


def test_blur_takes_detail_and_keeps_the_mean() -> None:
    weak, strong = (degraded(boxed(), f"blur:{sigma}")[0].image.astype(float) for sigma in (0.02, 0.1))
    assert weak.shape == (HEIGHT, WIDTH, 3)
    assert noise().std() > 3 * weak.std() > 6 * strong.std()
    assert strong.mean() == pytest.approx(noise().mean(), abs=3)


def test_occlude_covers_a_half_with_the_mean_of_the_other() -> None:
    source = degraded(boxed(80), "occlude")
    sides = []
    for index in range(80):
        pixels, intact = source[index].image, noise(index)
        halves = {
            "left": np.s_[:, : WIDTH // 2],
            "right": np.s_[:, WIDTH // 2 :],
            "top": np.s_[: HEIGHT // 2],
            "bottom": np.s_[HEIGHT // 2 :],
        }
        (side,) = (name for name, half in halves.items() if np.ptp(pixels[half].reshape(-1, 3), axis=0).max() == 0)
        sides.append(side)
        covered = np.zeros((HEIGHT, WIDTH), bool)
        covered[halves[side]] = True
        assert (pixels[~covered] == intact[~covered]).all()
        assert (pixels[covered] == intact[~covered].mean(axis=0).round()).all()
    counts = [sides.count(side) for side in ("left", "right", "top", "bottom")]
    assert min(counts) > 8
    assert (source.targets() == boxed(80).targets()).all()


def test_surroundings_covers_every_object_of_one_class_and_nothing_else() -> None:
    source = degraded(boxed(), "surroundings")
    assert len(source) == 30
    places = {  # rows and columns, rounded outwards
        0: [np.s_[4:12, 6:18], np.s_[24:34, 30:43]],
        1: [np.s_[4:16, 36:54]],
    }
    chosen = []
    for index, sample in enumerate(source):
        (label,) = sample.labels
        chosen.append(label)
        covered = np.zeros((HEIGHT, WIDTH), bool)
        for place in places[label]:
            covered[place] = True
        intact = noise(index)
        assert (sample.image[~covered] == intact[~covered]).all()
        assert (sample.image[covered] == intact[~covered].mean(axis=0).round()).all()
        assert (sample.boxes, sample.mask) == (None, None)
        assert sample.unknown == tuple(sorted({0, 1, 2, 4} - {label}))
    assert min(chosen.count(0), chosen.count(1)) > 5
    targets = source.targets()
    assert ((targets == 1).sum(axis=1) == 1).all()
    assert (targets[:, 3] == 0).all()
    assert (targets[:, [2, 4]] == UNKNOWN).all()


def test_uncovered_has_the_same_labels_and_intact_images() -> None:
    covered, intact = degraded(boxed(), "surroundings:0.2"), degraded(boxed(), "uncovered:0.2")
    assert (covered.targets() == intact.targets()).all()
    assert all((sample.image == noise(index)).all() for index, sample in enumerate(intact))


def test_surroundings_from_masks_covers_the_box_around_all_pixels_of_the_class() -> None:
    mask = np.zeros((HEIGHT, WIDTH), np.int32)
    mask[5, 10], mask[20, 30] = 1, 1
    source = MemorySource([noise(), noise()], [[0], []], ["cat", "dog"], masks=[mask, mask * 0])
    found = degraded(source, "surroundings")
    assert len(found) == 1
    assert "1 image left out, which have no such class" in found.describe()
    pixels = found[0].image
    assert np.ptp(pixels[5:21, 10:31].reshape(-1, 3), axis=0).max() == 0
    pixels[5:21, 10:31] = noise()[5:21, 10:31]
    assert (pixels == noise()).all()


def test_surroundings_without_boxes_is_refused() -> None:
    message = (
        r"memory: surroundings:0.5: expected boxes or masks, .*; got none in 2 images. Take data with boxes or masks"
    )
    with pytest.raises(DataError, match=message):
        degraded(blank_source([[0], [1]], 2), "surroundings")
    with pytest.raises(DataError, match=r"surroundings:0.01: expected boxes or masks.*on 0.01 of the image at most"):
        degraded(boxed(), "surroundings:0.01")


def test_a_bad_image_is_named_or_left_out() -> None:
    class Torn(MemorySource):
        def sample(self, index):
            if index == 1:
                raise DataError("cut off")
            return super().sample(index)

        def id_of(self, index):
            return f"{index:05d}"

    given = boxed(3)
    torn = Torn(given.images, given.labels, given.classes, boxes=given.boxes)
    with pytest.raises(DataError, match="00001: cut off"):
        degraded(torn, "surroundings")
    torn.problems.on_bad = "skip"
    assert degraded(torn, "surroundings").indices == [0, 2]


@pytest.mark.parametrize("text", ["small:8", "blur", "occlude", "surroundings", "uncovered"])
def test_prepared_copies_are_apart_from_the_intact_one(text: str, tmp_path) -> None:
    source = boxed(5)
    intact = prepare(source, 24, tmp_path, progress=False)
    before = {path: path.read_bytes() for path in intact.folder.iterdir()}
    changed = prepare(degraded(source, text), 24, tmp_path, progress=False)
    assert changed.folder != intact.folder
    assert {path: path.read_bytes() for path in intact.folder.iterdir()} == before
    assert (changed.images != intact.images).any() == (text != "uncovered")
    folders = {prepared_folder(degraded(source, each), 24, tmp_path) for each in (text, "small:9", "surroundings:0.6")}
    assert len(folders) == 3


@pytest.mark.parametrize("kind", [PictureSource, PatternSource])
def test_any_number_of_workers_gives_the_same(kind, tmp_path) -> None:
    source = kind(tmp_path / "pictures")
    one, many = (
        [batch.images for batch in StreamLoader(degraded(source, "occlude"), 16, 10, workers=workers)]
        for workers in (1, 3)
    )
    assert all((first == second).all() for first, second in zip(one, many, strict=True))


def test_scenes_have_boxes() -> None:
    source = open_source("scenes?count=6&size=32", split="test")
    found = degraded(source, "surroundings")
    assert 0 < len(found) <= 6
    for index in range(len(found)):
        label = found.labels_of(index)[0]
        assert label in source.labels_of(found.indices[index])
