"""YAML as configurations use it: numbers such as 1e-3, and messages of one line that name the file."""

import re
from pathlib import Path
from typing import Any

import yaml

from contextcaps.plain_files import NotPlain, read_text

__all__ = ["dump_yaml", "is_file", "parse_yaml", "read_yaml"]


_MOST_DIGITS = 40  # of a number; longer ones take the square of their length, or are no numbers of the machine


class _WithoutAliases(yaml.parser.Parser, yaml.composer.Composer):
    """Refuses aliases (`*name`): a few lines of them stand for more values than there is memory for."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not read", self.peek_event().start_mark)
        return super().compose_node(parent, index)


class _Texts(_WithoutAliases, yaml.BaseLoader):
    """A loader that gives every value as the text that it is."""


class _Loader(_WithoutAliases, yaml.SafeLoader):
    """A loader that reads 1e-3 as a number; YAML 1.1 wants a point before the e, and takes it for text."""

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Return a number of a length that numbers have."""
        if len(node.value) > _MOST_DIGITS:
            problem = f"a number of {len(node.value)} digits"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        is_whole = node.tag == "tag:yaml.org,2002:int"
        number: int | float = self.construct_yaml_int(node) if is_whole else self.construct_yaml_float(node)
        return number


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_number)


class _Dumper(yaml.SafeDumper):
    """A dumper that writes what `_Loader` reads: the text "1e-3" in quotes."""


for _each in (_Loader, _Dumper):
    _each.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"), list("-+0123456789")
    )


def dump_yaml(value: Any, **options: Any) -> str:
    """Write plain values as YAML text; `options` are those of `yaml.dump`."""
    return yaml.dump(value, Dumper=_Dumper, **{"sort_keys": False, "allow_unicode": True, **options})


def parse_yaml(text: str, as_texts: bool = False) -> Any:
    """Return the value of YAML text; `as_texts`: with "no" and "1" as texts, rather than as false and a number.

    Raises:
        ValueError: it is no YAML; the message, of one line, has the place and the reason.
    """
    try:
        return yaml.load(text, _Texts if as_texts else _Loader)  # noqa: S506  # neither makes objects
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        why = getattr(error, "problem", None) or getattr(error, "reason", None) or "not to be read"
        raise ValueError(f"no valid YAML ({where}{' '.join(str(why).split())})") from None
    except RecursionError:
        raise ValueError("no valid YAML (nested too deeply)") from None
    except (ValueError, OverflowError) as error:  # such as a date that there is not
        raise ValueError(f"no valid YAML ({error})") from None


def read_yaml(source: str | Path) -> dict[str, Any]:
    """Read the fields and values of a YAML file (a `Path`, or a string that names one) or of YAML text."""
    name = source if is_file(source) else "YAML text"
    try:
        values = parse_yaml(read_text(Path(source)) if is_file(source) else str(source))
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 text (byte {error.start}); expected YAML") from None
    except NotPlain:
        raise
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{name}: expected fields and values, got {values!r}")
    return values


def is_file(source: str | Path) -> bool:
    """Return whether a source names a file, rather than being YAML text itself."""
    return isinstance(source, Path) or not ("\n" in source or ": " in source)
