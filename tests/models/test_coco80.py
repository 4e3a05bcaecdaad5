"""The model that comes with the package: small enough, whole, and free of this machine's places."""

import json
import re

import numpy as np
import safetensors

import contextcaps
from contextcaps.models.loading import DEFAULT_MODEL, shipped_folder

FOLDER = shipped_folder(DEFAULT_MODEL)


def test_its_files_fit_the_package() -> None:
    assert FOLDER is not None
    assert (FOLDER / "model.safetensors").stat().st_size < 25e6
    with safetensors.safe_open(FOLDER / "model.safetensors", "pt") as file:
        kinds = {file.get_slice(name).get_dtype() for name in file.keys() if name.endswith("weight")}  # noqa: SIM118
    assert "F16" in kinds


def test_its_files_name_no_place_of_a_machine() -> None:
    assert FOLDER is not None
    for name in ("config.json", "trained.json", "figures.json"):
        text = (FOLDER / name).read_text(encoding="utf-8")
        json.loads(text)
        assert not re.search(r"[\":](?:/[a-z]|[A-Z]:\\)", text), name


def test_it_knows_cocos_classes_and_takes_what_is_known() -> None:
    tagger = contextcaps.load(device="cpu")
    assert len(tagger.classes) == 80
    assert tagger.classes[:3] == ("person", "bicycle", "car")
    picture = np.full((1, 3, *tagger.config.image_size), 127, dtype=np.uint8)
    known = np.full(80, np.nan, dtype=np.float32)
    known[tagger.classes.index("oven")] = 1.0
    plain, told = tagger.scores(picture)[0], tagger.scores(picture, known)[0]  # [80]
    assert told[tagger.classes.index("oven")] == 1
    kitchen = [tagger.classes.index(name) for name in ("microwave", "refrigerator", "sink")]
    assert bool((told[kitchen] > plain[kitchen]).all())
