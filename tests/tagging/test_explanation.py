"""Explanations from Python: parts that sum, words, heat maps, pages; markup in names; what is refused."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import contextcaps
from contextcaps.data.problems import DataError
from contextcaps.models.trained import Trained
from contextcaps.tagging import (
    ClassExplanation,
    Explanation,
    Move,
    Tagger,
    describe_move,
    describe_reasons,
    print_reasons,
    write_explanation,
    write_heat_maps,
)
from contextcaps.tagging.explanation_page import _moves_table
from contextcaps.tagging.heat_maps import NEGATIVE, POSITIVE, heat_map_scale, paint_heat_map
from contextcaps.tagging.reasons import describe_through, reasons_of, strongest_region

CLASSES = ("sky", "sea", "tree, old", "road", "car")
THRESHOLDS = (0.9, 0.05, 0.125, 0.0, 1.0)
NASTY = "<script>alert(1)</script>\"'&"


def tagger_of(name: str, classes: tuple[str, ...] = CLASSES, seed: int = 3, **options) -> Tagger:
    """A tagger whose field has potentials, as after training."""
    torch.manual_seed(seed)
    size = {"capsules": {"types": 2}} if contextcaps.models.model_config(name, 2).capsules is not None else {}
    network = contextcaps.create_model(name, len(classes), 32, "small", **size, class_names=classes, **options)
    if network.field is not None:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for weight in network.field.parameters():
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return Tagger(network, Trained(THRESHOLDS, (0.1,) * 5, seed=7, data="scenes", epoch=1), "cpu")


def explained(**changes) -> ClassExplanation:
    """An oven, made up."""
    made = ClassExplanation(
        "oven",
        0.91,
        2.4,
        0.5,
        True,
        None,
        evidence=np.array([[[2.0, 0.1, 0.0], [0.1, 0.0, 0.0], [0.0, 0.0, -0.1]]]),
        branch=None,
        messages={"microwave": 0.8, "refrigerator": 0.4, "bed": -0.1, "cup": 0.08, "tv": -0.001},
        constants={"field bias": -0.779, "capsule level": -0.1},
        length=None,
    )
    return dataclasses.replace(made, **changes)


@pytest.mark.parametrize("name", ["contextcaps", "capsnet", "contextcaps-rw-crf-corr", "gap", "csra", "ml-gcn"])
def test_parts_sum_and_scores_are_those_of_tagging(name, pictures) -> None:
    tagger = tagger_of(name)
    (tagging,) = tagger.tag(pictures[0])
    explanation = tagger.explain(pictures[0], CLASSES)
    assert [each.name for each in explanation.classes if each.is_tag] == [tag.name for tag in tagging.tags]
    assert {each.name for each in explanation.classes} == {*CLASSES}
    for each in explanation.classes:
        assert each.total() == pytest.approx(each.logit, abs=1e-4)
        assert each.score == pytest.approx(float(tagging.scores[CLASSES.index(each.name)]), abs=1e-5)
        assert each.heat_map().sum() == pytest.approx(
            each.evidence.sum() + (0 if each.branch is None else each.branch.sum()), abs=1e-4
        )
        assert sum(value for _, value in reasons_of(each)) == pytest.approx(each.logit, abs=0.06)
        assert each.name not in each.messages
        if each.length is not None:
            assert each.length.capsules.sum() + each.length.bias == pytest.approx(each.length.length, abs=1e-4)


def test_tags_come_first_then_what_was_asked_for() -> None:
    tagger = tagger_of("contextcaps")
    picture = np.zeros((32, 32, 3), np.uint8)
    tags = [each.name for each in tagger.explain(picture).classes]
    assert "road" in tags  # its threshold is 0
    assert "car" not in tags  # and this one's is 1
    asked = tagger.explain(picture, ["car", "road", "car"]).classes
    assert [each.name for each in asked] == [*tags, "car"]
    assert not asked[-1].is_tag
    tagger.thresholds = (1.0,) * 5
    (best,) = tagger.explain(picture).classes  # why not even this one?
    assert not best.is_tag
    assert best.score == pytest.approx(float(tagger.tag(picture, threshold=0)[0].scores.max()), abs=1e-5)


def test_known_labels_move_scores_through_messages(pictures) -> None:
    tagger = tagger_of("contextcaps", field={"groups": 2, "global_branch": True})
    known = {"car": True, "road": False}
    (before,), (after,) = tagger.tag(pictures[1]), tagger.tag(pictures[1], known=known)
    explanation = tagger.explain(pictures[1], known=known)
    assert explanation.given == known
    assert explanation.classes[0].name == "car"
    assert (explanation.classes[0].score, explanation.classes[0].given) == (1.0, True)
    assert "road" not in [each.name for each in explanation.classes]
    moved = np.abs(after.scores - before.scores)
    assert {move.name for move in explanation.moves} == {
        name for name, by in zip(CLASSES, moved.tolist(), strict=True) if by >= 0.01
    } - {*known}
    for move in explanation.moves:
        assert (move.before, move.after) == pytest.approx(
            [float(each.scores[CLASSES.index(move.name)]) for each in (before, after)], abs=1e-5
        )
        assert sum(move.through.values()) + move.groups == pytest.approx(move.logit_change, abs=1e-4)
    assert tagger.explain(pictures[1]).moves == ()


def test_a_document_has_all_parts_and_they_sum(pictures) -> None:
    document = tagger_of("contextcaps").explain(pictures[0], ["car"], {"sky": True}).document()
    assert set(document) == {"image", "classes", "given", "moves"}
    assert document["image"] == 0
    for each in document["classes"]:
        assert {"name", "score", "logit", "threshold", "tag", "parts", "length"} <= set(each)
        parts = each["parts"]
        total = np.sum(parts["evidence"]) + np.sum(parts["branch"])
        total += sum(parts["messages"].values()) + sum(parts["constants"].values())
        assert total == pytest.approx(each["logit"], abs=1e-4)
        assert np.shape(parts["evidence"])[0] == 2  # D
        assert np.sum(each["length"]["capsules"]) + each["length"]["bias"] == pytest.approx(
            each["length"]["length"], abs=1e-4
        )
    plain = tagger_of("gap").explain(pictures[0]).document()
    assert set(plain) == {"image", "classes"}
    assert plain["classes"][0]["parts"]["branch"] is None
    assert "length" not in plain["classes"][0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ["see"]}, r"^classes: the model has no class 'see'; did you mean 'sea'\?"),
        ({"known": {"see": True}}, "^known: the model has no class 'see'"),
        ({"image": "gone.jpg"}, "^gone.jpg: "),
        ({"image": b"words"}, "^the image: "),
    ],
    ids=str,
)
def test_mistakes_are_refused(change, message, pictures) -> None:
    with pytest.raises(ValueError, match=message):
        tagger_of("contextcaps").explain(**{"image": pictures[0], **change})


def test_what_is_no_argument_is_refused(pictures, network) -> None:
    tagger = tagger_of("contextcaps")
    for change in ({"classes": "sea"}, {"known": ["sea"]}, {"image": None}):
        with pytest.raises(TypeError):
            tagger.explain(**{"image": pictures[0], **change})
    with pytest.raises(ValueError, match=r"known: .*field=default"):
        Tagger(network, device="cpu").explain(pictures[0], known={"sea": True})
    with pytest.raises(DataError, match="a folder, not an image"):
        tagger.explain(".")
    with pytest.raises(ValueError, match="presets that can explain are capsnet, "):
        tagger_of("ml-decoder").explain(pictures[0])


def test_a_damaged_model_is_told(pictures) -> None:
    tagger = tagger_of("gap")
    with torch.no_grad():
        tagger.network.head.linear.bias.fill_(torch.nan)
    with pytest.raises(ValueError, match="are its weights damaged"):
        tagger.explain(pictures[0])


def test_a_network_for_grey_images_explains(pictures) -> None:
    tagger = tagger_of("capsnet", in_channels=1)
    (tagging,) = tagger.tag(pictures[0])
    for each in tagger.explain(pictures[0], CLASSES).classes:
        assert each.score == pytest.approx(float(tagging.scores[CLASSES.index(each.name)]), abs=1e-5)


# Words


def test_reasons_are_one_sentence_whose_numbers_sum() -> None:
    assert describe_reasons(explained()) == (
        "oven 0.91: the image +2.0 (mostly upper left), microwave +0.8, refrigerator +0.4, bed −0.1, the rest −0.7"
    )
    low = explained(score=0.08, is_tag=False, evidence=np.array([[[-4.0]]]), logit=-3.7, messages={})
    assert describe_reasons(low) == "oven 0.08, below 0.50: the image −4.1, the rest +0.4"
    assert describe_reasons(explained(given=False, is_tag=False)).startswith("oven given as absent: the image +2.0")
    move = Move("sink", 0.12, 0.35, 1.2, {"oven": 1.1, "bed": 0.01}, groups=0.09)
    assert describe_move(move) == "sink 0.12 → 0.35: oven +1.1, several together +0.1"


@pytest.mark.parametrize(
    ("place", "words"),
    [((0, 0), "mostly upper left"), ((3, 3), "mostly in the middle"), ((6, 3), "mostly at the bottom")],
)
def test_regions_have_names(place, words) -> None:
    cells = np.full((7, 7), -1.0)
    cells[place] = 0.5
    assert strongest_region(cells) == words
    assert strongest_region(-np.ones((7, 7))) == ""


def test_a_terminal_gets_no_control_characters() -> None:
    explanation = Explanation(
        "a\x1b[2Jb.jpg",
        (explained(name="x\x1b]0;y", messages={"z\x07": 3.0}),),
        {"k\x1b": True},
        tuple(Move(f"m{index}\x1b", 0.1, 0.2, 1.0, {}) for index in range(30)),
    )
    console = Console(record=True, width=80)
    print_reasons(explanation, console)
    printed = console.export_text()
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", printed)
    assert "18 more" in printed
    console = Console(record=True, width=80)
    print_reasons(Explanation(3, (explained(is_tag=False),), {"bed": True}), console)
    printed = console.export_text()
    assert "no tag" in printed
    assert "nothing by 0.01 or more" in printed


# Pictures


def test_a_heat_map_has_the_cells_as_they_are() -> None:
    cells = np.array([[1.0, 0.0], [-1.0, 0.5]])
    painted = paint_heat_map(cells, np.full((40, 60, 3), 128, np.uint8), 1.0).astype(int)
    assert painted.shape == (40, 60, 3)
    inside = [painted[y : y + 8, x : x + 8] for y in (5, 26) for x in (8, 40)]
    assert all((each == each[0, 0]).all() for each in inside)  # nothing is smoothed
    grey = inside[1][0, 0]
    assert len(set(grey)) == 1
    assert np.allclose(inside[0][0, 0], 0.8 * np.array(POSITIVE) + 0.2 * grey, atol=2)
    assert np.allclose(inside[2][0, 0], 0.8 * np.array(NEGATIVE) + 0.2 * grey, atol=2)
    assert np.allclose(inside[3][0, 0], 0.4 * np.array(POSITIVE) + 0.6 * grey, atol=2)
    assert paint_heat_map(np.zeros((2, 2)), np.zeros((1, 1, 3), np.uint8), 0.0).shape == (1, 1, 3)


def test_grids_of_capsules_and_branch_meet_on_a_common_one() -> None:
    both = explained(evidence=np.ones((2, 2, 2)), branch=np.full((3, 3), 2.0))
    assert both.heat_map().shape == (6, 6)
    assert both.heat_map().sum() == pytest.approx(8 + 18)


def test_files_are_as_large_as_the_photograph_and_have_harmless_names(tmp_path) -> None:
    Image.new("RGB", (500, 300), (120, 90, 60)).save(tmp_path / "a.png")
    tagger = tagger_of("contextcaps", ("../../x", NASTY, "Brücke", "//", "car"))
    tagger.thresholds = (0.0,) * 5
    explanation = tagger.explain(tmp_path / "a.png")
    assert heat_map_scale(explanation) > 0
    (tmp_path / "out").mkdir()
    files = write_heat_maps(explanation, tmp_path / "a.png", tmp_path / "out")
    assert sorted(files) == sorted((tmp_path / "out").iterdir())
    assert {re.sub(r"^\d\d-", "", file.name) for file in files} == {
        "x.png",
        "script-alert-1-script.png",
        "Brücke.png",
        "class.png",
        "car.png",
    }
    with Image.open(files[0]) as picture:
        assert picture.size[0] == 500
        assert picture.size[1] > 300  # the legend is below


def test_a_page_is_whole_and_asks_for_nothing_whatever_names_hold(tmp_path) -> None:
    name = NASTY.replace("/", "")  # no file name has a slash
    Image.new("RGB", (64, 48), (120, 90, 60)).save(tmp_path / f"{name}.png")
    tagger = tagger_of("contextcaps", (NASTY, "sea", "tree", "road", "car"))
    tagger.thresholds = (0.0,) * 5
    explanation = tagger.explain(tmp_path / f"{name}.png", known={"sea": True})
    write_explanation(explanation, tmp_path / f"{name}.png", tmp_path / "page.html", NASTY)
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 6
    assert page.count("<figure>") == page.count("data:image/png;base64,") == 5
    assert "What sea=yes moves" in page
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)


# The shipped model


def test_coco80_explains_a_drawn_picture() -> None:
    tagger = contextcaps.load(device="cpu")
    picture = np.random.default_rng(0).integers(0, 255, (240, 320, 3), dtype=np.uint8)
    picture[60:180, 80:200] = (200, 40, 30)
    explanation = tagger.explain(picture, ["oven", "stop sign"], known={"sink": True})
    (tagging,) = tagger.tag(picture, known={"sink": True})
    for each in explanation.classes:
        assert each.total() == pytest.approx(each.logit, abs=1e-4)
        assert each.score == pytest.approx(float(tagging.scores[tagger.classes.index(each.name)]), abs=1e-4)
        assert each.evidence.shape == (4, 7, 7)
    assert explanation.moves
    assert "sink" in explanation.moves[0].through


def test_a_class_with_a_colon_in_its_name_is_named_whole() -> None:
    move = Move("sink", 0.12, 0.35, 1.1, {"room: kitchen": 1.1})
    assert describe_through(move) == "room: kitchen +1.1"
    assert describe_move(move) == "sink 0.12 → 0.35: room: kitchen +1.1"
    (row,) = _moves_table(Explanation("a.png", (), {"room: kitchen": True}, (move,))).texts()
    assert row[-1] == "room: kitchen +1.1"
