"""Attack the program with damaged and hostile files: seeded mutations, each with limits of time and memory.

    python benchmarks/attack.py --cases 5000 --seed 0

Each kind begins with a whole file that the program itself or a library has written. A case changes it: bits, bytes,
pieces cut out, put twice or swapped, numbers and words replaced by larger or other ones. It is then opened as a user
would. What may happen: it is used, or refused with an error of the kind that commands print in one line. What may not:
any other error (a traceback), more than 30 seconds, more than 2 GB above the start, or use of changed weights, labels
or pixels where there are checksums. Such cases are kept under --keep, to be looked at.
"""

import argparse
import collections
import contextlib
import io
import json
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from contextcaps.cli import dispatch
from contextcaps.data import cache as caches
from contextcaps.data import open_source, prepare
from contextcaps.data.images import decode
from contextcaps.models import CapsuleNetwork, ModelConfig, create_model
from contextcaps.models.loading import load_model
from contextcaps.out_of_memory import is_out_of_memory
from contextcaps.training.checkpoints import Checkpoints
from contextcaps.training.runs import RunState

SECONDS, BYTES = 30, 2 * 2**30
WORDS = [
    b"0",
    b"-1",
    b"1e999",
    b"9" * 400,
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'""',
    b"[" * 5000,
    b"../../etc/passwd",
    b"\0",
]

Opener = Callable[[Path], str]


def photo(seed: int, side: int = 48) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)


def encoded(form: str, **options: object) -> bytes:
    file = io.BytesIO()
    photo(0).save(file, form, **options)
    return file.getvalue()


def mutated(content: bytes, dice: random.Random) -> bytes:
    """Return a file's bytes with one to four changes."""
    changed = bytearray(content)
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        if not changed:
            break
        first, last = sorted((dice.randrange(len(changed)), dice.randrange(len(changed))))
        match dice.randrange(8):
            case 0:
                changed[first] ^= 1 << dice.randrange(8)
            case 1:
                changed[first] = dice.choice((0, 1, 127, 128, 255))
            case 2:
                del changed[first:]
            case 3:
                del changed[first : min(last, first + 64)]
            case 4:
                changed[first:first] = changed[first : min(last, first + 4096)] * dice.choice((1, 2, 50))
            case 5:
                changed[first : first + 4] = dice.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"))
            case 6:
                _replace_number(changed, dice)
            case _:
                changed[first : first + dice.randrange(8)] = dice.choice(WORDS)
    return bytes(changed)


def _replace_number(content: bytearray, dice: random.Random) -> None:
    """Replace a number in text, if there is one."""
    places = [place for place, byte in enumerate(content) if 48 <= byte <= 57]
    if places:
        begin = end = dice.choice(places)
        while end < len(content) and 48 <= content[end] <= 57:
            end += 1
        content[begin:end] = dice.choice(WORDS)


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


def open_data(kind: str) -> Opener:
    def opened(path: Path) -> str:
        place = path if path.suffix in (".csv", ".tar") else next(each for each in path.parents if each.name == "data")
        source = open_source(f"{kind}:{place}", on_bad="skip")
        for index in range(min(len(source), 3)):
            source.sample(index)
        source.targets()
        return "used"

    return opened


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


def write_seeds(home: Path) -> dict[str, tuple[Path, Opener]]:
    """Write a whole file of each kind; return it and how it is opened, by name."""
    seeds: dict[str, tuple[Path, Opener]] = {}

    def add(name: str, path: Path, opener: Opener, content: bytes | None = None) -> None:
        if content is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        seeds[name] = (path, opener)

    forms = {"JPEG": {}, "PNG": {}, "WEBP": {}, "GIF": {}, "BMP": {}, "TIFF": {"compression": "tiff_lzw"}, "PPM": {}}
    for form, options in {**forms, "JPEG2000": {}, "AVIF": {}}.items():
        with contextlib.suppress(KeyError, OSError):
            add(f"image {form}", home / "images" / form, open_image, encoded(form, **options))
    add("image JPEG, progressive", home / "images" / "progressive", open_image, encoded("JPEG", progressive=True))
    torch.manual_seed(0)
    model = create_model("contextcaps", 3, 32, "small", capsules={"types": 2}, class_names=("bed", "lamp", "sea"))
    for name in ("model", "whole"):
        model.save_pretrained(home / "models" / name)
    for file in ("config.json", "model.safetensors"):
        add(f"model {file}", home / "models" / "model" / file, open_model)
    add("network.yaml", home / "network.yaml", open_yaml, model.config.to_yaml().encode())
    facts = {"seed": 0, "state": "failed", "failure": {"kind": "error", "message": "a"}, "images": {"train": 4}}
    memory = {"where": "process", "bytes": 12}
    add("run.json", home / "run" / "run.json", open_run, json.dumps({**facts, "memory": memory}).encode())
    checkpoints = Checkpoints(home / "checkpoints")
    for _ in range(2):
        checkpoints.save({"weights": torch.arange(1000.0), "progress": {"step": 3}})
    add("checkpoint", checkpoints.last, open_checkpoint)
    _add_data(home, add)
    return seeds


def _add_data(home: Path, add: Callable[..., None]) -> None:
    folder = home / "tables" / "data"
    folder.mkdir(parents=True)
    for name in ("a.jpg", "b.jpg"):
        (folder / name).write_bytes(encoded("JPEG"))
    add("table", folder / "labels.csv", open_data("table"), b"file,labels\na.jpg,sea;sky\nb.jpg,sky\n")
    add("table, a column per class", folder / "wide.csv", open_data("table"), b"file,sea,sky\na.jpg,1,0\nb.jpg,0,1\n")
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for stem, labels in (("a", ["sea"]), ("b", ["sky"])):
            for suffix, content in ((".jpg", encoded("JPEG")), (".json", json.dumps({"labels": labels}).encode())):
                info = tarfile.TarInfo(stem + suffix)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    add("shard", home / "shards" / "train-0.tar", open_data("shards"), tar.getvalue())
    add("classes.json", home / "listed" / "data" / "classes.json", open_data("shards"), b'["sea", "sky"]')
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
    add("VOC", voc / "Annotations" / "a.xml", open_data("voc"), xml.encode())
    yolo = home / "yolo" / "data"
    for name in ("images/train", "labels/train"):
        (yolo / name).mkdir(parents=True)
    (yolo / "images" / "train" / "a.jpg").write_bytes(encoded("JPEG"))
    (yolo / "labels" / "train" / "a.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    add("YOLO data.yaml", yolo / "data.yaml", open_data("yolo"), b"train: images/train\nnames: [sea, sky]\n")
    add("YOLO labels", yolo / "labels" / "train" / "a.txt", open_data("yolo"))
    source = open_source(f"table:{folder / 'labels.csv'}")
    prepared = prepare(source, 16, home / "tables" / "cache", progress=False, workers=1)
    shutil.copytree(prepared.folder, home / "tables" / "whole-cache" / prepared.folder.name)
    for file in ("images.bin", "targets.bin", "metadata.json", "checksums.json"):
        add(f"prepared {file}", prepared.folder / file, open_prepared)


def attempt(opener: Opener, path: Path) -> tuple[str, str]:
    """Open a changed file; return what came of it, and the error."""
    try:
        return opener(path), ""
    except (ValueError, OSError, ImportError) as error:  # what commands print in one line
        longest = max(map(len, dispatch._message(error).split("\n")))
        return ("refused" if longest < 2100 else "long message"), f"{type(error).__name__}: {error}"
    except Exception as error:
        return ("refused" if is_out_of_memory(error) else "traceback"), f"{type(error).__name__}: {error}"


def work(kind: str, numbers: list[int], seed: int, home: Path, results: "multiprocessing.Queue[tuple]") -> None:
    """Try the cases of these numbers, one after the other."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # libtiff writes there itself
    path, opener = write_seeds(home)[kind]
    content = path.read_bytes()
    kept = {each: each.read_bytes() for each in path.parent.iterdir() if each.is_file()}
    outcome, error = attempt(opener, path)  # what is imported late is imported
    if outcome != "used":
        raise RuntimeError(f"{kind}: the whole file is {outcome}: {error}")
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for number in numbers:
        for each, before in kept.items():
            each.parent.mkdir(parents=True, exist_ok=True)
            each.write_bytes(before)
        changed = mutated(content, random.Random(f"{seed} {kind} {number}"))
        path.write_bytes(changed)
        results.put((number, "begun", "", 0.0))
        start = time.perf_counter()
        outcome, error = attempt(opener, path)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - begun
        results.put((number, "memory" if used > BYTES else outcome, error, time.perf_counter() - start))
    results.put((-1, "ended", "", 0.0))


def attack(kind: str, count: int, seed: int, keep: Path | None) -> tuple[collections.Counter[str], float]:
    """Try some cases of a kind in a process of its own, which is killed at a hang, and begun anew after it."""
    counts, slowest, left = collections.Counter[str](), 0.0, list(range(count))
    context = multiprocessing.get_context("spawn")
    while left:
        with tempfile.TemporaryDirectory() as folder:
            results = context.Queue()
            process = context.Process(target=work, args=(kind, left, seed, Path(folder), results), daemon=True)
            process.start()
            current, outcome = -1, ""
            while outcome != "ended":
                try:
                    number, outcome, error, seconds = results.get(timeout=SECONDS if current >= 0 else 120)
                except Exception:  # queue.Empty
                    number, outcome, error, seconds = current, "hang" if process.is_alive() else "crash", "", SECONDS
                    process.kill()
                if outcome == "begun":
                    current = number
                    continue
                if outcome == "ended":
                    left = []
                    break
                counts[outcome] += 1
                slowest, left = max(slowest, seconds), [each for each in left if each != number]
                current = -1
                if outcome not in ("used", "refused"):
                    print(f"  {kind}, case {number}: {outcome} {error[:300]}", flush=True)
                    if keep is not None:
                        keep.mkdir(parents=True, exist_ok=True)
                        (keep / f"{kind}-{number}.txt".replace(" ", "-")).write_text(f"{outcome}\n{error}\n")
                if outcome in ("hang", "crash"):
                    break
            process.join(5)
    return counts, slowest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=5000, help="in all, the same number of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", help="only those whose names contain one of these words")
    parser.add_argument("--keep", type=Path, help="folder for what should not have happened")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kinds = [
            each for each in write_seeds(Path(folder)) if not arguments.kinds or any(w in each for w in arguments.kinds)
        ]
    count = -(-arguments.cases // len(kinds))
    print("| kind | cases | used | refused | other | slowest |\n|---|---|---|---|---|---|", flush=True)
    total, bad = 0, 0
    for kind in kinds:
        counts, slowest = attack(kind, count, arguments.seed, arguments.keep)
        others = {name: times for name, times in counts.items() if name not in ("used", "refused")}
        total, bad = total + counts.total(), bad + sum(others.values())
        shown = ", ".join(f"{times} {name}" for name, times in others.items()) or "0"
        print(
            f"| {kind} | {counts.total()} | {counts['used']} | {counts['refused']} | {shown} | {slowest:.2f} s |",
            flush=True,
        )
    print(f"\n{total} cases, {bad} of them as they should not be")
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
