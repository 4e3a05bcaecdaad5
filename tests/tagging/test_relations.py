"""The strongest relations of a field, and their drawing."""

import csv
import math
import re
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from PIL import Image

import contextcaps
from contextcaps.data import open_source
from contextcaps.models.sections import CalibrationConfig
from contextcaps.tagging import Relation, draw_relations, label_relations, strongest_relations

CLASSES = ("sky", "sea", "tree", "road", "car")
NASTY = "<script>alert(1)</script>\"'&"


def made(**options) -> contextcaps.CapsuleNetwork:
    return contextcaps.create_model("gap", 5, 32, "small", class_names=CLASSES, **options)


def test_pairs_are_ranked_by_the_mean_of_both_directions() -> None:
    network = made(field={}, calibration=CalibrationConfig(scale=2.0))
    with torch.no_grad():
        network.field.weight.fill_diagonal_(9.0)
        network.field.weight[0, 1], network.field.weight[1, 0] = 0.3, 0.1  # in units of 10
        network.field.weight[3, 4], network.field.weight[4, 3] = 0.0, 0.1
        network.field.weight[2, 3], network.field.weight[3, 2] = -0.2, 0.1
    first, second, last = strongest_relations(network, CLASSES)
    assert first.classes == ("sky", "sea")
    assert (first.forward, first.backward, first.strength) == pytest.approx((6.0, 2.0, 4.0))
    assert second.classes == ("road", "car")
    assert last.classes == ("tree", "road")
    assert last.strength == pytest.approx(-1.0)
    assert strongest_relations(network, CLASSES, 1) == (first, last)


def test_a_field_of_low_rank_has_relations_and_none_says_so() -> None:
    network = made(field={"rank": 2})
    with torch.no_grad():
        network.field.right.normal_(generator=torch.Generator().manual_seed(0))
    assert len(strongest_relations(network, CLASSES)) == 10
    with pytest.raises(ValueError, match=r"^relations: this model \(gap\) has no field"):
        strongest_relations(made(), CLASSES)


def test_the_drawing_is_a_file_of_its_own_whatever_classes_are_called() -> None:
    relations = [Relation((NASTY, "sea\x07"), 2.0, 1.0), Relation(("sea\x07", "car"), 0.5, 0.5)]
    drawn = draw_relations(relations, NASTY)
    root = ElementTree.fromstring(drawn)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "<script" not in drawn
    assert "&lt;script&gt;" in drawn
    assert "\x07" not in drawn
    assert "\N{REPLACEMENT CHARACTER}" not in root.find("{*}style").text
    assert drawn.count("<path") == 2
    assert drawn.count("<circle") == 3
    assert "exclude: where one is present, the other is less likely; none" in drawn
    assert not re.search(r"(href|src)=", drawn)


def test_every_class_of_a_relation_has_one_place() -> None:
    random = torch.Generator().manual_seed(4)
    pairs = torch.randint(0, 30, (60, 2), generator=random).tolist()
    relations = [Relation((f"c{a}", f"c{b}"), -1.0 - a, -1.0 - b) for a, b in pairs if a < b]
    drawn = draw_relations(relations, "x")
    assert drawn.count("<circle") == len({name for each in relations for name in each.classes})
    assert draw_relations([], "nothing").count("; none") == 2


def test_labels_have_log_odds_ratios_of_what_is_known(tmp_path) -> None:
    random = torch.Generator().manual_seed(2)
    targets = torch.randint(0, 3, (40, 4), generator=random).clamp(max=2).tolist()
    with (tmp_path / "labels.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", *CLASSES[:4]])
        for index, row in enumerate(targets):
            Image.new("RGB", (8, 8)).save(tmp_path / f"{index}.png")
            rows.writerow([f"{index}.png", *("01?"[value] for value in row)])
    source = open_source(f"table:{tmp_path / 'labels.csv'}?unlabelled=keep")
    found = {each.classes: each.strength for each in label_relations(source)}
    assert len(found) == 6
    for j, one in enumerate(source.classes):
        for k, other in enumerate(source.classes[j + 1 :], j + 1):
            counts = {(a, b): 0.5 for a in (0, 1) for b in (0, 1)}
            for row in targets:
                if 2 not in (row[j], row[k]):
                    counts[row[j], row[k]] += 1
            ratio = counts[1, 1] * counts[0, 0] / (counts[1, 0] * counts[0, 1])
            assert found[one, other] == pytest.approx(math.log(ratio))


def test_labels_are_drawn_below_whatever_their_source_is_called() -> None:
    learned, of_labels = [Relation(("sky", "sea"), 2.0, 1.0)], [Relation(("road", NASTY), -2.0, -2.0)]
    drawn = draw_relations(learned, "x", of_labels, NASTY)
    assert drawn.count("<path") == 2
    assert drawn.count("; none") == 2
    assert "The same of labels alone: &lt;script&gt;" in drawn
    assert "<script" not in drawn
