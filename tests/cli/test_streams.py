"""How commands end: streams that are closed, pipes whose reader has gone, a full disk, Ctrl-C during the start."""

import builtins
import os
import sys

import pytest

from contextcaps.__main__ import main as script
from contextcaps.cli import main
from contextcaps.cli.streams import lasting_streams
from contextcaps.exit_codes import ExitCode


def _pipe_without_reader() -> int:
    read, write = os.pipe()
    os.close(read)
    return write


@pytest.mark.parametrize("opened", [_pipe_without_reader, lambda: os.open("/dev/full", os.O_WRONLY)])
def test_messages_that_nobody_takes_do_not_end_the_work(opened, monkeypatch) -> None:
    with os.fdopen(opened(), "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with lasting_streams():
            for _ in range(3):
                print("note: so far", file=sys.stderr, flush=True)
                sys.stderr.write("half a line")
        assert sys.stderr is stream


def test_closed_streams(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    main(["--version"])
    with pytest.raises(SystemExit) as ended:
        main(["nonsense"])
    assert ended.value.code == ExitCode.BAD_INPUT
    assert sys.stdout is sys.stderr is None


def test_other_things_of_the_stream_are_its_own(capsys) -> None:
    with lasting_streams():
        print("a", file=sys.stderr)
        assert not sys.stderr.isatty()
    assert capsys.readouterr().err == "a\n"


def test_rows_that_cannot_be_written_are_an_error(monkeypatch, capsys) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as ended:
            main(["--version"])
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # for what closing it would still write
    assert ended.value.code == ExitCode.FAILED
    assert capsys.readouterr().err == "contextcaps: No space left on device\n"


def test_ctrl_c_while_the_command_line_is_imported(monkeypatch) -> None:
    def interrupted(*words: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(builtins, "__import__", interrupted)
    with pytest.raises(SystemExit) as ended:
        script()
    assert ended.value.code == ExitCode.INTERRUPTED
