"""COCO's format as Label Studio, CVAT, Roboflow and FiftyOne export it, opened as they write it."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image
from trees_exports import box, cvat, datumaro, label_studio, roboflow_coco, write
from trees_small import write_images

from contextcaps.data import DataError, Source, open_source, open_splits


def named(source: Source) -> dict[str, list[str]]:
    for sample in source:
        Image.open(sample.image).verify()
    return {sample.id: [source.classes[label] for label in sample.labels] for sample in source}


def test_label_studio(tmp_path: Path) -> None:
    root = label_studio(tmp_path / "project-3-at-2026-06-01")
    for location in (root, root / "result.json"):
        source = open_source(f"coco:{location}")
        assert source.classes == ("Car", "Person")
        assert named(source) == {"0": ["Car", "Person"], "2": ["Car"]}
        assert source.splits == ()
        assert "1 image without a label left out (unlabelled=drop)" in source.notes


@pytest.mark.parametrize(
    "prefix",
    [
        "images\\",
        "..\\..\\label-studio\\media\\upload\\4\\",
        "../../data/media/upload/4/",
        "/data/upload/4/",
        "/data/local-files/?d=",
        "",
    ],
)
def test_label_studio_where_file_names_lead_elsewhere(tmp_path: Path, prefix: str) -> None:
    source = open_source(f"coco:{label_studio(tmp_path, prefix)}")
    assert named(source) == {"0": ["Car", "Person"], "2": ["Car"]}
    noted = "3 images of result.json found by the base name: where the file names lead, there are none"
    assert (noted in source.assumptions) == (prefix not in ("images\\", ""))


def test_base_names_that_are_not_clear(tmp_path: Path) -> None:
    """Two cameras have an image of one name, and only one of them is there: neither is guessed."""
    root = label_studio(tmp_path)
    content = json.loads((root / "result.json").read_text())
    content["images"][0]["file_name"], content["images"][2]["file_name"] = (
        "/cam1/77aa-third.jpg",
        "/cam2/77aa-third.jpg",
    )
    write(root / "result.json", content)
    with pytest.raises(DataError, match=r"2 problems found\n  0: file name '/cam1/77aa-third.jpg' is absolute"):
        open_source(f"coco:{root}")


def test_the_own_json_of_label_studio_is_refused_with_what_to_do(tmp_path: Path) -> None:
    task = {"id": 1, "data": {"image": "/data/upload/1/a.jpg"}, "annotations": [{"result": []}]}
    path = write(tmp_path / "project-1.json", [task])
    with pytest.raises(DataError, match="Label Studio's own JSON is not read; export again as COCO"):
        open_source(f"coco:{path}")


@pytest.mark.parametrize(
    ("places", "prefix"),
    [
        ("images/default", ""),
        ("images/default/default", "default/"),
        ("images/default", "default/"),
        ("images", ""),
        ("images", "default/"),
        ("", ""),
    ],
)
def test_cvat(tmp_path: Path, places: str, prefix: str) -> None:
    root = cvat(tmp_path / "task", places, prefix)
    source = open_source(f"coco:{root}")
    assert named(source) == {"default-1": ["bolt"], "default-2": ["nut"], "default-3": ["bolt", "nut"]}
    assert source.splits == ("default",)
    assert source[0].boxes.corners.tolist() == [[0, 0, 0.5, 0.5]]


def test_a_single_part_is_divided(tmp_path: Path) -> None:
    parts = open_splits(f"coco:{cvat(tmp_path)}")
    assert {name: len(part) for name, part in parts.items()} == {"train": 1, "val": 1, "test": 1}
    assert parts["train"].assumptions == ["default is the only part there is: divided into train, val and test"]


def test_an_export_without_images_is_one_line(tmp_path: Path) -> None:
    root = cvat(tmp_path)
    shutil.rmtree(root / "images")
    with pytest.raises(DataError) as caught:
        open_source(f"coco:{root}")
    assert "\n" not in str(caught.value)
    assert "none of its 3 images can be used, such as a.jpg is missing" in str(caught.value)
    assert "name their folder as images=FOLDER, or export again with images" in str(caught.value)
    write_images(tmp_path / "elsewhere", ["a.jpg", "b.jpg", "c.jpg"])
    assert len(open_source(f"coco:{root}", images=str(tmp_path / "elsewhere"))) == 3


def test_the_own_format_of_datumaro_is_refused_with_what_to_do(tmp_path: Path) -> None:
    root = datumaro(tmp_path)
    for location in (root, root / "annotations" / "default.json"):
        with pytest.raises(DataError, match=r"Datumaro's own format.*export again as COCO 1.0") as caught:
            open_source(f"coco:{location}")
        assert "\n" not in str(caught.value)


def test_roboflow(tmp_path: Path) -> None:
    root = roboflow_coco(tmp_path / "fruit.v1i.coco")
    source = open_source(f"coco:{root}")
    assert source.classes == ("apple", "pear")
    assert source.splits == ("train", "val", "test")
    assert named(open_source(f"coco:{root}", split="valid")) == {
        "val-0": ["apple"],
        "val-1": ["pear"],
        "val-2": ["apple", "pear"],
    }
    assert "category 'fruit' left out: it only groups others, and nothing is annotated with it" in source.assumptions
    assert {name: len(part) for name, part in open_splits(f"coco:{root}").items()} == {"train": 3, "val": 3, "test": 3}
    for part in (root / "train", root / "train" / "_annotations.coco.json"):
        assert open_source(f"coco:{part}").classes == ("apple", "pear")


def test_a_group_that_is_annotated_in_any_split_is_a_class(tmp_path: Path) -> None:
    root = roboflow_coco(tmp_path)
    path = root / "test" / "_annotations.coco.json"
    content = json.loads(path.read_text())
    content["annotations"].append(box(9, 0, 0))
    write(path, content)
    for split in ("train", "test"):
        assert open_source(f"coco:{root}", split=split).classes == ("fruit", "apple", "pear")


def test_a_group_named_as_its_class(tmp_path: Path) -> None:
    root = roboflow_coco(tmp_path, ["train"])
    path = root / "train" / "_annotations.coco.json"
    write(path, path.read_text().replace('"fruit"', '"apple"'))
    source = open_source(f"coco:{root}")
    assert source.classes == ("apple", "pear")
    assert len(source) == 3


def test_changed_files_of_one_name_change_the_fingerprint(tmp_path: Path) -> None:
    root = roboflow_coco(tmp_path)
    before = open_source(f"coco:{root}").fingerprint()
    path = root / "valid" / "_annotations.coco.json"
    path.write_text(path.read_text() + "\n")
    assert open_source(f"coco:{root}").fingerprint() != before


@pytest.mark.parametrize("kinds", [("7", "7"), ("7", 7), (7, "7"), ("img-a", "img-a")])
def test_ids_that_are_text(tmp_path: Path, kinds: tuple[object, object]) -> None:
    in_images, in_annotations = kinds
    write_images(tmp_path / "images", ["a.jpg"])
    content = {
        "images": [{"id": in_images, "file_name": "a.jpg", "width": 16, "height": 12}],
        "annotations": [box(1, in_annotations, "10"), box(2, in_annotations, 9)],
        "categories": [{"id": "10", "name": "dog"}, {"id": 9, "name": "cat"}],
    }
    write(tmp_path / "labels.json", content)
    source = open_source(f"coco:{tmp_path}")
    assert source.classes == ("cat", "dog")
    assert named(source) == {str(in_images): ["cat", "dog"]}


def test_categories_whose_ids_are_words_keep_their_order(tmp_path: Path) -> None:
    write_images(tmp_path / "data", ["a.jpg"])  # FiftyOne: data/ and labels.json
    content = {
        "info": {},
        "images": [{"id": 1, "file_name": "a.jpg", "width": 16, "height": 12}],
        "annotations": [box(1, 1, "c-dog")],
        "categories": [{"id": "c-dog", "name": "dog"}, {"id": "a-cat", "name": "cat"}],
    }
    write(tmp_path / "labels.json", content)
    assert open_source(f"coco:{tmp_path}").classes == ("dog", "cat")


def test_files_of_other_names(tmp_path: Path) -> None:
    content = json.loads((cvat(tmp_path / "a") / "annotations" / "instances_default.json").read_text())
    root = tmp_path / "b"
    write_images(root / "images", ["a.jpg", "b.jpg", "c.jpg"])
    write(root / "annotations" / "train_labels.json", content)
    write(root / "annotations" / "val_labels.json", content)
    write(root / "annotations" / "captions.json", '{"text": "nothing of COCO"}')
    write(root / "annotations" / "._train_labels.json", "macOS")
    assert open_source(f"coco:{root}").splits == ("train", "val")
    write(root / "annotations" / "both.json", content)
    with pytest.raises(DataError, match=r"one annotation file, or one for each split, got both.json, train"):
        open_source(f"coco:{root}")
