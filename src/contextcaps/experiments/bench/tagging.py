"""The benchmark of tagging, as a user meets it: a new process, one image in a running one, and many images."""

import csv
import dataclasses
import io
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import PIL
import torch

from contextcaps.atomic import write_atomically
from contextcaps.data.decoding import default_workers, map_in_order
from contextcaps.documents import Column, Table, number, significant
from contextcaps.experiments.bench.installed import installed_bytes
from contextcaps.experiments.bench.int8 import quantize
from contextcaps.experiments.bench.measuring import in_own_process
from contextcaps.experiments.bench.new_processes import cold_start, peak_of_tagging
from contextcaps.experiments.bench.outcome import Outcome, machine_facts, make_folder, say
from contextcaps.experiments.bench.photographs import DRAWN, draw_photographs
from contextcaps.models.loading import DEFAULT_MODEL
from contextcaps.models.runtime import is_installed
from contextcaps.models.torch_scorer import TorchScorer
from contextcaps.tagging import NotAnImage, Tagger, find_images, load
from contextcaps.tagging.export import export
from contextcaps.tagging.pixels import pixels_of
from contextcaps.training.memory import peak_memory

__all__ = ["TaggingBench", "TaggingRow", "run_tagging_bench"]

Way = Literal["onnx", "int8", "torch", "compiled"]
WAYS: dict[Way, str] = {
    "onnx": "ONNX Runtime",
    "int8": "ONNX Runtime, int8 (not offered)",
    "torch": "PyTorch",
    "compiled": "PyTorch, compiled",
}
"""Who computes the network → its name in the table."""

_BATCH = 64
"""Images to compute at once, the default of tagging."""
_MANY = 4 * _BATCH
"""Images of a measurement of many."""
_STARTS = 5
"""New processes, of which the median counts."""
_REPETITIONS = 3
"""Measurements of many images, of which the median counts."""
_LATENCIES = 20
"""Single images, at least."""

_HOW_TO_READ = (
    "New process: from its start to the tags of its first image, with everything that is imported and "
    "loaded. One image: in a running process, from its file to its tags. Many: files to tags; decoding alone and the "
    "network alone are parts of it. Where both run on the same cores, many images are tagged more slowly than either. "
    "Processor: time of all cores together for one of many images; other programs disturb it least. "
    "Peak: memory of a new process that tags the many images; on a GPU, and where the network is compiled, of this "
    "benchmark's, on a GPU the GPU's. Installed: all packages that this way needs. "
    "Brackets: the fastest and the slowest repetition. Compiled: by `torch.compile`, whose own minutes do not count."
)


@dataclasses.dataclass(frozen=True)
class TaggingRow:
    """What tagging some images took; times in seconds, rates in images per second."""

    images: str
    """Which ones."""
    way: Way
    """What computed the network."""
    cold_starts: tuple[float, ...]
    """From the start of a process to its first tag; empty where the network is compiled, which takes minutes."""
    latencies: tuple[float, ...]
    """Seconds that one image takes in a running process, each time."""
    many: tuple[float, ...]
    """Rates from file to tags."""
    processor: float
    """Seconds of all cores together for one of many images."""
    decoding: float
    """Rate of decoding alone, with as many threads as in tagging."""
    network: float
    """Rate of the network alone, in the batches of tagging."""
    peak: float
    """Bytes."""
    installed: float
    """Bytes of all packages that it needs."""


@dataclasses.dataclass(frozen=True)
class TaggingBench(Outcome):
    """A finished benchmark of tagging."""

    rows: tuple[TaggingRow, ...]


def run_tagging_bench(
    model: str = DEFAULT_MODEL,
    images: Path | None = None,
    device: str = "auto",
    seconds: float = 1.0,
    out: Path | str = "runs/bench",
    progress: bool = True,
    compiled: bool = True,
) -> TaggingBench:
    """Measure how fast this machine tags images, and write a table into a folder.

    Args:
        model: a shipped model's name, a run's folder, or a model's.
        images: a folder with images; without one, drawn scenes of two sizes, with noise.
        device: auto, cpu or cuda.
        seconds: to spend on single images, at least.
        out: the folder; files of the same names in it are replaced.
        progress: a line for each measurement on the error stream.
        compiled: measure `torch.compile` and 8 bits, too, which takes some minutes.

    Raises:
        ModelFileError: there is no such model.
        ValueError: the folder has no images, or tagging failed.
    """
    folder = make_folder(out)
    tagger = load(model, device)  # first, as it may be refused
    ways: list[Way] = ["torch", "compiled"] if compiled else ["torch"]
    if tagger.device == "cpu":  # it has a graph, and no GPU computes
        ways.insert(0, "onnx")
        if compiled and is_installed("onnx") and is_installed("onnxscript") and not model.endswith(".onnx"):
            ways.insert(1, "int8")
    installed = {"onnx": installed_bytes("contextcaps"), "torch": installed_bytes("contextcaps", "torch")}
    rows = []
    with tempfile.TemporaryDirectory(prefix="contextcaps-bench-") as temporary:
        for name, files in _chosen(images, Path(temporary)).items():
            for way in ways:
                opened, runtime = model, "onnx" if way in ("onnx", "int8") else "torch"
                if way == "int8":
                    say(f"{name}, {WAYS[way]}: exporting, quantizing", progress)
                    opened = _in_8_bits(model, tagger, files, Path(temporary) / "int8.onnx")
                cold_starts: tuple[float, ...] = ()
                if way != "compiled":
                    say(f"{name}, {WAYS[way]}: new processes", progress)
                    cold_starts = tuple(cold_start(opened, files[0], device, runtime) for _ in range(_STARTS))
                say(f"{name}, {WAYS[way]}: one image, and {_MANY} images {_REPETITIONS} times", progress)
                row = in_own_process(measure_tagging, name, way, cold_starts, opened, files, device, seconds)
                peak = math.nan
                if way != "compiled" and str(tagger.device) == "cpu":
                    peak = peak_of_tagging(opened, _cycled(files), device, runtime)
                kept = row.peak if math.isnan(peak) else peak
                rows.append(dataclasses.replace(row, peak=kept, installed=installed[runtime]))
    config = tagger.config
    height, width = config.image_size
    facts = {
        "model": f"{model} ({config.model} on {config.backbone}, {width}×{height} px, {config.num_classes} classes)",
        **machine_facts(torch.device(tagger.device)),
        "ONNX Runtime": version("onnxruntime"),
        "Pillow": PIL.__version__,
        "threads": f"{torch.get_num_threads()} of the network, {default_workers()} that decode",
        "batch": f"{_BATCH} images",
    }
    table = tagging_table(rows)
    write_atomically(folder / "tagging.csv", tagging_csv(rows))
    lines = ["# Benchmark of tagging\n", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    write_atomically(folder / "tagging.md", "\n".join([*lines, table.to_markdown()]))
    return TaggingBench(folder, facts, (table,), (folder / "tagging.csv", folder / "tagging.md"), tuple(rows))


def _cycled(files: Sequence[Path], count: int | None = None) -> list[Path]:
    """Return as many files as one measurement takes, in turn."""
    return list(itertools.islice(itertools.cycle(files), _MANY if count is None else count))


def _in_8_bits(model: str, tagger: Tagger, files: Sequence[Path], into: Path) -> str:
    """Write a model in 8 bits, with ranges from these photographs, and return its path; once."""
    if not into.exists():
        whole, size = into.with_name("fp32.onnx"), tagger.config.image_size
        export(model, out=whole)
        chosen = [pixels_of(file, size) for file in _cycled(files, _BATCH)]
        quantize(whole, into, np.stack(chosen), tagger.config)
    return str(into)


def measure_tagging(
    name: str,
    way: Way,
    cold_starts: tuple[float, ...],
    model: str,
    files: Sequence[Path],
    device: str,
    seconds: float,
) -> TaggingRow:
    """Measure single images and many of them in this process, whose memory counts."""
    tagger = load(model, device, "onnx" if way in ("onnx", "int8") else "torch")
    if way == "compiled":
        scorer = cast(TorchScorer, tagger.scorer)
        scorer.compile()
    many = _cycled(files)
    for file in files[:2]:  # a warm-up
        tagger.tag(file, on_bad="stop")
    if way == "compiled":
        tagger.tag(many)  # compiled anew for batches
    latencies: list[float] = []
    while len(latencies) < _LATENCIES or sum(latencies) < seconds:
        latencies.append(_timed(tagger.tag, many[len(latencies) % _MANY]))
    began = time.process_time()
    rates = tuple(_MANY / _timed(tagger.tag, many) for _ in range(_REPETITIONS))
    processor = (time.process_time() - began) / (_REPETITIONS * _MANY)
    peak = float(peak_memory()["bytes"]) or math.nan
    decoding, network = (statistics.median(each) for each in _alone(tagger, many))
    return TaggingRow(name, way, cold_starts, tuple(latencies), rates, processor, decoding, network, peak, math.nan)


def _alone(tagger: Tagger, many: Sequence[Path]) -> tuple[list[float], list[float]]:
    """Return rates of decoding alone, and of the network alone, with everything decoded."""
    size, workers = tagger.config.image_size, default_workers()
    decoding, network = [], []
    for _ in range(_REPETITIONS):
        pixels: list[np.ndarray] = []
        with ThreadPoolExecutor(workers, "decode") as pool:
            decoded = map_in_order(pool, lambda file: pixels_of(file, size), many, _BATCH)
            decoding.append(len(many) / _timed(pixels.extend, decoded))
        stacked = np.stack(pixels)
        batches = [stacked[start : start + _BATCH] for start in range(0, len(stacked), _BATCH)]  # each [B, 3, H, W]
        network.append(len(many) / _timed(list, map(tagger.scores, batches)))
    return decoding, network


def tagging_table(rows: Sequence[TaggingRow]) -> Table:
    """Return one table with a row for each kind of image."""
    columns = (
        Column("images", align="left"),
        Column("computed by", align="left"),
        Column("new process, s", _with_range(1)),
        Column("one image, ms: median", significant),
        Column("95 %", significant),
        Column("many, images/s", _with_range(1)),
        Column("decoding alone", lambda rate: number(rate, 1)),
        Column("network alone", lambda rate: number(rate, 1)),
        Column("processor, ms/image", lambda seconds: significant(1e3 * seconds)),
        Column("peak, MiB", lambda size: number(size / 2**20)),
        Column("installed, MB", lambda size: number(size / 1e6)),
    )
    cells = []
    for row in rows:
        single = (1e3 * statistics.median(row.latencies), 1e3 * float(np.quantile(row.latencies, 0.95)))
        cells.append(
            (
                row.images,
                WAYS[row.way],
                row.cold_starts or None,
                *single,
                row.many,
                row.decoding,
                row.network,
                row.processor,
                row.peak,
                row.installed,
            )
        )
    return Table("Tagging", columns, cells, (_HOW_TO_READ,))


def tagging_csv(rows: Sequence[TaggingRow]) -> str:
    """Return everything as CSV, a line for each kind of image; several repetitions stand in one field."""
    buffer = io.StringIO()
    fields = [field.name for field in dataclasses.fields(TaggingRow)]
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(fields)
    for row in rows:
        writer.writerow(_spelt(getattr(row, name)) for name in fields)
    return buffer.getvalue()


def _spelt(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_spelt, value))
    return value if isinstance(value, str) else f"{value:.6g}" if math.isfinite(value) else ""


def _with_range(digits: int) -> Callable[[Sequence[float]], str]:
    def written(values: Sequence[float]) -> str:
        least, most = (number(value, digits) for value in (min(values), max(values)))
        return f"{number(statistics.median(values), digits)} [{least} to {most}]"

    return written


def _chosen(images: Path | None, temporary: Path) -> dict[str, list[Path]]:
    """Return files to tag by what they are: those of a folder, or drawn ones."""
    if images is None:
        names = {drawn: f"drawn, {drawn.width}×{drawn.height}" for drawn in DRAWN}
        return {name: draw_photographs(temporary / f"{drawn.width}", drawn) for drawn, name in names.items()}
    if not images.is_dir():
        found = "a file" if images.exists() else "nothing there"
        raise ValueError(f"--images {images}: expected a folder with images, got {found}")
    files = [Path(found) for found in find_images([images]) if not isinstance(found, NotAnImage)]
    if not files:
        raise ValueError(f"--images {images}: no images in this folder; leave --images out for drawn ones")
    return {str(images): files}


def _timed(call: Callable[..., Any], *arguments: Any) -> float:
    began = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - began
