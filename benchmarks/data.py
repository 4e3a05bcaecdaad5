"""Images per second, ways of feeding a network: a plain Pillow dataset, streaming, and a prepared copy.

    python benchmarks/data.py --data 'PATH/train-*.tar'

Pictures (those of --data, or else `scenes`) are enlarged to photographs of 512 × 683 and written as JPEG files into a
temporary folder, which is removed at the end. Then all, in turn, a number of times:

- plain: what one writes first. A `torch.utils.data.Dataset` that opens the file with Pillow, converts it to RGB,
  resizes it and makes a tensor of it; a `DataLoader` with two worker processes, which are kept from epoch to epoch.
- streaming: `StreamLoader` with as many workers; from the files, and from tar shards of 500 of the same photographs. As
  shards larger than memory: before each run what memory holds of them is given up (posix_fadvise), so that every
  image is read from the disk, in random order.
- prepared: `PreparedLoader` on the copy that `prepare` made of the same files.

All give shuffled batches of bytes [B, 3, size, size]. One run is one pass over all images (the prepared copy: --passes
of them, since one takes no time), after a first pass that is not counted; the table has the median of the runs, their
range, and the ratio of the medians.
"""

import argparse
import io
import json
import os
import platform
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import PIL
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from contextcaps.data import Sample, Source, open_source
from contextcaps.data.images import decode
from contextcaps.data.loading import PreparedLoader, StreamLoader
from contextcaps.data.prepared import prepare

PHOTOGRAPH = (512, 683)
FROM_DISK = "streaming, tar shards larger than memory"


class Photographs(Source):
    """JPEG files in a folder, with the labels of the pictures they were made from."""

    kind = "photographs"

    def __init__(self, folder: Path, classes: tuple[str, ...], labels: list[tuple[int, ...]]) -> None:
        super().__init__(str(folder))
        self.folder, self.classes, self.labels = folder, classes, labels

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> Path:
        return self.folder / f"{index:05d}.jpg"

    def sample(self, index: int) -> Sample:
        return Sample(f"{index:05d}", self.path(index), self.labels[index])

    def labels_of(self, index: int) -> tuple[int, ...]:
        return self.labels[index]

    def _identity(self) -> Iterator[str]:
        yield str(self.folder)


class PlainDataset(Dataset[tuple[Tensor, Tensor]]):
    """The usual way: open, convert, resize, to tensor."""

    def __init__(self, source: Photographs, size: int) -> None:
        self.source, self.size = source, size

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = Image.open(self.source.path(index)).convert("RGB")
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        target = torch.zeros(len(self.source.classes), dtype=torch.uint8)
        target[list(self.source.labels[index])] = 1
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous(), target


def make_photographs(spec: str, count: int, quality: int, folder: Path) -> Photographs:
    """Enlarge the first pictures of a source and write them as JPEG files."""
    source = open_source(spec, on_bad="skip")
    labels = []
    for index in range(min(count, len(source))):
        sample = source.sample(index)
        picture = Image.fromarray(decode(sample.image))
        photograph = picture.resize((PHOTOGRAPH[1], PHOTOGRAPH[0]), Image.Resampling.BICUBIC)
        encoded = io.BytesIO()
        photograph.save(encoded, "JPEG", quality=quality)
        (folder / f"{index:05d}.jpg").write_bytes(encoded.getvalue())
        labels.append(sample.labels)
    return Photographs(folder, source.classes, labels)


def make_shards(photographs: Photographs, folder: Path) -> Source:
    """Write the photographs into tar shards."""
    for first in range(0, len(photographs), 500):
        with tarfile.open(folder / f"all-{first // 500:04d}.tar", "w") as tar:
            for index in range(first, min(first + 500, len(photographs))):
                labels = json.dumps({"labels": [photographs.classes[each] for each in photographs.labels_of(index)]})
                contents = {".jpg": photographs.path(index).read_bytes(), ".json": labels.encode()}
                for suffix, content in contents.items():
                    info = tarfile.TarInfo(f"{index:05d}{suffix}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    return open_source(f"shards:{folder}/all-*.tar")


def forget(folder: Path) -> None:
    """Have the files of a folder read from the disk again."""
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())  # pages that are not written yet would stay
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def images_per_second(batches: Callable[[], Iterable[Tensor]], passes: int) -> float:
    """One run: the images of all passes, by the wall clock from asking for the first batch to having the last."""
    start, count = time.perf_counter(), 0
    for _ in range(passes):
        for images in batches():
            count += len(images)
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description="Images per second: plain Pillow, streaming, prepared.")
    parser.add_argument("--data", help="pattern of tar shards to take pictures from; scenes of 256 px by default")
    parser.add_argument("--images", type=int, default=1000, help="number of photographs")
    parser.add_argument("--size", type=int, default=128, help="side of the images in a batch, px")
    parser.add_argument("--batch", type=int, default=64, help="images per batch")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (plain) and threads (streaming)")
    parser.add_argument("--runs", type=int, default=7, help="runs of each; the median counts")
    parser.add_argument("--passes", type=int, default=10, help="passes over the prepared copy in one run")
    parser.add_argument("--quality", type=int, default=90, help="JPEG quality of the photographs")
    arguments = parser.parse_args()

    torch.set_num_threads(1)  # the workers fill the cores
    spec = f"shards:{arguments.data}" if arguments.data else f"scenes?count={arguments.images}&size=256"
    temporary = tempfile.TemporaryDirectory
    with temporary() as folder, temporary() as cache, temporary() as in_shards:
        source = make_photographs(spec, arguments.images, arguments.quality, Path(folder))
        size, batch, workers = arguments.size, arguments.batch, arguments.workers
        start = time.perf_counter()
        prepared = prepare(source, size, cache, workers=workers, progress=False)
        preparing = time.perf_counter() - start
        plain = DataLoader(
            PlainDataset(source, size), batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0
        )
        stream = StreamLoader(source, size, batch, workers=workers, shuffle=True)
        of_shards = StreamLoader(make_shards(source, Path(in_shards)), size, batch, workers=workers, shuffle=True)
        gathered = PreparedLoader(prepared, batch, shuffle=True)

        ways: dict[str, tuple[Callable[[], Iterable[Tensor]], int]] = {
            "plain Pillow dataset, DataLoader": (lambda: (images for images, _ in plain), 1),
            "streaming": (lambda: (each.images for each in stream), 1),
            "streaming, tar shards": (lambda: (each.images for each in of_shards), 1),
            FROM_DISK: (lambda: (each.images for each in of_shards), 1),
            "prepared": (lambda: (each.images for each in gathered), arguments.passes),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for run in range(arguments.runs + 1):
            for name, (batches, passes) in ways.items():  # in turn, so that a busy moment meets all of them
                if name == FROM_DISK:
                    forget(Path(in_shards))
                rate = images_per_second(batches, passes if run else 1)
                if run:
                    rates[name].append(rate)
        kilobytes = sum(source.path(index).stat().st_size for index in range(len(source))) / len(source) / 1000

    first = statistics.median(next(iter(rates.values())))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(
        f"{len(source)} photographs of {PHOTOGRAPH[0]} × {PHOTOGRAPH[1]} (JPEG quality {arguments.quality}, "
        f"{kilobytes:.0f} kB on average) from {spec}, to {size} × {size} px, batches of {batch}, {workers} workers, "
        f"median of {arguments.runs} runs (range).\n"
        f"{cores} cores, {platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"Pillow {PIL.__version__}, {time.strftime('%Y-%m-%d')}. "
        f"Making the prepared copy took {preparing:.1f} s ({len(source) / preparing:,.0f} images/s).\n"
    )
    print("| way | images/s | range | ratio |\n|---|---:|---:|---:|")
    for name, each in rates.items():
        median = statistics.median(each)
        print(f"| {name} | {median:,.0f} | {min(each):,.0f} – {max(each):,.0f} | {median / first:.1f} |")


if __name__ == "__main__":
    main()
