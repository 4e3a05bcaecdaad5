"""Convert labels that somebody knows, from text or names, to the network's input."""

import math
import re
from collections.abc import Mapping

import numpy as np

from contextcaps.suggestions import did_you_mean

__all__ = ["known_row", "parse_classes", "parse_known", "place_of_class", "spell_known"]

_YES, _NO = ("yes", "true", "1", "present"), ("no", "false", "0", "absent")
_ANSWER = re.compile(rf"[\s,]*([^\s,].*?)\s*=\s*({'|'.join((*_YES, *_NO))})\s*(?:,|$)", re.IGNORECASE)


def parse_known(text: str) -> dict[str, bool]:
    """Parse text such as "oven=yes,bed=no" to class → whether it is present; a class's name may have a comma in it.

    >>> parse_known("oven=yes, bed=no, chair, folding=yes")
    {'oven': True, 'bed': False, 'chair, folding': True}
    """
    text = text.strip(", \t\n")
    found: dict[str, bool] = {}
    place = 0
    while place < len(text):
        match = _ANSWER.match(text, place)
        if match is None:
            raise ValueError(f"known: expected CLASS=yes or CLASS=no with commas between them, got {text[place:]!r}")
        name, present = match[1], match[2].lower() in _YES
        if found.setdefault(name, present) != present:
            raise ValueError(f"known: {name!r} is said to be present and absent")
        place = match.end()
    if not found:
        raise ValueError('known: expected CLASS=yes or CLASS=no, such as "oven=yes,bed=no", got nothing')
    return found


def parse_classes(text: str, classes: tuple[str, ...]) -> list[str]:
    """Parse names of classes with commas between them; a class's name may have a comma in it.

    >>> parse_classes("bed, chair, folding,zebra", ("bed", "chair, folding"))
    ['bed', 'chair, folding', 'zebra']
    """
    pieces, found, place = text.split(","), [], 0
    while place < len(pieces):
        # The longest run of pieces that is a class; otherwise the piece alone, to be refused by its name.
        ends = range(len(pieces), place, -1)
        end = next((end for end in ends if ",".join(pieces[place:end]).strip() in classes), place + 1)
        found.append(",".join(pieces[place:end]).strip())
        place = end
    return [name for name in found if name]


def spell_known(known: Mapping[str, bool]) -> str:
    """Write known labels as `parse_known` reads them.

    >>> spell_known({"oven": True, "bed": False})
    'oven=yes, bed=no'
    """
    return ", ".join(f"{name}={'yes' if present else 'no'}" for name, present in known.items())


def known_row(known: Mapping[str, bool], classes: tuple[str, ...]) -> np.ndarray:
    """Check known labels and return them as the network takes them, [J]: 1 present, 0 absent, NaN not known."""
    row = np.full(len(classes), math.nan, dtype=np.float32)
    for name, present in known.items():
        place = place_of_class(name, classes, "known")
        if not isinstance(present, bool):
            raise ValueError(f"known: {name}: expected True or False, got {present!r}")
        row[place] = float(present)
    return row


def place_of_class(name: str, classes: tuple[str, ...], argument: str) -> int:
    """Return a class's place among the model's; refuse one that the model does not have, as an argument names it."""
    if name not in classes:
        some = ", ".join(classes[:8]) + (", …" if len(classes) > 8 else "")
        hint = did_you_mean(str(name), classes) or f"it knows {some}"
        raise ValueError(f"{argument}: the model has no class {name!r}; {hint}")
    return classes.index(name)
