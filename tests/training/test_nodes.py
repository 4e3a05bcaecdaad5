"""Two nodes on loopback: the same training as by two processes of one node, through kills and restarts."""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_run import FLAGS, finals, small_words

from contextcaps.training.runs import RunState

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

LONGER = {"epochs": 4, "augmentation": False, "checkpoint_steps": 1}


def free_port() -> int:
    with contextlib.closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def program(words: list[str], **environment: str) -> subprocess.Popen:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        env={**kept, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


def torchrun(*options: str, words: list[str]) -> subprocess.Popen:
    return program(["torch.distributed.run", *options, "-m", "contextcaps.cli", *words, "--quiet"])


def two_nodes_by_torchrun(words: list[str], *options: str) -> list[subprocess.Popen]:
    endpoint = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    rendezvous = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", endpoint, "--rdzv-id=test", *options]
    return [torchrun(*rendezvous, "--local-addr=127.0.0.1", words=words) for _ in range(2)]


def two_nodes_by_ourselves(words: list[str]) -> list[subprocess.Popen]:
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = ["contextcaps.cli", *words, "--devices", "1", "--nodes", "2", "--quiet"]
    return [program(command, **places, NODE_RANK=str(rank)) for rank in range(2)]


@contextlib.contextmanager
def ended(nodes: list[subprocess.Popen]) -> Iterator[None]:
    """Leave nothing behind."""
    try:
        yield
    finally:
        for node in nodes:
            for child in children(node.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            node.kill()
            node.communicate()


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def wait(nodes: list[subprocess.Popen]) -> None:
    for node in nodes:
        _, said = node.communicate(timeout=200)
        assert node.returncode == 0, said[-3000:]


def wait_for_checkpoint(run: Path, nodes: list[subprocess.Popen]) -> None:
    until = time.monotonic() + 120
    while not (run / "checkpoints" / "last.ckpt").exists() and time.monotonic() < until:
        assert all(node.poll() is None for node in nodes)
        time.sleep(0.02)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def one_node(tmp_path_factory, cache) -> Path:
    """A run by two processes of one node."""
    run = tmp_path_factory.mktemp("one") / "run"
    wait([torchrun("--standalone", "--nproc-per-node=2", words=small_words(run, cache, **LONGER))])
    return run


def same(run: Path, other: Path) -> bool:
    return finals(run) == finals(other)


@pytest.mark.parametrize("start", [pytest.param(two_nodes_by_torchrun, marks=pytest.mark.slow), two_nodes_by_ourselves])
def test_two_nodes_train_as_two_processes_of_one(tmp_path, cache, one_node, start) -> None:
    nodes = start(small_words(tmp_path / "run", cache, **LONGER))
    with ended(nodes):
        wait(nodes)
    assert RunState.read(tmp_path / "run").facts["processes"] == 2
    assert same(tmp_path / "run", one_node)


@pytest.mark.slow
def test_a_killed_node_ends_the_other_and_the_run_goes_on_to_the_same_bits(tmp_path, cache, one_node) -> None:
    run = tmp_path / "run"
    nodes = two_nodes_by_ourselves(small_words(run, cache, **LONGER))
    with ended(nodes):
        wait_for_checkpoint(run, nodes)
        nodes[1].kill()
        begun = time.monotonic()
        _, said = nodes[0].communicate(timeout=60)
        assert time.monotonic() - begun < 60
    assert nodes[0].returncode == 1
    assert "another process of this training has ended" in said
    assert f"go on with: contextcaps train --resume {run}" in said
    assert "Traceback" not in said
    nodes = two_nodes_by_torchrun(["train", "--resume", str(run)])
    with ended(nodes):
        wait(nodes)
    assert same(run, one_node)


def restarted_on_one_node(words: list[str]) -> list[subprocess.Popen]:
    return [torchrun("--standalone", "--nproc-per-node=2", "--max-restarts=2", words=words)]


def restarted_on_two_nodes(words: list[str]) -> list[subprocess.Popen]:
    return two_nodes_by_torchrun(words, "--max-restarts=2")


@pytest.mark.slow
@pytest.mark.parametrize("start", [restarted_on_one_node, restarted_on_two_nodes])
def test_torchrun_restarts_a_killed_process_and_the_run_goes_on_by_itself(tmp_path, cache, one_node, start) -> None:
    run = tmp_path / "run"
    nodes = start(small_words(run, cache, **LONGER))
    with ended(nodes):
        wait_for_checkpoint(run, nodes)
        os.kill(children(nodes[0].pid)[-1], signal.SIGKILL)
        wait(nodes)
    assert same(run, one_node)


@pytest.mark.slow
def test_a_restart_does_not_take_up_a_run_of_somebody_else(tmp_path, cache, one_node) -> None:
    words = small_words(one_node, cache, **LONGER)
    before = (one_node / "run.json").read_bytes()
    (node,) = nodes = [torchrun("--standalone", "--nproc-per-node=1", "--max-restarts=1", words=words)]
    with ended(nodes):
        _, said = node.communicate(timeout=120)
    assert node.returncode == 1
    assert "holds a run already" in said
    assert (one_node / "run.json").read_bytes() == before
    (node,) = nodes = [torchrun("--standalone", "--max-restarts=1", words=["train", "--data", str(FLAGS["data"])])]
    with ended(nodes):
        _, said = node.communicate(timeout=120)
    assert "with torchrun --max-restarts name the run's folder" in said


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True])
def test_a_run_goes_on_with_another_number_of_processes(tmp_path, cache, one_node, shard) -> None:
    """From 2 to 1 and back to 2: weights, optimiser and the place in the epoch fit, whether sharded (FSDP) or not."""
    run = tmp_path / "run"
    words = small_words(run, cache, **LONGER, shard=shard, devices=2)
    for processes, is_last in ((2, False), (1, False), (2, True)):
        last = run / "checkpoints" / "last.ckpt"
        before = torch.load(last)["progress"]["step"] if last.exists() else 0
        (node,) = nodes = [torchrun("--standalone", f"--nproc-per-node={processes}", words=words)]
        with ended(nodes):
            while not is_last and node.poll() is None:
                with contextlib.suppress(OSError, RuntimeError, ValueError):
                    if torch.load(last)["progress"]["step"] > before:
                        break
                time.sleep(0.02)
            for child in children(node.pid) if not is_last else []:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            _, said = node.communicate(timeout=200)
        assert (node.returncode == 0) == is_last, said[-2000:]
        words = ["train", "--resume", str(run)]
    expected, actual = (torch.load(each / "checkpoints" / "last.ckpt") for each in (one_node, run))
    assert actual["progress"]["step"] == expected["progress"]["step"]
    for name, weight in expected["network"].items():
        difference = (actual["network"][name] - weight).double().norm()  # AdamW's first steps enlarge rounding
        assert difference <= 0.1 * weight.double().norm() + 1e-6, name


@pytest.mark.slow
def test_a_head_of_20_000_classes_trains_on_two_processes_that_share_it(tmp_path, cache) -> None:
    """Each keeps half of the vote weights and of AdamW's state for them: the largest tensor has 20 million weights."""
    classes = [f"class-{number:05}" for number in range(20_000)]
    (tmp_path / "classes.json").write_text(json.dumps(classes))
    for split, count in (("train", 16), ("val", 8)):
        with tarfile.open(tmp_path / f"{split}-0.tar", "w") as tar:
            for number in range(count):
                image = io.BytesIO()
                pixels = np.random.default_rng([count, number]).integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(image, "PNG")
                labels = {"labels": [classes[(number * 997 + step) % 20_000] for step in (0, 1, 5000)]}
                for suffix, content in ((".png", image.getvalue()), (".json", json.dumps(labels).encode())):
                    info = tarfile.TarInfo(f"{split}-{number:03}{suffix}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    of_run = {"data": f"shards:{tmp_path}", "model": "capsnet", "options": {"capsules.types": 1}}
    of_training = {"epochs": 1, "ema": 0, "batch_size": 2, "shard": True, "devices": 2, "checkpoint_steps": 0}
    words = small_words(tmp_path / "run", cache, **of_run, **of_training)
    nodes = [torchrun("--standalone", "--nproc-per-node=2", words=words)]
    with ended(nodes):
        wait(nodes)
    weights = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt")["network"]
    assert max(weight.numel() for weight in weights.values()) >= 20_000_000
    assert RunState.read(tmp_path / "run").facts["processes"] == 2
