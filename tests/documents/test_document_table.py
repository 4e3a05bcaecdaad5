"""The one table: the same cells in three forms, nothing cut, nothing in a name obeyed."""

import io
import math
from html.parser import HTMLParser

import pytest
from rich.console import Console

from contextcaps.documents import (
    Cell,
    Column,
    Row,
    Section,
    Table,
    count,
    interval,
    literal,
    percent,
    signed,
    signed_interval,
)
from contextcaps.evaluation.report.evaluation import Estimate

NASTY = "</td><script>alert(1)</script>|\x1b[31m\ud800[bold]x[/bold] [a](b) *c*"


def table(name: str = "sky", **settings: object) -> Table:
    columns = (
        Column("class", align="left"),
        Column("images", count),
        Column("average precision", percent),
        Column("gain", signed),
    )
    rows = [
        Row(("constant prior", None, math.nan, "")),
        Section("Names"),
        (name, 1234, Cell(0.4567, "strong"), Cell(-0.012, "bad")),
    ]
    return Table("A title", columns, rows, **settings)  # type: ignore[arg-type]


def printed(shown: Table, width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    shown.print(console)
    assert console.width == width
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_values_are_written_by_their_columns() -> None:
    assert table().texts() == [("constant prior", "–", "–", ""), ("sky", "1,234", "45.7", "−1.2")]


@pytest.mark.parametrize("width", [10, 40, 200])
def test_nothing_is_cut_in_a_narrow_console(width: int) -> None:
    text = printed(table("a name of several words"), width)
    for cell in ("a name of several words", "1,234", "45.7", "−1.2", "constant prior"):
        assert cell in text
    assert "…" not in text


def test_names_can_be_given_a_greatest_width_and_texts_wrapped() -> None:
    columns = (Column("name", align="left", most=6), Column("what", align="left", wrap=True))
    text = printed(Table("T", columns, [("abcdefgh", "word " * 30 + "x" * 90)]), 40)
    assert "abcde…" in text
    assert max(map(len, text.splitlines())) <= 40
    assert text.replace("\n", "").count("x") == 90


def test_a_long_heading_is_folded_above_narrow_values() -> None:
    lines = printed(table(), 80).splitlines()
    assert any("average  " in line and "precision" not in line for line in lines)
    assert any("precision" in line and "average" not in line for line in lines)


def test_markdown_is_aligned_and_literal() -> None:
    text = table(NASTY, notes=("A *note*.",)).to_markdown(3)
    assert text.startswith("### A title\n\n| class")
    assert "\x1b" not in text
    assert "\\<script>" in text
    assert "[a\\](b) \\*c\\*" in text
    assert text.endswith("\nA \\*note\\*.\n")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(line) for line in rows}) == 1
    assert rows[1].endswith("-: |")
    assert "**Names**" in rows[3]
    assert table().to_markdown(None).startswith("| class")


class Outline(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_html_shows_names_and_runs_none() -> None:
    page = Outline(table(NASTY).to_html())
    assert "script" not in page.tags
    assert any("<script>alert(1)</script>" in text for text in page.texts)
    assert not any("\x1b" in text for text in page.texts)
    assert "−1.2" in page.texts
    assert 'class="bad"' in table().to_html()


def test_more_rows_can_be_unfolded_and_none_are_said() -> None:
    assert "<summary>All 2</summary>" in table(more=[("a", 1, 0.1, 0.1), ("b", 2, 0.2, 0.2)]).to_html()
    nothing = Table("T", (Column("a"),), [], empty="None of <them>.")
    assert "<p>None of &lt;them&gt;.</p>" in nothing.to_html()
    assert "None of \\<them>." in nothing.to_markdown()
    assert "None of <them>." in printed(nothing, 80)


def test_an_end_near_zero_tells_its_side() -> None:
    assert signed_interval(Estimate(0.01, 0.004, 0.016)) == "[+0.4, +1.6]"
    assert signed_interval(Estimate(0.01, -0.0001, 0.0201)) == "[−0.01, +2.01]"
    assert signed_interval(Estimate(0.01, 0.0004, 0.0196)) == "[+0.04, +1.96]"
    assert signed_interval(Estimate(0.01, math.nan, math.nan)) == "–"
    assert interval(Estimate(0.5, 0.4, 0.6)) == "[40.0, 60.0]"


def test_literal_text_is_no_markup() -> None:
    assert literal("a\nb") == "a b"
    assert literal("[0.1, 0.2] and micro_AP") == "[0.1, 0.2] and micro_AP"
    assert literal("_x_ &lt; ~~y~~ [a]: b") == "\\_x\\_ \\&lt; \\~\\~y\\~\\~ [a\\]: b"
