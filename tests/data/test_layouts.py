"""A location without a kind, or with the wrong one: what lies there is looked at, and the line says what to write."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from trees_coco import coco_tree
from trees_exports import (
    class_folders,
    cvat,
    datumaro,
    image_folder,
    label_studio,
    label_studio_yolo,
    roboflow_classes,
    roboflow_coco,
    roboflow_yolo,
    ultralytics,
    write,
)
from trees_small import shard_members, write_images, write_tar
from trees_voc import voc_tree

from contextcaps.data import DataError, open_source
from contextcaps.data.layouts import likely_kind

TREES: dict[str, tuple[Callable[[Path], object], str]] = {
    "COCO": (coco_tree, "coco:{}"),
    "CVAT": (cvat, "coco:{}"),
    "Label Studio": (label_studio, "coco:{}"),
    "Roboflow, COCO": (roboflow_coco, "coco:{}"),
    "Ultralytics": (ultralytics, "yolo:{}"),
    "Roboflow, YOLO": (roboflow_yolo, "yolo:{}"),
    "Label Studio, YOLO": (label_studio_yolo, "yolo:{}"),
    "Roboflow, CSV": (roboflow_classes, "metadata:{}"),
    "Hugging Face": (image_folder, "metadata:{}"),
    "ImageFolder": (class_folders, "folders:{}"),
    "ImageFolder with splits": (lambda root: class_folders(root, ("train", "val")), "folders:{}"),
    "VOC": (voc_tree, "voc:{}"),
    "shards": (lambda root: write_tar(root / "train-0.tar", shard_members([1, 2])), "shards:{}/*.tar"),
    "table": (lambda root: write_table(root), "table:{}/labels.csv"),
}
"""What lies there, and the name to open it by."""


def write_table(root: Path) -> Path:
    write_images(root, ["images/a.jpg", "images/b.jpg"])
    return write(root / "labels.csv", "path,labels\nimages/a.jpg,cat\nimages/b.jpg,dog\n")


@pytest.fixture(params=TREES)
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A tree, and the name to open it by."""
    root = tmp_path / "my data"
    make, spec = TREES[request.param]
    make(root)
    return root, spec.format(root)


def test_the_line_names_what_opens_it(tree: tuple[Path, str]) -> None:
    root, spec = tree
    with pytest.raises(DataError) as caught:
        open_source(str(root))
    assert str(caught.value).startswith(f"{root}: expected KIND:LOCATION; ")
    assert str(caught.value).endswith(f": {shlex.quote(spec)}")
    assert "\n" not in str(caught.value)
    assert len(open_source(spec)) > 0


def test_one_folder_deeper(tree: tuple[Path, str]) -> None:
    """As archives are unpacked, with what a Mac adds to them."""
    root, spec = tree
    outer = root.parent / "unpacked"
    outer.mkdir()
    root.rename(outer / "inner")
    write(outer / "__MACOSX" / "._inner", "x")
    write(outer / ".DS_Store", "x")
    with pytest.raises(DataError, match=re.escape(spec.replace(str(root), str(outer / "inner")))):
        open_source(str(outer))


@pytest.mark.parametrize("kind", ["coco", "yolo", "folders", "metadata", "voc", "ade20k", "table"])
def test_another_kind(tree: tuple[Path, str], kind: str) -> None:
    root, spec = tree
    if spec == f"{kind}:{root}":
        pytest.skip("the right one")
    with pytest.raises(DataError) as caught:
        open_source(f"{kind}:{root}")
    assert spec in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_opened_as_coco(tmp_path: Path) -> None:
    path = write_table(tmp_path)
    with pytest.raises(DataError, match=rf"it looks like a table: table:{path}$"):
        open_source(f"coco:{path}")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (datumaro, "Datumaro's own format: export again as COCO 1.0"),
        (lambda root: write(root / "annotations.xml", "<annotations/>"), "annotations.xml lies there, as of CVAT"),
        (lambda root: write(root / "obj.names", "cat\n"), "as in YOLO 1.1: export again as Ultralytics YOLO"),
        (lambda root: write(root / "set.zip", "PK"), "set.zip lies there: unpack it"),
        (lambda root: write_images(root, ["a.jpg", "b.JPG"]), "2 images without labels; write a table"),
        (lambda root: write(root / "readme.txt", "x"), "nothing there looks like one of them"),
        (lambda root: root.mkdir(), "nothing there looks like one of them"),
    ],
)
def test_what_no_kind_reads(tmp_path: Path, make: Callable[[Path], object], told: str) -> None:
    make(tmp_path / "set")
    with pytest.raises(DataError, match=told) as caught:
        open_source(str(tmp_path / "set"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("labels.csv", "path,labels\n", "table"),
        ("labels.parquet", "PAR1", "table"),
        ("metadata.csv", "file_name,label\n", "metadata"),
        ("rows.jsonl", "{}\n", "metadata"),
        ("data.yaml", "names: [a]\n", "yolo"),
        ("train.tar", "", "shards"),
        ("set.tar.gz", "", ""),
        ("result.json", json.dumps({"images": [], "annotations": [], "categories": []}), "coco"),
        ("project.json", json.dumps([{"id": 1, "data": {}}]), ""),
        ("annotations.xml", "<annotations/>", ""),
        ("photo.HEIC", "", ""),
    ],
)
def test_files(tmp_path: Path, name: str, content: str, kind: str) -> None:
    likely = likely_kind(write(tmp_path / name, content))
    assert likely is not None
    assert likely.spec.partition(":")[0] == kind


def test_nothing_is_said_of_what_is_not_there(tmp_path: Path) -> None:
    assert likely_kind(tmp_path / "nowhere") is None
    with pytest.raises(DataError, match="nowhere: expected KIND:LOCATION with one of scenes, ade20k, coco"):
        open_source(str(tmp_path / "nowhere"))


def test_bad_samples_get_no_hint(tmp_path: Path) -> None:
    """Where a few images are missing, the layout is right."""
    root = coco_tree(tmp_path)
    write(root / "data.yaml", "names: [a]\n")
    (root / "train2017" / "000000000002.jpg").unlink()
    with pytest.raises(DataError) as caught:
        open_source(f"coco:{root}")
    assert "data.yaml" not in str(caught.value)


def test_a_folder_called_like_a_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ultralytics(tmp_path / "coco")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"coco: expected KIND:LOCATION; a data.yaml lies there: yolo:coco"):
        open_source("coco")


@pytest.mark.parametrize("kind", ["yolo", "folders", "metadata"])
def test_an_empty_location_is_not_the_current_folder(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(roboflow_classes(tmp_path))
    with pytest.raises(DataError, match=f"{kind}:: expected"):
        open_source(f"{kind}:")


def test_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_folders(tmp_path / "photos")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(open_source("folders:~/photos")) == 5
