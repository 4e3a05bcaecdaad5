"""The benchmark: measures all cases, and writes tables and pictures."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from contextcaps.atomic import write_atomically
from contextcaps.documents import Table
from contextcaps.experiments.bench.cases import HEADS, SIZES, Case, Size, parse_backbone
from contextcaps.experiments.bench.ceilings import measure_ceilings
from contextcaps.experiments.bench.floor import count_work, floor_seconds
from contextcaps.experiments.bench.measuring import in_own_process
from contextcaps.experiments.bench.outcome import Outcome, machine_facts, make_folder, say
from contextcaps.experiments.bench.plot import write_sweep
from contextcaps.experiments.bench.rows import Row, rows_csv
from contextcaps.experiments.bench.settings import BenchSettings
from contextcaps.experiments.bench.sweeps import Sweep, sweep_sizes
from contextcaps.experiments.bench.tables import mebibytes, milliseconds, network_tables, size_tables, sweep_table
from contextcaps.experiments.bench.ways import WAYS, measure_case
from contextcaps.models.registry import describe_model
from contextcaps.suggestions import there_is_no

__all__ = ["Bench", "resolve_settings", "run_bench"]

_HOW_TO_READ = (
    "Time: the median of the repetitions, after a warm-up. Peak: memory with weights, inputs and gradients; "
    "beyond: without these three, which every way needs. Eager : this, compiled : this: how many times more time, "
    "and memory, that way takes. Floor: operations, bytes and exponentials counted in the code, at the measured "
    "ceilings; its share is floor : time. Measured is the head from its capsules on, without the backbone."
)


@dataclasses.dataclass(frozen=True)
class Bench(Outcome):
    """A finished benchmark of the head."""

    rows: dict[Case, Row]
    """In the order in which they were measured."""


def run_bench(settings: BenchSettings | None = None, out: Path | str = "runs/bench", progress: bool = True) -> Bench:
    """Measure the head's ways, and write tables and pictures into a folder.

    Args:
        settings: what to measure.
        out: the folder; files of the same names in it are replaced. The CSV is written after each measurement, so that
            a run that is stopped leaves what it has.
        progress: a line for each measurement on the error stream.
    """
    settings = resolve_settings(BenchSettings() if settings is None else settings)
    folder = make_folder(out)
    device = torch.device(settings.device)
    say("the machine's ceilings", progress)
    ceilings = measure_ceilings(device, settings.precisions)
    say(f"  {ceilings.words()}", progress)

    sizes = _chosen_sizes(settings)
    along = {axis: sweep_sizes(sizes[0], axis, settings.points) for axis in settings.sweep}
    cases = _cases(settings, (*sizes, *itertools.chain.from_iterable(along.values())))
    rows: dict[Case, Row] = {}
    for number, case in enumerate(cases, start=1):
        row = _measure(case, settings)
        if not case.backbone:
            floor = floor_seconds(count_work(case.model, case.size, case.mode), ceilings, case.precision)
            row = dataclasses.replace(row, floor=floor)
        rows[case] = row
        outcome = row.reason or f"{milliseconds(row.seconds)} ms, {mebibytes(row.peak)} MiB"
        say(f"[{number}/{len(cases)}] {case.words()}: {outcome}", progress)
        write_atomically(folder / "bench.csv", rows_csv(rows))

    sweeps = [
        Sweep.of(axis, mode, varied, sizes[0], rows.values())
        for axis, varied in along.items()
        for mode in settings.modes
    ]
    tables = (*size_tables(rows, sizes, settings.modes), *map(sweep_table, sweeps), *network_tables(rows.values()))
    facts = {**machine_facts(device), "ceilings, measured": ceilings.words()}
    pictures = _write(folder, facts, sweeps, tables)
    return Bench(folder, facts, tables, (folder / "bench.csv", folder / "bench.md", *pictures), rows)


def resolve_settings(settings: BenchSettings) -> BenchSettings:
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
    _check_names("sizes", chosen.sizes, SIZES)
    _check_names("heads", chosen.heads, HEADS)
    _check_names("ways", chosen.ways, WAYS)
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
    """Return what to measure, each case once: heads at these sizes, their ways together, then networks."""
    sizes = list(sizes)
    heads = itertools.product(sizes, settings.modes, settings.heads, settings.precisions, settings.ways)
    found = [Case(head, size, way, precision, mode) for size, mode, head, precision, way in heads]
    backbones = settings.backbones if settings.networks else ()
    networks = itertools.product(backbones, settings.modes, settings.precisions, settings.networks)
    found += [Case(model, sizes[0], "auto", precision, mode, each) for each, mode, precision, model in networks]
    return list(dict.fromkeys(found))


def _measure(case: Case, settings: BenchSettings) -> Row:
    """Measure on a GPU here, whose memory can be asked for; on a CPU in a process of its own."""
    if settings.device == "cuda":
        return measure_case(case, settings.device, settings.seconds)
    try:
        return in_own_process(measure_case, case, settings.device, settings.seconds)
    except (MemoryError, RuntimeError) as error:  # the process died
        return Row.failed(case, error)


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
            raise ValueError(f"{what}: {there_is_no(name, known)}")
