"""A corpus on Ray: the rows of one process, to the byte, though a worker is killed on the way."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet
import pytest

from in_process import run_command

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

BLOCKS = ("--batch-size", "8", "--block-size", "16")


def environment(mark: str) -> dict[str, str]:
    """An environment without Ray's settings, with a mark by which all processes in it are found."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "RAY_A"))}
    return {**kept, "CORPUS_TEST": mark, "OMP_NUM_THREADS": "1"}


def start(*words: str | Path, mark: str, **more: str) -> subprocess.Popen:
    """Start the command; all its processes have the mark."""
    command = [sys.executable, "-m", "contextcaps.cli", "tag", *map(str, words)]
    return subprocess.Popen(command, env={**environment(mark), **more}, stderr=subprocess.PIPE, text=True)


def processes(title: str, mark: str) -> list[int]:
    """The processes of that title which a marked command has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if title in (path / "cmdline").read_text() and f"CORPUS_TEST={mark}" in (path / "environ").read_text():
                found.append(int(path.name))
    return found


def rows(out: Path, folder: str) -> list[bytes]:
    return [line for path in sorted((out / folder).rglob("*.jsonl")) for line in path.read_bytes().splitlines()]


def test_a_killed_worker_loses_and_doubles_nothing(corpus, model, tmp_path, capsys) -> None:
    out, mark = tmp_path / "out", f"{os.getpid()}"
    one = tmp_path / "one.jsonl"
    words = [corpus / "plain", "--model", model, "--scores", "all", "--batch-size", "8", "--quiet"]
    with start(*words, "--out", one, mark=mark) as command:
        command.communicate(timeout=100)
    expected = sorted(one.read_bytes().splitlines())
    assert len(expected) == 102

    ray = [*words, "--engine", "ray", "--block-size", "8", "--format", "jsonl", "--workers", "2", "--out", out]
    with start(*ray, mark=mark) as command:
        try:
            until = time.monotonic() + 100
            while not list((out / "tags").rglob("*.jsonl")) and command.poll() is None and time.monotonic() < until:
                time.sleep(0.01)
            workers = processes("MapWorker", mark)
            for worker in workers[:1]:
                os.kill(worker, signal.SIGKILL)
            _, said = command.communicate(timeout=150)
        finally:
            command.kill()
    assert workers, said
    assert command.returncode == 1, said  # two images cannot be read
    assert sorted(rows(out, "tags") + rows(out, "errors")) == expected
    assert len(rows(out, "errors")) == 2

    # The same command has nothing to do: it does not even start Ray.
    before = {path: path.stat().st_mtime_ns for path in (out / "tags").rglob("*.jsonl")}
    code, _, said = run_command("tag", [word for word in ray if word != "--quiet"], capsys)
    assert code == 1
    assert "100 images tagged" in said
    assert {path: path.stat().st_mtime_ns for path in (out / "tags").rglob("*.jsonl")} == before


@pytest.mark.slow
def test_a_cluster_of_two_nodes_gives_the_rows_of_one_process(corpus, model, tmp_path) -> None:
    """Two `ray start` on loopback, and the command with --address."""
    one, out, mark = tmp_path / "one.jsonl", tmp_path / "out", f"{os.getpid()}-nodes"
    words = [corpus / "plain", "--model", model, "--scores", "all", "--batch-size", "8", "--quiet"]
    with start(*words, "--out", one, mark=mark) as command:
        command.communicate(timeout=200)
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus=1", "--disable-usage-stats"]
    ray += ["--object-store-memory=500000000"]
    head = ["--head", "--port=6398", "--node-ip-address=127.0.0.2", "--include-dashboard=false"]
    try:
        for node in (head, ["--address=127.0.0.2:6398", "--node-ip-address=127.0.0.3"]):
            subprocess.run(
                [*ray, *node], env={**environment(mark), **token}, check=True, stdout=subprocess.DEVNULL, timeout=200
            )
        on_ray = ["--engine", "ray", "--block-size", "8", "--format", "jsonl", "--workers", "2", "--out", out]
        with start(*words, *on_ray, "--address", "127.0.0.2:6398", mark=f"{mark}-driver", **token) as command:
            _, said = command.communicate(timeout=400)
        assert command.returncode == 1, said  # two images cannot be read
    finally:
        for each in processes("", mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
    assert sorted(rows(out, "tags") + rows(out, "errors")) == sorted(one.read_bytes().splitlines())


def test_shards_and_tables_to_parquet_on_a_command_that_goes_on(corpus, model, tmp_path) -> None:
    out, mark = tmp_path / "out", f"{os.getpid()}-2"
    words = [corpus / "a.tar", corpus / "b.parquet", "--model", model, *BLOCKS, "--engine", "ray", "--workers", "1"]
    with start(*words, "--out", out, mark=mark) as command:
        _, said = command.communicate(timeout=150)
    assert command.returncode == 0, said
    table = pyarrow.parquet.read_table(out / "tags")
    assert table["image"].to_pylist() == [f"{corpus}/a.tar/{n:03}.png" for n in range(60, 80)] + [
        f"{corpus}/b.parquet#{n}" for n in range(20)
    ]
    metadata = pyarrow.parquet.read_schema(next((out / "tags").rglob("*.parquet"))).metadata
    assert metadata[b"contextcaps.model"] == str(model).encode()
    assert b"contextcaps.version" in metadata


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--format", "csv"], "--engine ray: expected --format parquet or jsonl, got csv"),
        (["--resume"], "--resume: not with --engine ray"),
        (["--block-size", "100"], "--block-size: expected a multiple of the batch size 64, got 100"),
    ],
)
def test_what_does_not_go_together_is_one_line(corpus, model, tmp_path, capsys, words, says) -> None:
    command = [corpus / "files", "--model", model, "--engine", "ray", "--out", tmp_path / "out", *words]
    code, _, said = run_command("tag", command, capsys)
    assert code == 2
    assert says in said


def test_flags_of_ray_are_refused_without_it(corpus, model, capsys) -> None:
    code, _, said = run_command("tag", [corpus / "files", "--model", model, "--address", "auto"], capsys)
    assert (code, "--address: not with --engine local" in said) == (2, True)
