"""Configurations: frozen dataclasses with checked values, the same object in Python, YAML and on the command line."""

import dataclasses
import difflib
import math
import re
import types
import typing
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import yaml

__all__ = ["Configuration", "dump_yaml", "parse_yaml", "read_yaml"]

Own = TypeVar("Own", bound="Configuration")


@dataclasses.dataclass(frozen=True)
class Configuration:
    """Base of all configurations. A subclass calls `_settle_kinds` in `__post_init__`, before it checks values."""

    _title: ClassVar[str] = "a configuration"
    """What it is called in messages."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values that JSON and YAML can hold."""
        return {name: _plain(value) for name, value in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls: type[Own], values: dict[str, Any]) -> Own:
        """The configuration from plain values; an unknown field is refused, with the nearest known one named.

        A field that is a configuration of its own is made from its plain values in the same way.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name in values:
            if name not in fields:
                near = difflib.get_close_matches(str(name), fields, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(fields)}"
                raise ValueError(f"{name}: no such field of {cls._title}; {hint}")
        for name, field in fields.items():
            if name not in values and field.default is field.default_factory is dataclasses.MISSING:
                raise ValueError(f"{name}: expected {_spell(typing.get_type_hints(cls)[name])}, got none")
        settled = dict(values)
        for name, kind in typing.get_type_hints(cls).items():
            if isinstance(kind, type) and issubclass(kind, Configuration) and isinstance(values.get(name), dict):
                try:
                    settled[name] = kind.from_dict(values[name])
                except ValueError as error:
                    raise ValueError(f"{name}.{error}") from None
        return cls(**settled)

    def to_yaml(self, path: str | Path | None = None) -> str:
        """The configuration as YAML text; written to `path` if one is given."""
        text = dump_yaml(self.to_dict())
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    @classmethod
    def from_yaml(cls: type[Own], source: str | Path) -> Own:
        """The configuration from a YAML file (a `Path`, or a string that names one) or from YAML text.

        Raises:
            ValueError: it is no YAML, or a value is not as it should be; the message begins with the file.
        """
        values = read_yaml(source)
        try:
            return cls.from_dict(values)
        except ValueError as error:
            raise ValueError(f"{source}: {error}" if _is_file(source) else str(error)) from None

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

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
                raise ValueError(f"{name}: expected {_spell(kind)}, got {value!r}")


class _Loader(yaml.SafeLoader):
    """Reads 1e-3 as a number, as everybody writes it; YAML 1.1 wants a point before the e, and takes it for text."""


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads: the text "1e-3" in quotes."""


for _each in (_Loader, _Dumper):
    _each.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"), list("-+0123456789")
    )


def dump_yaml(value: Any, **options: Any) -> str:
    """Plain values as YAML text; `options` are those of `yaml.dump`."""
    return yaml.dump(value, Dumper=_Dumper, **{"sort_keys": False, "allow_unicode": True, **options})


def parse_yaml(text: str) -> Any:
    """The value of YAML text.

    Raises:
        ValueError: it is no YAML; the message, of one line, says where and why.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        why = getattr(error, "problem", None) or getattr(error, "reason", None) or "not to be read"
        raise ValueError(f"no valid YAML ({where}{' '.join(str(why).split())})") from None
    except (ValueError, RecursionError) as error:  # such as a date that there is not
        raise ValueError(f"no valid YAML ({error})") from None


def read_yaml(source: str | Path) -> dict[str, Any]:
    """Fields and values of a YAML file (a `Path`, or a string that names one) or of YAML text."""
    name = source if _is_file(source) else "YAML text"
    try:
        values = parse_yaml(Path(source).read_text(encoding="utf-8") if _is_file(source) else str(source))
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 text (byte {error.start}); expected YAML") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{name}: expected fields and values, got {values!r}")
    return values


def _is_file(source: str | Path) -> bool:
    return isinstance(source, Path) or not ("\n" in source or ": " in source)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return str(value) if isinstance(value, Path) else value


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
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def _spell(kind: Any) -> str:
    """A type as a person would say it."""
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
