"""The arrows between the rooms are kept: `make lint` fails where one is turned round."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = "An image walks through the rooms in one direction"
DATA = "Data stands beside the models, and knows none of the rooms that use it"
TABLES = "Tables, pages and charts know none of the rooms that fill them"


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("capsules/squash.py", "import contextcaps.models.head", ROOMS),
        ("models/head.py", "from contextcaps.training import losses", ROOMS),
        ("data/source.py", "import contextcaps.evaluation", DATA),
        ("documents/table.py", "import contextcaps.data", TABLES),
    ],
)
def test_an_arrow_that_is_turned_round_is_found(module, line, contract, tmp_path) -> None:
    shutil.copytree(ROOT / "src/contextcaps", tmp_path / "contextcaps", ignore=shutil.ignore_patterns("__pycache__"))
    with open(tmp_path / "contextcaps" / module, "a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    found = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--config", ROOT / "pyproject.toml", "--no-cache"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1, found.stdout + found.stderr
    assert f"{contract} BROKEN" in " ".join(found.stdout.split())
