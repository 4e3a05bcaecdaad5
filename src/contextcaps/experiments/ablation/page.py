"""An ablation as one HTML file with everything in it: no scripts, no requests, light and dark, wide and narrow."""

import base64
import html
from collections.abc import Iterator
from pathlib import Path

from contextcaps.experiments.ablation.figures import CONVERGENCE, classes_picture
from contextcaps.experiments.ablation.interval_picture import Row, interval_picture
from contextcaps.experiments.ablation.report import Report
from contextcaps.experiments.ablation.tables import Grid, grids
from contextcaps.experiments.ablation.wording import counted, facts_of, findings

__all__ = ["ablation_html", "ablation_markdown", "title_of"]


def title_of(report: Report) -> str:
    """The report's title."""
    return f"Ablation on {report.plan.base.data}"


def ablation_html(report: Report, folder: Path) -> str:
    """The page; pictures are taken from the folder and put into it."""
    return "".join(_page(report, folder))


def ablation_markdown(report: Report) -> str:
    """The same in Markdown, with the pictures beside it."""
    lines = [f"# {title_of(report)}\n", *(f"- {_cell(text)}" for text in findings(report)), ""]
    for grid in grids(report):
        lines += [f"## {_cell(grid.title)}\n", *_markdown_rows(grid), "", _cell(grid.note), ""]
        picture, words = _picture(grid)
        if picture:
            lines += [f"![{words}]({picture})", ""]
    lines += ["## How it was made\n", *(f"- {name}: {_cell(text)}" for name, text in facts_of(report).items()), ""]
    return "\n".join(lines)


def _markdown_rows(grid: Grid) -> list[str]:
    if not grid.rows:
        return ["None of the models is in the paper's table."]
    rule = ["---", *["---:"] * (len(grid.headings) - 1)]
    rows = (grid.headings, rule, *grid.rows)
    return [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _picture(grid: Grid) -> tuple[str, str]:
    """The file of the figure that belongs to a table, and what it shows; nothing if there is none."""
    if grid.name == "convergence":
        return CONVERGENCE, "Validation mAP by epoch"
    if grid.name.startswith("classes-"):
        return classes_picture(grid.name.removeprefix("classes-")), "Gain of each class by its frequency and company"
    return "", ""


def _page(report: Report, folder: Path) -> Iterator[str]:
    title = html.escape(title_of(report))
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    yield (
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">"
    )
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}</title><style>{_STYLE}</style></head><body><main>"
    yield f'<header><p class="over">contextcaps ablate</p><h1>{title}</h1><p>{html.escape(_lead(report))}</p></header>'
    found = "".join(f"<li>{html.escape(text)}</li>" for text in findings(report))
    tables = grids(report)
    yield _contents(tables)
    yield f"<section><h2>What it shows</h2><ul>{found}</ul>{_intervals(report)}</section>"
    for number, grid in enumerate(tables, 1):
        yield _section(grid, folder, number)
    facts = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in facts_of(report).items()
    )
    yield f'<section id="made"><h2>How it was made</h2><dl>{facts}</dl></section>'
    yield "</main></body></html>\n"


def _lead(report: Report) -> str:
    facts = facts_of(report)
    seeds, epochs = counted(len(report.plan.seeds), "seed"), counted(report.plan.base.epochs, "epoch")
    return f"{counted(len(report.models), 'model')}, {seeds} each, {epochs}; {facts['hardware']}; {facts['date']}."


def _contents(tables: list[Grid]) -> str:
    links = "".join(
        f'<li><a href="#t{number}">{html.escape(grid.title)}</a></li>' for number, grid in enumerate(tables, 1)
    )
    return f'<nav aria-label="Contents"><ul>{links}<li><a href="#made">How it was made</a></li></ul></nav>'


def _section(grid: Grid, folder: Path, number: int) -> str:
    picture, words = _picture(grid)
    image = ""
    if picture and (folder / picture).is_file():
        encoded = base64.b64encode((folder / picture).read_bytes()).decode("ascii")
        image = f'<img alt="{words}" src="data:image/png;base64,{encoded}">'
    mark = ' class="other"' if grid.name == "paper" else ""
    table = _table(grid, grid.rows) if grid.rows else "<p>None of the models is in the paper's table.</p>"
    if grid.more:
        table += f"<details><summary>All {len(grid.more)}</summary>{_table(grid, grid.more)}</details>"
    head, note = f"<h2>{html.escape(grid.title)}</h2>", f"<p>{html.escape(grid.note)}</p>"
    return f'<section id="t{number}"{mark}>{head}{table}{note}{image}</section>'


def _table(grid: Grid, shown: tuple[tuple[str, ...], ...]) -> str:
    heads = "".join(f"<th>{html.escape(heading)}</th>" for heading in grid.headings)
    rows = "".join(
        f"<tr{_row_class(row)}><th>{html.escape(row[0])}</th>"
        + "".join(f"<td>{_shown(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in shown
    )
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _row_class(row: tuple[str, ...]) -> str:
    return ' class="prior"' if row[0] == "constant prior" else ""


def _shown(cell: str) -> str:
    colour = {"better": "up", "worse": "down"}.get(cell)
    text = html.escape(cell)
    return f'<b class="{colour}">{text}</b>' if colour else text


def _intervals(report: Report) -> str:
    rows = []
    for model in report.models:
        if model.difference is not None and model.image_difference is not None:
            if model.pairs > 1:
                rows.append(Row(model.label, "seeds", model.difference))
            rows.append(Row(model.label, "images", model.image_difference))
    return interval_picture(rows, report.plan.baseline) if rows else ""


_STYLE = """
:root{color-scheme:light dark;--ground:#f5f6f8;--card:#fff;--line:#e2e5ea;--text:#1c2128;--soft:#5f6b7a;
--seeds:#0072b2;--images:#d55e00;--up:#00785a;--down:#b84a00;--other:#fff8e6}
@media(prefers-color-scheme:dark){:root{--ground:#0e1116;--card:#161b22;--line:#2a313c;--text:#e4e8ee;--soft:#97a3b3;
--seeds:#56b4e9;--images:#fb8c4c;--up:#3fc79a;--down:#fb8c4c;--other:#241f12}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--text);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1000px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;line-height:1.25;margin:0 0 8px;overflow-wrap:anywhere}
h2{font-size:18px;margin:0 0 10px}
.over{margin:0;color:var(--soft);font-size:12px;letter-spacing:.08em;text-transform:uppercase}
p{margin:10px 0 0;color:var(--soft);max-width:90ch;font-size:13.5px}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:18px 20px;margin-top:18px}
section.other{background:var(--other)}
ul{margin:0;padding-left:20px}li{margin:0 0 6px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th{text-align:left;font-weight:600;white-space:nowrap}
thead th{color:var(--soft);font-size:12.5px;vertical-align:bottom;white-space:normal;min-width:62px}
thead th+th,td{text-align:right}
td{font-variant-numeric:tabular-nums;white-space:nowrap}
th,td{padding:5px 0 5px 14px;border-bottom:1px solid var(--line)}
th:first-child{padding-left:0;position:sticky;left:0;background:var(--card)}
.other th:first-child{background:var(--other)}
.prior,.prior th{color:var(--soft);font-weight:400}
.other thead th:nth-child(2){text-align:left}.other td:nth-child(2){text-align:left;white-space:normal;min-width:150px}
nav ul{display:flex;flex-wrap:wrap;gap:2px 16px;list-style:none;padding:0;margin:16px 2px 0;font-size:13.5px}
a{color:var(--seeds)}details{margin-top:10px;font-size:13.5px}summary{cursor:pointer;color:var(--soft)}
.up{color:var(--up)}.down{color:var(--down)}
img{display:block;max-width:100%;height:auto;margin-top:14px;border-radius:6px;background:#fff}
svg{display:block;width:100%;max-width:760px;height:auto;margin-top:14px}
svg text{fill:var(--text);font-size:13px;font-family:inherit}svg .tick{fill:var(--soft);font-size:12px}
svg .axis{stroke:var(--soft);stroke-width:1}
svg line.seeds{stroke:var(--seeds);stroke-width:3}svg line.images{stroke:var(--images);stroke-width:3}
svg circle.seeds,svg path.seeds{fill:var(--seeds)}svg circle.images,svg path.images{fill:var(--images)}
dl{display:grid;grid-template-columns:minmax(90px,max-content) minmax(0,1fr);gap:6px 18px;margin:0;font-size:13.5px}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
@media(max-width:600px){main{padding:18px 10px 40px}section{padding:14px 12px}dl{grid-template-columns:1fr;gap:0}
dd{margin-bottom:8px}}
@media print{section{break-inside:avoid}}
"""
