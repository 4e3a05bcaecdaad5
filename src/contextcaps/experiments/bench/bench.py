"""The benchmark: what to measure, the measuring, and the files that come of it."""

import dataclasses
import difflib
import io
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from contextcaps.atomic import write_atomically
from contextcaps.experiments.bench.alone import alone
from contextcaps.experiments.bench.ceilings import Ceilings, measure_ceilings
from contextcaps.experiments.bench.networks import NetworkCase, measure_network, parse_backbone
from contextcaps.experiments.bench.plot import draw_sweep
from contextcaps.experiments.bench.records import networks_csv, rows_csv
from contextcaps.experiments.bench.rows import NetworkRow, Row, Rows, floor_of
from contextcaps.experiments.bench.settings import BenchSettings
from contextcaps.experiments.bench.sizes import HEADS, SIZES, Size
from contextcaps.experiments.bench.sweeps import Sweep, sweep_sizes
from contextcaps.experiments.bench.tables import Grid, mebibytes, milliseconds, network_grids, size_grids, sweep_grid
from contextcaps.experiments.bench.ways import WAYS, Case, Result, Way, measure_case
from contextcaps.models.registry import describe_model
from contextcaps.training.processes import device_name
from contextcaps.whole_tables import print_whole

__all__ = ["Bench", "run_bench", "settle", "show_bench"]

_HOW_TO_READ = (
    "Time: the median of the repetitions, after a warm-up. Peak: memory with weights, inputs and gradients; "
    "beyond: without these three, which every way needs. Eager : this, compiled : this: how many times more time, "
    "and memory, that way takes. Floor: operations, bytes and exponentials counted in the code, at the measured "
    "ceilings; its share is floor : time. Measured is the head from its capsules on, without the backbone."
)


@dataclasses.dataclass(frozen=True)
class Bench:
    """What was measured, and where it lies."""

    folder: Path
    facts: dict[str, str]
    """Device, versions, date, ceilings."""
    rows: Rows
    sweeps: tuple[Sweep, ...]
    networks: tuple[NetworkRow, ...]
    grids: tuple[Grid, ...]
    files: tuple[Path, ...]


def run_bench(settings: BenchSettings | None = None, out: Path | str = "runs/bench", progress: bool = True) -> Bench:
    """Measure the head's ways, and write tables and pictures into a folder.

    Args:
        settings: what to measure.
        out: the folder; files of the same names in it are replaced. The CSV is written after each measurement, so that
            a run that is stopped leaves what it has.
        progress: a line for each measurement on the error stream.
    """
    settings = settle(BenchSettings() if settings is None else settings)
    folder = Path(out).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder, got a file; choose another with --out")
    folder.mkdir(parents=True, exist_ok=True)
    device = torch.device(settings.device)
    _say("the machine's ceilings", progress)
    ceilings = measure_ceilings(device, settings.precisions)
    _say(f"  {ceilings.words()}", progress)

    sizes = _chosen_sizes(settings)
    along = {axis: sweep_sizes(sizes[0], axis, settings.points) for axis in settings.sweep}
    cases = list(dict.fromkeys(_cases(settings, (*sizes, *(size for each in along.values() for size in each)))))
    network_cases = _network_cases(settings, sizes[0])
    total = len(cases) + len(network_cases)
    rows, networks = Rows(), []
    for number, case in enumerate(cases, start=1):
        result = _run(measure_case, case, settings)
        rows[case] = Row(case, result, floor_of(case, ceilings))
        size = case.size
        what = f"{case.head}, B {size.batch}, K {size.capsules}, J {size.classes}, {case.mode}, {case.precision}"
        _say(f"[{number}/{total}] {what}, {case.way}: {_outcome(result)}", progress)
        write_atomically(folder / "bench.csv", rows_csv(rows))
    for number, network_case in enumerate(network_cases, start=len(cases) + 1):
        result = _run(measure_network, network_case, settings)
        networks.append(NetworkRow(network_case, result))
        what = f"{network_case.model} on {network_case.backbone}, {network_case.mode}, {network_case.precision}"
        _say(f"[{number}/{total}] {what}: {_outcome(result)}", progress)
        write_atomically(folder / "networks.csv", networks_csv(networks))

    measured = list(rows.values())
    sweeps = tuple(
        Sweep.of(axis, mode, varied, sizes[0], measured) for axis, varied in along.items() for mode in settings.modes
    )
    grids = (*size_grids(rows, sizes, settings.modes), *map(sweep_grid, sweeps), *network_grids(networks))
    facts = _facts(device, ceilings)
    files = _write(folder, facts, sweeps, grids, bool(networks))
    return Bench(folder, facts, rows, sweeps, tuple(networks), grids, files)


def show_bench(bench: Bench, console: Console) -> None:
    """The tables on the terminal, and where the files are."""
    for grid in bench.grids:
        print_whole(console, grid.table())
        console.print()
    for name, value in bench.facts.items():
        console.print(f"{name}: {value}", highlight=False)
    written = ", ".join(path.name for path in bench.files)
    console.print(f"Written to {bench.folder}: {written}", soft_wrap=True, highlight=False)


def settle(settings: BenchSettings) -> BenchSettings:
    """Choose by the device what was left empty, and check everything.

    Raises:
        ValueError: a name is unknown, or the device is not there.
    """
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: expected cpu or auto, as torch sees no GPU here, got cuda")
    gpu = settings.device != "cpu" and torch.cuda.is_available()
    if settings.seconds < 0:
        raise ValueError(f"seconds: expected 0 or more, got {settings.seconds:g}")
    chosen = dataclasses.replace(
        settings,
        sizes=settings.sizes or (("paper",) if gpu else ("small",)),
        heads=settings.heads or (tuple(HEADS) if gpu else ("capsnet", "capsnet-rw-crf-corr")),
        ways=settings.ways or tuple(WAYS),
        precisions=settings.precisions or (("fp32", "bf16") if gpu else ("fp32",)),
        device="cuda" if gpu else "cpu",
    )
    for what, names, known in (
        ("sizes", chosen.sizes, SIZES),
        ("heads", chosen.heads, HEADS),
        ("ways", chosen.ways, WAYS),
    ):
        _check_names(what, names, known)
    for name in settings.networks:
        describe_model(name)
    for backbone in settings.backbones:
        parse_backbone(backbone)
    _chosen_sizes(chosen)
    if settings.sweep:
        sweep_sizes(Size(), settings.sweep[0], settings.points)
    return chosen


def _chosen_sizes(settings: BenchSettings) -> tuple[Size, ...]:
    given = {name: getattr(settings, name) for name in ("batch", "capsules", "classes", "crf_rank")}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return tuple(dataclasses.replace(SIZES[name], **changes) for name in settings.sizes)


def _cases(settings: BenchSettings, sizes: Iterable[Size]) -> list[Case]:
    """List what to measure at these sizes. A head's ways come together, so that what they say can be compared."""
    return [
        Case(head, size, _way(way), precision, mode)
        for size in sizes
        for mode in settings.modes
        for head in settings.heads
        for precision in settings.precisions
        for way in settings.ways
    ]


def _network_cases(settings: BenchSettings, size: Size) -> list[NetworkCase]:
    return [
        NetworkCase(model, *parse_backbone(backbone), size.classes, size.batch, precision, mode)
        for backbone in (settings.backbones if settings.networks else ())
        for mode in settings.modes
        for precision in settings.precisions
        for model in settings.networks
    ]


def _run(work: Callable[..., Result], case: Case | NetworkCase, settings: BenchSettings) -> Result:
    """On a GPU here, whose memory can be asked for; on a CPU in a process of its own."""
    if settings.device == "cuda":
        return work(case, settings.device, settings.seconds)
    return alone(work, case, settings.device, settings.seconds)


def _outcome(result: Result) -> str:
    if result.cost is None:
        return result.reason
    return f"{milliseconds(result.cost.seconds)} ms, {mebibytes(result.cost.peak)} MiB"


def _facts(device: torch.device, ceilings: Ceilings) -> dict[str, str]:
    return {
        "device": device_name(device),
        "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
        "date": date.today().isoformat(),
        "ceilings, measured": ceilings.words(),
    }


def _write(
    folder: Path, facts: dict[str, str], sweeps: Sequence[Sweep], grids: Sequence[Grid], with_networks: bool
) -> tuple[Path, ...]:
    pictures = {}
    machine = f"{facts['device']}; {facts['versions']}; {facts['date']}"
    for sweep in sweeps:
        caption = f"around {sweep.base.words()}; {machine}"
        buffer = io.BytesIO()
        draw_sweep(sweep, caption).savefig(buffer, format="png", dpi=120, metadata={"Description": caption})
        pictures[f"sweep-{sweep.axis}-{sweep.mode}.png"] = buffer.getvalue()
    page = ["# Benchmark of the head\n", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    page += [_HOW_TO_READ, "", *(grid.markdown() for grid in grids)]
    page += [f"![{name.removesuffix('.png')}]({name})\n" for name in pictures]
    for name, content in pictures.items():
        write_atomically(folder / name, content)
    write_atomically(folder / "bench.md", "\n".join(page))
    names = ["bench.csv", *(["networks.csv"] if with_networks else []), "bench.md", *pictures]
    return tuple(folder / name for name in names)


def _check_names(what: str, names: Sequence[str], known: Iterable[str]) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"{what}: there is no {name!r}; {hint}Known are {', '.join(known)}")


def _way(name: str) -> Way:
    return next(way for way in WAYS if way == name)


def _say(line: str, progress: bool) -> None:
    if progress:
        print(line, file=sys.stderr, flush=True)
