"""Measure a corpus run on Ray: rows equal to one process's, images/s and memory by workers, what scheduling costs.

    python benchmarks/corpus.py equality --images shards:val.tar [--count 5000] [--model coco80]
    python benchmarks/corpus.py overhead --blocks 200 2000 --workers 2 [--cores 8]
    python benchmarks/corpus.py generated --count 20000

`overhead` has a stub in the place of model and decoder, so that what is left is Ray's scheduling, the object store and
the files; --cores lets a cluster of one machine pretend to have more. `generated` draws JPEGs into four shards, tags
them by one command, and reads what it wrote as one table.
"""

import argparse
import contextlib
import dataclasses
import io
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

from contextcaps.corpus import CorpusOptions, Model, tag_corpus
from contextcaps.data.sources.shard_files import find_shards
from contextcaps.tagging.tags import Tag, Tagging


def extract(images: str, count: int, folder: Path) -> None:
    """Write the first images of shards as files."""
    written = 0
    for path in find_shards(images.removeprefix("shards:")):
        with tarfile.open(path) as tar:
            for member in tar:
                if member.name.endswith(".jpg") and written < count:
                    content = tar.extractfile(member)
                    assert content is not None
                    (folder / Path(member.name).name).write_bytes(content.read())
                    written += 1


def start(images: Path, out: Path, *more: str) -> subprocess.Popen:
    """Start to tag on the command line."""
    words = [sys.executable, "-m", "contextcaps.cli", "tag", str(images), "--out", str(out), "--quiet", *more]
    return subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1", "CORPUS_MARK": str(out)})


def command(images: Path, out: Path, *more: str) -> float:
    """Tag on the command line; the seconds it took."""
    begun = time.monotonic()
    assert start(images, out, *more).wait() == 0
    return time.monotonic() - begun


def workers_of(out: Path) -> list[Path]:
    """The processes, as folders of /proc, that hold the model for a command with this output."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            marked = f"CORPUS_MARK={out}\0" in (place / "environ").read_text()
            if marked and "MapWorker" in (place / "cmdline").read_text():
                found.append(place)
    return found


def kill_worker(out: Path, blocks: int, process: subprocess.Popen) -> None:
    """Kill one of a command's processes that hold the model, once so many blocks are done."""
    while process.poll() is None and len(list((out / "tags").rglob("*.jsonl"))) < blocks:
        time.sleep(0.05)
    assert process.poll() is None, "it ended before the fault"
    os.kill(int(workers_of(out)[0].name), signal.SIGKILL)


def peak_of(out: Path) -> float:
    """The most memory, MiB, that a process with the model has had; 0 if there is none any more."""
    peaks = [0]
    for place in workers_of(out):
        with contextlib.suppress(OSError, IndexError):
            peaks.append(int((place / "status").read_text().split("VmHWM:")[1].split()[0]))
    return max(peaks) / 1024


def equality(asked: argparse.Namespace, folder: Path) -> None:
    """Compare the rows of one process with those of Ray, by name and to the byte; at last with a worker killed.

    The seconds are those of the whole command, with what starting takes.
    """
    photos = folder / "photos"
    photos.mkdir()
    extract(asked.images, asked.count, photos)
    common = ["--model", asked.model, "--scores", "all"]
    seconds = command(photos, folder / "one.jsonl", *common, "--workers", "1")
    expected = sorted((folder / "one.jsonl").read_bytes().splitlines())
    print("| engine, workers | images | rows equal to the byte | seconds | images/s | a worker's peak, MiB |")
    print("|---|---|---|---|---|---|")
    count = len(expected)
    print(f"| one process, one thread | {count} | | {seconds:.1f} | {count / seconds:.1f} | |", flush=True)
    for workers, killed in [*((each, False) for each in asked.workers), (max(asked.workers), True)]:
        out, peak, begun = folder / f"out-{workers}-{killed}", 0.0, time.monotonic()
        ray = ["--engine", "ray", "--workers", str(workers), "--format", "jsonl", "--block-size", "128"]
        process = start(photos, out, *common, *ray)
        if killed:
            kill_worker(out, count // 256, process)
        while process.poll() is None:
            peak = max(peak, peak_of(out))
            time.sleep(1)
        assert process.wait() == 0
        seconds = time.monotonic() - begun
        found = sorted(line for path in (out / "tags").rglob("*.jsonl") for line in path.read_bytes().splitlines())
        same = sum(one == other for one, other in zip(found, expected, strict=False))
        print(
            f"| ray, {workers}{', one killed on the way' if killed else ''} | {len(found)} | {same} | {seconds:.1f} | "
            f"{count / seconds:.1f} | {peak:.0f} |",
            flush=True,
        )
        assert found == expected


def generated(asked: argparse.Namespace, folder: Path) -> None:
    """Draw images into shards, tag them by one command and a small network, read the output as one table."""
    import pyarrow.parquet

    import contextcaps

    contextcaps.create_model("gap", 80, 64, "small").eval().save_pretrained(folder / "model")
    random = np.random.default_rng(0)
    for shard in range(4):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for number in range(shard, asked.count, 4):
                file = io.BytesIO()
                pixels = random.integers(0, 256, (12, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).resize((224, 224), Image.Resampling.BICUBIC).save(file, "JPEG")
                info = tarfile.TarInfo(f"{number:06}.jpg")
                info.size = file.tell()
                file.seek(0)
                tar.addfile(info, file)
    out = folder / "tagged"
    seconds = command(Path(f"shards:{folder}/*.tar"), out, "--model", str(folder / "model"), "--engine", "ray")
    table = pyarrow.parquet.read_table(out / "tags")
    names = table["image"].to_pylist()
    print("| images | rows | different names | columns | seconds | images/s |\n|---|---|---|---|---|---|")
    rate = f"{seconds:.1f} | {asked.count / seconds:.1f}"
    print(
        f"| {asked.count} | {len(names)} | {len(set(names))} | {', '.join(table.column_names)} | {rate} |", flush=True
    )
    assert len(names) == len(set(names)) == asked.count


class StubTagger:
    """Stands for a tagger; gives every image the same tag."""

    classes = tuple(f"class-{number}" for number in range(80))
    config = SimpleNamespace(image_size=(8, 8))

    def choose_thresholds(self, **asked: Any) -> tuple[float, ...]:
        return (0.5,) * len(self.classes)

    def tag_stream(self, images: Any, **options: Any) -> Any:
        tag = Tag("class-0", 0.9, 0.5)
        for _ in images:
            yield Tagging(0, (tag,))


@dataclasses.dataclass(frozen=True)
class StubModel(Model):
    """Loads the stub."""

    def load(self) -> Any:
        return StubTagger()

    def fingerprint(self, tagger: Any) -> str:
        return "stub"


def overhead(asked: argparse.Namespace, folder: Path) -> None:
    """Measure a corpus of tiny images in a table, with a stub for the model."""
    import pyarrow
    import pyarrow.parquet

    file = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(file, "PNG")
    print("| blocks | images of a block | workers | seconds | ms/block | s per million rows | driver's peak, MiB |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for size, number, blocks in itertools.product(asked.block_size, asked.workers, asked.blocks):
        images = blocks * size
        pyarrow.parquet.write_table(
            pyarrow.table({"image": [file.getvalue()] * images}), folder / "t.parquet", row_group_size=size
        )
        options = CorpusOptions(workers=number, block_size=size, cores=asked.cores)
        out = folder / f"out-{blocks}-{size}-{number}"
        begun = time.monotonic()
        tag_corpus([str(folder / "t.parquet")], str(out), StubModel("stub", "cpu"), options=options, progress=False)
        seconds = time.monotonic() - begun
        manifest = json.loads((out / "_corpus" / "manifest.json").read_text())
        assert manifest["tagged"] == images
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"| {blocks} | {size} | {number} | {seconds:.1f} | {1000 * seconds / blocks:.1f} | "
            f"{1e6 * seconds / images:.0f} | {peak:.0f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["equality", "overhead", "generated"])
    parser.add_argument("--images", help="shards:PATTERN")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--model", default="coco80")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--blocks", type=int, nargs="+", default=[50, 500])
    parser.add_argument("--block-size", type=int, nargs="+", default=[512])
    parser.add_argument("--cores", type=int, default=None)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, contextlib.suppress(KeyboardInterrupt):
        {each.__name__: each for each in (equality, overhead, generated)}[asked.what](asked, Path(place))


if __name__ == "__main__":
    main()
