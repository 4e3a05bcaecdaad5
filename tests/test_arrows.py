"""The arrows between the rooms are kept: `make lint` fails where one is turned round."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("capsules.squash", "models.head"),
        ("models.head", "training.losses"),
        ("data.source", "evaluation"),
        ("documents.table", "data"),
    ],
)
def test_an_arrow_that_is_turned_round_is_found(module, imported, tmp_path) -> None:
    shutil.copytree(ROOT / "src/contextcaps", tmp_path / "contextcaps", ignore=shutil.ignore_patterns("__pycache__"))
    with open(tmp_path / "contextcaps" / f"{module.replace('.', '/')}.py", "a", encoding="utf-8") as file:
        file.write(f"\nimport contextcaps.{imported}\n")
    found = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--config", ROOT / "pyproject.toml", "--no-cache"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1, found.stdout + found.stderr
    assert f"contextcaps.{module} -> contextcaps.{imported} (l." in found.stdout
    assert "1 broken" in found.stdout
