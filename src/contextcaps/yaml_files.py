"""YAML as configurations use it: numbers such as 1e-3, and messages of one line that name the file."""

import re
from pathlib import Path
from typing import Any

import yaml

__all__ = ["dump_yaml", "is_file", "parse_yaml", "read_yaml"]


class _Loader(yaml.SafeLoader):
    """A loader that reads 1e-3 as a number; YAML 1.1 wants a point before the e, and takes it for text."""


class _Dumper(yaml.SafeDumper):
    """A dumper that writes what `_Loader` reads: the text "1e-3" in quotes."""


for _each in (_Loader, _Dumper):
    _each.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"), list("-+0123456789")
    )


def dump_yaml(value: Any, **options: Any) -> str:
    """Write plain values as YAML text; `options` are those of `yaml.dump`."""
    return yaml.dump(value, Dumper=_Dumper, **{"sort_keys": False, "allow_unicode": True, **options})


def parse_yaml(text: str) -> Any:
    """Return the value of YAML text.

    Raises:
        ValueError: it is no YAML; the message, of one line, has the place and the reason.
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
    """Read the fields and values of a YAML file (a `Path`, or a string that names one) or of YAML text."""
    name = source if is_file(source) else "YAML text"
    try:
        values = parse_yaml(Path(source).read_text(encoding="utf-8") if is_file(source) else str(source))
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 text (byte {error.start}); expected YAML") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{name}: expected fields and values, got {values!r}")
    return values


def is_file(source: str | Path) -> bool:
    """Return whether a source names a file, rather than being YAML text itself."""
    return isinstance(source, Path) or not ("\n" in source or ": " in source)
