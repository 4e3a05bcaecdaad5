"""Write a whole file of each kind, and open it as a user would."""

import contextlib
import functools
import io
import json
import random
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import hostile
import mutations
import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from PIL import Image

from contextcaps.corpus.listing import list_container
from contextcaps.corpus.reading import decoded_rows
from contextcaps.data import cache as caches
from contextcaps.data import open_source, prepare
from contextcaps.data.images import decode
from contextcaps.models import CapsuleNetwork, ModelConfig, create_model
from contextcaps.models.loading import load_model
from contextcaps.models.onnx_export import model_of
from contextcaps.models.onnx_file import sealed
from contextcaps.models.onnx_opening import open_onnx_file
from contextcaps.tagging.loading import load
from contextcaps.tagging.tagger import Tagger
from contextcaps.training.checkpoints import Checkpoints
from contextcaps.training.config import TrainConfig
from contextcaps.training.data import Part
from contextcaps.training.runs import SEEN_FILE, RunState
from contextcaps.training.seen import count_seen

__all__ = ["Kind", "Opener", "write_kinds"]

Opener = Callable[[Path], str]
Change = Callable[[Path, random.Random], None]


@dataclass
class Kind:
    """Is a file that is attacked: where it is, how it is opened, and how a case changes it."""

    path: Path
    opener: Opener
    change: Change


def _change_bytes(path: Path, dice: random.Random) -> None:
    path.write_bytes(mutations.mutated(path.read_bytes(), dice))


def _change_value(path: Path, dice: random.Random) -> None:
    path.write_bytes(mutations.with_a_changed_value(path.read_bytes(), dice, path.suffix.removeprefix(".")))


def _change_some_images(path: Path, dice: random.Random) -> None:
    """Change all images of a folder that are to be bad, at once: bytes, place, or made to do harm."""
    for each in sorted(path.parent.glob("bad-*")):
        change = dice.choice((_change_bytes, mutations.put_elsewhere, hostile.write_image, hostile.write_image))
        change(each, dice)


def photo(seed: int, side: int = 48) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)


def encoded(form: str, **options: object) -> bytes:
    file = io.BytesIO()
    photo(0).save(file, form, **options)
    return file.getvalue()


def open_image(path: Path) -> str:
    decode(path, 32)
    return "used"


def open_model(path: Path) -> str:
    """Load a model's folder; weights that differ from those that were written are used in silence."""
    network, _ = load_model(path.parent)
    whole = CapsuleNetwork.from_pretrained(path.parent.parent / "whole").state_dict()
    found = network.state_dict()
    if path.name == "model.safetensors" and any(not torch.equal(found[name], each) for name, each in whole.items()):
        return "silent"
    return "used"


def open_onnx(path: Path) -> str:
    """Score an image by an ONNX file; scores of one that is not what was written are used in silence."""
    image = np.zeros((1, 3, 32, 32), np.uint8)
    found, whole = (open_onnx_file(each)[0].scores(image) for each in (path, path.with_name("whole.onnx")))
    return "used" if np.array_equal(found, whole) else "silent"


def open_yaml(path: Path) -> str:
    ModelConfig.from_yaml(path)
    return "used"


def open_run(path: Path) -> str:
    RunState.read(path.parent)
    return "used"


def open_checkpoint(path: Path) -> str:
    """Load a run's last checkpoint, or the one before it."""
    state = Checkpoints(path.parent).load()
    weights = None if state is None else state.get("weights")
    return "used" if torch.equal(weights, torch.arange(1000.0)) else "silent"


def open_strange_checkpoint(path: Path) -> str:
    """Load a checkpoint that says what it likes, and runs nothing."""
    Checkpoints(path.parent).load()
    return "ran code" if path.with_name("ran").exists() else "used"


def open_data(kind: str) -> Opener:
    def opened(path: Path) -> str:
        place = (
            path
            if path.suffix in (".csv", ".parquet", ".tar")
            else next(each for each in path.parents if each.name == "data")
        )
        source = open_source(f"{kind}:{place}", on_bad="skip")
        for index in range(min(len(source), 3)):
            source.sample(index)
        source.targets()
        return "used"

    return opened


def open_corpus(path: Path) -> str:
    """List the images of a table or a shard as `tag --engine ray` does, and decode the first of them."""
    decoded_rows(list_container(str(path)).slice(0, 8), (16, 16))
    return "used"


def open_fingerprints(path: Path) -> str:
    """Count the images that a run has learned from; a damaged list of them is as none."""
    source = open_source(f"table:{path.parents[1] / 'tables' / 'data' / 'labels.csv'}")
    config = TrainConfig(data="table:x", image_size=16, workers=1)
    count_seen(path.parent, Part(source, 16), config)
    return "ran code" if path.with_name("ran").exists() else "used"


def open_by_workers(path: Path) -> str:
    """Tag a folder of bad images among whole ones by several workers: each costs its own row alone."""
    names = sorted(str(each) for each in path.parent.iterdir())
    rows = _tagger(path.parents[1]).tag(names, batch_size=8, workers=4)
    whole = [each for each in rows if Path(str(each.image)).name.startswith("whole")]
    if [each.image for each in rows] != names or any(each.error is not None for each in whole):
        return "lost a row"
    return "used" if all(each.error is None for each in rows) else "refused"


@functools.cache
def _tagger(home: Path) -> Tagger:
    return load(home / "models" / "model")


def open_prepared(path: Path) -> str:
    """Open a prepared copy; it is made anew where it is damaged, and is then as it was."""
    caches._whole.clear()  # as a new process would
    home = path.parents[2]
    prepared = prepare(
        open_source(f"table:{home / 'data' / 'labels.csv'}"), 16, home / "cache", progress=False, workers=1
    )
    whole = home / "whole-cache" / prepared.folder.name
    parts = [each.name for each in whole.iterdir() if each.name != "checksums.json"]  # which may be written otherwise
    same = all((prepared.folder / name).read_bytes() == (whole / name).read_bytes() for name in parts)
    return "used" if same else "silent"


def write_kinds(home: Path, only: str = "ONNX") -> dict[str, Kind]:
    """Write a whole file of each kind; return them by name.

    Args:
        home: an empty folder.
        only: the kind that is wanted; ONNX files, which take long to write, are left out for another.
    """
    kinds: dict[str, Kind] = {}

    def add(
        name: str,
        path: Path,
        opener: Opener,
        content: bytes | None = None,
        made: Change | None = None,
        change: Change = _change_bytes,
        placed: bool = True,
    ) -> None:
        """Add a file whose bytes are changed, its values where it has some, its place, and one that is made so."""
        if content is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        kinds[name] = Kind(path, opener, change)
        if path.suffix in (".json", ".yaml"):
            kinds[f"{name}, values"] = Kind(path, opener, _change_value)
        if placed and (not name.startswith("image") or name == "image JPEG"):
            kinds[f"{name}, place"] = Kind(path, opener, mutations.put_elsewhere)
        if made is not None:
            own = open_strange_checkpoint if made is hostile.write_checkpoint else opener
            kinds[f"{name}, hostile"] = Kind(path, own, made)

    forms = {"JPEG": {}, "PNG": {}, "WEBP": {}, "GIF": {}, "BMP": {}, "TIFF": {"compression": "tiff_lzw"}, "PPM": {}}
    for form, options in {**forms, "JPEG2000": {}, "AVIF": {}}.items():
        with contextlib.suppress(KeyError, OSError):
            made = hostile.write_image if form == "JPEG" else None
            add(f"image {form}", home / "images" / form, open_image, encoded(form, **options), made)
    add("image JPEG, progressive", home / "images" / "progressive", open_image, encoded("JPEG", progressive=True))
    torch.manual_seed(0)
    model = create_model("contextcaps", 3, 32, "small", capsules={"types": 2}, class_names=("bed", "lamp", "sea"))
    for name in ("model", "whole"):
        model.save_pretrained(home / "models" / name)
    for file in ("config.json", "model.safetensors"):
        made = hostile.write_weights if file == "model.safetensors" else None
        add(f"model {file}", home / "models" / "model" / file, open_model, made=made)
    if only.startswith("ONNX"):
        onnx = home / "onnx" / "model.onnx"
        onnx.parent.mkdir()
        onnx.write_bytes(sealed(model_of(model.eval(), None, explained=False).SerializeToString()))
        shutil.copyfile(onnx, onnx.with_name("whole.onnx"))
        add("ONNX", onnx, open_onnx)
    add("network.yaml", home / "network.yaml", open_yaml, model.config.to_yaml().encode())
    facts = {"seed": 0, "state": "failed", "failure": {"kind": "error", "message": "a"}, "images": {"train": 4}}
    memory = {"where": "process", "bytes": 12}
    add("run.json", home / "run" / "run.json", open_run, json.dumps({**facts, "memory": memory}).encode())
    checkpoints = Checkpoints(home / "checkpoints")
    for _ in range(2):
        checkpoints.save({"weights": torch.arange(1000.0), "progress": {"step": 3}})
    add("checkpoint", checkpoints.last, open_checkpoint, made=hostile.write_checkpoint)
    _add_data(home, add)
    return kinds


def _add_parquet(home: Path, add: Callable[..., None]) -> None:
    folder = home / "parquet" / "data"
    folder.mkdir(parents=True)
    for name in ("a.jpg", "b.jpg"):
        (folder / name).write_bytes(encoded("JPEG"))
    table = pyarrow.table({"file": ["a.jpg", "b.jpg"], "labels": [["sea", "sky"], ["sky"]]})
    pyarrow.parquet.write_table(table, folder / "labels.parquet")
    add("table, Parquet", folder / "labels.parquet", open_data("table"), made=hostile.write_parquet)
    corpus = home / "corpus"
    corpus.mkdir()
    cells = pyarrow.table({"image": [{"bytes": encoded("JPEG"), "path": None}] * 20})
    pyarrow.parquet.write_table(cells, corpus / "a.parquet", row_group_size=8)
    add("corpus, Parquet", corpus / "a.parquet", open_corpus, made=hostile.write_parquet)
    with tarfile.open(corpus / "a.tar", "w") as archive:
        info = tarfile.TarInfo("a.jpg")
        info.size = len(encoded("JPEG"))
        archive.addfile(info, io.BytesIO(encoded("JPEG")))
    add("corpus, shard", corpus / "a.tar", open_corpus, made=hostile.write_shard)
    run = home / "learned"
    run.mkdir()
    np.savez(run / SEEN_FILE, train=np.arange(9, dtype=np.uint64), val=np.arange(3, dtype=np.uint64))
    add(SEEN_FILE, run / SEEN_FILE, open_fingerprints, made=hostile.write_fingerprints)


def _add_data(home: Path, add: Callable[..., None]) -> None:
    folder = home / "tables" / "data"
    folder.mkdir(parents=True)
    for name in ("a.jpg", "b.jpg"):
        (folder / name).write_bytes(encoded("JPEG"))
    add(
        "table",
        folder / "labels.csv",
        open_data("table"),
        b"file,labels\na.jpg,sea;sky\nb.jpg,sky\n",
        hostile.write_table,
    )
    add("table, a column per class", folder / "wide.csv", open_data("table"), b"file,sea,sky\na.jpg,1,0\nb.jpg,0,1\n")
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for stem, labels in (("a", ["sea"]), ("b", ["sky"])):
            for suffix, content in ((".jpg", encoded("JPEG")), (".json", json.dumps({"labels": labels}).encode())):
                info = tarfile.TarInfo(stem + suffix)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    add("shard", home / "shards" / "train-0.tar", open_data("shards"), tar.getvalue(), hostile.write_shard)
    add(
        "classes.json",
        home / "listed" / "data" / "classes.json",
        open_data("shards"),
        b'["sea", "sky"]',
        hostile.write_name,
    )
    (home / "listed" / "data" / "train-0.tar").write_bytes(tar.getvalue())
    coco = home / "coco" / "data"
    (coco / "train2017").mkdir(parents=True)
    (coco / "train2017" / "a.jpg").write_bytes(encoded("JPEG"))
    image = {"id": 1, "file_name": "a.jpg", "width": 48, "height": 48}
    box = {"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 2, 30, 40], "iscrowd": 0, "area": 9}
    index = {"images": [image], "annotations": [box], "categories": [{"id": 3, "name": "sea"}]}
    place = coco / "annotations" / "instances_train2017.json"
    add("COCO", place, open_data("coco"), json.dumps(index).encode())
    voc = home / "voc" / "data"
    for name in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (voc / name).mkdir(parents=True)
    (voc / "JPEGImages" / "a.jpg").write_bytes(encoded("JPEG"))
    (voc / "ImageSets" / "Main" / "train.txt").write_text("a\n")
    corners = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30</xmax><ymax>40</ymax></bndbox>"
    size = "<size><width>48</width><height>48</height><depth>3</depth></size>"
    xml = f"<annotation><filename>a.jpg</filename>{size}<object><name>person</name>{corners}</object></annotation>"
    add("VOC", voc / "Annotations" / "a.xml", open_data("voc"), xml.encode(), hostile.write_xml)
    yolo = home / "yolo" / "data"
    for name in ("images/train", "labels/train"):
        (yolo / name).mkdir(parents=True)
    (yolo / "images" / "train" / "a.jpg").write_bytes(encoded("JPEG"))
    (yolo / "labels" / "train" / "a.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    add("YOLO data.yaml", yolo / "data.yaml", open_data("yolo"), b"train: images/train\nnames: [sea, sky]\n")
    add("YOLO labels", yolo / "labels" / "train" / "a.txt", open_data("yolo"), made=hostile.write_yolo_labels)
    _add_parquet(home, add)
    for number in range(30):
        (home / "workers").mkdir(exist_ok=True)
        name = f"bad-{number}.jpg" if number % 10 == 0 else f"whole-{number}.jpg"
        (home / "workers" / name).write_bytes(encoded("JPEG"))
    add("workers", home / "workers" / "bad-0.jpg", open_by_workers, change=_change_some_images, placed=False)
    source = open_source(f"table:{folder / 'labels.csv'}")
    prepared = prepare(source, 16, home / "tables" / "cache", progress=False, workers=1)
    shutil.copytree(prepared.folder, home / "tables" / "whole-cache" / prepared.folder.name)
    for file in ("images.bin", "targets.bin", "metadata.json", "checksums.json"):
        add(f"prepared {file}", prepared.folder / file, open_prepared)
