"""The picture of tagged images, and the verdicts behind it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from contextcaps.experiments.gallery import JudgedTag, TaggedImage, judge, write_gallery
from contextcaps.tagging import Tag, Tagging

CLASSES = ("sea", "sky", "boat", "toy boat", "lamp")
THRESHOLDS = (0.5, 0.4, 0.3, 0.6, 0.5)


def tagging_of(scores: list[float]) -> Tagging:
    """What a tagger makes of scores."""
    exact = torch.tensor(scores, dtype=torch.float32)
    said = [
        Tag(name, score, threshold)
        for name, score, threshold in zip(CLASSES, exact.tolist(), THRESHOLDS, strict=True)
        if score >= threshold
    ]
    return Tagging("x.png", tuple(sorted(said, key=lambda tag: -tag.score)), scores=exact)


def test_right_wrong_and_missed() -> None:
    judged = judge(tagging_of([0.75, 0.25, 0.125, 0.875, 0.0]), ("sea", "boat", "sky"), CLASSES, THRESHOLDS)
    assert judged == (
        JudgedTag("toy boat", 0.875, 0.6, "wrong"),
        JudgedTag("sea", 0.75, 0.5, "right"),
        JudgedTag("sky", 0.25, 0.4, "missed"),
        JudgedTag("boat", 0.125, 0.3, "missed"),
    )


@given(
    scores=st.lists(st.floats(0, 1, width=32), min_size=5, max_size=5),
    truth=st.sets(st.sampled_from(CLASSES)),
)
def test_verdicts_are_those_of_sets(scores, truth) -> None:
    tagging = tagging_of(scores)
    judged = judge(tagging, truth, CLASSES, THRESHOLDS)
    said = {tag.name for tag in tagging.tags}
    for verdict, expected in (("right", said & truth), ("wrong", said - truth), ("missed", truth - said)):
        assert {tag.name for tag in judged if tag.verdict == verdict} == expected
    assert len(judged) == len(said | truth)
    values = [tag.score for tag in judged if tag.verdict != "missed"]
    assert values == sorted(values, reverse=True)


def test_what_cannot_be_judged() -> None:
    with pytest.raises(ValueError, match="expected classes of the model, got moon"):
        judge(tagging_of([0.0] * 5), ("sea", "moon"), CLASSES, THRESHOLDS)
    with pytest.raises(ValueError, match=r"x.png: was not tagged: no image"):
        judge(Tagging("x.png", (), error="no image"), ("sea",), CLASSES, THRESHOLDS)


@pytest.mark.parametrize("count", [1, 3, 6, 7])
def test_the_picture(tmp_path, count) -> None:
    tags = judge(tagging_of([0.9, 0.2, 0.1, 0.7, 0.0]), ("sea", "boat"), CLASSES, THRESHOLDS)
    colours = [(20 * number + 20, 200, 90) for number in range(count)]
    images = [
        TaggedImage(f"test-{number}", np.full((8, 8, 3), colour, dtype=np.uint8), ("sea", "boat"), tags)
        for number, colour in enumerate(colours)
    ]
    path = tmp_path / "new" / "tagged.png"
    write_gallery(images, path, "A $model$ with a price", "seed 5")
    picture = Image.open(path)
    assert picture.text["Title"] == "A $model$ with a price"  # type: ignore[attr-defined]
    assert picture.text["Description"] == "seed 5"  # type: ignore[attr-defined]
    pixels = np.asarray(picture.convert("RGB"))
    for colour in colours:
        shown = (pixels == colour).all(axis=-1)
        rows, columns = shown.any(axis=1).sum(), shown.any(axis=0).sum()
        assert rows >= 128
        assert abs(int(rows) - int(columns)) <= 2
    for colour in ((0x12, 0x72, 0x2F), (0xC1, 0x12, 0x1F), (0x77, 0x77, 0x77)):
        assert (pixels == colour).all(axis=-1).any()
    assert [each.name for each in path.parent.iterdir()] == ["tagged.png"]


def test_no_image(tmp_path) -> None:
    with pytest.raises(ValueError, match="at least one"):
        write_gallery([], tmp_path / "tagged.png", "title", "caption")
