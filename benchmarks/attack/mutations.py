"""Change whole files: bytes of any, values of those that hold some, and what stands in the place of a file."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

__all__ = ["VALUES", "mutated", "put_elsewhere", "with_a_changed_value"]

WORDS = [
    b"0",
    b"-1",
    b"1e999",
    b"9" * 400,
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'""',
    b"[" * 5000,
    b"../../etc/passwd",
    b"\0",
]

VALUES: list[Callable[[], Any]] = [
    lambda: None,
    lambda: True,
    lambda: 0,
    lambda: -1,
    lambda: 2**31,
    lambda: 2**63,
    lambda: 10**30,
    lambda: 1e308,
    lambda: float("nan"),
    lambda: float("inf"),
    lambda: "",
    lambda: "x" * 100_000,
    lambda: "../../../etc/passwd",
    lambda: "/dev/zero",
    lambda: "a\0b",
    lambda: "\ud800",
    lambda: "\u202e\u0000\u0007<script>",
    lambda: "=cmd|' /C calc'!A0",
    list,
    dict,
    lambda: [None] * 1000,
    lambda: list(range(100_000)),
    lambda: {str(index): index for index in range(10_000)},
    lambda: nested(900),
    lambda: nested(100_000),
]
"""What a value is replaced by."""

PLACES = ("pipe", "device", "link out", "link to itself", "folder", "holes", "socket", "nothing", "closed")
"""What a file is replaced by."""


def mutated(content: bytes, dice: random.Random) -> bytes:
    """Return a file's bytes with one to four changes."""
    changed = bytearray(content)
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        if not changed:
            break
        first, last = sorted((dice.randrange(len(changed)), dice.randrange(len(changed))))
        match dice.randrange(8):
            case 0:
                changed[first] ^= 1 << dice.randrange(8)
            case 1:
                changed[first] = dice.choice((0, 1, 127, 128, 255))
            case 2:
                del changed[first:]
            case 3:
                del changed[first : min(last, first + 64)]
            case 4:
                changed[first:first] = changed[first : min(last, first + 4096)] * dice.choice((1, 2, 50))
            case 5:
                changed[first : first + 4] = dice.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"))
            case 6:
                _replace_number(changed, dice)
            case _:
                changed[first : first + dice.randrange(8)] = dice.choice(WORDS)
    return bytes(changed)


def _replace_number(content: bytearray, dice: random.Random) -> None:
    """Replace a number in text, if there is one."""
    places = [place for place, byte in enumerate(content) if 48 <= byte <= 57]
    if places:
        begin = end = dice.choice(places)
        while end < len(content) and 48 <= content[end] <= 57:
            end += 1
        content[begin:end] = dice.choice(WORDS)


def nested(depth: int) -> str:
    """Return lists in lists, as the text of JSON: Python itself cannot write so many."""
    return _Raw("[" * depth + "]" * depth)


class _Raw(str):
    """Is text that is put into a file as it is."""


def with_a_changed_value(content: bytes, dice: random.Random, form: str = "json") -> bytes:
    """Return a document of JSON or YAML in which one to three values or names are others."""
    document = json.loads(content) if form == "json" else yaml.safe_load(content)
    raw: list[str] = []
    for _ in range(dice.choice((1, 1, 2, 3))):
        places = list(_places(document))
        if not places:
            break
        owner, name = dice.choice(places)
        value = dice.choice(VALUES)()
        if isinstance(value, _Raw):
            raw.append(value)
            value = f"RAW{len(raw) - 1}"
        if isinstance(owner, dict) and dice.random() < 0.2:  # another name, or one more
            owner[dice.choice(("__class__", "", "x" * 1000, "format", str(name) + " "))] = value
        elif dice.random() < 0.15:
            del owner[name]
        elif isinstance(owner, list) and dice.random() < 0.2:
            owner.extend([owner[name]] * dice.choice((1, 1000)))
        else:
            owner[name] = value
    text = json.dumps(document) if form == "json" or raw else yaml.safe_dump(document, allow_unicode=True)
    for place, each in enumerate(raw):
        text = text.replace(f'"RAW{place}"', each)
    return text.encode("utf-8", "surrogatepass")


def _places(value: Any) -> Any:
    """Yield each (owner, name) in a document."""
    if isinstance(value, dict | list):
        for name, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield value, name
            yield from _places(inner)


def put_elsewhere(path: Path, dice: random.Random) -> None:
    """Put something that is no plain file, or not this one, in the place of a file."""
    content = path.read_bytes()
    path.unlink()
    match dice.choice(PLACES):
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to(dice.choice(("/dev/zero", "/dev/null", "/dev/full", "/dev/random")))
        case "link out":
            path.symlink_to(dice.choice(("/etc/passwd", "/proc/self/environ", "/proc/kmsg", "/proc/self/mem")))
        case "link to itself":
            path.symlink_to(path.name)
        case "folder":
            path.mkdir()
        case "holes":
            path.write_bytes(content[: dice.randrange(len(content) + 1)])
            os.truncate(path, dice.choice((2**20, 2**33, 2**40)))
        case "socket":
            os.mknod(path, 0o140600)
        case "closed":
            path.write_bytes(content)
            path.chmod(0)
