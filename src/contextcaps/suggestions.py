"""Find the known word that a misspelt one stands for, for hints in error messages."""

import difflib
from collections.abc import Iterable
from pathlib import Path

__all__ = ["did_you_mean", "did_you_mean_run", "nearest", "there_is_no"]


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is spelt most like this one, whatever the case; None if none is.

    >>> nearest("Contextcap", ["capsnet", "contextcaps"]), nearest("zebra", ["sky", "sea"])
    ('contextcaps', None)
    """
    by_lower_case: dict[str, str] = {}
    for each in known:
        by_lower_case.setdefault(each.lower(), each)
    found = difflib.get_close_matches(word.lower(), by_lower_case, n=1)
    return by_lower_case[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the question whether the nearest known word was meant; an empty text if there is none.

    >>> did_you_mean("contextcap", ["capsnet", "contextcaps"])
    "did you mean 'contextcaps'?"
    """
    near = nearest(word, known)
    return "" if near is None else f"did you mean {near!r}?"


def there_is_no(word: str, known: Iterable[str]) -> str:
    """Say that a word is not known, which one may have been meant, and which are known.

    >>> there_is_no("capsnat", ["capsnet", "gap"])
    "there is no 'capsnat'; did you mean 'capsnet'? Known are capsnet, gap"
    >>> there_is_no("zebra", ["capsnet", "gap"])
    "there is no 'zebra'; known are capsnet, gap"
    """
    known = list(known)
    hint = did_you_mean(word, known)
    return f"there is no {word!r}; {f'{hint} Known' if hint else 'known'} are {', '.join(known)}"


def did_you_mean_run(path: Path) -> str:
    """Return the question whether a run's folder of a similar name was meant, beside this one or in runs/."""
    for parent in dict.fromkeys((path.parent, Path("runs"))):
        folders = {each.name: each for each in parent.iterdir() if each.is_dir()} if parent.is_dir() else {}
        near = nearest(path.name, folders)
        if near is not None:
            return f"did you mean {folders[near]}?"
    return ""
