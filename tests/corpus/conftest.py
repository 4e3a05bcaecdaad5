"""A small model and a corpus of every kind of input, some of it damaged."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image

import contextcaps


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    """A model's folder."""
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("model") / "model"
    contextcaps.create_model("capsnet", 5, 32, "small", capsules={"types": 2}).eval().save_pretrained(folder)
    return folder


def picture(seed: int) -> bytes:
    """A PNG of noise, another for each seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_shard(path: Path, contents: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """Files of each kind; `plain/` has the same images as plain files: 100 good ones, 2 bad."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "files").mkdir()
    for number in range(60):
        (folder / "files" / f"{number:03}.png").write_bytes(picture(number))
    (folder / "files" / "bad.jpg").write_bytes(b"\xff\xd8\xff no picture")
    (folder / "files" / "empty.png").write_bytes(b"")
    write_shard(folder / "a.tar", {f"{n:03}.png": picture(n) for n in range(60, 80)} | {"060.json": b"{}"})
    cells = [picture(n) for n in range(80, 100)]
    table = pyarrow.table({"label": list(range(20)), "image": [{"bytes": cell, "path": None} for cell in cells]})
    pyarrow.parquet.write_table(table, folder / "b.parquet", row_group_size=8)
    plain = folder / "plain"
    plain.mkdir()
    for path in (folder / "files").iterdir():
        (plain / path.name).write_bytes(path.read_bytes())
    for number in range(60, 100):
        (plain / f"{number:03}.png").write_bytes(picture(number))
    return folder
