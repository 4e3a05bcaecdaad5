"""Tell by looking which kind of source a file or folder is, for those who did not name it or named another."""

import dataclasses
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from contextcaps.data.image_files import is_clutter, looks_like_image
from contextcaps.data.sources.coco_files import looks_like_coco
from contextcaps.data.sources.metadata import LIST_NAMES
from contextcaps.data.sources.yolo_yaml import find_yaml
from contextcaps.data.vocabulary import canonical_split
from contextcaps.documents import counted

__all__ = ["Likely", "likely_kind"]

_ARCHIVES = (".zip", ".gz", ".tgz", ".7z", ".rar", ".bz2", ".xz")


@dataclasses.dataclass(frozen=True)
class Likely:
    """Says what a path looks like."""

    why: str
    """What was seen; for what no kind reads, also what to do."""
    spec: str = ""
    """Name to open it by, "KIND:LOCATION"; empty for what no kind reads, such as an archive."""

    def __str__(self) -> str:
        return f"{self.why}: {shlex.quote(self.spec)}" if self.spec else self.why


def likely_kind(path: Path) -> Likely | None:
    """Return what a path looks like; None if it is not there, or looks like no kind."""
    try:
        if path.is_file():
            return _of_file(path)
        return _of_folder(path) if path.is_dir() else None
    except OSError:
        return None  # whoever opens it says why it cannot be read


def _of_file(path: Path) -> Likely | None:
    suffix = path.suffix.lower()
    if path.name in LIST_NAMES:
        return Likely("it looks like a list of labels beside images", f"metadata:{path}")
    if suffix in (".csv", ".tsv", ".parquet", ".pq"):
        return Likely("it looks like a table", f"table:{path}")
    if suffix == ".jsonl":
        return Likely("it looks like a list with an object in each line", f"metadata:{path}")
    if suffix in (".yaml", ".yml"):
        return Likely("it looks like a description in YAML, as YOLO has it", f"yolo:{path}")
    if suffix == ".tar":
        return Likely("it looks like a tar file", f"shards:{path}")
    if suffix in _ARCHIVES:
        return Likely("it looks like an archive: unpack it, and name the folder")
    if suffix == ".json":
        if looks_like_coco(path):
            return Likely("it looks like annotations in COCO's format", f"coco:{path}")
        return Likely("it looks like JSON of a format that is not read; export again as COCO")
    if suffix == ".xml":
        return Likely("it looks like a single XML file, as of CVAT for images; export again as COCO 1.0")
    if looks_like_image(path.name):
        return Likely("it looks like a single image; name the folder or the table with the labels")
    return None


def _of_folder(folder: Path, deeper: bool = True) -> Likely | None:
    files, folders = _entries(folder)
    sign = next(_signs(folder, files, folders), None)
    if sign is not None or not deeper:
        return sign
    if len(folders) == 1 and not any(looks_like_image(name) for name in files):
        below = _of_folder(folder / folders[0], deeper=False)
        if below is not None:
            return below
    archive = next((name for name in files if Path(name).suffix.lower() in _ARCHIVES), None)
    if archive is not None:
        return Likely(f"{archive} lies there: unpack it, and name the folder")
    images = sum(looks_like_image(name) for name in files)
    if images:
        found = f"{counted(images, 'image')} without labels"
        return Likely(f"{found}; write a table of paths and labels (table:FILE), or sort them into folders of classes")
    return None


def _signs(folder: Path, files: list[str], folders: list[str]) -> Iterator[Likely]:
    """Yield the kinds that something in a folder speaks for, the surest first."""
    described = find_yaml(folder)
    if described is not None:
        yield Likely(f"a {described.name} lies there", f"yolo:{folder}")
    yield from _known_sets(folder)
    coco = _coco_file(folder, folders)
    if coco is not None:
        yield Likely(f"{coco} lies there", f"coco:{folder}")
    parts = [name for name in folders if canonical_split(name)]
    for name in LIST_NAMES:
        holder = next((each for each in ("", *parts) if (folder / each / name).is_file()), None)
        if holder is not None:
            yield Likely(f"{os.path.join(holder, name)} lies there", f"metadata:{folder}")
    for name in ("classes.txt", "obj.names"):
        if name in files and "images" in folders:
            yield Likely(f"{name} and images/ lie there", f"yolo:{folder}")
    if "obj.names" in files or "obj.data" in files:
        yield Likely("obj.names lies there, as in YOLO 1.1: export again as Ultralytics YOLO or COCO 1.0")
    if any((folder / "annotations" / name).is_file() for name in ("default.json", "train.json")):
        yield Likely("annotations/ is in Datumaro's own format: export again as COCO 1.0")
    if "annotations.xml" in files:
        yield Likely("annotations.xml lies there, as of CVAT for images: export again as COCO 1.0")
    tars = [name for name in files if name.endswith(".tar")]
    if tars:
        yield Likely(f"{tars[0]} lies there", f"shards:{folder}/*.tar")
    if {"dataset_info.json", "dataset_dict.json"} & set(files):
        yield Likely("a data set of Hugging Face lies there", f"hf:{folder}")
    tables = [name for name in files if name.lower().endswith((".csv", ".tsv", ".parquet"))]
    if tables:
        yield Likely(f"{tables[0]} lies there", f"table:{folder / tables[0]}")
    holders = [each for name in folders for each in ([name] if name not in parts else _below(folder, name))]
    with_images = [each for each in holders if _has_images(folder / each)]
    if len(with_images) > 1:
        yield Likely(f"folders with images lie there, such as {with_images[0]}", f"folders:{folder}")


def _known_sets(folder: Path) -> Iterator[Likely]:
    """Yield the public data sets that a folder is one of."""
    if any(path for pattern in ("", "*/", "VOCdevkit/*/") for path in folder.glob(f"{pattern}ImageSets/Main")):
        yield Likely("Pascal VOC's ImageSets lie there", f"voc:{folder}")
    if any((folder / each / "annotations" / "training").is_dir() for each in ("", "ADEChallengeData2016")):
        yield Likely("ADE20K's annotations lie there", f"ade20k:{folder}")
    if any(name.startswith("train-images") for name in os.listdir(folder)):
        yield Likely("MNIST's files lie there", f"mnist:{folder}")


def _coco_file(folder: Path, folders: list[str]) -> str | None:
    """Return an annotation file in COCO's format, where coco: looks for one."""
    places = ["", *(["annotations"] if "annotations" in folders else [])]
    named = [os.path.join(each, name) for each in places for name in sorted(os.listdir(folder / each))]
    named += [os.path.join(each, "_annotations.coco.json") for each in folders]
    json = [name for name in named if name.endswith(".json") and not is_clutter(os.path.basename(name))]
    return next((name for name in json if (folder / name).is_file() and looks_like_coco(folder / name)), None)


def _entries(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the files and of the folders in a folder, without clutter."""
    with os.scandir(folder) as found:
        entries = sorted((each.name, each.is_dir()) for each in found if not is_clutter(each.name))
    return [name for name, is_folder in entries if not is_folder], [name for name, is_folder in entries if is_folder]


def _below(folder: Path, name: str) -> list[str]:
    return [os.path.join(name, each) for each in _entries(folder / name)[1]]


def _has_images(folder: Path) -> bool:
    """Return whether an image lies in a folder, or in one in it."""
    files, folders = _entries(folder)
    return any(map(looks_like_image, files)) or any(
        looks_like_image(name) for each in folders for name in _entries(folder / each)[0]
    )
