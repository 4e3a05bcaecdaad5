"""A small Pascal VOC tree with real JPEG and PNG files."""

from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (40, 20)
"""Width and height in pixels."""

PALETTE = [value for index in range(256) for value in (index, 255 - index, index * 7 % 256)]

IMAGES = {
    "train": {"000005": [("dog", 0), ("person", 0), ("dog", 1)], "000002": [("chair", 1), ("cat", 0)]},
    "val": {"000009": [("aeroplane", 0)], "000007": [("tvmonitor", 1)]},
    "test": {"000001": [("person", 0)]},
}
"""List → id → objects and whether they are difficult."""


def object_xml(name: str, difficult: int, box: tuple[float, float, float, float] = (11, 6, 30, 15)) -> str:
    keys = ("xmin", "ymin", "xmax", "ymax")
    corners = "".join(f"<{key}>{value}</{key}>" for key, value in zip(keys, box, strict=True))
    part = "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>"
    return (
        f"<object><name>{name}</name><pose>Left</pose><truncated>0</truncated><difficult>{difficult}</difficult>"
        f"<bndbox>{corners}</bndbox>{part}</object>"
    )


def annotation_xml(name: str, objects: str) -> str:
    size = f"<size><width>{SIZE[0]}</width><height>{SIZE[1]}</height><depth>3</depth></size>"
    return (
        f"<annotation><folder>VOC2012</folder><filename>{name}.jpg</filename>{size}<segmented>1</segmented>"
        f"{objects}</annotation>"
    )


def mask_values() -> np.ndarray:
    """Values [H, W] of a mask: a dog (12), a person (15), void (255) between them."""
    values = np.zeros((SIZE[1], SIZE[0]), dtype=np.uint8)
    values[2:10, 2:10], values[2:10, 10], values[2:10, 11:20] = 12, 255, 15
    return values


def write_mask(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mask = Image.fromarray(values)
    mask.putpalette(PALETTE)
    assert mask.mode == "P"
    mask.save(path)


def voc_tree(folder: Path, year: int = 2012) -> Path:
    """VOCdevkit in a folder, with one year, whose folder is the result."""
    root = folder / "VOCdevkit" / f"VOC{year}"
    for name in ("Annotations", "ImageSets/Main", "JPEGImages", "SegmentationClass"):
        (root / name).mkdir(parents=True)
    for name, images in IMAGES.items():
        (root / "ImageSets/Main" / f"{name}.txt").write_text("".join(f"{each}\n" for each in images))
        (root / "ImageSets/Main" / f"dog_{name}.txt").write_text("".join(f"{each} -1\n" for each in images))
        for each, objects in images.items():
            Image.new("RGB", SIZE, (80, 120, 160)).save(root / "JPEGImages" / f"{each}.jpg")
            xml = annotation_xml(each, "".join(object_xml(*item) for item in objects))
            (root / "Annotations" / f"{each}.xml").write_text(xml)
    both = [*IMAGES["train"], *IMAGES["val"]]
    (root / "ImageSets/Main/trainval.txt").write_text("".join(f"{each}\n" for each in sorted(both)))
    write_mask(root / "SegmentationClass" / "000005.png", mask_values())
    return root
