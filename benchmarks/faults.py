"""Break a corpus run on Ray in every way that can be staged on one machine, and count what was lost or doubled.

    python benchmarks/faults.py [--images 300] [--only driver node …]

Each fault is done to a run of its own over generated images, by a small network. Then the same command is given until
it ends by itself, and its rows are compared with those of one process: names and bytes. Needs Linux; `full disk` needs
to mount a tmpfs, and is left out where that is not allowed. `slow disk` and `clock jump` are patches of `os.fsync` and
`time.time` in every Python process of the run; Ray's own clock, in C++, goes on.
"""

import argparse
import contextlib
import io
import os
import secrets
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import contextcaps

BLOCK = 8
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}


class Campaign:
    """The images, the model, and the rows that one process gives for them."""

    def __init__(self, folder: Path, images: int) -> None:
        self.folder, self.photos, self.model = folder, folder / "photos", folder / "model"
        self.photos.mkdir()
        random = np.random.default_rng(0)
        for number in range(images):
            pixels = random.integers(0, 256, (96, 96, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(self.photos / f"{number:06}.png")
        torch.manual_seed(0)
        contextcaps.create_model("capsnet", 5, 64, "small", capsules={"types": 8}).eval().save_pretrained(self.model)

    def words(self, images: Path, out: Path, *more: str) -> list[str]:
        common = ["--model", str(self.model), "--scores", "all", "--batch-size", str(BLOCK), "--out", str(out)]
        return [sys.executable, "-m", "contextcaps.cli", "tag", str(images), *common, "--quiet", *more]

    def on_ray(
        self, images: Path, out: Path, mark: str, *more: str, extra: dict[str, str] | None = None
    ) -> subprocess.Popen:
        words = self.words(images, out, "--engine", "ray", "--block-size", str(BLOCK), "--format", "jsonl", *more)
        environment = {**os.environ, **ENVIRONMENT, **(extra or {}), "CORPUS_MARK": mark}
        if "--address" not in more:
            environment = {name: value for name, value in environment.items() if not name.startswith("RAY_AUTH")}
        return subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)

    def one_process(self, images: Path, out: Path) -> list[bytes]:
        subprocess.run(self.words(images, out), env={**os.environ, **ENVIRONMENT}, check=False)
        return out.read_bytes().splitlines()


def marked(title: str, mark: str) -> list[int]:
    """The processes of that title which a run has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if title in (path / "cmdline").read_text() and f"CORPUS_MARK={mark}" in (path / "environ").read_text():
                found.append(int(path.name))
    return found


def kill(pids: list[int], number: signal.Signals = signal.SIGKILL) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def wait_for_blocks(out: Path, count: int, command: subprocess.Popen) -> None:
    while command.poll() is None and len(list((out / "tags").rglob("*.jsonl"))) < count:
        time.sleep(0.02)
    assert command.poll() is None, f"it ended before the fault: {command.communicate()[1][-2000:]}"


def rows(out: Path) -> list[bytes]:
    return [line for path in sorted(out.rglob("*.jsonl")) for line in path.read_bytes().splitlines()]


def account(fault: str, found: list[bytes], expected: list[bytes], commands: int, note: str) -> None:
    """Print a row of the table."""
    count, wanted = Counter(found), Counter(expected)
    lost, doubled = sum((wanted - count).values()), sum((count - wanted).values())
    print(f"| {fault} | {len(expected)} | {commands} | {lost} | {doubled} | {note} |", flush=True)
    assert not lost, f"{fault}: lost or changed {list(wanted - count)[:2]}"
    assert not doubled, f"{fault}: doubled or changed {list(count - wanted)[:2]}"


def finish(campaign: Campaign, images: Path, out: Path, mark: str, *more: str) -> tuple[int, str]:
    """Give the same command once more; what it said."""
    command = campaign.on_ray(images, out, mark, *more)
    _, said = command.communicate(timeout=900)
    return command.returncode, said


def worker(campaign: Campaign, out: Path, mark: str) -> tuple[int, str]:
    command = campaign.on_ray(campaign.photos, out, mark, "--workers", "2")
    wait_for_blocks(out, 2, command)
    kill(marked("MapWorker", mark)[:1])
    _, said = command.communicate(timeout=900)
    assert command.returncode == 0, said
    return 1, "Ray starts another, and does its blocks again"


def all_workers(campaign: Campaign, out: Path, mark: str) -> tuple[int, str]:
    command = campaign.on_ray(campaign.photos, out, mark, "--workers", "2")
    wait_for_blocks(out, 2, command)
    kill(marked("ray::", mark))  # those that decode and Ray's own, too
    _, said = command.communicate(timeout=900)
    commands = 1
    if command.returncode:
        commands, (code, said) = 2, finish(campaign, campaign.photos, out, mark, "--workers", "2")
        assert code == 0, said
    return commands, "models and decoders, all at once"


def driver(campaign: Campaign, out: Path, mark: str) -> tuple[int, str]:
    for commands in (1, 2):
        command = campaign.on_ray(campaign.photos, out, f"{mark}-{commands}", "--workers", "1")
        wait_for_blocks(out, 3 * commands, command)
        command.kill()
        command.communicate()
    time.sleep(2)
    code, said = finish(campaign, campaign.photos, out, mark, "--workers", "1")
    assert code == 0, said
    return 3, "killed twice; the same command went on"


def straggler(campaign: Campaign, out: Path, mark: str) -> tuple[int, str]:
    command = campaign.on_ray(campaign.photos, out, mark, "--workers", "2")
    wait_for_blocks(out, 2, command)
    stopped = marked("MapWorker", mark)[:1]
    kill(stopped, signal.SIGSTOP)
    time.sleep(10)
    kill(stopped, signal.SIGCONT)
    _, said = command.communicate(timeout=900)
    assert command.returncode == 0, said
    return 1, "a worker stood still for 10 s, as at a disk that does not answer"


def full_disk(campaign: Campaign, out: Path, mark: str) -> tuple[int, str]:
    out.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(out)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        raise PermissionError("may not mount")
    command = campaign.on_ray(campaign.photos, out, mark, "--workers", "1")
    _, said = command.communicate(timeout=900)
    assert command.returncode == 1, said
    assert "No space left on device" in said, said
    subprocess.run(["mount", "-o", "remount,size=100m", str(out)], check=True)  # noqa: S607
    code, last = finish(campaign, campaign.photos, out, mark, "--workers", "1")
    assert code == 0, last
    return 2, "said so in one line; went on once there was room"


def node(campaign: Campaign, out: Path, mark: str) -> tuple[int, str]:
    """Two nodes on this machine, of which the one without the driver is killed."""
    environment = {**os.environ, **ENVIRONMENT, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ.update({name: environment[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")})
    ray = str(Path(sys.executable).with_name("ray"))
    port, options = "6399", ["--num-cpus=1", "--object-store-memory=600000000", "--disable-usage-stats"]

    def start(name: str, *more: str) -> None:
        words = [ray, "start", *more, *options]
        subprocess.run(words, env={**environment, "CORPUS_MARK": name}, check=True, stdout=subprocess.DEVNULL)

    first, second = f"{mark}-first", f"{mark}-second"
    try:
        head = ["--head", f"--port={port}", "--node-ip-address=127.0.0.2", "--include-dashboard=false"]
        start(first, *head)
        start(second, f"--address=127.0.0.2:{port}", "--node-ip-address=127.0.0.3")
        address = ["--address", f"127.0.0.2:{port}", "--workers", "2"]
        command = campaign.on_ray(campaign.photos, out, mark, *address)
        wait_for_blocks(out, 4, command)
        kill(marked("", second))
        _, said = command.communicate(timeout=900)
        commands = 1
        if command.returncode:
            commands, (code, said) = 2, finish(campaign, campaign.photos, out, mark, *address)
            assert code == 0, said
    finally:
        kill(marked("", second) + marked("", first))
        del os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"]
    return commands, "one of two (`ray start` twice); the other did its blocks again"


SLOW = """
import os, time
_fsync = os.fsync
def slow(*arguments):
    time.sleep(0.5)
    return _fsync(*arguments)
os.fsync = slow
"""
"""Run by every Python process of a run as it starts: a disk that takes 0.5 s for each fsync."""


def at_start(campaign: Campaign, name: str, program: str) -> dict[str, str]:
    """The environment in which every Python process runs a program first, Ray's workers, too."""
    place = campaign.folder / name
    place.mkdir()
    (place / "sitecustomize.py").write_text(program)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH", "")]))}


def slow_disk(campaign: Campaign, out: Path, mark: str) -> tuple[int, str]:
    extra = at_start(campaign, "slow", SLOW)
    command = campaign.on_ray(campaign.photos, out, mark, "--workers", "2", extra=extra)
    wait_for_blocks(out, 2, command)
    kill(marked("MapWorker", mark)[:1])  # while files are being written
    _, said = command.communicate(timeout=1800)
    assert command.returncode == 0, said
    return 1, "each fsync took 0.5 s longer, in every process; a worker killed meanwhile"


JUMPING = """
import os, time
def jump():
    with open(os.environ["CORPUS_CLOCK"]) as file:
        return int(file.read() or 0)
def jumping():
    return time.clock_gettime(time.CLOCK_REALTIME) + jump()
def jumping_ns():
    return time.clock_gettime_ns(time.CLOCK_REALTIME) + jump() * 10**9
time.time, time.time_ns = jumping, jumping_ns
"""
"""Run by every Python process of a run as it starts: a wall clock that is off by as many seconds as a file says."""


def clock_jump(campaign: Campaign, out: Path, mark: str) -> tuple[int, str]:
    clock = campaign.folder / "clock"
    clock.write_text("0")
    extra = {**at_start(campaign, "jumping", JUMPING), "CORPUS_CLOCK": str(clock)}
    command = campaign.on_ray(campaign.photos, out, mark, "--workers", "1", extra=extra)
    for blocks, jump in ((2, 86400), (4, -86400), (6, 3600)):
        wait_for_blocks(out, blocks, command)
        clock.write_text(str(jump))
    _, said = command.communicate(timeout=900)
    assert command.returncode == 0, said
    return 1, "in all Python processes the wall clock went a day ahead, a day behind, an hour ahead"


FAULTS: dict[str, Callable[[Campaign, Path, str], tuple[int, str]]] = {
    "worker": worker,
    "all workers": all_workers,
    "driver": driver,
    "straggler": straggler,
    "full disk": full_disk,
    "slow disk": slow_disk,
    "clock jump": clock_jump,
    "node": node,
}


def damaged_inputs(campaign: Campaign, out: Path, mark: str) -> None:
    """A shard that was cut off, a damaged one, and files that cannot be read: every image is accounted for."""
    folder = campaign.folder / "damaged"
    folder.mkdir()
    (folder / "gone.png").symlink_to("nowhere.png")
    (folder / "text.jpg").write_text("no picture")
    (folder / "folder.png").mkdir()
    (folder / "whole.png").write_bytes((campaign.photos / "000000.png").read_bytes())
    expected = campaign.one_process(folder, campaign.folder / "damaged.jsonl")
    code, said = finish(campaign, folder, out, mark, "--workers", "1")
    assert code == 1, said
    account("unreadable files", rows(out), expected, 1, "the same rows with reasons as by one process")
    shard = campaign.folder / "cut.tar"
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for path in sorted(campaign.photos.iterdir())[:40]:
            tar.add(path, path.name)
    shard.write_bytes(content.getvalue()[: content.tell() * 3 // 5])
    out = campaign.folder / "out-cut"
    code, said = finish(campaign, shard, out, mark, "--workers", "1")
    assert code == 1, said
    found = rows(out)
    tagged = sum(b'"error"' not in row for row in found)
    print(f"| shard cut off | {len(found)} | 1 | 0 | 0 | {tagged} images tagged, the end is in errors |", flush=True)
    assert len(set(found)) == len(found)
    assert tagged >= 22


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--only", nargs="+", choices=[*FAULTS, "inputs"], default=[*FAULTS, "inputs"])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        campaign = Campaign(Path(place), asked.images)
        expected = campaign.one_process(campaign.photos, campaign.folder / "one.jsonl")
        print("| fault | images | commands | lost | doubled | |\n|---|---|---|---|---|---|", flush=True)
        for name in asked.only:
            out, mark = campaign.folder / f"out-{name.replace(' ', '-')}", secrets.token_hex(4)
            try:
                if name == "inputs":
                    damaged_inputs(campaign, out, mark)
                    continue
                commands, note = FAULTS[name](campaign, out, mark)
                account(name, rows(out), expected, commands, note)
            except PermissionError as error:
                print(f"| {name} | left out: {error} | | | | |", flush=True)
            finally:
                subprocess.run(["umount", str(out)], check=False, capture_output=True)  # noqa: S607


if __name__ == "__main__":
    main()
