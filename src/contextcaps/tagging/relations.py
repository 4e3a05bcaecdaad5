"""The strongest relations between classes, those that a field has learned and those of labels: who attracts whom."""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from contextcaps.data import Source
from contextcaps.data.unknown import UNKNOWN
from contextcaps.documents import shortened, signed
from contextcaps.documents.drawing import Drawing

if TYPE_CHECKING:
    from contextcaps.models.network import CapsuleNetwork

__all__ = ["Relation", "draw_relations", "label_relations", "strongest_relations"]

_NAME_LENGTH = 18
_STYLE = (  # on one line: pages have no control characters
    'text{font:13px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#1c2128}'
    ".title{font-size:18px;font-weight:600}.note{fill:#5f6b7a;font-size:12.5px}"
    "path{fill:none;stroke-linecap:round}.attract{stroke:#c2410c}.exclude{stroke:#1d5fd1}"
    "path:hover{stroke:#1c2128}circle{fill:#5f6b7a}"
)


@dataclasses.dataclass(frozen=True)
class Relation:
    """Two classes, and how much the one's presence changes the other's logit."""

    classes: tuple[str, str]
    forward: float
    """Change of the second class's logit where the first is known to be present rather than absent."""
    backward: float
    """Change of the first class's logit where the second is; the two are learned apart."""

    @property
    def strength(self) -> float:
        """The mean of both directions: above zero the classes attract each other, below they exclude each other."""
        return (self.forward + self.backward) / 2


def strongest_relations(network: "CapsuleNetwork", classes: Sequence[str], count: int = 40) -> tuple[Relation, ...]:
    """Return the pairs of classes that attract each other most, and those that exclude each other most.

    Args:
        network: with a field.
        classes: [J], names.
        count: at most so many pairs of either kind, strongest first.

    Raises:
        ValueError: the network has no field.
    """
    field = network.field
    if field is None:
        raise ValueError(
            f"relations: this model ({network.config.model}) has no field between its decisions, and so no relations; "
            "train one with --set field=default"
        )
    import torch  # here, as the package is imported without it

    with torch.no_grad():
        pairwise = field.pairwise
        matrix = pairwise[0] @ pairwise[1].T if isinstance(pairwise, tuple) else pairwise  # [J, J]
        scale = 1.0 if network.config.calibration is None else network.config.calibration.scale
        potentials = scale * matrix.double().cpu().numpy()  # [J, J]
    return _strongest(potentials, classes, count)


def label_relations(source: Source, count: int = 40) -> tuple[Relation, ...]:
    """Return the pairs of classes that the labels of a source show together most, and least, for their frequencies.

    The log odds ratio of two classes: how much the one's presence changes the logit of the other's, in these labels and
    without an image. With a, b, c, d images that show both, the first alone, the second alone and neither, it is
    log((a + ½)(d + ½) / ((b + ½)(c + ½))) (Haldane 1956), finite also for pairs that never meet. Images where
    either label is unknown do not count.

    Args:
        source: images with labels.
        count: at most so many pairs of either kind, strongest first.
    """
    targets = source.targets()  # [n, J]
    present, absent = (targets == 1).astype(np.float64), ((targets != 1) & (targets != UNKNOWN)).astype(np.float64)
    cells = (present.T @ present, absent.T @ absent, present.T @ absent, absent.T @ present)  # [J, J] each
    both, neither, first, second = (np.log(each + 0.5) for each in cells)
    return _strongest(both + neither - first - second, source.classes, count)


def _strongest(potentials: np.ndarray, classes: Sequence[str], count: int) -> tuple[Relation, ...]:
    """Return the pairs of classes with the highest and the lowest means of both directions, [J, J]."""
    both = (potentials + potentials.T) / 2
    first, second = np.triu_indices(len(classes), 1)
    order = np.argsort(-both[first, second], kind="stable")
    found = []
    for places, sign in ((order[:count], 1), (order[::-1][:count], -1)):
        for place in places:
            j, k = int(first[place]), int(second[place])
            if sign * both[j, k] > 0:
                pair = (classes[j], classes[k])
                found.append(Relation(pair, float(potentials[j, k]), float(potentials[k, j])))
    return tuple(found)


def draw_relations(
    relations: Sequence[Relation], title: str, of_labels: Sequence[Relation] = (), data: str = ""
) -> str:
    """Draw relations as an SVG file: those that attract on the left, those that exclude on the right.

    Args:
        relations: that a model has learned.
        title: of the drawing.
        of_labels: those of labels, to be drawn below.
        data: whose labels they are of; without it nothing is drawn below.
    """
    side, head = 640, 76
    rows = [(title, relations), *([(f"The same of labels alone: {data}", of_labels)] if data else [])]
    drawing = Drawing(2 * side, len(rows) * (side + head), f"Relations between classes: {title}")
    for row, (heading, drawn) in enumerate(rows):
        top = row * (side + head)
        drawing.write("title", 20, top + 32, heading)
        for place, (kind, sign, words) in enumerate(
            (
                ("attract", 1, "attract: where one is present, the other is more likely"),
                ("exclude", -1, "exclude: where one is present, the other is less likely"),
            )
        ):
            chosen = [each for each in drawn if sign * each.strength > 0]
            left = place * side
            most = f"the thickest line is {_signed(chosen[0].strength)} of a logit" if chosen else "none"
            drawing.write("note", left + 20, top + 58, f"{words}; {most}")
            _draw_circle(drawing, chosen, kind, (left + side / 2, top + head + side / 2), side / 2 - 132)
    return drawing.to_svg(_STYLE)


def _draw_circle(
    drawing: Drawing, relations: Sequence[Relation], kind: str, middle: tuple[float, float], radius: float
) -> None:
    """Draw classes on a circle and their relations as lines within, the stronger the thicker."""
    names = _side_by_side(relations)
    places = {name: 2 * math.pi * index / max(len(names), 1) - math.pi / 2 for index, name in enumerate(names)}
    most = max((abs(each.strength) for each in relations), default=1.0)

    def at(angle: float, distance: float) -> tuple[float, float]:
        return middle[0] + distance * math.cos(angle), middle[1] + distance * math.sin(angle)

    for each in reversed(relations):  # the strongest on top
        (x1, y1), (x2, y2) = (at(places[name], radius) for name in each.classes)
        share = abs(each.strength) / most
        one, other = each.classes
        tip = f"{one} → {other} {_signed(each.forward)}, {other} → {one} {_signed(each.backward)}"
        # Neighbours' lines bend least, so that they stay apart from those through the middle.
        across = math.hypot(x2 - x1, y2 - y1) / (2 * radius)
        bend = (1 - across) * 0.75
        x, y = ((x1 + x2) / 2, (y1 + y2) / 2)
        x, y = middle[0] + (x - middle[0]) * bend, middle[1] + (y - middle[1]) * bend
        drawing.add(
            "path",
            tip=tip,
            style_class=kind,
            d=f"M{x1:.1f} {y1:.1f}Q{x:.1f} {y:.1f} {x2:.1f} {y2:.1f}",
            stroke_width=1 + 4 * share,
            stroke_opacity=0.25 + 0.6 * share,
        )
    for name, angle in places.items():
        x, y = at(angle, radius)
        drawing.add("circle", cx=x, cy=y, r=3.0)
        x, y = at(angle, radius + 9)
        is_left = math.cos(angle) < -1e-9
        turn = math.degrees(angle) + (180 if is_left else 0)
        drawing.add(
            "text",
            shortened(name, _NAME_LENGTH),
            tip=name,
            text_anchor="end" if is_left else "start",
            dominant_baseline="central",
            transform=f"translate({x:.1f} {y:.1f}) rotate({turn:.1f})",
        )


def _side_by_side(relations: Sequence[Relation]) -> list[str]:
    """Return the classes in an order in which strongly related ones are neighbours.

    Each chain of relations is joined at the ends of its pieces, strongest first, as in single linkage.
    """
    chains: list[list[str]] = []
    for each in sorted(relations, key=lambda relation: -abs(relation.strength)):
        one, other = ([chain for chain in chains if name in chain] for name in each.classes)
        first = one[0] if one else [each.classes[0]]
        second = other[0] if other else [each.classes[1]]
        chains += ([] if one else [first]) + ([] if other else [second])
        if first is second:
            continue
        chains.remove(second)
        near_start = first.index(each.classes[0]) < len(first) / 2 and len(first) > 1
        if near_start:
            first.reverse()
        if second.index(each.classes[1]) >= len(second) / 2 and len(second) > 1:
            second.reverse()
        first.extend(second)
    return [name for chain in chains for name in chain]


def _signed(value: float) -> str:
    return signed(value, 1, factor=1)
