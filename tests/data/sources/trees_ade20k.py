"""Small ADE20K trees in the three layouts, with real JPEG and PNG files."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (20, 10)
"""Width and height in pixels."""

SCENES = {
    "training": {
        "ADE_train_00000001": {"wall": 100, "door": 60},
        "ADE_train_00000002": {"car, auto, automobile, machine, motorcar": 20, "road, route": 150, "sky": 1},
    },
    "validation": {"ADE_val_00000001": {"double door": 40, "machine": 30, "wall": 80}},
}
"""Split → id → name of an object → its pixels, in rows from the top left."""

CHALLENGE_VALUES = {
    **{"wall": 1, "sky": 3, "road, route": 7, "door": 15, "double door": 15, "machine": 0},
    "car, auto, automobile, machine, motorcar": 21,
}
RELEASE_NUMBERS = {
    **{"wall": 2978, "sky": 2420, "road, route": 2131, "door": 774, "double door": 783, "machine": 1481},
    "car, auto, automobile, machine, motorcar": 401,
}
"""The classes' numbers in the full releases, as their authors give them."""

OBJECT_INFO = [
    *("wall", "building, edifice", "sky", "floor, flooring", "tree", "ceiling", "road, route", "bed ", "window"),
    *("grass", "cabinet", "sidewalk, pavement", "person, individual", "earth, ground", "door, double door", "table"),
    *("mountain", "plant", "curtain", "chair", "car, auto, automobile, machine, motorcar"),
]
"""The first rows of a list of classes in the challenge's form."""


def paint(objects: dict[str, int], values: dict[str, int]) -> np.ndarray:
    """Values [H, W] of a scene: each object its number of pixels, the rest 0."""
    flat = np.zeros(SIZE[0] * SIZE[1], dtype=np.int64)
    start = 0
    for name, count in objects.items():
        flat[start : start + count] = values[name]
        start += count
    return flat.reshape(SIZE[1], SIZE[0])


def write_photo(path: Path, size: tuple[int, int] = SIZE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (90, 120, 150)).save(path)


def challenge_tree(folder: Path, object_info: bool = True) -> Path:
    """ADEChallengeData2016 in a folder."""
    root = folder / "ADEChallengeData2016"
    for word, scenes in SCENES.items():
        (root / "annotations" / word).mkdir(parents=True)
        for name, objects in scenes.items():
            write_photo(root / "images" / word / f"{name}.jpg")
            mask = paint(objects, CHALLENGE_VALUES).astype(np.uint8)
            Image.fromarray(mask).save(root / "annotations" / word / f"{name}.png")
    if object_info:
        rows = [f"{number}\t0.1\t9\t9\t{names}" for number, names in enumerate(OBJECT_INFO, start=1)]
        (root / "objectInfo150.txt").write_text("\n".join(["Idx\tRatio\tTrain\tVal\tName", *rows]) + "\n")
    (root / "sceneCategories.txt").write_text("ADE_train_00000001 attic\n")
    return root


def write_seg(path: Path, objects: dict[str, int]) -> None:
    numbers = paint(objects, RELEASE_NUMBERS)
    colours = np.stack([numbers // 256 * 10, numbers % 256, numbers * 0 + 1], axis=-1).astype(np.uint8)
    Image.fromarray(colours).save(path)


def full2016_tree(folder: Path) -> Path:
    """ADE20K_2016_07_26 in a folder."""
    root = folder / "ADE20K_2016_07_26"
    for word, scenes in SCENES.items():
        for name, objects in scenes.items():
            base = root / "images" / word / "a" / "attic"
            write_photo(base / f"{name}.jpg")
            write_seg(base / f"{name}_seg.png", objects)
            lines = [
                f'{number:03d} # 0 # 0 # {each} # {each.split(",")[0]} # "open, large"'
                for number, each in enumerate(objects, start=1)
            ]
            lines.append('001 # 1 # 0 # sky # a part, which is not counted # ""')
            (base / f"{name}_atr.txt").write_text("\n".join(lines) + "\n")
            Image.new("RGB", SIZE).save(base / f"{name}_parts_1.png")
    return root


def full2021_tree(folder: Path) -> Path:
    """ADE20K_2021_17_01 in a folder."""
    root = folder / "ADE20K_2021_17_01"
    for word, scenes in SCENES.items():
        for name, objects in scenes.items():
            base = root / "images" / "ADE" / word / "urban" / "street"
            write_photo(base / f"{name}.jpg")
            write_seg(base / f"{name}_seg.png", objects)
            items = [scene_object(number, each) for number, each in enumerate(objects)]
            items.append(scene_object(len(items), "sky", level=1))
            write_json(base / f"{name}.json", items)
            (base / name).mkdir()
            Image.new("L", SIZE).save(base / name / f"instance_000_{name}.png")
            write_photo(base / name / "not_a_sample.jpg")
    return root


def scene_object(number: int, name: str, level: int = 0) -> dict:
    """An object of the 2021 release, over the left half of the image."""
    return {
        "id": number,
        "name": name,
        "name_ndx": RELEASE_NUMBERS.get(name, 1),
        "raw_name": name.split(",")[0],
        "attributes": [],
        "crop": "0",
        "parts": {"hasparts": [], "ispartof": [], "part_level": level},
        "polygon": {"x": [0, SIZE[0] // 2, SIZE[0] // 2, 0], "y": [0, 0, SIZE[1] + 5, SIZE[1]]},
    }


def write_json(path: Path, items: list[dict] | dict, encoding: str = "utf-8") -> None:
    annotation = {
        "filename": f"{path.stem}.jpg",
        "folder": "ADE20K_2021_17_01/images/ADE/training/urban/street",
        "imsize": [SIZE[1], SIZE[0], 3],
        "source": {"origin": "Málaga"},
        "scene": ["outdoor", "urban", "street"],
        "object": items,
    }
    path.write_bytes(json.dumps({"annotation": annotation}, ensure_ascii=False).encode(encoding))
