"""Configurations: frozen dataclasses with checked values, the same object in Python, YAML and on the command line."""

import dataclasses
import math
import reprlib
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from contextcaps.suggestions import nearest
from contextcaps.yaml_files import dump_yaml, is_file, read_yaml

__all__ = ["Configuration"]

Own = TypeVar("Own", bound="Configuration")

_MOST = 2**63 - 1  # of a whole number, whatever it is for: larger ones are no floats, and text not always

_MOST_LETTERS = 4096  # of a name, which may be a path

_shown = reprlib.Repr()
"""Shows values in messages: whole, but for those that are too long to be read."""
_shown.maxstring = _shown.maxother = 400
_shown.maxlist = _shown.maxtuple = _shown.maxdict = 20


@dataclasses.dataclass(frozen=True)
class Configuration:
    """Base of all configurations. A subclass calls `_settle_kinds` in `__post_init__`, before it checks values.

    A field whose type is a configuration of its own, or that or None, is a section.
    """

    _title: ClassVar[str] = "a configuration"
    """Its name in messages."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values that JSON and YAML can hold."""
        return {name: _plain(value) for name, value in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls: type[Own], *layers: Mapping[str, Any]) -> Own:
        """Build the configuration from plain values; each layer overrides those before it.

        A section is given as fields and values, which add it where it is not there and leave its other fields as they
        are; as "default", for a section of nothing but defaults; or, where it may be missing, as "none" or None. A
        dotted name such as `crf.rank` sets one field of a section that is there, whatever the order of the names.

        Raises:
            ValueError: a name is unknown (the nearest known one is named), its section is not there, or a value is not
                as it should be; the message begins with the dotted name.
        """
        values = _values_of(cls)
        for layer in layers:
            _require_known_names(cls, layer)
            cls._merge(values, layer)
        return cls._build(values)

    @classmethod
    def _merge(cls, values: dict[str, Any], layer: Mapping[str, Any]) -> None:
        """Put a layer into the nested values of this configuration."""
        sections, kinds = _sections(cls), typing.get_type_hints(cls)
        for name in sorted(layer, key=lambda name: "." in name):  # a section comes before what is set in it
            value, (first, dot, rest) = layer[name], name.partition(".")
            if first not in sections:
                values[name] = None if value == "none" and _may_be_none(kinds[name]) else value
                continue
            section = sections[first]
            if dot:
                if values.get(first) is None:
                    missing = section._title.removeprefix("the ")
                    raise ValueError(f"{name}: {cls._owner(values)} has no {missing}; add it with {first}=default")
                section._merge(values[first], {rest: value})
            elif isinstance(value, section):
                values[first] = _values_of(value)
            elif isinstance(value, Mapping):
                if values.get(first) is None:
                    values[first] = _values_of(section)
                section._merge(values[first], value)
            elif value == "default":
                values[first] = _values_of(section)
            elif value in (None, "none") and _may_be_none(kinds[first]):
                values[first] = None
            else:
                none = ", none" if _may_be_none(kinds[first]) else ""
                raise ValueError(f"{name}: expected fields and values{none} or default, got {_shown.repr(value)}")

    @classmethod
    def _owner(cls, values: dict[str, Any]) -> str:
        """Return what misses a section, for messages."""
        return cls._title

    @classmethod
    def _build(cls: type[Own], values: dict[str, Any]) -> Own:
        """Build the configuration from nested values, in which nothing is missing but fields without a default."""
        built = dict(values)
        for name, section in _sections(cls).items():
            if built[name] is not None:
                try:
                    built[name] = section._build(built[name])
                except ValueError as error:
                    raise ValueError(f"{name}.{error}") from None
        for name, kind in typing.get_type_hints(cls).items():
            if name not in built and typing.get_origin(kind) is not ClassVar:
                raise ValueError(f"{name}: expected {_spell(kind)}, got none")
        return cls(**built)

    def to_yaml(self, path: str | Path | None = None) -> str:
        """Return the configuration as YAML text; write it to `path` if one is given."""
        text = dump_yaml(self.to_dict())
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    @classmethod
    def from_yaml(cls: type[Own], source: str | Path) -> Own:
        """Read the configuration from a YAML file (a `Path`, or a string that names one) or from YAML text.

        Raises:
            ValueError: it is no YAML, or a value is not as it should be; the message begins with the file.
        """
        values = read_yaml(source)
        try:
            return cls.from_dict(values)
        except ValueError as error:
            raise ValueError(f"{source}: {error}" if is_file(source) else str(error)) from None

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _require_at_least(self, **bounds: int) -> None:
        """Refuse a whole number below its bound."""
        for name, bound in bounds.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ValueError(f"{name}: expected a whole number of at least {bound}, got {value}")

    def _require_at_most(self, **bounds: int) -> None:
        """Refuse a whole number above its bound: no file may ask for time or memory without end."""
        for name, bound in bounds.items():
            value = getattr(self, name)
            if value is not None and value > bound:
                raise ValueError(f"{name}: expected a whole number of at most {bound:,}, got {value:,}")

    def _settle_kinds(self) -> None:
        """Turn lists into tuples; refuse a value that is not of its field's type or not one of its choices."""
        for name, kind in typing.get_type_hints(type(self)).items():
            if typing.get_origin(kind) is ClassVar:
                continue
            if isinstance(getattr(self, name), list):
                self._set(**{name: tuple(getattr(self, name))})
            value = getattr(self, name)
            alternatives = typing.get_args(kind) if _is_union(kind) else (kind,)
            if not any(_fits(value, alternative) for alternative in alternatives):
                raise ValueError(f"{name}: expected {_spell(kind)}, got {_shown.repr(value)}")


def _sections(kind: type[Configuration]) -> dict[str, type[Configuration]]:
    """Return the fields that are configurations of their own, with their classes."""
    found = {}
    for name, hint in typing.get_type_hints(kind).items():
        for part in typing.get_args(hint) if _is_union(hint) else (hint,):
            if isinstance(part, type) and issubclass(part, Configuration):
                found[name] = part
    return found


def _values_of(source: Configuration | type[Configuration]) -> dict[str, Any]:
    """Return the nested values of a configuration, or the defaults of one; fields without a default are left out."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(source):
        if not isinstance(source, type):
            value = getattr(source, field.name)
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        elif field.default is not dataclasses.MISSING:
            value = field.default
        else:
            continue
        found[field.name] = _values_of(value) if isinstance(value, Configuration) else value
    return found


def _names_of(kind: type[Configuration]) -> list[str]:
    """Return all names that can be set: fields, and dotted those of sections."""
    sections, names = _sections(kind), []
    for field in dataclasses.fields(kind):
        names.append(field.name)
        if field.name in sections:
            names += [f"{field.name}.{inner}" for inner in _names_of(sections[field.name])]
    return names


def _names_in(kind: type[Configuration], layer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names that a layer sets, dotted where it is nested."""
    sections = _sections(kind)
    for name, value in layer.items():
        if name in sections and isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in _names_in(sections[name], value))
        else:
            yield str(name)


def _require_known_names(kind: type[Configuration], layer: Mapping[str, Any]) -> None:
    known, sections = _names_of(kind), _sections(kind)
    for name in _names_in(kind, layer):
        if name in known:
            continue
        section = name.rpartition(".")[0]
        owner = sections.get(section, kind)
        near = _nearest(name, known)
        fields = [name for name in known if name.rpartition(".")[0] == (section if section in sections else "")]
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known are {', '.join(fields)}"
        raise ValueError(f"{name}: no such field of {owner._title}; {hint}")


def _nearest(name: str, known: list[str]) -> list[str]:
    """Return the known names that a wrong one may stand for: the same field elsewhere, or one spelt nearly so."""
    section, _, field = name.rpartition(".")
    same = [each for each in known if each.endswith(f".{field}")]
    inside = [each for each in known if section and each.startswith(f"{section}.")]
    whole = None if inside else nearest(name, known)
    fields = {each: each.rpartition(".")[2] for each in inside or known}
    alike = nearest(field, fields.values())
    return same or ([] if whole is None else [whole]) or [each for each in fields if fields[each] == alike]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return str(value) if isinstance(value, Path) else value


def _may_be_none(kind: Any) -> bool:
    """Return whether "none" stands for None in a field of this type, rather than for a text."""
    return _is_union(kind) and type(None) in typing.get_args(kind) and str not in typing.get_args(kind)


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def _fits(value: Any, kind: Any) -> bool:
    origin = typing.get_origin(kind)
    if origin is Literal:
        return value in typing.get_args(kind)
    if origin is dict:
        return isinstance(value, dict)
    if origin is tuple:
        inner = typing.get_args(kind)
        return (
            isinstance(value, tuple)
            and (inner[-1] is Ellipsis or len(value) == len(inner))
            and all(_fits(item, inner[0]) for item in value)
        )
    if (isinstance(value, int) and abs(value) > _MOST) or (isinstance(value, str) and len(value) > _MOST_LETTERS):
        return False
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def _spell(kind: Any) -> str:
    """Spell a type in plain words."""
    if _is_union(kind):
        return " or ".join("none" if part is type(None) else _spell(part) for part in typing.get_args(kind))
    origin = typing.get_origin(kind)
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(kind))
    if origin is dict:
        return "names and values"
    if origin is tuple:
        inner = typing.get_args(kind)
        plural = {int: "whole numbers", float: "numbers", str: "names"}[inner[0]]
        return f"a list of {plural}" if inner[-1] is Ellipsis else f"{len(inner)} {plural}"
    if dataclasses.is_dataclass(kind):
        return "fields and values"
    spelled = {int: "a whole number", float: "a number", str: "a name", bool: "true or false"}
    return spelled.get(kind, str(kind))
