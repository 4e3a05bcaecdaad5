"""From words to commands, and from errors to messages and exit codes."""

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence

import contextcaps
from contextcaps.cli.ablate import Ablate
from contextcaps.cli.audit import AuditLabels
from contextcaps.cli.bench import BenchCommand
from contextcaps.cli.command import Command
from contextcaps.cli.data import DataConvert, DataInspect, DataPrepare
from contextcaps.cli.demo import DemoCommand
from contextcaps.cli.evaluate import Evaluate
from contextcaps.cli.explain import ExplainImage
from contextcaps.cli.export import ExportModel
from contextcaps.cli.models import Models
from contextcaps.cli.parsing import did_you_mean, parse, pointing_at_help
from contextcaps.cli.serve import Serve
from contextcaps.cli.streams import lasting_streams
from contextcaps.cli.tag import TagImages
from contextcaps.cli.train import Train
from contextcaps.exit_codes import ExitCode
from contextcaps.out_of_memory import is_out_of_memory
from contextcaps.rank_zero import is_rank_zero

__all__ = ["COMMANDS", "main"]

Group = Mapping[str, "type[Command] | Group"]

COMMANDS: Group = {
    "train": Train,
    "evaluate": Evaluate,
    "tag": TagImages,
    "explain": ExplainImage,
    "audit": AuditLabels,
    "export": ExportModel,
    "serve": Serve,
    "demo": DemoCommand,
    "ablate": Ablate,
    "models": Models,
    "bench": BenchCommand,
    "data": {"inspect": DataInspect, "prepare": DataPrepare, "convert": DataConvert},
}
"""Name → command, or further names."""
_LONGEST = 2000  # letters of a line of a message

_OF_TRAINING = {"torch": "PyTorch", "huggingface_hub": "huggingface_hub"}
"""Packages of the extra `train` that much is built upon, and their names for people."""

_ABOUT = {
    "contextcaps": f"{contextcaps.__doc__}\n\ncontextcaps --version prints the version.",
    "contextcaps data": "Look at data, prepare it, convert it: data inspect, data prepare, data convert.",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. An error ends in one message on standard error and its exit code, without a traceback."""
    # Before torch is loaded: threads that spin for long while they wait make two trainings on the same cores eight
    # times slower each; spinning briefly costs a tenth on a quiet machine (docs/results/speed.md#threads-that-wait).
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    words = list(sys.argv[1:] if arguments is None else arguments)
    with lasting_streams():
        _run(words)


def _run(words: Sequence[str]) -> None:
    try:
        try:
            if list(words) == ["--version"]:
                print(f"contextcaps {contextcaps.__version__}")
                return
            _find(words).run()
        finally:
            sys.stdout.flush()  # here, so that a closed pipe is met below rather than at the interpreter's end
    except BrokenPipeError:  # whoever read the output has seen enough, such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still to be flushed
        raise SystemExit(ExitCode.BROKEN_PIPE) from None
    except (Exception, KeyboardInterrupt) as error:
        code = _exit_code(error)
        if code is None:  # a mistake of ours
            raise
        if is_rank_zero() or code != ExitCode.INTERRUPTED:
            _complain(_message(error))
        raise SystemExit(code) from None


def _exit_code(error: BaseException) -> ExitCode | None:
    """Return how the process ends with an error; its class may say so. None for one that nobody expects."""
    if hasattr(error, "exit_code"):
        return ExitCode(error.exit_code)
    if is_out_of_memory(error):
        return ExitCode.OUT_OF_MEMORY
    codes: list[tuple[tuple[type[BaseException], ...], ExitCode]] = [
        ((ValueError, ImportError), ExitCode.BAD_INPUT),
        ((OSError,), ExitCode.FAILED),
        ((KeyboardInterrupt,), ExitCode.INTERRUPTED),
    ]
    return next((code for kinds, code in codes if isinstance(error, kinds)), None)


def _message(error: BaseException) -> str:
    if is_out_of_memory(error) and not hasattr(error, "exit_code"):
        return "out of memory; try a smaller --batch-size"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, ModuleNotFoundError) and error.name in _OF_TRAINING:
        return (
            f"this needs {_OF_TRAINING[error.name]}, which is not installed: pip install 'contextcaps[train]' "
            "(tag, explain, serve and models work without it)"
        )
    return "\n".join(map(_shortened, str(error).split("\n"))) or "stopped"


def _shortened(line: str) -> str:
    """Return a line that people can read, whatever a file has put into a message."""
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST * 3 // 4]} … {line[-_LONGEST // 4 :]}"


def _find(words: Sequence[str]) -> Command:
    """Return the command that the words ask for, with its flags; --help prints a page and exits."""
    found: type[Command] | Group = COMMANDS
    program, rest = "contextcaps", list(words)
    while isinstance(found, Mapping):
        if rest[:1] in (["-h"], ["--help"]):
            _show_page(found, program)
        known = ", ".join(found)
        if not rest:
            raise ValueError(pointing_at_help(f"expected a command: {known}", program))
        word = rest.pop(0)
        if word not in found:
            hint = did_you_mean(word, (*found, "--help", "--version")) or f"known are {known}"
            raise ValueError(pointing_at_help(f"{word}: no such command; {hint}", program))
        found, program = found[word], f"{program} {word}"
    return parse(found, rest, program)


def _show_page(commands: Group, program: str) -> None:
    """Print what the commands are for, and exit; not by tyro, whose pages take as long as all else before them."""
    width = min(100, shutil.get_terminal_size().columns)
    first = max(map(len, commands)) + 4
    print(f"usage: {program} [-h] {{{','.join(commands)}}}\n\n{_ABOUT[program]}\n\ncommands:")
    for name, command in commands.items():
        about = _ABOUT[f"{program} {name}"] if isinstance(command, Mapping) else command.__doc__ or ""
        print(
            textwrap.fill(f"  {name:<{first - 2}}{about.partition(chr(10))[0]}", width, subsequent_indent=" " * first)
        )
    print(f"\n{program} COMMAND --help shows what a command takes.")
    raise SystemExit(0)


def _complain(message: str) -> None:
    """Print one message on standard error; with several processes it says whose."""
    who = "" if is_rank_zero() else f" (process {os.environ.get('RANK', os.environ.get('LOCAL_RANK'))})"
    print(f"contextcaps{who}: {message}", file=sys.stderr)
