"""A tiny model with thresholds of its own, and a few pictures of its size."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import contextcaps
from contextcaps.models.trained import Trained

CLASSES = ("sky", "sea", "tree", "road", "car")
THRESHOLDS = (0.9, 0.05, 0.125, 0.0, 1.0)


@pytest.fixture(scope="session")
def network():
    torch.manual_seed(3)
    return contextcaps.create_model("capsnet", 5, 32, "small", capsules={"types": 2}, class_names=CLASSES).eval()


@pytest.fixture(scope="session")
def model(network, tmp_path_factory) -> Path:
    """A model's folder; its parent is a run's."""
    folder = tmp_path_factory.mktemp("run") / "model"
    network.save_pretrained(folder)
    Trained(THRESHOLDS, (0.1,) * 5, seed=7, data="scenes", epoch=1).write(folder, network.config)
    return folder


@pytest.fixture(scope="session")
def pictures() -> np.ndarray:
    """[7, 32, 32, 3], uint8: different noise on different grounds, so that no two have the same scores."""
    random = np.random.default_rng(5)
    ground = random.integers(0, 200, (7, 1, 1, 3))
    return (ground + random.integers(0, 56, (7, 32, 32, 3))).astype(np.uint8)


@pytest.fixture
def album(tmp_path, pictures) -> Path:
    """A folder with five good pictures (PNG, of the model's size) and three bad ones, sorted between them."""
    folder = tmp_path / "album"
    folder.mkdir()
    for index in range(5):
        Image.fromarray(pictures[index]).save(folder / f"{index}.png")
    Image.fromarray(pictures[0].repeat(8, 0).repeat(8, 1)).save(folder / "whole.jpeg")
    (folder / "1-cut.jpg").write_bytes((folder / "whole.jpeg").read_bytes()[:2000])
    (folder / "whole.jpeg").unlink()
    (folder / "2-text.png").write_text("these are words, not pixels")
    (folder / "3-empty.webp").write_bytes(b"")
    (folder / "notes.txt").write_text("left out: no image by its name")
    return folder
