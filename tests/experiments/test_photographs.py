"""The demo's first part: photographs that other packages bring, tagged by the shipped model."""

import importlib.util
import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from contextcaps.experiments.photographs import bundled_photographs, show_photographs, tag_photographs
from contextcaps.training.runs import RunError


def test_six_photographs_come_with_other_packages() -> None:
    paths = bundled_photographs()
    assert len(paths) == len(set(paths)) == 6
    for path in paths:
        with Image.open(path) as image:
            assert min(image.size) >= 256


def test_a_missing_package_is_named_with_the_extra(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"chelsea.png of the package skimage is not here; pip install 'contextcaps"):
        bundled_photographs()


def test_a_folder_that_will_not_do_is_refused_first(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "notes").write_text("mine")
    for folder in (tmp_path / "notes", tmp_path / "notes" / "demo"):
        with pytest.raises(RunError, match=r"notes is a file; expected a folder; choose another with --out$"):
            tag_photographs(("nonsense.jpg",), folder)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(RunError, match=r"demo: .* may not be written to; choose another folder with --out$"):
        tag_photographs(("nonsense.jpg",), tmp_path / "demo")


def test_where_none_can_be_read_there_is_no_page(tmp_path: Path) -> None:
    names = (str(tmp_path / "nonsense.jpg"), str(tmp_path / "more.jpg"))
    with pytest.raises(
        ValueError, match=r"^photographs: none of 2 could be read; .*/nonsense.jpg: there is no such fi"
    ):
        tag_photographs(names, tmp_path / "demo")
    assert os.listdir(tmp_path) == []


@pytest.mark.long
def test_the_shipped_model_tags_them_sensibly(tmp_path: Path) -> None:
    found = tag_photographs((), tmp_path / "demo")
    names = {Path(str(tagging.image)).stem: [tag.name for tag in tagging.tags] for tagging in found.taggings}
    assert names["chelsea"][0] == "cat"
    assert names["motorcycle_left"][0] == "motorcycle"
    assert {"cup", "dining table"} <= set(names["coffee"])
    assert {"person", "tie"} == set(names["grace_hopper"][:2])
    assert found.page.read_text("utf-8").count("data:image/jpeg;base64,") == 6
    console = Console(record=True, width=80, file=io.StringIO())
    show_photographs(found, console)
    shown = console.export_text()
    assert "chelsea.png" in shown
    assert "site-packages/skimage" not in shown  # names, not places


@pytest.mark.long
def test_own_photographs_are_taken_instead(tmp_path: Path) -> None:
    Image.fromarray(np.full((40, 60, 3), 128, np.uint8)).save(tmp_path / "grey.png")
    found = tag_photographs([str(tmp_path), "missing.jpg"], tmp_path / "demo")
    assert [Path(str(tagging.image)).name for tagging in found.taggings] == ["grey.png", "missing.jpg"]
    assert found.taggings[1].error is not None
