"""The page of tagged images: pictures, tags, errors, names that are markup; and verdicts where the truth is known."""

import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from test_tag_command import _run

from contextcaps.tagging import Gallery, JudgedTag, Tag, Tagging, judge, write_gallery

CLASSES = ("sea", "sky", "boat", "toy boat", "lamp")
THRESHOLDS = (0.5, 0.4, 0.3, 0.6, 0.5)
NASTY = "<script>alert(1)</script>\"'&.png"


def tagging_of(scores: list[float], name: str | int = "x.png") -> Tagging:
    """What a tagger makes of scores."""
    exact = torch.tensor(scores, dtype=torch.float32)
    said = [
        Tag(name, score, threshold)
        for name, score, threshold in zip(CLASSES, exact.tolist(), THRESHOLDS, strict=True)
        if score >= threshold
    ]
    return Tagging(name, tuple(sorted(said, key=lambda tag: -tag.score)), scores=exact)


def photograph(path: Path, width: int, height: int) -> str:
    """A file that does not compress well, as photographs do not."""
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return str(path)


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


def test_the_page_has_pictures_tags_and_errors_and_asks_for_nothing(tmp_path) -> None:
    taggings = [
        tagging_of([0.9, 0.45, 0.1, 0.0, 0.0], photograph(tmp_path / "beach.png", 900, 400)),
        tagging_of([0.0] * 5, photograph(tmp_path / "dark.png", 40, 30)),
        tagging_of([0.6, 0.0, 0.0, 0.0, 0.0], str(tmp_path / "gone.png")),
        tagging_of([0.6, 0.0, 0.0, 0.0, 0.0], 3),
        Tagging(str(tmp_path / "torn.jpg"), (), error="damaged or truncated image: cut"),
    ]
    write_gallery(taggings, tmp_path / "page.html", "Holidays", "Tagged by runs/mine.")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "4 images tagged" in page
    assert "1 could not be read" in page
    assert re.search(r"torn\.jpg.*\s.*damaged or truncated image: cut", page)
    assert page.count("data:image/jpeg;base64,") == page.count("data:image/png;base64,") == 1
    assert page.count("no picture") == 2
    assert "image 3" in page
    assert "No class reaches its threshold." in page
    assert 'style="width:90.0%"' in page
    assert 'style="left:50.0%"' in page
    assert "sea: score 0.900, present from 0.500 on" in page
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)
    assert "<script" not in page
    assert "✓" not in page  # nothing is known of what is right
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beach.png", "dark.png", "page.html"]


@pytest.mark.long
def test_a_picture_is_small_however_large_its_file_is(tmp_path) -> None:
    write_gallery([tagging_of([0.0] * 5, photograph(tmp_path / "a.png", 2400, 1600))], tmp_path / "page.html", "x")
    assert (tmp_path / "a.png").stat().st_size > 10_000_000
    assert (tmp_path / "page.html").stat().st_size < 150_000  # of noise, which no photograph is


def test_names_and_tags_are_escaped(tmp_path) -> None:
    nasty = Tagging(NASTY, (Tag(NASTY, 0.9, 0.5), Tag("a", 1.0, 0.0, given=True)), scores=torch.zeros(2))
    error = Tagging(NASTY, (), error=NASTY)
    write_gallery([nasty, error], tmp_path / "page.html", NASTY, NASTY)
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(1)") >= 6
    assert "a: given" in page


def test_many_tags_fold_and_verdicts_show(tmp_path) -> None:
    many = tuple(Tag(f"class {number}", 0.9, 0.0) for number in range(40))
    with Gallery() as gallery:
        gallery.add(Tagging(0, many, scores=torch.zeros(40)))
        tagging = tagging_of([0.75, 0.25, 0.125, 0.875, 0.0], 1)
        gallery.add(tagging, judge(tagging, ("sea", "boat"), CLASSES, THRESHOLDS), ("sea", "boat"))
        gallery.write(tmp_path / "page.html", "x", "")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "28 more" in page
    assert [page.count(f'<li class="is-{verdict}"') for verdict in ("right", "wrong", "missed")] == [1, 1, 1]
    assert "true: sea, boat" in page


@pytest.mark.long
def test_memory_does_not_grow_with_the_images(tmp_path) -> None:
    name = photograph(tmp_path / "a.png", 320, 240)

    def peak(count: int) -> int:
        tracemalloc.start()
        write_gallery((tagging_of([0.9] * 5, name) for _ in range(count)), tmp_path / "page.html", "x")
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(2)  # the templates are compiled
    few, many = peak(10), peak(150)
    assert (tmp_path / "page.html").stat().st_size > 5_000_000
    assert many < few + 1_000_000


def test_the_command_writes_a_page_alone_or_beside_the_rows(model, album, tmp_path, capsys) -> None:
    page, rows = tmp_path / "page.html", tmp_path / "tags.csv"
    code, out, err = _run(["--model", model, album, "--html", page], capsys)
    assert (code, out) == (1, "")  # three of the files cannot be read
    failure, closing = err.splitlines()[-2:]
    assert failure.startswith(f"{album / '1-cut.jpg'}: damaged or truncated image")
    assert failure.endswith("; 2 more")
    assert closing == f"5 images tagged, 3 could not be read; {page} shows them"
    text = page.read_text("utf-8")
    assert text.count("<figure>") == 5
    assert all(name in text for name in ("1-cut.jpg", "2-text.png", "3-empty.webp"))
    before = page.read_bytes()
    code, out, _ = _run(["--model", model, album, "--html", page, "--out", rows, "--quiet"], capsys)
    assert (code, out, len(rows.read_text().splitlines())) == (1, "", 9)
    code, out, _ = _run(["--model", model, album, "--html", page, "--format", "jsonl", "--quiet"], capsys)
    assert len(out.splitlines()) == 8
    assert page.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--html", "PHOTO"], "0.png: expected the name of a page to write, such as tags.html"),
        (["--html", "nowhere/page.html"], "its folder is not there; make nowhere first"),
        (["--html", "FOLDER"], "expected a file, got a folder"),
        (["--html", "same.html", "--out", "same.html", "--format", "csv"], "expected another file than that of --out"),
    ],
)
def test_places_that_will_not_do_are_refused_before_the_work(
    words, message, model, album, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.html").mkdir()
    places = {"PHOTO": album / "0.png", "FOLDER": "folder.html"}
    before = (album / "0.png").read_bytes()
    code, out, err = _run(["--model", model, album, *(places.get(word, word) for word in words)], capsys)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert (album / "0.png").read_bytes() == before
