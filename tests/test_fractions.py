"""Shares are fractions, from 0 to 1, wherever a program reads them; percent is for people, and says so."""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from small_run import rows, small_words

import contextcaps
from contextcaps.cli import main
from contextcaps.experiments.ablation.paper import PAPER_MAP

ROOT = Path(__file__).parents[1]
# Figures that are shares, by the names that they have; a difference of two is in [-1, 1].
SHARE = re.compile(
    r"mAP|_AP|AP_|precision|recall|F1|^[CO][PR]\b|score|threshold|frequenc|prior|ECE|Brier|share|interval"
)
NO_SHARE = re.compile(r"epochs|cost|seconds|images|per_second|positives|count|seed|rate")


def shares(document: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, float]]:
    """Every number under a name of a share."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield from shares(value, (*path, str(key)))
    elif isinstance(document, list):
        for value in document:
            yield from shares(value, path)
    elif isinstance(document, float) and _means_share(path):
        yield ".".join(path), document


def _means_share(path: tuple[str, ...]) -> bool:
    return any(SHARE.search(name) for name in path) and not any(NO_SHARE.search(name) for name in path)


def require_fractions(document: Any, at_least: int) -> None:
    found = list(shares(document))
    assert len(found) >= at_least
    assert [(name, value) for name, value in found if not -1 <= value <= 1] == []


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of the command line, measured, also with known labels."""
    folder = tmp_path_factory.mktemp("fractions")
    main(small_words(folder / "run", folder / "cache", epochs=1, ema=0, checkpoint_steps=0, known=0.5))
    main(["evaluate", str(folder / "run"), "--known", "0.25,0.5", "--resamples", "20"])
    return folder / "run"


@pytest.mark.long
def test_a_run_and_its_evaluation_have_fractions(run) -> None:
    record = {name: float(value) for name, value in rows(run)[0].items()}
    require_fractions({name: value for name, value in record.items() if "loss" not in name}, 4)
    require_fractions(json.loads((run / "model" / "trained.json").read_text("utf-8")), 90)
    documents = sorted((run / "evaluation").rglob("*.json"))
    assert {path.name for path in documents} == {"evaluation.json", "known.json"}
    for path in documents:
        require_fractions(json.loads(path.read_text("utf-8")), 20)


@pytest.mark.long
def test_tags_have_fractions_in_every_format_and_in_python(run, tmp_path, capsys) -> None:
    tagger = contextcaps.load(run, "cpu")
    image = tmp_path / "a.png"
    Image.fromarray(contextcaps.open_source("scenes?count=4&size=32")[0].image).save(image)
    (tagging,) = tagger.tag(image, threshold=0)
    assert all(0 <= each <= 1 for tag in tagging.tags for each in (tag.score, tag.threshold))
    assert ((tagging.scores >= 0) & (tagging.scores <= 1)).all()
    assert all(0 <= each <= 1 for each in tagger.thresholds)
    capsys.readouterr()
    main(["tag", str(image), "--model", str(run), "--threshold", "0", "--scores", "all", "--quiet"])
    require_fractions(json.loads(capsys.readouterr().out), 2 * len(tagger.classes))
    main(["tag", str(image), "--model", str(run), "--threshold", "0", "--format", "csv", "--quiet"])
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert all(0 <= float(score) <= 1 for score in row["scores"].split("; "))


@pytest.mark.long
def test_what_people_read_says_percent(run, tmp_path, capsys) -> None:
    main(small_words(tmp_path / "run", tmp_path / "cache", epochs=1, ema=0, checkpoint_steps=0))
    printed = capsys.readouterr()
    assert re.search(r"mAP \d+\.\d\d %.*constant prior \d+\.\d\d %", printed.err)
    assert re.search(r"validation mAP +\d+\.\d\d %; the constant prior, the same scores for every image", printed.out)
    main(["evaluate", str(run), "--resamples", "20"])
    _, metrics, classes = capsys.readouterr().out.partition("In percent, but for the Brier score.")
    assert metrics
    assert "In percent. F1 at threshold 0.5" in " ".join(classes.split())


@pytest.mark.parametrize("path", sorted((ROOT / "docs/evidence").iterdir()), ids=lambda path: path.name)
def test_the_evidence_has_fractions(path) -> None:
    text = path.read_text("utf-8")
    document = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
    require_fractions(document, 50)


def test_the_papers_figures_stand_beside_ours_in_the_same_unit() -> None:
    require_fractions({"mAP": PAPER_MAP}, 3)
    assert PAPER_MAP["capsnet"] == 0.4238
