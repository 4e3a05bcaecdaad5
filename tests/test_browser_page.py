"""The page that tags in a browser: the same scores as Python's in Chromium, from a plain file server, then offline.

`make page` installs what building needs; CHROMIUM names the browser, if it is not /usr/bin/chromium.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import contextcaps
from contextcaps.tagging.export import export

WEB = Path(__file__).parents[1] / "web"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js"),
    pytest.mark.skipif(not (WEB / "node_modules").exists(), reason="needs npm install in web/"),
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="needs Chromium"),
]


def photographs(folder: Path) -> list[Path]:
    """Write five photographs: JPEG and PNG, larger and smaller than the network's size, one lying on its side."""
    data = pytest.importorskip("skimage.data")
    made = []
    for place, (name, kind) in enumerate(
        (("chelsea", "jpg"), ("coffee", "png"), ("astronaut", "jpg"), ("rocket", "webp"), ("chelsea", "png"))
    ):
        image = Image.fromarray(getattr(data, name)())
        if place == 4:
            image = image.resize((150, 90))
        made.append(folder / f"{place}.{kind}")
        exif = Image.Exif()
        exif[274] = 6 if place == 2 else 1  # turned by a quarter
        image.save(made[-1], exif=exif, **({"lossless": True} if kind == "webp" else {}))
    return made


def test_chromium_gives_the_scores_of_python(tmp_path) -> None:
    export("coco80", out=tmp_path / "tagger.onnx", explain=True)
    subprocess.run(["node", "build.mjs", tmp_path / "tagger.onnx", tmp_path / "page"], cwd=WEB, check=True)
    photos = photographs(tmp_path)
    done = subprocess.run(
        ["node", "drive.mjs", tmp_path / "page", tmp_path, *photos],
        cwd=WEB,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        env={**os.environ, "CHROMIUM": CHROMIUM},
    )
    found = json.loads(done.stdout)
    assert (found["elsewhere"], found["errors"]) == ([], [])
    tagger = contextcaps.load("coco80", "cpu")
    for photo, scores in zip(photos, found["scores"], strict=True):
        (tagging,) = tagger.tag(photo, on_bad="stop")
        np.testing.assert_allclose(scores, tagging.scores, atol=1e-3, err_msg=photo.name)
    (told,) = tagger.tag(photos[-1], known={found["told"]: True})
    np.testing.assert_allclose(found["toldScores"], told.scores, atol=1e-3)
    assert (tmp_path / "phone.png").stat().st_size > 10_000
