"""What was found in a source, as one HTML file with everything in it: no scripts, no requests, light and dark."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from contextcaps.data.inspection.charts import (
    HEAT_MAP_CLASSES,
    class_frequencies,
    heat_map,
    heat_map_legend,
    label_histogram,
    shown,
)
from contextcaps.data.inspection.sheet import contact_sheet
from contextcaps.data.inspection.statistics import Inspection, Pair
from contextcaps.data.problems import DataError
from contextcaps.data.source import Source

__all__ = ["write_page"]

_SIZES_SHOWN = 8
_PAIRS_SHOWN = 11
_PROBLEMS_SHOWN = 200


def write_page(source: Source, inspection: Inspection, path: Path | str, thumbnails: int = 24) -> None:
    """Write the page; a crash leaves the old file or none.

    Args:
        source: where the pictures of the contact sheet come from.
        inspection: of this source.
        path: of the HTML file; its folder must be there.
        thumbnails: images on the contact sheet, evenly spread over the source; those that cannot be read are left out.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise DataError(f"{path}: its folder is not there; make {path.parent} first")
    content = "".join(_page(source, inspection, thumbnails)).encode("utf-8")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _page(source: Source, inspection: Inspection, thumbnails: int) -> Iterator[str]:
    name = shown(inspection.name)
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    # Nothing may be fetched and nothing run, whatever a class is called.
    yield (
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">"
    )
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{name}</title><style>{_STYLE}</style></head><body><main>"
    yield f'<header><p class="over">Data inspection</p><h1>{name}</h1>{_tiles(inspection)}</header>'
    yield '<div class="two">'
    yield _section("Labels per image", label_histogram(inspection))
    yield _section("Image sizes", _sizes(inspection))
    yield "</div>"
    yield _section("Class frequency", class_frequencies(inspection) + _class_list(inspection), _tail(inspection))
    if inspection.count and (inspection.class_counts > 0).sum() > 1:
        yield _section("Co-occurrence of classes", _company(inspection), _company_words(inspection))
    yield _section("Contact sheet", *contact_sheet(source, thumbnails))
    yield _section("Problems and notes", _problems(inspection), identifier="problems")
    yield "</main></body></html>\n"


def _section(title: str, content: str, words: str = "", identifier: str = "") -> str:
    mark = f' id="{identifier}"' if identifier else ""
    return f"<section{mark}><h2>{title}</h2>" + (f"<p>{words}</p>" if words else "") + f"{content}</section>"


def _tiles(inspection: Inspection) -> str:
    labels = inspection.label_statistics()
    used = int((inspection.class_counts > 0).sum())
    found = len(inspection.problems)
    places = [kind for kind, number in (("boxes", inspection.with_boxes), ("masks", inspection.with_masks)) if number]
    if inspection.split:
        part = f"split {shown(inspection.split)}"
    elif inspection.splits:
        part = f"given splits: {shown(', '.join(inspection.splits))}"
    else:
        part = "no given splits"
    tiles = [
        (f"{inspection.count:,}", "images", part),
        (f"{len(inspection.classes):,}", "classes", f"{used:,} with a positive"),
        (
            f"{labels['mean']:.2f}",
            "labels per image (mean)",
            f"{labels['least']:.0f} to {labels['most']:.0f}, median {labels['median']:g}",
        ),
        (", ".join(places) or "none", "places known", f"in the {inspection.images_read:,} images opened"),
        (
            f"{found:,}",
            f'<a href="#problems">problem{"s" * (found != 1)}</a>',
            f"{inspection.images_read:,} {'images decoded' if inspection.images_decoded else 'image headers read'}",
        ),
    ]
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><b>{number}</b><span>{words}</span><small>{more}</small></div>'
            for number, words, more in tiles
        )
        + "</div>"
    )


def _sizes(inspection: Inspection) -> str:
    """A table of the commonest sizes with bars, and the range."""
    sizes = inspection.common_sizes()
    if not sizes:
        return "<p>No image was opened, or none could be read.</p>"
    total = len(inspection.sizes)
    rows = "".join(
        f'<tr><td class="number">{width} × {height}</td><td class="number">{images:,}</td>'
        f'<td class="wide">{_meter(images / total)}</td><td class="number">{100 * images / total:.1f} %</td></tr>'
        for height, width, images in sizes[:_SIZES_SHOWN]
    )
    more = f"<p>… and {len(sizes) - _SIZES_SHOWN:,} more sizes.</p>" if len(sizes) > _SIZES_SHOWN else ""
    least, middle, most = (function(inspection.sizes, axis=0) for function in (np.min, np.median, np.max))
    words = ""
    if len(sizes) > 1:
        words = (
            f"<p>Width {least[1]} to {most[1]} pixels, median {middle[1]:g}; "
            f"height {least[0]} to {most[0]} pixels, median {middle[0]:g}.</p>"
        )
    return (
        f'{words}<table><thead><tr><th class="number">width × height (pixels)</th><th class="number">images</th>'
        f'<th colspan="2">share</th></tr></thead><tbody>{rows}</tbody></table>{more}'
    )


def _meter(share: float) -> str:
    return f'<i class="meter"><i style="width:{100 * share:.1f}%"></i></i>'


def _tail(inspection: Inspection) -> str:
    counts = np.sort(inspection.class_counts)[::-1]
    top = max(1, round(len(counts) / 10))
    share = 100 * counts[:top].sum() / max(counts.sum(), 1)
    rare, none = int((counts < 10).sum()), int((counts == 0).sum())
    few = f"{rare} of {len(counts)} classes have fewer than 10 images" if rare else "Every class has at least 10 images"
    absent = f", {none} of them none" if none else ""
    return f"{few}{absent}; the commonest {top} {'carries' if top == 1 else 'carry'} {share:.0f} % of all labels."


def _class_list(inspection: Inspection) -> str:
    """Every class with its count, folded up."""
    items = "".join(
        f'<li title="{shown(inspection.classes[index])}"><span>{shown(inspection.classes[index])}</span>'
        f"<b>{inspection.class_counts[index]:,}</b></li>"
        for index in inspection.by_frequency()
    )
    return f"<details><summary>All {len(inspection.classes)} classes</summary><ol>{items}</ol></details>"


def _company_words(inspection: Inspection) -> str:
    used = int((inspection.class_counts > 0).sum())
    which = f"the {HEAT_MAP_CLASSES} commonest classes" if used > HEAT_MAP_CLASSES else "all classes with a positive"
    return (
        "The lift of a pair is the number of images with both, over the number that chance would bring if the two had "
        f"nothing to do with each other. The map shows {which}, those that go together side by side."
    )


def _company(inspection: Inspection) -> str:
    least = inspection.least_support
    close = _pairs(inspection.co_occurrences[:_PAIRS_SHOWN], inspection.classes)
    apart = _pairs(inspection.exclusions[:_PAIRS_SHOWN], inspection.classes)
    return (
        f'<div class="company"><figure>{heat_map(inspection)}<figcaption>Lift: how often two classes meet, compared '
        f"with chance<br>{heat_map_legend()}</figcaption></figure><div>"
        f"<h3>Strongest co-occurrences</h3><p>Pairs with {least} images or more.</p>{close}"
        f"<h3>Strongest exclusions</h3><p>Pairs with {least} images or more by chance.</p>{apart}</div></div>"
    )


def _pairs(pairs: Sequence[Pair], classes: Sequence[str]) -> str:
    if not pairs:
        return "<p>None.</p>"
    rows = "".join(
        f'<tr><td class="name">{shown(classes[pair.first])}</td><td class="name">{shown(classes[pair.second])}</td>'
        f'<td class="number">{pair.count:,}</td><td class="number">{pair.expected:,.1f}</td>'
        f'<td class="number"><b>{pair.lift:.2f}</b></td></tr>'
        for pair in pairs
    )
    return (
        '<table><thead><tr><th>class</th><th>and class</th><th class="number">images</th>'
        f'<th class="number">by chance</th><th class="number">lift</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _problems(inspection: Inspection) -> str:
    parts = []
    if inspection.problems:
        rows = "".join(
            f'<tr><td class="name">{shown(each.where)}</td><td>{shown(each.what)}</td></tr>'
            for each in inspection.problems[:_PROBLEMS_SHOWN]
        )
        parts.append(f"<table><thead><tr><th>where</th><th>what</th></tr></thead><tbody>{rows}</tbody></table>")
        if len(inspection.problems) > _PROBLEMS_SHOWN:
            parts.append(f"<p>… and {len(inspection.problems) - _PROBLEMS_SHOWN:,} more.</p>")
    else:
        looked = "decoded to the end" if inspection.images_decoded else "read by their headers"
        parts.append(f"<p>No problem was found. {inspection.images_read:,} images were {looked}.</p>")
    if inspection.notes:
        parts.append("<h3>Notes</h3><ul>" + "".join(f"<li>{shown(note)}</li>" for note in inspection.notes) + "</ul>")
    return "".join(parts)


_STYLE = """
:root{color-scheme:light dark;--ground:#f5f6f8;--card:#fff;--line:#e2e5ea;--text:#1c2128;--soft:#5f6b7a;--bar:#3b76d4;
--mean:#c2410c;--close:#c2410c;--apart:#1d5fd1;--unknown:#eceef2;--track:#edf0f4;--chip:#eef1f5}
@media(prefers-color-scheme:dark){:root{--ground:#0e1116;--card:#161b22;--line:#2a313c;--text:#e4e8ee;--soft:#97a3b3;
--bar:#5c95ee;--mean:#fb8c4c;--close:#fb8c4c;--apart:#3f7fe8;--unknown:#222933;--track:#232a34;--chip:#232a34}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--text);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1280px;margin:0 auto;padding:28px 24px 60px}
h1{font-size:26px;line-height:1.25;margin:0 0 18px;overflow-wrap:anywhere}
h2{font-size:18px;margin:0 0 6px}h3{font-size:15px;margin:16px 0 0}
.over{margin:0;color:var(--soft);font-size:12px;letter-spacing:.08em;text-transform:uppercase}
p{margin:0 0 12px;color:var(--soft);max-width:90ch}
a{color:inherit}
section,.tile{background:var(--card);border:1px solid var(--line);border-radius:10px}
section{padding:20px 22px;margin-top:18px;min-width:0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(180px,1fr));gap:14px}
.tile{padding:14px 16px;display:flex;flex-direction:column}
.tile b{font-size:25px;line-height:1.2}.tile small{color:var(--soft);font-size:12.5px}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(460px,100%),1fr));gap:0 18px}
svg{display:block;max-width:100%;height:auto;overflow:visible}
svg text{fill:var(--text);font-family:inherit}
svg .tick,svg .axis{fill:var(--soft);font-size:12px}svg .axis{font-size:12.5px}svg .name{font-size:11.5px}
svg .grid{stroke:var(--line)}svg .bar{fill:var(--bar)}svg .bar:hover{fill:var(--mean)}
svg .mean{stroke:var(--mean);stroke-width:1.5;stroke-dasharray:4 3}
svg .close{fill:var(--close)}svg .apart{fill:var(--apart)}svg .unknown{fill:var(--unknown)}
svg .self{fill:var(--soft);fill-opacity:.35}
svg .ground{fill:var(--card);stroke:var(--line)}
.company rect:hover{stroke:var(--text);stroke-width:1.5}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th{text-align:left;font-weight:600;color:var(--soft);font-size:12.5px}
th,td{padding:4px 8px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}
td.name{overflow-wrap:anywhere}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.wide{width:45%;padding-left:8px;vertical-align:middle}
.meter{display:block;height:9px;border-radius:3px;background:var(--track);overflow:hidden}
.meter i{display:block;height:100%;background:var(--bar)}
details{margin-top:12px}summary{cursor:pointer;color:var(--soft)}
ol{list-style:none;margin:12px 0 0;padding:0;columns:170px;column-gap:28px;font-size:12.5px}
ol li{display:grid;grid-template-columns:1fr 52px;gap:8px;align-items:center;break-inside:avoid;line-height:1.55}
ol span{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
ol b{font-weight:500;text-align:right;font-variant-numeric:tabular-nums}
.company{display:grid;grid-template-columns:minmax(0,1.75fr) minmax(0,1fr);gap:28px}
@media(max-width:980px){.company{grid-template-columns:minmax(0,1fr)}}
.company figure{margin:0}.company figcaption{margin-top:14px;color:var(--soft);font-size:13px}
.company h3:first-child{margin-top:0}.company p{margin-bottom:4px;font-size:13px}
.sheet{display:grid;grid-template-columns:repeat(auto-fill,minmax(178px,1fr));gap:20px 16px}
.sheet figure{margin:0;min-width:0}
.frame{aspect-ratio:1;display:grid;place-items:center;background:var(--track);border-radius:6px;overflow:hidden}
.picture{position:relative}.lying{width:100%}.standing{height:100%}
.picture img{display:block;width:100%;height:100%}
.boxes{position:absolute;inset:0;width:100%;height:100%}
.boxes rect{fill:none;stroke-width:1.6;vector-effect:non-scaling-stroke;pointer-events:all}
.sheet figcaption{font-size:12px;color:var(--soft);margin:5px 0 4px;overflow:hidden;text-overflow:ellipsis;
white-space:nowrap}
.sheet ul{list-style:none;margin:0;padding:0;display:flex;flex-wrap:wrap;gap:4px}
.sheet li{background:var(--chip);border-radius:9px;padding:0 8px;font-size:12px;overflow-wrap:anywhere}
.sheet li i{display:inline-block;width:8px;height:8px;border-radius:50%;margin-right:5px}
.b0{stroke:#ff5a5f;background:#ff5a5f}.b1{stroke:#3fb8ff;background:#3fb8ff}.b2{stroke:#ffd23f;background:#ffd23f}
.b3{stroke:#4ee08a;background:#4ee08a}.b4{stroke:#d68bff;background:#d68bff}.b5{stroke:#ff9f40;background:#ff9f40}
.b6{stroke:#7df0e8;background:#7df0e8}.b7{stroke:#ff8fc7;background:#ff8fc7}
@media print{section{break-inside:avoid}}
"""
