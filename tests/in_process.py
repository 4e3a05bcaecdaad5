"""Run a command of the command line in this process."""

from contextcaps.cli import main


def run_command(command: str, words: list, capsys) -> tuple[int, str, str]:
    """Return the exit code, and what was printed on the output and on the error stream; no traceback is printed."""
    try:
        main([command, *map(str, words)])
        code = 0
    except SystemExit as stop:
        code = stop.code
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return code, printed.out, printed.err
