"""Open any source by its name, "KIND:LOCATION?option=value"."""

import glob
import importlib
import inspect
import os
import typing
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contextcaps.data.layouts import likely_kind
from contextcaps.data.problems import BadSamples, DataError, OnBad
from contextcaps.data.source import Source
from contextcaps.data.sources import SOURCES
from contextcaps.suggestions import did_you_mean

__all__ = ["absolute_source", "missing_place", "open_source", "register_source", "source_kinds"]

_PLACES = ("root", "images", "classes")
"""Options that lead to a file or a folder."""
_registered: dict[str, type[Source]] = {}
"""Kind → class of the sources that other packages have registered."""


def register_source(kind: str) -> Callable[[type[Source]], type[Source]]:
    """Decorate a class of another package so that `open_source("KIND:LOCATION", option=…)` opens it."""

    def register(source_class: type[Source]) -> type[Source]:
        _registered[kind] = source_class
        return source_class

    return register


def source_kinds() -> list[str]:
    """Return the kinds of source that `open_source` knows."""
    return list(dict.fromkeys([*SOURCES, *_registered]))


def open_source(spec: str, *, on_bad: OnBad = "stop", **options: Any) -> Source:
    """Open a source by name: "KIND:LOCATION", with options as arguments or as "?option=value&option=value" at the end.

    Args:
        spec: "scenes", "ade20k:PATH", "coco:PATH", "voc:PATH", "yolo:PATH", "folders:PATH", "metadata:PATH",
            "table:FILE", "shards:PATTERN", "mnist:PATH", "multimnist:PATH" or "hf:NAME". A "~" at the beginning of the
            location is the user's home folder.
        on_bad: "stop" at bad data, or "skip" it.
        options: options of the kind, such as `split="train"`.
    """
    if not isinstance(spec, str):
        raise TypeError(f"spec: expected the name of a source, such as 'coco:PATH', got {spec!r}")
    kind, location, query = _taken_apart(spec)
    is_path = ":" not in spec and kind != "scenes" and Path(spec).exists()  # such as a folder called coco
    if is_path or kind not in source_kinds():
        known = ", ".join(source_kinds())
        likely = likely_kind(Path(spec))
        if likely is not None:
            raise DataError(f"{spec}: expected KIND:LOCATION; {likely}")
        found = "; nothing there looks like one of them" if Path(spec).is_dir() and spec else ""
        if not found and (near := did_you_mean(kind, source_kinds())):
            found = f"; {near}"
        raise DataError(f"{spec}: expected KIND:LOCATION with one of {known}{found}")
    if location.startswith("~"):
        location = os.path.expanduser(location)
    source_class = _source_class(kind)
    allowed = inspect.signature(source_class).parameters
    written = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
    for option in (*written, *options):
        if option not in allowed or option in ("location", "on_bad"):
            offered = ", ".join(name for name in allowed if name not in ("location", "on_bad"))
            hint = did_you_mean(option, offered.split(", ")) or f"it has {offered or 'none'}"
            raise DataError(f"{spec}: {kind} has no option {option!r}; {hint}")
    for option, value in options.items():
        _require_type(option, value, allowed[option])
    converted = {option: _convert(spec, option, text, allowed[option]) for option, text in written.items()}
    try:
        return source_class(location, on_bad=on_bad, **{**converted, **options})
    except BadSamples:
        raise
    except DataError as error:
        likely = likely_kind(Path(location)) if location else None
        if likely is None or likely.spec == f"{kind}:{location}":
            raise
        raise DataError(f"{error}; {likely}") from None


def absolute_source(spec: str) -> str:
    """Return a source's name with its places made absolute, so that it holds from any working directory.

    Names that are no places stay as they are: of data sets on a hub, of drawn scenes, of kinds of other packages.
    """
    kind, location, query = _taken_apart(spec)
    if not _is_place(kind, location):
        return spec
    options = []
    for option in query.split("&") if query else ():
        name, _, value = option.partition("=")
        place = urllib.parse.unquote_plus(value)
        is_place = name in _PLACES and os.path.exists(place)
        options.append(f"{name}={urllib.parse.quote(os.path.abspath(place))}" if is_place else option)
    return f"{kind}:{os.path.abspath(os.path.expanduser(location))}" + (f"?{'&'.join(options)}" if options else "")


def missing_place(spec: str) -> str | None:
    """Return the file or folder that a source's name leads to, if it is not there; None otherwise."""
    kind, location, _ = _taken_apart(spec)
    if not _is_place(kind, location) or glob.has_magic(location) or os.path.exists(os.path.expanduser(location)):
        return None
    return location


def _taken_apart(spec: str) -> tuple[str, str, str]:
    """Return kind, location and options."""
    kind, _, rest = spec.partition(":")
    if "?" in kind:  # a kind without a location, such as "scenes?count=100"
        kind, _, query = spec.partition("?")
        rest = f"?{query}"
    location, _, query = rest.partition("?") if _has_options(rest) else (rest, "", "")
    return kind, location, query


def _is_place(kind: str, location: str) -> bool:
    """Return whether a location is a file, a folder or a pattern, rather than a name on a hub."""
    if kind not in SOURCES or not location:
        return False
    return kind != "hf" or os.path.isabs(location) or os.path.exists(os.path.expanduser(location))


def _source_class(kind: str) -> Callable[..., Source]:
    if kind in _registered:
        return _registered[kind]
    module, _, name = SOURCES[kind].partition(".")
    return getattr(importlib.import_module(f"contextcaps.data.sources.{module}"), name)


def _convert(spec: str, option: str, text: str, parameter: inspect.Parameter) -> Any:
    """Convert an option written in a source's name to the type that the parameter's annotation asks for."""
    kinds = typing.get_args(parameter.annotation) or (parameter.annotation,)
    if bool in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    if str not in kinds and not all(isinstance(kind, str) for kind in kinds):  # a Literal's choices are strings
        expected = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds if kind is not type(None))
        raise DataError(f"{spec}: option {option}: expected {expected}, got {text!r}")
    return text


def _require_type(option: str, value: Any, parameter: inspect.Parameter) -> None:
    """Raise unless an option that is a text or a truth value has one; sources check numbers and choices themselves."""
    kinds = typing.get_args(parameter.annotation) or (parameter.annotation,)
    if not set(kinds) <= {str, bool, type(None)}:
        return
    places = (os.PathLike,) if str in kinds else ()  # a place may be a path
    if not isinstance(value, (*kinds, *places)):
        expected = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
        raise TypeError(f"{option}: expected {expected}, got {value!r}")


def _has_options(rest: str) -> bool:
    """Return whether a question mark begins options; in a file pattern such as train-?.tar it does not."""
    return "=" in rest.rpartition("?")[2] and "?" in rest
