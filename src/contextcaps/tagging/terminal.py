"""Show taggings to a person at a terminal: each image's name, and its tags with bars and expected precision."""

from rich.console import Console
from rich.text import Text

from contextcaps.tagging.tags import Tagging

__all__ = ["Terminal"]

_BAR = 20  # characters of a score of 1
_EIGHTHS = " ▏▎▍▌▋▊▉"


class Terminal:
    """Takes taggings and prints them.

    Args:
        console: where; standard output by default.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = Console(highlight=False) if console is None else console

    def write(self, tagging: Tagging) -> None:
        """Print the name of an image and its tags, or why it could not be read."""
        self._print(Text(_printable(str(tagging.image)), style="bold"))
        if tagging.error is not None:
            self._print(Text(f"  {_printable(tagging.error)}", style="red"))
        elif not tagging.tags:
            self._print(Text("  no tag", style="dim"))
        widest = max((len(tag.name) for tag in tagging.tags), default=0)
        for tag in tagging.tags:
            line = Text(f"  {_printable(tag.name):<{widest}}  ")
            line.append(f"{bar(tag.score)} ", style="magenta" if tag.given else "cyan")
            line.append(f"{tag.score:.2f}")
            if tag.given:
                line.append("  given", style="dim")
            elif tag.precision is not None:
                line.append(f"  {tag.precision:.0%} right", style="dim")
            self._print(line)

    def _print(self, line: Text) -> None:
        self.console.print(line, soft_wrap=True)


def bar(score: float) -> str:
    """Draw a score from 0 to 1 as a bar.

    >>> bar(0.5), bar(0.025)
    ('██████████          ', '▌                   ')
    """
    eighths = round(8 * _BAR * min(max(score, 0.0), 1.0))
    drawn = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
    return f"{drawn:<{_BAR}}"


def _printable(text: str) -> str:
    """Return text without what would steer the terminal."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text)
