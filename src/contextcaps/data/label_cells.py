"""Read the labels in cells of text: names with a separator between them, or lists as Python and JSON write them.

What separates the names is found from all cells together. A comma or a space may also be part of a name ("building,
edifice", "traffic light"). Then the parts of a name keep to each other, while labels meet others in other cells.
"""

import ast
import re
from collections import Counter
from collections.abc import Sequence

from contextcaps.data.problems import DataError
from contextcaps.data.vocabulary import folded

__all__ = ["LabelCells", "parts_recur"]

_SEPARATORS = (";", "|", ",", "\n", "\t")
"""What may stand between labels, the most usual first."""
_LEAST_SHARE = 0.2
"""A separator in fewer cells than this share of the most frequent one's is taken for a slip."""
_BRACKETS = ("[]", "()", "{}")
_QUOTED = r"(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
_LIST = re.compile(rf"\s*(?:{_QUOTED}(?:[\s,]+{_QUOTED})*\s*,?)?\s*", re.DOTALL)  # NumPy writes lists without commas
_CHOICES = re.compile(r'\{\s*"choices"\s*:\s*(\[.*\])\s*\}', re.DOTALL)  # as Label Studio writes several labels
_ITEM = re.compile(_QUOTED, re.DOTALL)


class LabelCells:
    """Splits the cells of one column into labels.

    Args:
        texts: the cells, for finding the separator; empty ones say nothing.
        separator: what stands between labels, " " for any white space; None finds it.
        given: names of the classes, if a list is given: the separator is then the one that gives most of them.
    """

    def __init__(self, texts: Sequence[str], separator: str | None, given: Sequence[str] | None = None) -> None:
        texts = [text for text in texts if text]
        separator = {r"\t": "\t", r"\n": "\n"}.get(separator or "", separator)  # as a command line has them
        self.assumptions: list[str] = []
        """What was assumed about the cells, in sentences."""
        is_list = [_in_brackets(text) for text in texts]
        has_choices = any(_CHOICES.fullmatch(text) for text in texts)
        self._lists = separator is None and (has_choices or (bool(texts) and all(is_list)))
        if self._lists:
            self.assumptions.append(f"labels are read as lists, such as {_short(texts[0])}")
        self.separator = separator or (";" if self._lists else self._found(texts, given))
        if separator is not None and separator not in " " and texts and not any(separator in text for text in texts):
            self.assumptions.append(f"no cell contains the separator {_named(separator)}")

    def split(self, text: str) -> list[str]:
        """Return the labels in a cell; raise `DataError` for a list that is none of names."""
        if self._lists and text:
            if not _in_brackets(text):
                return [text]
            choices = _CHOICES.fullmatch(text)
            inner = (choices[1] if choices else text)[1:-1]
            if _LIST.fullmatch(inner):
                return [name for item in _ITEM.findall(inner) if (name := str(ast.literal_eval(item)).strip())]
            if any(sign in inner for sign in "'\"[](){}:"):
                raise DataError(f"expected a list of names such as ['cat', 'dog'], got {_short(text)}")
            return _split(inner, ",")
        return [_unquoted(part) for part in _split(text, self.separator) if _unquoted(part)]

    def _found(self, texts: Sequence[str], given: Sequence[str] | None) -> str:
        """Return the separator of these cells, and note it unless it is the usual one."""
        counts = {sign: sum(sign in text for text in texts) for sign in (*_SEPARATORS, " ")}
        if given is not None:
            known = {folded(name) for name in given}
            right = {sign: sum(_all_known(_split(text, sign), known) for text in texts) for sign in counts}
            # Cells without any separator are read the same way by all.
            found = max(counts, key=lambda sign: (right[sign], sign == ";"))
        else:
            if counts[","] and _is_within_names(texts):
                example = next(text for text in texts if "," in text)
                self.assumptions.append(
                    f"commas are taken as part of the names, such as {_short(example)}; separator=, divides at them"
                )
                counts[","] = 0
            most = max(counts[sign] for sign in _SEPARATORS)
            frequent = (sign for sign in _SEPARATORS if counts[sign] and counts[sign] >= _LEAST_SHARE * most)
            found = next(frequent, " " if parts_recur(set(texts), " ") else ";")
        if found != ";" and counts[found]:
            self.assumptions.append(
                f"labels are separated by {_named(found)}, which {counts[found]:,} of {len(texts):,} cells contain; "
                "separator=… says otherwise"
            )
        return found


def parts_recur(names: set[str], separator: str) -> bool:
    """Return whether texts look like several labels each, since the same parts are found in many of them.

    For a space the signs have to be strong: many names consist of two words, and share some ("baseball bat").
    """
    joined = [parts for name in names if len(parts := _split(name, separator)) > 1]
    if not joined:
        return False
    everywhere = Counter(part for name in names for part in dict.fromkeys(_split(name, separator)))
    if separator == " ":
        long = sum(len(parts) > 2 for parts in joined)
        return 5 * long >= len(joined) and 4 * len(everywhere) <= everywhere.total()
    shared = sum(any(everywhere[part] > 1 for part in parts) for parts in joined)
    return 2 * shared > len(joined)


def _is_within_names(texts: Sequence[str]) -> bool:
    """Return whether commas are part of names: the same few texts with them come again, but their parts do not."""
    joined = [text for text in texts if "," in text]
    distinct = set(joined)
    return len(distinct) >= 5 and len(joined) >= 2 * len(distinct) and not parts_recur(set(texts), ",")


def _all_known(parts: Sequence[str], known: set[str]) -> bool:
    return all(folded(part) in known for part in parts)


def _split(text: str, separator: str) -> list[str]:
    parts = text.split(None if separator == " " else separator)
    return [stripped for part in parts if (stripped := part.strip())]


def _unquoted(part: str) -> str:
    is_quoted = len(part) > 1 and part[0] == part[-1] and part[0] in "'\""
    return part[1:-1].strip() if is_quoted else part


def _in_brackets(text: str) -> bool:
    return text[0] + text[-1] in _BRACKETS


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")


def _named(separator: str) -> str:
    return {" ": "white space", "\n": "line breaks", "\t": "tabs"}.get(separator, repr(separator))
