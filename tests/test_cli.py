"""The command line: what it prints, and one clear line with exit code 2 for misuse."""

import subprocess
import sys

import pytest

from contextcaps.cli import main


def test_models_lists_the_presets(capsys) -> None:
    main(["models"])
    printed = capsys.readouterr().out
    assert "capsnet-rw-crf" in printed
    assert "contextcaps-literal" in printed


def test_models_shows_one_step_by_step(capsys) -> None:
    main(["models", "contextcaps", "--classes", "7", "--image-size", "32", "--backbone", "small"])
    printed = capsys.readouterr().out
    for word in ("primary capsules", "RW as gate", "CRF, centred", "CORR weights", "256 × 7 × 16", "forward pass"):
        assert word in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models", "contextcap"], "did you mean 'contextcaps'?"),
        (["models", "capsnet", "--classes", "0"], "num_classes: expected a whole number of at least 1, got 0"),
        (["models", "capsnet", "--backbone", "huge"], "backbone: expected 'paper', 'small'"),
        (["models", "capsnet", "--image-size", "3"], "image_size: 3×3 px"),
        (["models", "capsnet", "--image-size", "big"], "--image-size"),
        (["nonsense"], "nonsense"),
    ],
)
def test_misuse_is_one_message_and_exit_code_2(arguments, message, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    printed = capsys.readouterr()
    assert stop.value.code == 2
    assert message in printed.err
    assert "Traceback" not in printed.err + printed.out


def test_help_reads_well() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "contextcaps.cli", "models", "--help"], capture_output=True, text=True
    )
    assert shown.returncode == 0
    assert "number of classes to build it for" in shown.stdout
