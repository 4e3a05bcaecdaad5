"""A small COCO tree with real JPEG files."""

import json
from pathlib import Path
from typing import Any

from PIL import Image

SIZE = (40, 20)
"""Width and height in pixels."""

CATEGORIES = [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}, {"id": 3, "name": "car"}]


def annotation(number: int, image: int, category: int, box: list[float], **more: Any) -> dict[str, Any]:
    outline = [[box[0], box[1], box[0] + box[2], box[1], box[0], box[1] + box[3]]]
    return {
        "id": number,
        "image_id": image,
        "category_id": category,
        "bbox": box,
        "area": box[2] * box[3],
        "iscrowd": 0,
        "segmentation": outline,
        **more,
    }


def index(split: str = "train") -> dict[str, Any]:
    """The content of an annotation file. Image 4 of train has a crowd only, image 5 nothing."""
    if split == "val":
        images, annotations = [139], [annotation(1, 139, 18, [0, 0, 40, 20])]
    else:
        images = [9, 2, 7, 4, 5]
        annotations = [
            annotation(1, 9, 18, [10, 5, 20, 10]),
            annotation(2, 9, 1, [0, 0, 4, 2]),
            annotation(3, 9, 18, [-5, -5, 15, 10]),
            annotation(4, 2, 3, [30, 10, 20, 20]),
            annotation(5, 7, 1, [0, 0, 40, 20]),
            annotation(6, 7, 3, [0, 0, 40, 20], iscrowd=1),
            annotation(7, 4, 3, [0, 0, 40, 20], iscrowd=1),
        ]
    return {
        "info": {},
        "licenses": [],
        "images": [
            {"id": each, "file_name": f"{each:012d}.jpg", "width": SIZE[0], "height": SIZE[1]} for each in images
        ],
        "annotations": annotations,
        "categories": CATEGORIES,
    }


def write_index(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def coco_tree(root: Path, images: str = "", year: str = "2017") -> Path:
    """COCO's folder: annotations, and the splits' folders of images in the folder `images`."""
    for split in ("train", "val"):
        content = index(split)
        write_index(root / "annotations" / f"instances_{split}{year}.json", content)
        folder = root / images / f"{split}{year}"
        folder.mkdir(parents=True)
        for number, picture in enumerate(content["images"]):
            Image.new("RGB", SIZE, (50 * number, 100, 150)).save(folder / picture["file_name"])
    return root
