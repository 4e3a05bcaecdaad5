"""The benchmark: what it counts, what it writes, and that whatever fails becomes a row."""

import csv
import dataclasses
import math
import os

import pytest
import torch

from contextcaps.cli import main
from contextcaps.experiments.bench import bench as bench_module
from contextcaps.experiments.bench.bench import run_bench
from contextcaps.experiments.bench.cases import HEADS, SIZES, Case, Size, make_head
from contextcaps.experiments.bench.ceilings import Ceilings
from contextcaps.experiments.bench.floor import count_work, floor_seconds
from contextcaps.experiments.bench.measuring import Memory, in_own_process, measure
from contextcaps.experiments.bench.rows import Row, ratio
from contextcaps.experiments.bench.settings import BenchSettings
from contextcaps.experiments.bench.sweeps import Sweep, exponent, sweep_sizes
from contextcaps.experiments.bench.ways import measure_case

TINY = Size("tiny", batch=2, capsules=8, attributes=3, classes=5, decision_attributes=4)  # N = 2, D = 2; 320 votes


def test_counts_of_the_routing_by_hand() -> None:
    forward = count_work("capsnet", TINY, "forward")
    assert forward.votes == 2 * 3 * 320
    assert (forward.crf, forward.correlation) == (0, 0)
    assert forward.sums == 3 * 2 * 320  # three iterations
    assert forward.agreements == 2 * 2 * 320  # not after the last
    assert forward.exponentials == 2 * 2 * 8 * 5  # the first couplings are constant
    weights = 8 * 3 * 5 * 4 + 5 * 4  # votes and bias
    assert forward.read == 4 * (2 * 8 * 3 + weights)
    assert forward.written == 4 * 2 * 5 * 4
    step = count_work("capsnet", TINY, "step")
    assert step.operations == 3 * forward.operations
    assert step.bytes == 4 * (2 * (2 * 8 * 3 + weights) + 2 * (2 * 5 * 4))


def test_counts_of_crf_and_correlation_by_hand() -> None:
    forward, step = (count_work("capsnet-rw-crf-corr", TINY, mode) for mode in ("forward", "step"))
    assert forward.crf == 2 * (2 * 5 * 320)  # two iterations: each vote's message is a sum over 5 classes
    assert step.crf == 4 * forward.crf  # forward, again, and two gradients
    assert forward.sums == 2 * 320
    assert forward.agreements == 0
    assert forward.correlation == 2 * 4 * (2 * 5 * 7)  # from 4 cells to 2 · 5 · 7 alphas
    assert forward.exponentials == 2 * 320 + 2 * 8 * 5
    assert step.exponentials == 4 * 320 + 2 * 8 * 5
    low_rank = count_work("capsnet-rw-crf-corr", dataclasses.replace(TINY, crf_rank=2), "forward")
    assert low_rank.crf == 2 * (2 * 2 + 2 * 2) * 320  # into rank 2, and out of it


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("rank", [None, 2])
def test_counted_bytes_are_those_of_the_weights(head, rank) -> None:
    size = dataclasses.replace(TINY, crf_rank=rank)
    made = make_head(head, size, "plain", "cpu")
    made.primary.requires_grad_(False)
    large = sum(each.nbytes for each in made.parameters() if each.requires_grad)
    counted = count_work(head, size, "forward").read - 4 * 2 * 8 * 3
    assert counted <= large <= counted + 4 * (26 + 2 * 3 + 1)  # RW's kernel and the map's weights are not counted


def test_the_floor_is_what_takes_longest() -> None:
    work = count_work("capsnet-rw-crf-corr", SIZES["paper"], "step")
    fast = Ceilings(bandwidth=4e12, operations={"fp32": 5e13, "bf16": 6e14}, exponentials=None)
    assert floor_seconds(work, fast, "bf16") == work.operations / 6e14
    assert 1e-3 < floor_seconds(work, fast, "bf16") < 2e-3
    assert floor_seconds(work, fast, "fp32") == work.operations / 5e13
    assert floor_seconds(work, dataclasses.replace(fast, bandwidth=1e9), "bf16") == work.bytes / 1e9
    assert floor_seconds(work, dataclasses.replace(fast, exponentials=1e9), "bf16") == work.exponentials / 1e9


def test_exponents() -> None:
    assert exponent([10, 20, 40], [5, 10, 20]) == pytest.approx(1)
    assert exponent([10, 20, 40, 80], [1, 4, 16, math.nan]) == pytest.approx(2)
    assert math.isnan(exponent([10], [1.0]))
    assert [size.capsules for size in sweep_sizes(Size(), "K", 3)] == [576, 1152, 2304]
    assert [size.batch for size in sweep_sizes(SIZES["one"], "B", 5)] == [1, 2, 4]  # none below 1
    with pytest.raises(ValueError, match="points: expected at least 2"):
        sweep_sizes(Size(), "J", 1)


def test_growth_along_a_sweep_leaves_out_what_did_not_run() -> None:
    sizes = sweep_sizes(Size(), "J", 5)
    rows = []
    for size in sizes:
        case = Case("capsnet", size, "eager", "fp32", "step")
        if size.classes < 600:
            rows.append(Row(case, seconds=size.classes**2 / 1e6, peak=1e6 * size.classes))
        else:
            rows.append(Row.failed(case, torch.OutOfMemoryError("CUDA out of memory")))
    (line,) = Sweep.of("J", "step", sizes, sizes[2], rows).lines
    assert tuple(line.rows) == (38, 75, 150, 300, 600)
    assert exponent(list(line.rows), [row.seconds for row in line.rows.values()]) == pytest.approx(2)
    assert exponent(list(line.rows), [row.peak for row in line.rows.values()], last=2) == pytest.approx(1)


def test_ratios() -> None:
    def row(way: str, precision: str, seconds: float, peak: float) -> Row:
        return Row(Case("capsnet", TINY, way, precision, "step"), seconds, seconds, 3, peak, floor=0.5)

    slow, half, fast = row("eager", "fp32", 12.0, 8e9), row("eager", "bf16", 6.0, 6e9), row("triton", "bf16", 1.0, 1e9)
    failed = Row(Case("capsnet", TINY, "compiled", "bf16", "step"), reason="no compiler")
    rows = {each.case: each for each in (slow, half, fast, failed)}
    assert ratio(rows, fast, way="eager") == (6.0, 6.0)
    assert ratio(rows, fast, way="eager", precision="fp32") == (12.0, 8.0)
    assert ratio(rows, fast, way="compiled") is None
    assert ratio(rows, slow, way="eager") is None  # itself
    assert fast.floor_share == 0.5
    assert fast.images_per_second == TINY.batch


def test_memory_of_a_call_is_seen() -> None:
    if not os.path.exists("/proc/self/clear_refs"):
        pytest.skip("the peak of a process's memory can be reset on Linux only")
    memory = Memory(torch.device("cpu"))
    cost = measure(lambda: torch.ones(1 << 24).sum(), memory, 0.0)  # 64 MiB
    assert cost.repetitions == 3
    assert 60 < cost.peak / 2**20 < 100


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("way", ["eager", "lean"])
@pytest.mark.parametrize("mode", ["forward", "step"])
def test_every_head_and_way_is_measured(head, way, mode) -> None:
    result = measure_case(Case(head, TINY, way, "bf16", mode), "cpu", 0.0)
    assert result.reason == ""
    assert result.has_run
    weights = count_work(head, TINY, mode)
    assert result.resident >= weights.bytes - 2 * 4 * 2 * 5 * 4


def test_what_fails_is_a_row() -> None:
    case = Case("capsnet", TINY, "triton", "fp32", "step")
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        result = measure_case(case, "cpu", 0.0)
        assert not result.has_run
        assert "backend:" not in result.reason
        assert result.reason
    unknown = Case("capsnet", TINY, "auto", "fp32", "step", "timm@32")
    assert measure_case(unknown, "cpu", 0.0).reason.startswith("backbone: expected")
    for error in (
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 47 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
    ):
        assert Row.failed(case, error) == Row(case, reason="out of memory", out_of_memory=True)
    assert Row.failed(case, RuntimeError("first\nsecond\nthird")).reason == "RuntimeError: first second"
    assert len(Row.failed(case, RuntimeError("long " * 100)).reason) <= 160


def _dies(case: Case, how: str, seconds: float) -> Row:
    os.kill(os.getpid(), int(how))
    return Row(case)


@pytest.mark.long
def test_a_process_that_dies_is_a_row(monkeypatch) -> None:
    with pytest.raises(MemoryError, match="the system ended the process"):
        in_own_process(_dies, None, "9", 0.0)
    monkeypatch.setattr(bench_module, "measure_case", _dies)
    case = Case("capsnet", TINY, "eager", "fp32", "step")
    killed = bench_module._measure(case, BenchSettings(device="9"))
    assert (killed.case, killed.has_run, killed.out_of_memory) == (case, False, True)
    aborted = bench_module._measure(case, BenchSettings(device="6"))
    assert "ended with code" in aborted.reason
    assert not aborted.out_of_memory


@pytest.fixture
def here(monkeypatch) -> None:
    """Measure in this process, quickly; the machine's ceilings are given."""
    monkeypatch.setattr(bench_module, "in_own_process", lambda work, *arguments: work(*arguments))
    ceilings = Ceilings(1e10, {"fp32": 1e11, "bf16": 1e11}, 1e9)
    monkeypatch.setattr(bench_module, "measure_ceilings", lambda *_: ceilings)


@pytest.mark.long
@pytest.mark.usefixtures("here")
def test_the_command_writes_tables_and_pictures(tmp_path, capsys, monkeypatch) -> None:
    real = bench_module.measure_case

    def sometimes(case: Case, *rest: object) -> Row:
        full = case.way == "eager" and case.size.classes == 10
        return Row.failed(case, torch.OutOfMemoryError("full")) if full else real(case, *rest)

    monkeypatch.setattr(bench_module, "measure_case", sometimes)
    words = [
        "bench",
        "--sizes",
        "tiny",
        "--heads",
        "capsnet",
        "capsnet-rw-crf-corr",
        "--ways",
        "eager",
        "lean",
        "--device",
    ]
    words += ["cpu", "--modes", "step", "--sweep", "J", "--points", "3", "--seconds", "0", "--out", str(tmp_path)]
    words += ["--networks", "capsnet", "contextcaps", "--backbones", "small@32", "--quiet"]
    main(words)
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "tiny, training step: B 2, K 16, A 4, J 5, I 4" in printed.out
    assert "Networks on small at 32 px" in printed.out

    with open(tmp_path / "bench.csv", encoding="utf-8", newline="") as file:
        everything = list(csv.DictReader(file))
    networks = [row for row in everything if row["backbone"]]
    assert [(row["model"], row["backbone"], row["reason"]) for row in networks] == [
        ("capsnet", "small@32", ""),
        ("contextcaps", "small@32", ""),
    ]
    assert all(float(row["ms"]) > 0 for row in networks)
    rows = [row for row in everything if not row["backbone"]]
    assert len(rows) == 3 * 2 * 2  # sizes, heads, ways
    for row in rows:
        failed = row["way"] == "eager" and row["classes"] == "10"
        assert row["reason"] == ("out of memory" if failed else "")
        assert (row["ms"] == "") == failed
        assert float(row["floor_ms"]) > 0
        if row["way"] == "lean" and row["classes"] != "10":
            (eager,) = (
                each
                for each in rows
                if (each["model"], each["classes"], each["way"]) == (row["model"], row["classes"], "eager")
            )
            assert float(row["eager_time_ratio"]) == pytest.approx(float(eager["ms"]) / float(row["ms"]), rel=1e-4)
    page = (tmp_path / "bench.md").read_text(encoding="utf-8")
    assert "out of memory" in page
    assert "![sweep-J-step](sweep-J-step.png)" in page
    assert "matrix products fp32 100 GFLOP/s" in page
    assert (tmp_path / "sweep-J-step.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("here")
def test_a_run_without_a_sweep_has_no_picture(tmp_path) -> None:
    settings = BenchSettings(("tiny",), ("capsnet",), ("lean",), ("fp32",), ("forward",), device="cpu", seconds=0)
    bench = run_bench(settings, tmp_path, progress=False)
    assert [path.name for path in bench.files] == ["bench.csv", "bench.md"]
    assert all(path.is_file() for path in bench.files)
    assert [row.reason for row in bench.rows.values()] == [""]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sizes", "papr"], "sizes: there is no 'papr'; did you mean 'paper'?"),
        (["--heads", "gap"], "heads: there is no 'gap'; known are capsnet"),
        (["--ways", "quick"], "ways: there is no 'quick'"),
        (["--precisions", "fp8"], "--precisions"),
        (["--sweep", "A"], "--sweep"),
        (["--sweep", "J", "--points", "1"], "points: expected at least 2"),
        (["--networks", "contextcap"], "did you mean 'contextcaps'?"),
        (["--backbones", "small"], "backbones: expected NAME@PIXELS"),
        (["--batch", "0"], "batch: expected a whole number of at least 1, got 0"),
        (["--seconds", "-1"], "seconds: expected 0 or more"),
        (["--out", __file__], "expected a folder, got a file"),
    ],
)
def test_wrong_flags_give_one_line(words, message, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", *words])
    printed = capsys.readouterr()
    assert stop.value.code == 2
    assert message in printed.err
    assert printed.err.count("\n") == 1
