"""Trees as annotation tools write them, with real JPEG files of 16 × 12 pixels."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trees_small import write_images


def write(path: Path, content: str | Sequence[Any] | Mapping[str, Any]) -> Path:
    """A file of text, or of JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def label_studio(root: Path, prefix: str = "images/") -> Path:
    """Label Studio's export "COCO with Images": result.json beside images/; ids from 0, no licenses."""
    names = ["1f2a-first.jpg", "9c3d-second.jpg", "77aa-third.jpg"]
    write_images(root / "images", names)
    content = {
        "images": [
            {"width": 16, "height": 12, "id": number, "file_name": f"{prefix}{name}"}
            for number, name in enumerate(names)
        ],
        "categories": [{"id": 0, "name": "Car"}, {"id": 1, "name": "Person"}],
        "annotations": [
            {**box(0, 0, 1), "ignore": 0, "segmentation": []},
            {**box(1, 0, 0), "ignore": 0, "segmentation": [[0, 0, 4, 0, 4, 4]]},
            {**box(2, 2, 0), "ignore": 0, "segmentation": []},
        ],
        "info": {"year": 2026, "version": "1.0", "description": "", "contributor": "Label Studio", "url": ""},
    }
    write(root / "result.json", content)
    return root


def box(number: int, image: object, category: object) -> dict[str, Any]:
    """An annotation of the image's left upper quarter."""
    return {
        "id": number,
        "image_id": image,
        "category_id": category,
        "bbox": [0, 0, 8.0, 6.0],
        "area": 48,
        "iscrowd": 0,
    }


def cvat(root: Path, places: str = "images/default", prefix: str = "") -> Path:
    """CVAT's "COCO 1.0" of a task: annotations/instances_default.json; dates are 0 and supercategories empty."""
    write_images(root / places, ["a.jpg", "b.jpg", "c.jpg"])
    images = [
        {
            "id": number,
            "width": 16,
            "height": 12,
            "file_name": f"{prefix}{name}.jpg",
            "license": 0,
            "flickr_url": "",
            "coco_url": "",
            "date_captured": 0,
        }
        for number, name in enumerate("abc", start=1)
    ]
    content = {
        "licenses": [{"name": "", "id": 0, "url": ""}],
        "info": {"contributor": "", "date_created": "", "description": "", "url": "", "version": "", "year": ""},
        "categories": [
            {"id": 1, "name": "bolt", "supercategory": ""},
            {"id": 2, "name": "nut", "supercategory": ""},
        ],
        "images": images,
        "annotations": [
            {**box(1, 1, 1), "segmentation": [], "attributes": {"occluded": False, "rotation": 0.0}},
            {**box(2, 2, 2), "segmentation": [], "attributes": {"occluded": False}},
            {**box(3, 3, 1), "segmentation": [], "attributes": {"occluded": True}},
            {**box(4, 3, 2), "segmentation": [], "attributes": {"occluded": True}},
        ],
    }
    write(root / "annotations" / "instances_default.json", content)
    return root


def datumaro(root: Path) -> Path:
    """Datumaro's own format, which CVAT exports, too: annotations/default.json with items."""
    write_images(root / "images" / "default", ["a.jpg"])
    content = {
        "info": {},
        "categories": {"label": {"labels": [{"name": "bolt", "parent": "", "attributes": []}], "attributes": []}},
        "items": [
            {
                "id": "a",
                "annotations": [{"id": 0, "type": "bbox", "label_id": 0, "bbox": [0.0, 0.0, 8.0, 6.0], "group": 0}],
                "attr": {"frame": 0},
                "image": {"path": "a.jpg", "size": [12, 16]},
            }
        ],
    }
    write(root / "annotations" / "default.json", content)
    return root


def roboflow_coco(root: Path, parts: Sequence[str] = ("train", "valid", "test")) -> Path:
    """Roboflow's COCO export: a folder of each split; category 0 is the project's and has no annotation."""
    for part in parts:
        names = [f"{part}{number}_jpg.rf.0a1b2c{number}.jpg" for number in range(3)]
        write_images(root / part, names)
        content = {
            "info": {"year": "2026", "version": "1", "description": "Exported from roboflow.com", "contributor": ""},
            "licenses": [{"id": 1, "url": "https://creativecommons.org/licenses/by/4.0/", "name": "CC BY 4.0"}],
            "categories": [
                {"id": 0, "name": "fruit", "supercategory": "none"},
                {"id": 1, "name": "apple", "supercategory": "fruit"},
                {"id": 2, "name": "pear", "supercategory": "fruit"},
            ],
            "images": [
                {
                    "id": number,
                    "license": 1,
                    "file_name": name,
                    "height": 12,
                    "width": 16,
                    "date_captured": "2026-06-01T10:00:00+00:00",
                    "extra": {"name": f"{part}{number}.jpg"},
                }
                for number, name in enumerate(names)
            ],
            "annotations": [
                {**box(0, 0, 1), "segmentation": []},
                {**box(1, 1, 2), "segmentation": []},
                {**box(2, 2, 1), "segmentation": []},
                {**box(3, 2, 2), "segmentation": []},
            ],
        }
        write(root / part / "_annotations.coco.json", content)
    write(root / "README.dataset.txt", "fruit > 2026-06-01\nhttps://universe.roboflow.com/someone/fruit\n")
    write(root / "README.roboflow.txt", "fruit - v1\n==============================\n")
    return root


def roboflow_classes(root: Path, parts: Sequence[str] = ("train", "valid", "test")) -> Path:
    """Roboflow's "Multi-Label Classification CSV": _classes.csv of each split, with a blank after each comma."""
    for part in parts:
        write_images(root / part, [f"{part}{number}_jpg.rf.9f{number}.jpg" for number in range(3)])
        rows = [
            f"{part}0_jpg.rf.9f0.jpg, 1, 0, 0",
            f"{part}1_jpg.rf.9f1.jpg, 0, 1, 1",
            f"{part}2_jpg.rf.9f2.jpg, 0, 0, 0",
        ]
        write(root / part / "_classes.csv", "\n".join(["filename, apple, pear, ripe fruit", *rows]) + "\n")
    write(root / "README.roboflow.txt", "fruit - v1\n")
    return root


def roboflow_yolo(root: Path) -> Path:
    """Roboflow's YOLOv8 export: train/images beside train/labels, and paths that begin with "../"."""
    for part in ("train", "valid", "test"):
        names = [f"{part}{number}_jpg.rf.0a{number}" for number in range(3)]
        write_images(root / part / "images", [f"{name}.jpg" for name in names])
        write(root / part / "labels" / f"{names[0]}.txt", "0 0.25 0.25 0.5 0.5\n1 0.5 0.5 1 1")
        write(root / part / "labels" / f"{names[1]}.txt", "1 0.1 0.1 0.9 0.1 0.9 0.6 0.1 0.6")
        write(root / part / "labels" / f"{names[2]}.txt", "")
    text = "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n\nnc: 2\nnames: ['apple', 'no']\n"
    write(root / "data.yaml", text + "\nroboflow:\n  workspace: someone\n  project: fruit\n  version: 1\n")
    return root


def ultralytics(root: Path) -> Path:
    """Ultralytics' own layout, as of coco8.yaml: images/train beside labels/train, names as a dictionary."""
    for part in ("train", "val"):
        write_images(root / "images" / part, [f"{part}{number}.jpg" for number in range(3)])
        for number, line in enumerate(["0 0.25 0.25 0.5 0.5\n2 0.5 0.5 0.2 0.2\n", "1 0.5 0.5 1.0 1.0\n"]):
            write(root / "labels" / part / f"{part}{number}.txt", line)
    text = (
        "# coco8\npath: ../datasets/coco8 # dataset root dir\ntrain: images/train # 4 images\nval: images/val\ntest:\n"
    )
    write(
        root / "data.yaml",
        text + "\nnames:\n  0: person\n  1: bicycle\n  2: car\n\ndownload: https://example.com/coco8.zip\n",
    )
    return root


def label_studio_yolo(root: Path) -> Path:
    """Label Studio's YOLO export: images/, labels/, classes.txt and notes.json, without a YAML file."""
    write_images(root / "images", ["1f-a.jpg", "2e-b.jpg"])
    write(root / "labels" / "1f-a.txt", "0 0.5 0.5 0.5 0.5\n")
    write(root / "labels" / "2e-b.txt", "1 0.5 0.5 0.5 0.5\n")
    write(root / "classes.txt", "Car\nPerson\n")
    write(root / "notes.json", {"categories": [{"id": 0, "name": "Car"}, {"id": 1, "name": "Person"}], "info": {}})
    return root


def class_folders(root: Path, parts: Sequence[str] = ("",)) -> Path:
    """torchvision's ImageFolder: root/cat/1.jpg, or root/train/cat/1.jpg; files of both hands are in another order."""
    seed = 0
    for part in parts:
        for name in ("cat", "dog"):
            seed += 1
            names = [f"{name}{seed}{number}.jpg" for number in range(2)]
            write_images(root / part / name, names if seed % 2 else [*names, "more/Deep.JPG"])
    return root


def image_folder(root: Path) -> Path:
    """Hugging Face's imagefolder with objects: metadata.jsonl in the folder of each split."""
    for part in ("train", "test"):
        write_images(root / part, ["0001.png", "0002.png", "0003.png"])
        rows = [
            {"file_name": "0001.png", "objects": {"bbox": [[1.0, 1.0, 4.0, 4.0]], "categories": ["cat"]}},
            {"file_name": "0002.png", "objects": {"bbox": [[1, 1, 4, 4], [2, 2, 3, 3]], "categories": ["dog", "cat"]}},
            {"file_name": "0003.png", "objects": {"bbox": [], "categories": []}},
        ]
        write(root / part / "metadata.jsonl", "\n".join(map(json.dumps, rows)) + "\n")
    return root
