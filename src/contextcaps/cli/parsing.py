"""Words of the command line into a command; wrong words into one line that says what is wrong.

tyro describes a mistake as an event with fields, in its module `_errors`, which it calls unstable. Where that module is
missing or has changed, tyro's own message is shown, which says the same in a box of several lines.
"""

import contextlib
import dataclasses
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import tyro

from contextcaps.cli.command import Command, values_of
from contextcaps.suggestions import nearest

__all__ = ["did_you_mean", "flags_of", "parse", "pointing_at_help"]

_USUAL: dict[str, tuple[str, ...]] = {
    "--gpu": ("--accelerator gpu", "--device cuda"),
    "--cuda": ("--accelerator gpu", "--device cuda"),
    "--cpu": ("--accelerator cpu", "--device cpu"),
    "--device": ("--accelerator",),
    "--accelerator": ("--device",),
    "--gpus": ("--devices",),
    "--num-gpus": ("--devices",),
    "--learning-rate": ("--lr",),
    "--wd": ("--weight-decay",),
    "--bs": ("--batch-size",),
    "-b": ("--batch-size",),
    "--num-workers": ("--workers",),
    "--threads": ("--workers",),
    "--num-epochs": ("--epochs",),
    "--max-epochs": ("--epochs",),
    "-e": ("--epochs",),
    "--size": ("--image-size",),
    "--img-size": ("--image-size",),
    "--imgsz": ("--image-size",),
    "--resolution": ("--image-size",),
    "--input-size": ("--image-size",),
    "--arch": ("--model",),
    "--network": ("--model",),
    "--preset": ("--model",),
    "-m": ("--model",),
    "--dataset": ("--data",),
    "--source": ("--data",),
    "-d": ("--data",),
    "--validation": ("--val-data",),
    "--output": ("--out",),
    "--output-dir": ("--out",),
    "--save-dir": ("--out",),
    "-o": ("--out",),
    "--option": ("--set",),
    "--options": ("--set",),
    "--amp": ("--precision bf16",),
    "--fp16": ("--precision fp16",),
    "--bf16": ("--precision bf16",),
    "--patience": ("--early-stop",),
    "--top": ("--top-k",),
    "--topk": ("--top-k",),
    "--conf": ("--threshold",),
    "--pretrained": ("--backbone lite0",),
    "-q": ("--quiet",),
    "help": ("--help",),
    "version": ("--version",),
    "fit": ("train",),
    "predict": ("tag",),
    "infer": ("tag",),
    "label": ("tag",),
    "test": ("evaluate",),
    "validate": ("evaluate",),
    "compare": ("ablate",),
    "inspect": ("data inspect",),
    "prepare": ("data prepare",),
    "convert": ("data convert",),
}
"""Command or flag of other programs → ours for the same, the first that is known."""

Known = TypeVar("Known", bound=Command)


def parse(command: type[Known], words: Sequence[str], program: str) -> Known:
    """Return the command that the words ask for; --help prints its page and exits.

    Raises:
        ValueError: the words are wrong; the message, of one line, says how.
    """

    def refuse(event: Any) -> None:
        with contextlib.suppress(AttributeError):  # an event of another version: tyro prints it
            said = _explain(event, command, words)
            if said is not None:
                raise ValueError(pointing_at_help(said, program))

    defaults = command.defaults(words)
    with _on_mistake(refuse):
        if defaults is None:
            return tyro.cli(command, prog=program, args=words)
        return tyro.cli(command, prog=program, args=words, default=defaults)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint at the known word that was meant, or an empty one.

    >>> did_you_mean("--epoch", ["--lr", "--epochs"]), did_you_mean("--gpu", ["--lr", "--accelerator"])
    ('did you mean --epochs?', 'did you mean --accelerator gpu?')
    """
    known = list(known)
    usual = [each for each in _USUAL.get(word.replace("_", "-"), ()) if {each, each.partition(" ")[0]} & set(known)]
    near = next(iter(usual), None) or nearest(word, known)
    return f"did you mean {near}?" if near else ""


def pointing_at_help(message: str, program: str) -> str:
    """Return the message with a pointer at the page that has the right words."""
    return f"{message} See {program} --help" if message.endswith("?") else f"{message}; see {program} --help"


def flags_of(kind: type, prefix: str = "--") -> Iterator[str]:
    """Yield the flags of a command: the fields of its dataclass, and with a prefix those of dataclasses in it."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        bare, *extras = typing.get_args(hints[field.name]) if _is_annotated(hints[field.name]) else [hints[field.name]]
        given = next((extra.name for extra in extras if getattr(extra, "name", None) is not None), None)
        flag = prefix + (field.name.replace("_", "-") if given is None else given)
        if dataclasses.is_dataclass(bare):
            yield from flags_of(typing.cast(type, bare), prefix if given == "" else f"{flag}.")
        elif tyro.conf.Positional not in extras and tyro.conf.Suppress not in extras:
            yield flag
            if bare is bool and tyro.conf.FlagCreatePairsOff not in extras:
                yield f"{prefix}no-{flag.removeprefix(prefix)}"


def _is_annotated(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Annotated


def _on_mistake(refuse: Callable[[Any], None]) -> AbstractContextManager[None]:
    """Have tyro call `refuse` with the event of a mistake before it prints it, where it offers that."""
    try:
        from tyro._errors import on_parse_error
    except ImportError:
        return contextlib.nullcontext()
    return on_parse_error(refuse)


def _explain(event: Any, command: type[Command], words: Sequence[str]) -> str | None:
    """Say in one line what is wrong; None for a kind of mistake that is not known here."""
    kind = type(event).__name__
    unknown = getattr(event, "tokens", ()) or getattr(event, "unrecognized_tokens", ())
    if unknown:  # first, as a misspelt flag may be what is missing
        word = unknown[0].partition("=")[0]
        if not word.startswith("-"):
            flag = next((each for each in flags_of(command) if each == "--data"), None)
            return f"{word}: one word too many" + (f"; did you mean {flag} {word}?" if flag else "")
        hint = did_you_mean(word, flags_of(command))
        return f"{word}: no such flag; {hint}" if hint else f"{word}: no such flag"
    if kind == "MissingArgs":
        return f"missing: {', '.join(_name(each.arg, with_value=True) for each in event.missing_arguments)}"
    if kind == "BadValue":
        return f"{_name(event.argument)}: expected {event.argument.lowered.metavar} after it"
    if kind == "InvalidChoice":
        return f"{_name(event.argument)}: expected {event.argument.lowered.metavar}, got {event.value!r}"
    if kind == "InstantiationFailure":
        if event.argument is None:
            return str(event.message)
        name = _name(event.argument)
        extras = typing.get_args(event.argument.field.type)[1:]
        if any(isinstance(extra, tyro.constructors.PrimitiveConstructorSpec) for extra in extras):
            return f"{name}: {event.message}"  # of our own reading of the words
        given = " ".join(values_of(name, words))
        return f"{name}: expected {event.argument.lowered.metavar}, got {given!r}"
    return None


def _name(argument: Any, with_value: bool = False) -> str:
    """Return what the user knows an argument by: its flag, or what stands for it in the help."""
    if argument.is_positional():
        return str(argument.lowered.metavar)
    flag = argument.lowered.name_or_flags[0]
    return f"{flag} {argument.lowered.metavar}" if with_value else flag
