"""A share of the attack on the program: `benchmarks/attack` has all of it."""

import subprocess
import sys
from pathlib import Path

import pytest

ATTACK = Path(__file__).parents[1] / "benchmarks" / "attack"


@pytest.mark.long
@pytest.mark.parametrize(
    "kinds",
    [
        ("image JPEG, hostile", "image TIFF", "image PNG", "YOLO labels, hostile", "VOC, hostile"),
        ("model config.json, values", "model model.safetensors", "checkpoint, hostile", "run.json", "network.yaml"),
        ("table, hostile", "shard, hostile", "COCO", "classes.json", "prepared images.bin", "prepared checksums.json"),
        ("Parquet, hostile", "corpus, shard, hostile", "seen.npz, hostile", "workers"),
    ],
)
def test_damaged_and_hostile_files(kinds) -> None:
    words = [sys.executable, ATTACK, "--cases", "80", "--seed", "7", "--kinds", *kinds]
    done = subprocess.run(words, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert " cases, 0 of them as they should not be" in done.stdout
