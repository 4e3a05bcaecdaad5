"""Inspection: counts and lifts by hand, bad images found, tables that fit, a page that is safe and complete."""

import base64
import html.parser
import io
import os
import re
from pathlib import Path

import numpy as np
import pytest
from memory_source import MemorySource, blank_source
from PIL import Image
from rich.console import Console

from contextcaps.data import Boxes, DataError, Sample, Source, open_source
from contextcaps.data.inspection import Inspection, inspect_source, inspection_tables, write_page
from contextcaps.data.inspection.statistics import evenly_spread

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
NASTY = "</title><script>alert(1)</script>\"'&\x1b[31m\ud800[bold]x[/bold]"


@pytest.fixture
def kitchen() -> MemorySource:
    """Twelve images: fork with knife, snow never with fork, one image without a label, one class without an image."""
    labels = [[0, 1]] * 4 + [[0]] + [[2]] * 5 + [[1, 2]] + [[]]
    random = np.random.default_rng(0)
    images = [random.integers(0, 256, (20, 30, 3), dtype=np.uint8) for _ in labels]
    images[3] = images[3][:, :20]
    boxes = [
        Boxes(np.array(row, dtype=np.int64), np.array([[0.1, 0.2, 0.5, 0.9]] * len(row), np.float32)) for row in labels
    ]
    return MemorySource(images, labels, ["fork", "knife", "snow", "unicorn"], boxes)


def printed(inspection: Inspection, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    for table in inspection_tables(inspection):
        table.print(console)
    return console.file.getvalue()  # type: ignore[attr-defined]


# Statistics


def test_counts_by_hand(kitchen: MemorySource) -> None:
    found = inspect_source(kitchen, least_support=2)
    assert found.count == 12
    assert found.class_counts.tolist() == [5, 5, 6, 0]
    assert found.labels_per_image.tolist() == [1, 6, 5]
    assert found.label_statistics() == {"least": 0, "median": 1, "mean": 16 / 12, "most": 2}
    assert found.together.tolist() == [[5, 4, 0, 0], [4, 5, 1, 0], [0, 1, 6, 0], [0, 0, 0, 0]]
    (close,) = found.co_occurrences
    assert (close.first, close.second, close.count) == (0, 1, 4)
    assert close.expected == pytest.approx(25 / 12)
    assert close.lift == pytest.approx(4 * 12 / 25)
    assert [(pair.first, pair.second, pair.count, pair.lift) for pair in found.exclusions] == [
        (0, 2, 0, 0.0),
        (1, 2, 1, pytest.approx(0.4)),
    ]
    assert found.common_sizes() == [(20, 30, 11), (20, 20, 1)]
    assert (found.with_boxes, found.with_masks) == (12, 0)
    assert found.by_frequency().tolist() == [2, 0, 1, 3]
    assert found.problems == ()
    assert found.notes == ("1 of 4 classes have no positive: unicorn",)


@pytest.mark.parametrize("counts", [[1], [0, 3], [2, 0, 2], [1, 2, 0, 1, 4]])
def test_median_of_labels(counts: list[int]) -> None:
    numbers = np.repeat(np.arange(len(counts)), counts)
    found = inspect_source(blank_source([list(range(number)) for number in numbers], 5), limit=0)
    statistics = found.label_statistics()
    assert statistics["median"] == np.median(numbers)
    assert statistics["mean"] == pytest.approx(numbers.mean())
    assert (statistics["least"], statistics["most"]) == (numbers.min(), numbers.max())


def test_together_is_exact_over_blocks() -> None:
    random = np.random.default_rng(0)
    targets = random.random((20_000, 6)) < 0.4
    found = inspect_source(blank_source([np.flatnonzero(row).tolist() for row in targets], 6), limit=0)
    assert (found.together == targets.astype(int).T @ targets.astype(int)).all()


def test_rare_pairs_are_not_listed() -> None:
    """A pair that met once has the highest lift of all, and says nothing."""
    source = blank_source([[0, 1], *[[2, 3]] * 10, *[[2]] * 50], 4)
    assert [(pair.first, pair.second) for pair in inspect_source(source, limit=0).co_occurrences] == [(2, 3)]
    assert (0, 1) in [(pair.first, pair.second) for pair in inspect_source(source, 0, least_support=1).co_occurrences]


def bad_files(folder: Path) -> MemorySource:
    """A good JPEG, one cut off, an empty file and a text named .jpg."""
    written = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 48, 3), dtype=np.uint8)).save(written, "JPEG")
    whole = written.getvalue()
    for name, content in (("good", whole), ("cut", whole[: len(whole) // 2]), ("empty", b""), ("text", b"hello\n")):
        (folder / f"{name}.jpg").write_bytes(content)
    return MemorySource([folder / f"{name}.jpg" for name in ("good", "cut", "empty", "text")], [[0]] * 4, ["thing"])


def test_bad_images_are_found(tmp_path: Path) -> None:
    source = bad_files(tmp_path)
    headers, decoded = inspect_source(source), inspect_source(source, check_images=True)
    assert [problem.where for problem in headers.problems] == ["00002", "00003"]
    assert [problem.where for problem in decoded.problems] == ["00001", "00002", "00003"]
    assert headers.sizes.tolist() == [[64, 48], [64, 48]]
    assert "decoded to the end" in printed(decoded)
    assert re.search(r"00001 .*truncated", printed(decoded))


def test_limit_spreads_over_the_source() -> None:
    assert evenly_spread(10, 3) == [1, 5, 8]
    assert evenly_spread(4, 4) == [0, 1, 2, 3]
    assert evenly_spread(5, 0) == []
    found = inspect_source(blank_source([[0]] * 9, 1), limit=4)
    assert (found.images_read, len(found.sizes)) == (4, 4)
    assert inspect_source(blank_source([[0]], 1), limit=10).images_read == 1
    with pytest.raises(ValueError, match="limit: expected 0 or more images, got -1"):
        inspect_source(blank_source([[0]], 1), limit=-1)


# Tables


@pytest.mark.parametrize("name", ["fork", "a class with a very long name that goes on and on" * 3, NASTY])
def test_tables_fit_a_terminal(name: str) -> None:
    source = blank_source([[0, 1]] * 9 + [[2]] * 9, [name, f"{name}2", f"{name}3"], name=f"memory:{name}")
    source.problems.add(f"{name}.jpg", name)
    source.split, source.splits = name, (name,)
    text = printed(inspect_source(source))
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    for heading in ("Strongest co-occurrences", "Strongest exclusions", "labels per image", "Problems and notes"):
        assert heading in text
    if name == NASTY:
        assert "[bold]" in text  # shown, not obeyed


def test_tables_name_commonest_and_rarest(kitchen: MemorySource) -> None:
    few = printed(inspect_source(kitchen, least_support=2))
    assert "All 4 classes" in few
    assert re.search(r"fork +knife +4 +2\.1 +1\.92", few)
    assert "30×20 (11), 20×20 (1) pixels (width×height)" in few
    many = printed(inspect_source(blank_source([range(number) for number in range(1, 31)], 30)))
    assert re.search(r"class 0 +30 +100\.0 +class 29 +1 +3\.3", many)


def test_many_problems_and_sizes() -> None:
    source = blank_source([[0]] * 6, 1)
    source.images = [np.zeros((10 + index, 20 + 2 * index, 3), np.uint8) for index in range(6)]
    for index in range(13):
        source.problems.add(f"file {index}", "empty")
    text = " ".join(printed(inspect_source(source)).split())
    assert "and 3 more" in text
    assert "6 sizes: width 20 to 30, median 25; height 10 to 15, median 12.5 pixels" in text


# Page


class Outline(html.parser.HTMLParser):
    """Tags and addresses of a page; void and SVG tags aside, every tag is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.texts: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attributes if name in ("src", "href")]
        assert not any(name.startswith("on") for name, _ in attributes)
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def outline(path: Path) -> Outline:
    page = Outline()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    assert page.open == []
    return page


def written_page(source: Source, folder: Path) -> Path:
    path = folder / "page.html"
    write_page(source, inspect_source(source), path)
    return path


def test_page_is_whole_and_asks_for_nothing(kitchen: MemorySource, tmp_path: Path) -> None:
    page = outline(written_page(kitchen, tmp_path))
    for title in ("Labels per image", "Image sizes", "Class frequency", "Co-occurrence of classes", "Contact sheet"):
        assert title in page.texts
    assert page.tags.count("img") == 12
    assert {address.partition(";")[0] for address in page.addresses} == {"data:image/png", "#problems"}
    picture = next(address for address in page.addresses if address.startswith("data:"))
    with Image.open(io.BytesIO(base64.b64decode(picture.partition(",")[2]))) as image:
        assert (np.asarray(image) == kitchen.images[0]).all()
    # 12 boxes' worth of labels are drawn, as fractions of the picture.
    assert (tmp_path / "page.html").read_text().count('x="0.1000" y="0.2000" width="0.4000" height="0.7000"') == 16
    assert "http-equiv" in (tmp_path / "page.html").read_text()
    assert not re.search(r"(src|href)=\"https?:|url\(|@import", (tmp_path / "page.html").read_text())


@pytest.mark.parametrize("classes", [1, 2, 3, 150])
def test_names_are_harmless(classes: int, tmp_path: Path) -> None:
    names = [f"{index}{NASTY}" for index in range(classes)]
    source = blank_source([[index, (index + 1) % classes] for index in range(classes)] * 2, names, name=NASTY)
    source.problems.add(NASTY, NASTY)
    source.notes.append(NASTY)
    page = outline(written_page(source, tmp_path))
    assert "script" not in page.tags
    assert any("<script>alert(1)" in text for text in page.texts)
    assert not any("\x1b" in text for text in page.texts)


def test_page_with_bad_images(tmp_path: Path) -> None:
    source = bad_files(tmp_path)
    path = written_page(source, tmp_path)
    page = outline(path)
    assert page.tags.count("img") == 1
    assert "1 of 4 images, evenly spread. 3 more could not be read." in page.texts
    assert "empty file (0 bytes)" in page.texts


def test_pictures_are_made_small(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    images = [random.integers(0, 256, (700, 900, 3), dtype=np.uint8)] * 30
    path = written_page(MemorySource(images, [[0]] * 30, ["noise"]), tmp_path)
    pictures = [address for address in outline(path).addresses if address.startswith("data:image/jpeg")]
    assert len(pictures) == 24
    with Image.open(io.BytesIO(base64.b64decode(pictures[0].partition(",")[2]))) as image:
        assert image.size == (288, 224)


def test_page_is_written_whole_or_not_at_all(
    kitchen: MemorySource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written_page(kitchen, tmp_path)
    before = path.read_bytes()

    def full_disk(self: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full_disk)
        with pytest.raises(DataError, match=r"page\.html: cannot be written: No space left on device"):
            write_page(kitchen, inspect_source(kitchen, limit=0), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["page.html"]
    with pytest.raises(DataError, match="its folder is not there"):
        write_page(kitchen, inspect_source(kitchen, limit=0), tmp_path / "none" / "page.html")
    with pytest.raises(DataError, match="cannot be written: Is a directory"):
        write_page(kitchen, inspect_source(kitchen, limit=0), tmp_path)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the data pack")
@pytest.mark.parametrize(
    ("name", "count", "classes", "commonest"), [("cocostuff171", 3602, 171, "person"), ("corel5k", 4999, 374, "water")]
)
def test_real_sets(name: str, count: int, classes: int, commonest: str, tmp_path: Path) -> None:
    source = open_source(f"shards:{SHARED / name}")
    found = inspect_source(source, limit=100)
    assert (found.count, len(found.classes)) == (count, classes)
    assert found.classes[found.by_frequency()[0]] == commonest
    write_page(source, found, tmp_path / "page.html")
    page = outline(tmp_path / "page.html")
    assert page.tags.count("img") == 24
    assert f"All {classes} classes" in page.texts


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (np.zeros((4, 8), np.int32), "the mask is 4 × 8"),
        (np.full((8, 8), 3, np.int32), "the mask's values go from 3 to 3; expected 0 to 2"),
    ],
)
def test_masks_that_do_not_fit_are_found(mask: np.ndarray, reason: str) -> None:
    images = [np.zeros((8, 8, 3), np.uint8)] * 2
    source = MemorySource(images, [[0], [1]], ["bed", "sea"], masks=[np.zeros((8, 8), np.int32), mask])
    assert inspect_source(source).problems == ()
    (problem,) = inspect_source(source, check_images=True).problems
    assert problem.where == "00001"
    assert reason in problem.what


def test_samples_that_the_system_cannot_read_are_found(kitchen: MemorySource, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(index: int) -> Sample:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(kitchen, "sample", refuse)
    problems = inspect_source(kitchen).problems
    assert len(problems) == len(kitchen)
    assert "Input/output error" in problems[0].what


def test_it_says_how_far_it_looked_where_nothing_was_found(kitchen: MemorySource) -> None:
    assert "none found (headers only)" in printed(inspect_source(kitchen))
    assert "none found (no image opened)" in printed(inspect_source(kitchen, limit=0))
    assert re.search(r"none found *\n", printed(inspect_source(kitchen, check_images=True)))


def test_unknown_labels_are_counted_apart() -> None:
    images = [np.full((20, 30, 3), 127, np.uint8)] * 4
    source = MemorySource(images, [[0, 1], [0], [], [1]], ["fork", "knife", "snow"], unknown=[[2], [1, 2], [], [0]])
    found = inspect_source(source)
    assert found.unknown_counts.tolist() == [1, 1, 2]
    assert found.class_counts.tolist() == [2, 2, 0]
    assert found.labels_per_image.tolist() == [1, 2, 1]
    # Fork and knife are both known in two images, of which one shows fork, and one knife.
    assert found.expected[:2, :2].tolist() == [[4 / 3, 1 / 2], [1 / 2, 4 / 3]]
    assert found.shares().tolist() == [2 / 3, 2 / 3, 0]
    assert found.together.tolist() == [[2, 1, 0], [1, 2, 0], [0, 0, 0]]
    text = " ".join(printed(found).split())
    assert "4 of 12 (33.3 %), in 3 classes; most in snow (2), fork (1), knife (1)" in text
    assert "1 of 3 classes have no positive: snow" in text
    assert "unknown labels" not in printed(inspect_source(blank_source([[0], [1]], 2)))
