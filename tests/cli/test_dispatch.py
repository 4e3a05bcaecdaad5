"""The command line as a whole: pages of help, start-up, wrong words, exit codes."""

import ast
import dataclasses
import inspect
import itertools
import os
import subprocess
import sys
import textwrap
import typing
from collections.abc import Iterator, Mapping

import pytest
import torch
import tyro

import contextcaps
from contextcaps.cli import dispatch, main
from contextcaps.cli.command import Command
from contextcaps.cli.parsing import flags_of
from contextcaps.exit_codes import ExitCode
from contextcaps.out_of_memory import NotEnoughMemory


def _commands(group=dispatch.COMMANDS, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], type[Command]]]:
    for name, found in group.items():
        if isinstance(found, Mapping):
            yield from _commands(found, (*path, name))
        else:
            yield (*path, name), found


SHIPPED = dict(_commands())


def _page(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main([*words, "--help"])
    assert not stop.value.code
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def _refused(capsys, *words: str) -> str:
    """The one line that wrong words end in."""
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    assert stop.value.code == ExitCode.BAD_INPUT
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("contextcaps: ")
    assert printed.err.count("\n") == 1
    return printed.err.removeprefix("contextcaps: ").rstrip("\n")


@pytest.mark.parametrize("path", SHIPPED, ids=" ".join)
def test_every_command_has_a_page_with_all_of_its_flags(path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    page = _page(capsys, *path)
    assert page.startswith(f"usage: contextcaps {' '.join(path)} ")
    flags = list(flags_of(SHIPPED[path]))
    assert len(flags) == len(set(flags)) >= 4
    for flag in flags:
        assert flag in page
    assert max(map(len, page.splitlines()[1:])) <= 80  # tyro does not wrap its usage line


def test_the_first_pages_name_every_command(capsys) -> None:
    first, data = _page(capsys), _page(capsys, "data")
    for path, command in SHIPPED.items():
        page = data if path[0] == "data" else first
        assert f"\n  {path[-1]} " in page
        assert command.__doc__.split()[0] in page
    assert "--version" in first


@pytest.mark.parametrize("path", SHIPPED, ids=" ".join)
def test_every_flag_has_a_docstring_which_is_its_help(path) -> None:
    kinds = [SHIPPED[path]]
    for kind in kinds:
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = {
            field.name
            for field in dataclasses.fields(kind)
            if tyro.conf.Suppress not in typing.get_args(hints[field.name])
        }
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body
        told = {
            each.target.id
            for each, following in itertools.pairwise(body)
            if isinstance(each, ast.AnnAssign) and isinstance(getattr(following, "value", None), ast.Constant)
        }
        assert fields <= told, kind
        kinds += [hint for hint in typing.get_type_hints(kind).values() if dataclasses.is_dataclass(hint)]


def test_version(capsys) -> None:
    main(["--version"])
    assert capsys.readouterr().out == f"contextcaps {contextcaps.__version__}\n"


@pytest.mark.long
@pytest.mark.parametrize("words", [[], ["data"], *map(list, SHIPPED)], ids=" ".join)
def test_help_does_not_wait_for_torch(words) -> None:
    script = (
        "import sys, contextcaps.cli\n"
        f"try: contextcaps.cli.main({[*words, '--help']!r})\n"
        "finally: print([name for name in ('torch', 'numpy', 'PIL', 'matplotlib') if name in sys.modules])\n"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.endswith("\n[]\n")


@pytest.mark.parametrize("module", ["contextcaps", "contextcaps.cli"])
def test_as_a_module(module) -> None:
    shown = subprocess.run([sys.executable, "-m", module, "models", "--help"], capture_output=True, text=True)
    assert shown.returncode == 0
    assert "usage: contextcaps models " in shown.stdout
    assert "Number of classes to build a preset for" in shown.stdout


@pytest.mark.long
@pytest.mark.parametrize("arguments", [["models"], ["models", "--help"], ["--version"]])
def test_a_closed_pipe_is_quiet(arguments) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "contextcaps.cli", *arguments], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (ExitCode.BROKEN_PIPE, "")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "",
            "expected a command: train, evaluate, tag, explain, audit, export, serve, demo, ablate, models, bench, "
            "data; see contextcaps --help",
        ),
        ("data", "expected a command: inspect, prepare, convert; see contextcaps data --help"),
        ("tran", "tran: no such command; did you mean train? See contextcaps --help"),
        ("data inspekt", "inspekt: no such command; did you mean inspect? See contextcaps data --help"),
        ("data xyz", "xyz: no such command; known are inspect, prepare, convert; see contextcaps data --help"),
        ("train --learning-rate 1", "--learning-rate: no such flag; did you mean --lr? See contextcaps train --help"),
        ("help", "help: no such command; did you mean --help? See contextcaps --help"),
        ("predict run x.jpg", "predict: no such command; did you mean tag? See contextcaps --help"),
        ("inspect scenes", "inspect: no such command; did you mean data inspect? See contextcaps --help"),
        ("train photos", "photos: one word too many; did you mean --data photos? See contextcaps train --help"),
        ("trian", "trian: no such command; did you mean train? See contextcaps --help"),
        ("train --batchsize 4", "--batchsize: no such flag; did you mean --batch-size? See contextcaps train --help"),
        ("train --gpu", "--gpu: no such flag; did you mean --accelerator gpu? See contextcaps train --help"),
        ("tag x.jpg --gpu", "--gpu: no such flag; did you mean --device cuda? See contextcaps tag --help"),
        ("train --output_dir x", "--output_dir: no such flag; did you mean --out? See contextcaps train --help"),
        ("train --dataset x", "--dataset: no such flag; did you mean --data? See contextcaps train --help"),
        (
            "train --augment.flop=1",
            "--augment.flop: no such flag; did you mean --augment.flip? See contextcaps train --help",
        ),
        ("ablate --epoch 3", "--epoch: no such flag; did you mean --epochs? See contextcaps ablate --help"),
        ("models --zzz", "--zzz: no such flag; see contextcaps models --help"),
        ("models a b", "b: one word too many; see contextcaps models --help"),
        ("evaluate", "missing: RUN_OR_MODEL; see contextcaps evaluate --help"),
        ("tag", "no images: expected files, folders, patterns, or - for names on standard input"),
        ("data convert scenes", "missing: --to shards FOLDER; see contextcaps data convert --help"),
        (
            "data convert scenes --to shards",
            "--to: expected shards FOLDER after it; see contextcaps data convert --help",
        ),
        (
            "data convert scenes --too shards x",
            "--too: no such flag; did you mean --to? See contextcaps data convert --help",
        ),
        ("train --batch_size x", "--batch-size: expected INT, got 'x'; see contextcaps train --help"),
        ("train --epochs", "--epochs: expected INT after it; see contextcaps train --help"),
        ("train --epochs many", "--epochs: expected INT, got 'many'; see contextcaps train --help"),
        ("train --workers=x", "--workers: expected N, got 'x'; see contextcaps train --help"),
        (
            "train --augment.crop-scale 1 x",
            "--augment.crop-scale: expected FLOAT FLOAT, got '1 x'; see contextcaps train --help",
        ),
        (
            "evaluate run --on-bad mend",
            "--on-bad: expected {stop,skip}, got 'mend'; see contextcaps evaluate --help",
        ),
        (
            "train --loss mse",
            "--loss: expected {auto,margin,bce,asl,spread,two-way}, got 'mse'; see contextcaps train --help",
        ),
        ("bench --sweep A", "--sweep: expected {B,K,J}..., got 'A'; see contextcaps bench --help"),
        ("train --set types", "--set: expected NAME=VALUE, got 'types'; see contextcaps train --help"),
        ("train --set x=[", "--set: x=[: no valid YAML (line 1: expected the node content, but found '<stream end>')"),
        ("train --epochs 0", "epochs: expected a whole number of at least 1, got 0"),
        ("models contextcap", "model: there is no 'contextcap'; did you mean 'contextcaps'?"),
        ("models capsnet --classes 0", "num_classes: expected a whole number of at least 1, got 0"),
        ("models capsnet --backbone huge", "backbone: expected 'paper', 'small'"),
        ("models capsnet --backbone lite", "backbone: expected 'paper', 'small', 'lite0', 'lite0:16', 'lite1', "),
        ("data inspect scene", "scene: expected KIND:LOCATION with one of scenes"),
        ("data inspect scenes?cuont=3", "scenes?cuont=3: scenes has no option 'cuont'; did you mean 'count'?"),
        ("models capsnet --image-size 3", "image_size: 3×3 px"),
        ("models capsnet --all", "--all and capsnet: expected one of them"),
    ],
)
def test_wrong_words_are_one_line(words, line, capsys) -> None:
    assert _refused(capsys, *words.split()).startswith(line)


def test_without_tyros_events_its_own_message_is_shown(capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "tyro._errors", None)
    with pytest.raises(SystemExit) as stop:
        main(["models", "--classes", "many"])
    assert stop.value.code == ExitCode.BAD_INPUT
    assert "--classes" in capsys.readouterr().err


class _Diverged(OSError):
    exit_code = ExitCode.DIVERGED


class _StoppedRun(KeyboardInterrupt):
    """Has no exit code of its own."""


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ValueError("bad"), ExitCode.BAD_INPUT, "contextcaps: bad\n"),
        (ImportError("needs the extra 'timm'"), ExitCode.BAD_INPUT, "contextcaps: needs the extra 'timm'\n"),
        (OSError("disk full"), ExitCode.FAILED, "contextcaps: disk full\n"),
        (_Diverged("the loss is nan"), ExitCode.DIVERGED, "contextcaps: the loss is nan\n"),
        (MemoryError(), ExitCode.OUT_OF_MEMORY, "contextcaps: out of memory; try a smaller --batch-size\n"),
        (
            torch.OutOfMemoryError("CUDA out of memory"),
            ExitCode.OUT_OF_MEMORY,
            "contextcaps: out of memory; try a smaller --batch-size\n",
        ),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
            ExitCode.OUT_OF_MEMORY,
            "contextcaps: out of memory; try a smaller --batch-size\n",
        ),
        (NotEnoughMemory("2 do not fit"), ExitCode.OUT_OF_MEMORY, "contextcaps: 2 do not fit\n"),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, "contextcaps: stopped\n"),
        (_StoppedRun("saved; go on with"), ExitCode.INTERRUPTED, "contextcaps: saved; go on with\n"),
        (SystemExit(ExitCode.FAILED), ExitCode.FAILED, ""),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, BaseException) else None,
)
def test_errors_end_in_a_message_and_an_exit_code(error, code, told, capsys, monkeypatch) -> None:
    monkeypatch.setattr("contextcaps.cli.models.Models.run", _raising(error))
    with pytest.raises(SystemExit) as stop:
        main(["models"])
    assert stop.value.code == code
    assert capsys.readouterr().err == told


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch) -> None:
    monkeypatch.setattr("contextcaps.cli.models.Models.run", _raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        main(["models"])
    monkeypatch.setattr("contextcaps.cli.models.Models.run", _raising(RuntimeError("shapes differ")))
    with pytest.raises(RuntimeError, match="shapes differ"):
        main(["models"])


@pytest.mark.parametrize(
    ("error", "told"),
    [(ValueError("bad"), "contextcaps (process 1): bad\n"), (KeyboardInterrupt(), "")],
    ids=["ValueError", "KeyboardInterrupt"],
)
def test_other_processes_say_who_they_are(error, told, capsys, monkeypatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("contextcaps.cli.models.Models.run", _raising(error))
    with pytest.raises(SystemExit):
        main(["models"])
    assert capsys.readouterr().err == told


def _raising(error: BaseException):
    def run(command: Command) -> None:
        raise error

    return run


def test_what_a_file_has_put_into_a_message_is_shortened(capsys, monkeypatch) -> None:
    def fail(words: object) -> None:
        raise ValueError(f"labels.csv: got {'[' * 100_000}\nMend it")

    monkeypatch.setattr(dispatch, "_find", fail)
    with pytest.raises(SystemExit):
        main(["tag"])
    said = capsys.readouterr().err
    assert len(said) < 2200
    assert said.startswith("contextcaps: labels.csv: got [[[")
    assert said.endswith("[[[\nMend it\n")
