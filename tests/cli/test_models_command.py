"""contextcaps models: the list, one model step by step, all of them."""

import pytest

import contextcaps
from contextcaps.cli import main


def test_models_lists_the_presets(capsys) -> None:
    main(["models"])
    printed = capsys.readouterr().out
    assert "capsnet-rw-crf" in printed
    assert "capsnet-rw-crf-corr-literal" in printed


def test_models_shows_one_step_by_step(capsys) -> None:
    main(["models", "contextcaps", "--classes", "7", "--image-size", "32", "--backbone", "small"])
    printed = capsys.readouterr().out
    for word in ("primary capsules", "RW as gate", "CRF, centred", "CORR weights", "256 × 7 × 16", "forward pass"):
        assert word in printed


def test_models_with_and_without_a_forward_pass(capsys) -> None:
    small = ["--classes", "3", "--image-size", "32", "--backbone", "small"]
    shown = {}
    for words in ("capsnet", "capsnet --no-forward", "--all --no-forward", "--no-forward"):
        main(["models", *words.split(), *small])
        printed = capsys.readouterr().out
        shown[words] = (printed.count("in all"), printed.count("forward pass:"))
    every = len(contextcaps.list_models())
    assert shown["capsnet"] == (1, 1)
    assert shown["capsnet --no-forward"] == (1, 0)
    assert shown["--all --no-forward"] == (every, 0)
    assert shown["--no-forward"] == (0, 0)
    with pytest.raises(SystemExit) as stop:
        main(["models", "capsnet", "--all"])
    assert stop.value.code == 2
    assert "--all and capsnet: expected one of them" in capsys.readouterr().err
