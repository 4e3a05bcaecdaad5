"""Load `contextcaps serve` on this machine: throughput, waiting times, refusals, memory, and every answer compared.

    python benchmarks/serving.py --seconds 60 --out serving.json
    python benchmarks/serving.py --clients 8 --seconds 600              # a soak
    python benchmarks/serving.py --clients 8 --workers 2 --kill         # kill -9 of one worker under load

First the photographs are tagged in bulk, as `contextcaps tag` does: that gives the right answers, and the rate that the
server is compared with. Then so many clients at once, each on a connection of its own, send a photograph (640 × 480 to
4000 × 3000 pixels, drawn; or those of a folder, four of ten enlarged) as soon as they have the answer to the last; one
that is refused comes again when it was told to. An answer is wrong where it has other tags, but for scores within 1e-4
of their threshold, or a score that differs by more than 1e-3. Then hostile clients: slow senders, half requests, bodies
of 100 MB, decompression bombs, damaged photographs and forms. The clients take part of the same cores.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import io
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image

import contextcaps
from contextcaps.experiments.bench.photographs import Drawn, draw_photographs

SIZES = (Drawn(640, 480, 12), Drawn(1600, 1200, 6), Drawn(4000, 3000, 2))
BATCH = 64
"""Photographs of a batch in bulk; the command's own."""
BOUNDARY = "0123456789abcdef"


@dataclasses.dataclass
class Truth:
    """What `contextcaps tag` says of a photograph."""

    scores: dict[str, float]
    tags: set[str]
    doubtful: set[str]
    """Classes whose score is at its threshold."""


@dataclasses.dataclass
class Load:
    """What some clients have seen."""

    seconds: list[float] = dataclasses.field(default_factory=list)
    timely: int = 0
    """Answers that came before the time was over; the others count for waiting times only."""
    refused: int = 0
    wrong: int = 0
    broken: int = 0
    """Connections that ended before the answer."""
    statuses: dict[int, int] = dataclasses.field(default_factory=dict)


class Served:
    """A server as a process of its own."""

    def __init__(self, *flags: str) -> None:
        command = [sys.executable, "-m", "contextcaps", "serve", "--port", "0", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r":(\d+)/", line)
        if found is None:
            raise SystemExit(f"the server did not start: {line}")
        self.port = int(found[1])

    def memory(self) -> float:
        """Return the resident memory of all its processes, in MB; what they share counts for each."""
        return sum(self.memory_of_each())

    def memory_of_each(self) -> list[float]:
        """Return the resident memory of each process, in MB: the one that was started, then its workers."""
        return [_resident(each) / 2**20 for each in self.processes()]

    def processes(self) -> list[int]:
        return [self.process.pid, *self.workers()]

    def workers(self) -> list[int]:
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == self.process.pid and b"spawn_main" in Path(f"/proc/{name}/cmdline").read_bytes():
                    found.append(int(name))
        return found

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


def _resident(process: int) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64, 512], help="clients at once")
    parser.add_argument("--seconds", type=float, default=60, help="for each number of clients")
    parser.add_argument("--workers", type=int, default=1, help="processes of the server")
    parser.add_argument("--model", default="coco80", help="a shipped model, or a folder")
    parser.add_argument(
        "--images", type=Path, help="a folder of JPEG files, 60 of which are sent instead of drawn ones"
    )
    parser.add_argument("--kill", action="store_true", help="kill -9 one worker in the middle of each load")
    parser.add_argument("--no-hostile", action="store_true", help="leave hostile clients out")
    parser.add_argument("--out", type=Path, help="write all figures here, as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.images:
            photographs = mixed(sorted(arguments.images.glob("*.jpg")))
        else:
            drawn = [draw_photographs(Path(folder, str(place)), size) for place, size in enumerate(SIZES)]
            photographs = [file.read_bytes() for files in drawn for file in files]
    truths, bulk = tag_in_bulk(arguments.model, photographs, min(arguments.seconds, 20))
    print(f"in bulk: {bulk:.1f} photographs/s", flush=True)
    served = Served("--model", arguments.model, "--workers", str(arguments.workers))
    figures: dict[str, Any] = {"bulk": bulk, "loads": []}
    try:
        asyncio.run(load(served.port, photographs, truths, 64, min(10.0, arguments.seconds)))  # memory settles
        time.sleep(12)
        print("| clients | photographs/s | of bulk | p50, ms | p99, ms | refused | broken | wrong | memory, MB |")
        print("|---|---|---|---|---|---|---|---|---|")
        for clients in arguments.clients:
            figures["loads"].append(measure(served, photographs, truths, clients, bulk, arguments))
        figures["answers"] = asyncio.run(answers(served.port, photographs[0]))
        print("yes and no on the page: p50 {p50:.1f} ms, p95 {p95:.1f} ms".format(**figures["answers"]["told"]))
        print("Ask me: p50 {p50:.1f} ms, p95 {p95:.1f} ms".format(**figures["answers"]["asked"]))
        figures["memory_of_each"] = served.memory_of_each()
        print("memory of each process, MB:", *(f"{each:.0f}" for each in figures["memory_of_each"]))
        if not arguments.no_hostile:
            before = served.memory()
            figures["hostile"] = asyncio.run(hostile(served.port, photographs[0]))
            time.sleep(12)
            figures["hostile"]["memory"] = [before, served.memory()]
            print("hostile clients:", json.dumps(figures["hostile"]))
            after = asyncio.run(load(served.port, photographs, truths, 8, 3))
            print(f"then 8 clients: {len(after.seconds)} right answers, {after.wrong} wrong")
        figures["failures"] = asyncio.run(failures(served.port))
        print(f"answers of 500: {figures['failures']}")
    finally:
        print(f"the server ended with {served.stop()}")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(figures, indent=2) + "\n")


def mixed(files: list[Path], count: int = 60) -> list[bytes]:
    """Return photographs of a folder, spread over it: of ten, six as they are, three 1600 and one 4000 pixels long."""
    if not files:
        raise SystemExit("there is no JPEG file in that folder")
    found = []
    for place, file in enumerate(files[:: max(1, len(files) // count)][:count]):
        longest = 0 if place % 10 < 6 else 1600 if place % 10 < 9 else 4000
        content = io.BytesIO(file.read_bytes())
        if longest:
            picture = Image.open(content).convert("RGB")
            scale = longest / max(picture.size)
            content = io.BytesIO()
            picture.resize((round(scale * picture.width), round(scale * picture.height))).save(content, "JPEG")
        found.append(content.getvalue())
    return found


def tag_in_bulk(model: str, photographs: list[bytes], seconds: float) -> tuple[list[Truth], float]:
    """Return the right answers, and photographs a second."""
    tagger = contextcaps.load(model)
    truths = []
    for tagging in tagger.tag(photographs):
        assert tagging.scores is not None
        scores = dict(zip(tagger.classes, map(float, tagging.scores), strict=True))
        doubtful = {
            name
            for name, least in zip(tagger.classes, tagger.thresholds, strict=True)
            if abs(scores[name] - least) < 1e-4
        }
        truths.append(Truth(scores, {tag.name for tag in tagging.tags}, doubtful))
    count, begun = 0, time.monotonic()
    for _ in tagger.tag_stream(itertools.cycle(photographs), batch_size=BATCH):
        count += 1
        if count % BATCH == 0 and time.monotonic() - begun > seconds:
            break
    return truths, count / (time.monotonic() - begun)


def measure(
    served: Served,
    photographs: list[bytes],
    truths: list[Truth],
    clients: int,
    bulk: float,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    before = served.memory()
    killed: dict[str, Any] = {}
    by_minute: list[float] = []

    async def watch() -> None:
        while True:
            await asyncio.sleep(60)
            by_minute.append(served.memory())
            print(f"  after {len(by_minute)} min: {by_minute[-1]:.0f} MB", flush=True)

    async def run() -> Load:
        watching = asyncio.create_task(watch())
        try:
            return await loaded()
        finally:
            watching.cancel()

    async def loaded() -> Load:
        task = asyncio.create_task(load(served.port, photographs, truths, clients, arguments.seconds))
        if arguments.kill:
            await asyncio.sleep(arguments.seconds / 3)
            victim, begun = served.workers()[0], time.monotonic()
            os.kill(victim, signal.SIGKILL)
            while victim in served.workers() or len(served.workers()) < arguments.workers:
                await asyncio.sleep(0.1)
            killed["back_after"] = time.monotonic() - begun
        return await task

    found = asyncio.run(run())
    time.sleep(12)  # the server gives memory back every 10 s
    times = sorted(found.seconds) or [float("nan")]
    figures = {
        "clients": clients,
        "rate": found.timely / arguments.seconds,
        "p50": 1000 * statistics.median(times),
        "p99": 1000 * times[min(len(times) - 1, int(0.99 * len(times)))],
        "refused": found.refused,
        "broken": found.broken,
        "wrong": found.wrong,
        "statuses": found.statuses,
        "memory": [before, (after := served.memory())],
        "memory_by_minute": by_minute,
        **killed,
    }
    print(
        f"| {clients} | {figures['rate']:.1f} | {100 * figures['rate'] / bulk:.0f} % | {figures['p50']:.0f} | "
        f"{figures['p99']:.0f} | {found.refused} | {found.broken} | {found.wrong} | {before:.0f} to {after:.0f} "
        f"({after - before:+.0f}) |",
        flush=True,
    )
    if killed:
        print(f"  the killed worker was back after {killed['back_after']:.1f} s; statuses {found.statuses}", flush=True)
    return figures


async def load(port: int, photographs: list[bytes], truths: list[Truth], clients: int, seconds: float) -> Load:
    """Let clients send photographs for some time."""
    found, until = Load(), time.monotonic() + seconds
    requests = [request_of("/v1/tag", photograph) for photograph in photographs]
    await asyncio.gather(*(client(port, requests, truths, found, until, place) for place in range(clients)))
    return found


async def client(port: int, requests: list[bytes], truths: list[Truth], found: Load, until: float, seed: int) -> None:
    chance = random.Random(seed)
    while time.monotonic() < until:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            found.broken += 1
            await asyncio.sleep(0.2)
            continue
        try:
            while time.monotonic() < until:
                place, begun = chance.randrange(len(requests)), time.monotonic()
                writer.write(requests[place])
                await writer.drain()
                status, headers, body = await answer(reader)
                found.statuses[status] = found.statuses.get(status, 0) + 1
                if status == 200:
                    found.seconds.append(time.monotonic() - begun)
                    found.timely += time.monotonic() <= until
                    found.wrong += not is_right(json.loads(body)["results"][0], truths[place])
                else:
                    found.refused += 1
                    wait = float(headers.get("retry-after", 1)) * (0.5 + chance.random())
                    await asyncio.sleep(min(wait, max(0.0, until - time.monotonic())))
        except (OSError, asyncio.IncompleteReadError, ValueError):
            found.broken += 1
        finally:
            writer.close()


def request_of(path: str, photograph: bytes, scores: str = "all") -> bytes:
    body = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="scores"\r\n\r\n{scores}\r\n--{BOUNDARY}\r\n'
        'Content-Disposition: form-data; name="files"; filename="a.jpg"\r\n\r\n'
    ).encode()
    body += photograph + f"\r\n--{BOUNDARY}--\r\n".encode()
    return head_of("POST", path, len(body), f"multipart/form-data; boundary={BOUNDARY}") + body


def head_of(method: str, path: str, length: int, kind: str = "application/octet-stream") -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    return int(head[0].split()[1]), headers, await reader.readexactly(int(headers.get("content-length", 0)))


def is_right(row: dict[str, Any], truth: Truth) -> bool:
    """Return whether an answer is that of `contextcaps tag`; batches differ, and with them the last bits."""
    if "error" in row or row["scores"].keys() != truth.scores.keys():
        return False
    tags = {tag["name"] for tag in row["tags"]}
    near = all(abs(score - truth.scores[name]) < 1e-3 for name, score in row["scores"].items())
    return near and (tags ^ truth.tags) <= truth.doubtful


async def answers(port: int, photograph: bytes, count: int = 60) -> dict[str, dict[str, float]]:
    """Measure how long a yes takes on the page, and a question, on a server with nothing else to do."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    path = f"/v1/photographs/{'0' * 32}"
    told: list[float] = []
    asked: list[float] = []

    async def send(method: str, address: str, body: bytes, kind: str, seconds: list[float]) -> Any:
        begun = time.monotonic()
        writer.write(head_of(method, address, len(body), kind) + body)
        status, _, content = await answer(reader)
        seconds.append(1000 * (time.monotonic() - begun))
        assert status == 200, (address, status)
        return json.loads(content)

    names = list((await send("PUT", path, photograph, "application/octet-stream", []))["scores"])
    known: dict[str, bool] = {}
    for place in range(count):
        since = dict(known)
        known[names[place % len(names)]] = place < len(names) and place % 3 == 0
        await send("POST", path, json.dumps({"known": known, "since": since}).encode(), "application/json", told)
        body = json.dumps({"known": known}).encode()
        await send("POST", f"{path}/question", body, "application/json", asked)
    writer.close()
    return {
        name: {"p50": statistics.median(seconds), "p95": sorted(seconds)[int(0.95 * count)]}
        for name, seconds in (("told", told), ("asked", asked))
    }


async def failures(port: int) -> int:
    """Return how many answers of 500 the server has counted."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    _, _, body = await answer(reader)
    writer.close()
    found = re.findall(r'contextcaps_requests_total\{[^}]*status="500"\} (\S+)', body.decode())
    return int(sum(map(float, found)))


async def hostile(port: int, photograph: bytes) -> dict[str, Any]:
    """Let hostile clients try; return the statuses that each kind has got."""
    chance, found = random.Random(0), {}

    async def send(*pieces: bytes, pause: float = 0.0, ends: bool = False) -> int:
        """Send pieces and return the status; 0 where the connection is closed without one."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            with contextlib.suppress(OSError):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(pause)
                if ends:
                    return 0
            status, _, _ = await asyncio.wait_for(answer(reader), 60)
            return status
        except (OSError, asyncio.IncompleteReadError):
            return 0
        finally:
            writer.close()

    async def several(name: str, tries: list[Any]) -> None:
        statuses: dict[int, int] = {}
        for place in range(0, len(tries), 16):
            for status in await asyncio.gather(*tries[place : place + 16]):
                statuses[status] = statuses.get(status, 0) + 1
        found[name] = statuses

    whole = request_of("/v1/tag", photograph)
    split = whole.index(b"\r\n\r\n") + 4
    await several(
        "slow senders",
        [send(whole[:split], *[whole[n : n + 1] for n in range(20)], pause=0.3, ends=True) for _ in range(64)],
    )
    await several("half requests", [send(whole[: chance.randrange(1, len(whole))], ends=True) for _ in range(100)])
    large = head_of("POST", "/v1/tag", 100 * 2**20, f"multipart/form-data; boundary={BOUNDARY}")
    await several("100 MB bodies", [send(large, *[bytes(2**20)] * 100) for _ in range(8)])
    bombs = []
    for mode, side in (("1", 9400), ("1", 20000), ("RGB", 7000)):
        written = io.BytesIO()
        Image.new(mode, (side, side)).save(written, "PNG")
        bombs.append(written.getvalue())
    await several("decompression bombs", [send(request_of("/v1/tag", bomb)) for bomb in bombs * 8])
    await several("damaged photographs", [send(request_of("/v1/tag", damaged(photograph, chance))) for _ in range(300)])
    forms = []
    for _ in range(300):
        body = damaged(whole[split:], chance)
        forms.append(send(head_of("POST", "/v1/tag", len(body), f"multipart/form-data; boundary={BOUNDARY}") + body))
    await several("damaged forms", forms)
    words = [
        b"{",
        b"[" * 10**6,
        b'{"images": [{"data": "' + b"A" * 10**6 + b'"}]}',
        b"\xff",
        b'{"images": 1e999}',
        b"null",
    ]
    await several(
        "damaged JSON", [send(head_of("POST", "/v1/tag", len(each), "application/json") + each) for each in words * 10]
    )
    return found


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Return bytes with some changed, cut out or doubled."""
    changed = bytearray(content)
    for _ in range(chance.randrange(1, 10)):
        place, length = chance.randrange(len(changed)), chance.randrange(1, 200)
        kind = chance.randrange(3)
        if kind == 0:
            changed[place] = chance.randrange(256)
        elif kind == 1:
            del changed[place : place + length]
        else:
            changed[place:place] = changed[place : place + length]
        changed = changed or bytearray(b"x")
    return bytes(changed)


if __name__ == "__main__":
    main()
