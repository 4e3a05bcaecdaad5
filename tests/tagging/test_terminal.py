"""What a person sees at a terminal."""

import io

from rich.console import Console

from contextcaps.tagging import Tag, Tagging
from contextcaps.tagging.terminal import Terminal


def shown(*taggings: Tagging, color: bool = False) -> str:
    screen = io.StringIO()
    terminal = Terminal(Console(file=screen, force_terminal=color, width=60, highlight=False))
    for tagging in taggings:
        terminal.write(tagging)
    return screen.getvalue()


def test_names_tags_and_bars() -> None:
    tags = (Tag("person", 1.0, 0.5), Tag("dining table", 0.25, 0.2, precision=0.314), Tag("cup", 0.0, 0.0, given=True))
    assert shown(Tagging("holidays/a b.jpg", tags)).splitlines() == [
        "holidays/a b.jpg",
        "  person        " + "█" * 20 + " 1.00",
        "  dining table  " + "█" * 5 + " " * 15 + " 0.25  31% right",
        "  cup           " + " " * 20 + " 0.00  given",
    ]


def test_errors_and_images_without_tags() -> None:
    told = shown(Tagging("torn.jpg", (), error="damaged [image]"), Tagging("plain.jpg", ()))
    assert told.splitlines() == ["torn.jpg", "  damaged [image]", "plain.jpg", "  no tag"]


def test_long_names_are_not_cut() -> None:
    name = "x" * 90
    assert shown(Tagging(f"{name}.jpg", (Tag(name, 0.5, 0.1),))).count(name) == 2


def test_names_steer_no_terminal() -> None:
    told = shown(Tagging("a\x1b[2Jb\r\x07.jpg", (Tag("[red]dog\x9b0m[/red]", 0.5, 0.1),)))
    assert not {"\x1b", "\r", "\x07", "\x9b"} & set(told)
    assert "[red]dog" in told


def test_colour_at_a_terminal() -> None:
    assert "\x1b[" in shown(Tagging("a.jpg", (Tag("dog", 0.5, 0.1),)), color=True)
