"""The architecture picture of the concepts page: how an image becomes tags, and which parts the paper and we added.

`python docs/figures/architecture.py` (also as `make figures`) regenerates architecture.svg beside this file. Standard
library only; the same bytes each time. Lengths are in viewBox units, pixels at full size.
"""

import math
import re
from itertools import accumulate, combinations, pairwise, product
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

TITLE = "From an image to its tags"
DESCRIPTION = """Left to right: image, backbone, primary capsules [B, K, A], votes [B, K, J, I], an optional mean-field
CRF over the classes within one capsule, aggregation by dynamic routing and/or by CORR with Cholesky correlation
weights, decision capsules [B, J, I], and their lengths as scores: bed, lamp and window are tags, car and sea are not.
Two branches leave the primary capsules: RW gives routing its initial weights; a low-level map gives CORR its alpha.
Below, the models: capsnet is routing; capsnet-rw adds RW; capsnet-rw-crf adds CRF; capsnet-rw-crf-corr has CORR
instead of routing; contextcaps is routing with a mean field between the classes' logits and a global branch, which
leads from the backbone's features, average-pooled, through a linear layer to the logits."""
LETTERS = "B images, J classes", "K = N·N·D primary capsules of A attributes", "J decision capsules of I attributes"

FONT = "-apple-system, BlinkMacSystemFont, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"
INK, MUTED, FLOW, LINE, PALE, PAPER, WHITE = "#1f2937", "#566273", "#64748b", "#cbd3de", "#e9edf3", "#fbfcfe", "#ffffff"
CAPSULE, FAINT, SHEET = "#5577a8", "#a3b4cc", "#dbe3ee"
RW, CRF, CORR = "#b4530a", "#6d46c9", "#0b7a6f"  # one accent for each addition of the paper
GLOBAL = "#a3195b"  # and one for ours
TINT = {RW: "#fdf3e7", CRF: "#f4f0fd", CORR: "#e8f6f3", GLOBAL: "#fdeef5"}
STYLES = {  # font size, weight, colour
    "title": (20, 600, INK),
    "heading": (15, 600, INK),
    "strong": (14, 600, INK),
    "body": (13.5, 400, INK),
    "note": (13.5, 400, MUTED),
    "badge": (12.5, 600, WHITE),
}

WIDTH, HEIGHT, MARGIN, PAD = 1200, 652, 32, 12
RW_LANE, HEADINGS, FLOW_LINE, CAPTIONS = 76, 156, 268, 366  # heights of the rows, y
ALPHA_LANE, GLOBAL_LANE, LEGEND = 424, 490, 550
STEP_HEIGHT, LINE_HEIGHT = 160, 18
# Steps: image, backbone, primary capsules, votes, mean field, aggregation, decision capsules, scores.
STEP_WIDTHS = (84, 70, 116, 94, 138, 164, 92, 148)
STEP_GAPS = (18, 30, 50, 28, 50, 26, 28, 0)  # to the next step
GRID_SIDE, CELL, LAYERS, LAYER_STEP = 5, 18, 4, 7  # primary capsules: N, and D stacked types
SCORES = [("bed", 0.93, -24), ("lamp", 0.74, 18), ("window", 0.84, -12), ("car", 0.32, 28), ("sea", 0.2, -30)]
THRESHOLD, ROW_STEP, ARROW_LENGTH = 0.5, 32, 76

Point = tuple[float, float]
Attributes = dict[str, str | float]


class Box(NamedTuple):
    """A rectangle of the page."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


def columns() -> list[Box]:
    """Where each step stands: a box as wide as its column, centred on the flow line."""
    lefts = accumulate((width + gap for width, gap in zip(STEP_WIDTHS, STEP_GAPS, strict=True)), initial=MARGIN)
    top = FLOW_LINE - STEP_HEIGHT / 2
    return [Box(left, top, width, STEP_HEIGHT) for left, width in zip(lefts, STEP_WIDTHS, strict=False)]


def class_row(index: int) -> float:
    """The height, y, of a class's votes, decision capsule and score."""
    return FLOW_LINE + (index - (len(SCORES) - 1) / 2) * ROW_STEP


# Marks: each gives a piece of SVG.


def number(value: float) -> str:
    return f"{round(value, 1) + 0.0:g}"


def element(tag: str, content: str = "", **attributes: str | float) -> str:
    """One element; underscores in attribute names become hyphens."""
    written = {name.replace("_", "-"): v if isinstance(v, str) else number(v) for name, v in attributes.items()}
    start = tag + "".join(f' {name}="{value}"' for name, value in written.items())
    return f"<{start}>{content}</{tag}>" if content else f"<{start}/>"


def text(x: float, y: float, words: str, style: str = "body", colour: str = "", anchor: str = "middle") -> str:
    """Words on a base line; `_kj` becomes a subscript."""
    size, weight, usual = STYLES[style]
    words = re.sub("_(kj)(.)", r'<tspan dy="3" font-size="12">\1</tspan><tspan dy="-3">\2</tspan>', escape(words))
    place: Attributes = {"x": x, "y": y, "text_anchor": anchor}
    return element("text", words, **place, font_size=size, font_weight=weight, fill=colour or usual)


def rectangle(box: Box, fill: str, stroke: str = "none", radius: float = 8, **look: str | float) -> str:
    return element("rect", **(box._asdict() | {"rx": radius, "fill": fill, "stroke": stroke} | look))


def path(steps: str, stroke: str = "none", width: float = 1, fill: str = "none") -> str:
    return element("path", d=steps, stroke=stroke, stroke_width=width, fill=fill)


def point(place: Point) -> str:
    return f"{number(place[0])} {number(place[1])}"


def line(start: Point, end: Point, colour: str = LINE, width: float = 1) -> str:
    return path(f"M{point(start)} L{point(end)}", colour, width)


def towards(start: Point, end: Point, distance: float) -> Point:
    """The point at a distance from `start` on the way to `end`."""
    share = distance / math.dist(start, end)
    return start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])


def arrow(*places: Point, colour: str = FLOW, width: float = 1.8, head: float = 8, bend: float = 8) -> str:
    """A line with round corners through all places and an arrowhead at the last."""
    tip, neck = places[-1], towards(places[-1], places[-2], head)
    steps = f"M{point(places[0])}"
    for before, corner, after in zip(places, places[1:], places[2:], strict=False):
        steps += f" L{point(towards(corner, before, bend))} Q{point(corner)} {point(towards(corner, after, bend))}"
    across = (neck[1] - tip[1]) / 2, (tip[0] - neck[0]) / 2
    wings = " ".join(f"L{point((neck[0] + side * across[0], neck[1] + side * across[1]))}" for side in (1, -1))
    return path(f"{steps} L{point(neck)}", colour, width) + path(f"M{point(tip)} {wings} Z", fill=colour)


def vector(x: float, y: float, length: float, degrees: float, colour: str, width: float, head: float) -> str:
    """An arrow centred on (x, y)."""
    across, down = (length / 2 * turn(math.radians(degrees)) for turn in (math.cos, math.sin))
    return arrow((x - across, y - down), (x + across, y + down), colour=colour, width=width, head=head)


def badge_width(name: str) -> float:
    return 20 + 7 * len(name)


def badge(x: float, y: float, name: str, colour: str) -> str:
    """A filled pill with a module's name, its left end at x, centred on y."""
    pill = Box(x, y - 10, badge_width(name), 20)
    return rectangle(pill, colour, radius=10) + text(pill.middle, y + 4.5, name, "badge")


def heat_map(x: float, y: float, colour: str, seed: int, side: int = 5, cell: float = 7) -> str:
    """A small square map of cells in shades of one colour, centred on (x, y)."""
    marks, corner = "", -side * cell / 2
    for row, column in product(range(side), repeat=2):
        shade = 0.1 + 0.8 * ((seed * row * row + 5 * column + row * column) % 7) / 6
        place = Box(x + corner + column * cell, y + corner + row * cell, cell - 1, cell - 1)
        marks += rectangle(place, colour, radius=1, fill_opacity=shade)
    return marks


def labels(box: Box, name: str, shape: str, *caption: str) -> str:
    """A step's name and shape above it and a caption below it."""
    above = text(box.middle, HEADINGS, name, "heading") + text(box.middle, HEADINGS + LINE_HEIGHT + 2, shape, "note")
    below = (text(box.middle, CAPTIONS + row * LINE_HEIGHT, words, "note") for row, words in enumerate(caption))
    return above + "".join(below)


# Steps, left to right.


def draw_image(box: Box) -> str:
    """A bedroom, which the example tags are about."""
    side, left, top = box.width, box.x, FLOW_LINE - box.width / 2
    marks = rectangle(Box(left, top, side, side), "#cdbfae")  # floor
    marks += path(f"M{point((left, top + 62))} v-54 q0 -8 8 -8 h{side - 16} q8 0 8 8 v54 Z", fill="#e3e9f1")  # wall
    marks += rectangle(Box(left + 14, top + 12, 26, 24), "#bcd6ee", WHITE, 2, stroke_width=3)  # window
    marks += line((left + 27, top + 12), (left + 27, top + 36), WHITE, 2)
    marks += line((left + 70, top + 34), (left + 70, top + 68), FLOW, 2)  # lamp
    marks += path(f"M{point((left + 65, top + 22))} h10 l4 14 h-18 Z", fill="#e0ad3c")
    marks += rectangle(Box(left + 10, top + 52, 48, 16), "#7f97bb", radius=3)  # bed
    marks += rectangle(Box(left + 13, top + 46, 16, 9), WHITE, radius=3)
    marks += rectangle(Box(left + 8, top + 42, 4, 32), "#7a6650", radius=1)
    marks += rectangle(Box(left + 56, top + 58, 4, 16), "#7a6650", radius=1)
    return labels(box, "image", "[B, 3, H, W]") + marks


def draw_backbone(box: Box) -> str:
    """Convolutions: maps that get smaller and deeper."""
    marks, x = "", box.x + 3
    for width, height in ((8, 92), (11, 74), (14, 56), (19, 38)):
        marks += rectangle(Box(x, FLOW_LINE - height / 2, width, height), SHEET, FAINT, 3)
        x += width + 4
    return labels(box, "backbone", "feature map") + marks


def draw_primary_capsules(box: Box) -> str:
    """D stacked types of an N×N grid; each cell holds a capsule, drawn as an arrow."""
    side, depth = GRID_SIDE * CELL, (LAYERS - 1) * LAYER_STEP
    left, top, marks = box.middle - (side + depth) / 2, FLOW_LINE - (side - depth) / 2, ""
    for shift in (layer * LAYER_STEP for layer in reversed(range(LAYERS))):
        marks += rectangle(Box(left + shift, top - shift, side, side), WHITE, FAINT, 4)
    for cut in (step * CELL for step in range(1, GRID_SIDE)):
        marks += path(f"M{point((left + cut, top))} v{side} M{point((left, top + cut))} h{side}", PALE)
    for row, column in product(range(GRID_SIDE), repeat=2):
        length, degrees = 8 + 2 * ((3 * row + 2 * column) % 4), (37 * row + 61 * column + 11 * row * column) % 360
        marks += vector(left + (column + 0.5) * CELL, top + (row + 0.5) * CELL, length, degrees, CAPSULE, 1.4, 4.5)
    return labels(box, "primary capsules", "[B, K, A]", "N×N grid, D types,", "A attributes each") + marks


def draw_votes(box: Box) -> str:
    """Each capsule votes for each class."""
    left, right, lines, marks = box.x + 8, box.right - 28, "", ""
    for start in ((left, FLOW_LINE + (row - 1.5) * ROW_STEP) for row in range(4)):
        lines += "".join(line(start, (right, class_row(index)), FAINT) for index in range(len(SCORES)))
        marks += element("circle", cx=start[0], cy=start[1], r=5.5, fill=CAPSULE)
    for index in range(len(SCORES)):
        marks += vector(right + 12, class_row(index), 24, 26 * index % 60 - 30, CAPSULE, 2, 7)
    return labels(box, "votes", "[B, K, J, I]", "of each capsule", "for each class") + lines + marks


def draw_mean_field(box: Box) -> str:
    """CRF: a dense graph between the classes, for one capsule."""
    offsets = {"bed": (0, -35), "lamp": (41, 2), "window": (29, 54), "car": (-32, 54), "sea": (-41, 2)}
    centres = {name: (box.middle + across, FLOW_LINE + down) for name, (across, down) in offsets.items()}
    marks = rectangle(box, TINT[CRF], CRF, stroke_dasharray="5 4") + badge(box.x + PAD, box.y + 20, "CRF", CRF)
    marks += "".join(line(one, other, CRF, 1.2) for one, other in combinations(centres.values(), 2))
    for name, (x, y) in centres.items():
        width = 17 + 6.6 * len(name)
        marks += rectangle(Box(x - width / 2, y - 11, width, 22), WHITE, CRF, 11) + text(x, y + 4.5, name)
    return labels(box, "mean field", "[B, K, J, I]", "classes within one", "capsule; optional") + marks


def aggregation_parts(box: Box) -> tuple[Box, Box]:
    """The boxes of routing and of CORR inside the aggregation."""
    inset, height = 8, 60
    routing = Box(box.x + inset, box.y + inset, box.width - 2 * inset, height)
    return routing, routing._replace(y=box.bottom - inset - height)


def draw_aggregation(box: Box) -> str:
    routing, correlation = aggregation_parts(box)
    marks = rectangle(box, PALE, LINE, 12) + rectangle(routing, WHITE, FAINT) + rectangle(correlation, TINT[CORR], CORR)
    marks += text(routing.middle, routing.y + 26, "dynamic routing", "strong")
    marks += text(routing.middle, routing.y + 46, "by agreement", "note")
    marks += text(box.middle, FLOW_LINE + 4.5, "and / or", "note")
    marks += badge(correlation.x + PAD, correlation.y + 20, "CORR", CORR)
    marks += text(correlation.right - PAD, correlation.y + 25, "Cholesky", "strong", CORR, "end")
    marks += text(correlation.middle, correlation.y + 48, "weights w_kj, Σw² = 1")
    return labels(box, "aggregation", "weighted sum over K") + marks


def draw_decision_capsules(box: Box) -> str:
    """One arrow for each class, as long as its score."""
    marks = ""
    for index, (_, score, degrees) in enumerate(SCORES):
        colour = CAPSULE if score > THRESHOLD else FAINT
        marks += vector(box.middle, class_row(index), ARROW_LENGTH * score, degrees, colour, 2.6, 9)
    return labels(box, "decision capsules", "[B, J, I]", "one for each class") + marks


def draw_scores(box: Box) -> str:
    """Lengths as bars; what passes the threshold is a tag."""
    start, length, marks = box.x + 70, box.width - 70 - 24, ""
    for index, (name, score, _) in enumerate(SCORES):
        y, tagged = class_row(index), score > THRESHOLD
        marks += text(start - 8, y + 4.5, name, "strong" if tagged else "note", anchor="end")
        marks += rectangle(Box(start, y - 6, length, 12), PALE, radius=3)
        marks += rectangle(Box(start, y - 6, length * score, 12), CAPSULE if tagged else FAINT, radius=3)
        if tagged:
            marks += path(f"M{point((box.right - 15, y))} l5 5 l9 -10", INK, 2.2)
    return labels(box, "scores", "[B, J]", "high enough: a tag") + marks


# Branches, legend, page.


def draw_branch(fork: float, join: float, lane: float, height: float, end: Point, colour: str) -> tuple[str, Box]:
    """A card on its own lane, reached from the flow line at x = fork, leading over x = join to `end`."""
    card = Box(fork + 22, lane - height / 2, join - fork - 44, height)
    marks = arrow((fork, FLOW_LINE), (fork, lane), (card.x, lane), colour=colour)
    corner = [(join, end[1])] if end[0] != join else []  # where the end is straight above or below, there is none
    marks += arrow((card.right, lane), (join, lane), *corner, end, colour=colour)
    return marks + rectangle(card, TINT[colour], colour, 12), card


def draw_initial_routing(fork: float, join: float, routing: Box) -> str:
    """RW: from the primary capsules over the votes into routing."""
    marks, card = draw_branch(fork, join, RW_LANE, 100, (routing.x, routing.y + 26), RW)
    marks += badge(card.x + PAD, card.y + 20, "RW", RW)
    marks += text(card.x + 2 * PAD + 30, card.y + 25, "initial routing weights", "heading", RW, "start")
    centres, level = [card.x + share * card.width for share in (0.16, 0.465, 0.81)], card.y + 57
    for index, words in enumerate(("mean / std", "5×5 kernel", "weights [B, K]")):
        marks += heat_map(centres[index], level, RW, seed=index + 2) + text(centres[index], card.bottom - 9, words)
    for one, other in pairwise(centres):
        marks += arrow((one + 26, level), (other - 26, level), colour=RW, width=1.4, head=6)
    return marks


def draw_low_level_map(fork: float, join: float, correlation: Box) -> str:
    """α: from the primary capsules under the votes into CORR."""
    marks, card = draw_branch(fork, join, ALPHA_LANE, 54, (correlation.x, correlation.bottom - 26), CORR)
    marks += heat_map(card.x + 32, ALPHA_LANE, CORR, seed=4)
    marks += text(card.x + 66, ALPHA_LANE - 5, "low-level map → α", "heading", CORR, "start")
    return marks + text(card.x + 66, ALPHA_LANE + 16, "[B, N, N] → [B, J, K−1]", anchor="start")


def draw_global_branch(fork: float, join: float) -> str:
    """The global branch: from the backbone's features under everything to the logits, where it is added."""
    marks, card = draw_branch(fork, join, GLOBAL_LANE, 46, (join, FLOW_LINE + 11), GLOBAL)
    marks += badge(card.x + PAD, GLOBAL_LANE, "global branch", GLOBAL)
    words = "mean of the features → linear layer → added to each class’s logit; a mean field between classes"
    marks += text(card.x + 2 * PAD + badge_width("global branch"), GLOBAL_LANE + 4.5, words, anchor="start")
    marks += element("circle", cx=join, cy=FLOW_LINE, r=10, fill=WHITE, stroke=GLOBAL, stroke_width=1.8)
    return marks + text(join, FLOW_LINE + 5, "+", "strong", GLOBAL)


def draw_legend() -> str:
    """Which model uses which modules."""
    routing, initial, field, correlation = ("routing", FLOW), ("RW", RW), ("CRF", CRF), ("CORR", CORR)
    models = {
        "capsnet": [routing],
        "capsnet-rw": [routing, initial],
        "capsnet-rw-crf": [routing, initial, field],
        "capsnet-rw-crf-corr": [initial, field, correlation],
        "contextcaps": [routing, ("field and global branch", GLOBAL)],
    }
    gap = 14
    needed = [sum(badge_width(name) + 16 for name, _ in modules) + 16 for modules in models.values()]
    spare = (WIDTH - 2 * MARGIN - (len(models) - 1) * gap - sum(needed)) / len(models)
    marks = text(MARGIN, LEGEND - 14, "The paper’s models, each with one part more, and ours", "note", anchor="start")
    left = MARGIN
    for (preset, modules), width in zip(models.items(), needed, strict=True):
        card = Box(left, LEGEND, width + spare, 74)
        left = card.right + gap
        x = card.x + 16
        marks += rectangle(card, WHITE, LINE, 10) + text(x, card.y + 27, preset, "heading", anchor="start")
        for position, (name, colour) in enumerate(modules):
            marks += text(x - 8, card.y + 55.5, "+", "note") if position else ""
            marks += badge(x, card.y + 51, name, colour)
            x += badge_width(name) + 16
    return marks


def draw_words(right: float) -> str:
    """The title, and what the letters mean."""
    marks = text(MARGIN, 58, TITLE, "title", anchor="start")
    marks += text(MARGIN, 84, "In colour: the paper’s additions, and ours", "note", anchor="start")
    for row, words in enumerate(LETTERS):
        marks += text(right, 50 + 22 * row, words, "note", anchor="start")
    return marks


def build() -> str:
    """The SVG, as text."""
    image, backbone, primary, votes, crf, aggregation, decisions, scores = steps = columns()
    fork, join = (primary.right + votes.x) / 2, (crf.right + aggregation.x) / 2
    routing, correlation = aggregation_parts(aggregation)
    parts = [
        element("title", TITLE, id="title"),
        element("desc", DESCRIPTION.replace("\n", " "), id="description"),
        rectangle(Box(0.5, 0.5, WIDTH - 1, HEIGHT - 1), PAPER, LINE, 16),
        draw_words(aggregation.x),
        *(draw_image(image), draw_backbone(backbone), draw_primary_capsules(primary), draw_votes(votes)),
        *(draw_mean_field(crf), draw_aggregation(aggregation), draw_decision_capsules(decisions), draw_scores(scores)),
        *(draw_initial_routing(fork, join, routing), draw_low_level_map(fork, join, correlation)),
        *(arrow((one.right + 3, FLOW_LINE), (other.x - 3, FLOW_LINE)) for one, other in pairwise(steps)),
        element("circle", cx=fork, cy=FLOW_LINE, r=4, fill=FLOW),
        draw_global_branch((backbone.right + primary.x) / 2 - 2, (decisions.right + scores.x) / 2),
        draw_legend(),
    ]
    size: Attributes = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "width": WIDTH, "height": HEIGHT}
    names: Attributes = {"role": "img", "aria_labelledby": "title description", "font_family": FONT}
    content = "\n".join(parts).replace("/><", "/>\n<")
    return element("svg", f"\n{content}\n", xmlns="http://www.w3.org/2000/svg", **size, **names) + "\n"


def main() -> None:
    Path(__file__).with_suffix(".svg").write_bytes(build().encode())


if __name__ == "__main__":
    main()
