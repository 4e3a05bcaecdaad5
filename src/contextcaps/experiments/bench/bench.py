"""The benchmark: the measuring, and the files that come of it."""

import dataclasses
import difflib
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from contextcaps.atomic import write_atomically
from contextcaps.documents import Table
from contextcaps.experiments.bench.ceilings import Ceilings, measure_ceilings
from contextcaps.experiments.bench.floor import count_work, floor_seconds
from contextcaps.experiments.bench.measuring import Result, in_own_process
from contextcaps.experiments.bench.networks import NetworkCase, measure_network, parse_backbone
from contextcaps.experiments.bench.plot import write_sweep
from contextcaps.experiments.bench.results import Row, Rows, networks_csv, rows_csv
from contextcaps.experiments.bench.settings import BenchSettings
from contextcaps.experiments.bench.sizes import HEADS, SIZES, Size
from contextcaps.experiments.bench.sweeps import Sweep, sweep_sizes
from contextcaps.experiments.bench.tables import mebibytes, milliseconds, network_tables, size_tables, sweep_table
from contextcaps.experiments.bench.ways import WAYS, Case, measure_case
from contextcaps.models.registry import describe_model
from contextcaps.training.processes import device_name

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
    networks: tuple[Row[NetworkCase], ...]
    sweeps: tuple[Sweep, ...]
    tables: tuple[Table, ...]
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
        floor = floor_seconds(count_work(case.head, case.size, case.mode), ceilings, case.precision)
        rows[case] = Row(case, result, floor)
        _say(f"[{number}/{total}] {case.words()}: {_outcome(result)}", progress)
        write_atomically(folder / "bench.csv", rows_csv(rows))
    for number, network_case in enumerate(network_cases, start=len(cases) + 1):
        networks.append(Row(network_case, _run(measure_network, network_case, settings)))
        _say(f"[{number}/{total}] {network_case.words()}: {_outcome(networks[-1].result)}", progress)
        write_atomically(folder / "networks.csv", networks_csv(networks))

    sweeps = tuple(
        Sweep.of(axis, mode, varied, sizes[0], rows.values())
        for axis, varied in along.items()
        for mode in settings.modes
    )
    tables = (*size_tables(rows, sizes, settings.modes), *map(sweep_table, sweeps), *network_tables(networks))
    facts = _facts(device, ceilings)
    files = [folder / name for name in ("bench.csv", *(["networks.csv"] if networks else []), "bench.md")]
    files += _write(folder, facts, sweeps, tables)
    return Bench(folder, facts, rows, tuple(networks), sweeps, tables, tuple(files))


def show_bench(bench: Bench, console: Console) -> None:
    """Show the tables on the terminal, and where the files are."""
    for table in bench.tables:
        table.print(console)
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
    ways = [way for name in settings.ways for way in WAYS if way == name]
    return [
        Case(head, size, way, precision, mode)
        for size in sizes
        for mode in settings.modes
        for head in settings.heads
        for precision in settings.precisions
        for way in ways
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
    """Measure on a GPU here, whose memory can be asked for; on a CPU in a process of its own."""
    if settings.device == "cuda":
        return work(case, settings.device, settings.seconds)
    return in_own_process(work, case, settings.device, settings.seconds)


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


def _write(folder: Path, facts: dict[str, str], sweeps: Sequence[Sweep], tables: Sequence[Table]) -> list[Path]:
    """Write the pictures, which are returned, and the page that shows them."""
    pictures = []
    for sweep in sweeps:
        pictures.append(folder / f"sweep-{sweep.axis}-{sweep.mode}.png")
        machine = f"{facts['device']}; {facts['versions']}; {facts['date']}"
        write_sweep(sweep, pictures[-1], f"around {sweep.base.words()}; {machine}")
    page = ["# Benchmark of the head\n", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    page += [_HOW_TO_READ, "", *(table.to_markdown() for table in tables)]
    page += [f"![{path.stem}]({path.name})\n" for path in pictures]
    write_atomically(folder / "bench.md", "\n".join(page))
    return pictures


def _check_names(what: str, names: Sequence[str], known: Iterable[str]) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"{what}: there is no {name!r}; {hint}Known are {', '.join(known)}")


def _say(line: str, progress: bool) -> None:
    if progress:
        print(line, file=sys.stderr, flush=True)
