"""`contextcaps serve` as a process: it opens, drains, shares a port among workers, and brings back one that dies."""

import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest_of_serving import Client

from contextcaps.cli.dispatch import main

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]


@contextlib.contextmanager
def served(model, *flags: str):
    command = [sys.executable, "-m", "contextcaps", "serve", "--model", str(model), "--port", "0", *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        line = process.stdout.readline()
        found = re.search(r"http://localhost:(\d+)/", line)
        assert found, line + process.stderr.read()
        client = Client(int(found[1]))
        ready(client)
        yield client, process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)
        process.stdout.close()
        process.stderr.close()


def ready(client: Client) -> None:
    until = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if client.get("/readyz").status == 200:
                return
        assert time.monotonic() < until
        time.sleep(0.1)


def test_sigterm_lets_requests_end(model, photographs) -> None:
    with served(model) as (client, process):
        begun = client.connect()
        body = photographs[0]
        path = f"/v1/photographs/{'a' * 32}"
        begun.sendall(f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        begun.sendall(body[:100])
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        with pytest.raises(ConnectionRefusedError):
            client.connect()
        begun.sendall(body[100:])
        assert begun.recv(100).startswith(b"HTTP/1.1 200")
        begun.close()
        assert process.wait(60) in (0, -signal.SIGTERM)
        assert "Traceback" not in process.stderr.read()


def test_a_worker_that_is_killed_comes_back(model, photographs) -> None:
    with served(model, "--workers", "2") as (client, process):
        workers = children(process.pid)
        assert len(workers) == 2
        found, stop = [[] for _ in range(4)], threading.Event()

        def load(results: list) -> None:
            while not stop.is_set():
                results.append(None)  # stays where the worker dies
                with contextlib.suppress(OSError, http.client.HTTPException):
                    results[-1] = client.post_form("/v1/tag", [("a.jpg", photographs[0])]).status

        threads = [threading.Thread(target=load, args=(each,)) for each in found]
        for thread in threads:
            thread.start()
        answered = lambda: sum(results.count(200) for results in found)  # noqa: E731
        until(lambda: answered() >= 4)
        os.kill(workers[0], signal.SIGKILL)
        before = answered()
        until(lambda: len(children(process.pid)) == 2 and workers[0] not in children(process.pid))
        until(lambda: answered() >= before + 8)
        stop.set()
        for thread in threads:
            thread.join()
        results = [status for each in found for status in each]
        assert set(results) <= {200, None}
        assert results.count(None) <= 4  # what the dead one was at
        counted = client.get("/metrics").content.decode()
        photographs_seen = re.search(r'contextcaps_photographs_total{outcome="computed"} (\S+)', counted)
        assert float(photographs_seen[1]) >= results.count(200)  # the dead one's, too
        process.terminate()
        assert process.wait(60) in (0, -signal.SIGTERM)
        assert not any(alive(worker) for worker in workers)


def children(parent: int) -> list[int]:
    """Return the workers of a server."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read()
            if int(fields[1]) == parent and b"spawn_main" in words:
                found.append(int(name))
    return found


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def until(is_true) -> None:
    end = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "runs/none"], "no such folder"),
        (["--host", "0.0.0.0"], "--token"),
        (["--workers", "0"], "workers: expected at least 1"),
    ],
)
def test_wrong_words_are_one_line(flags, words, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--port", "0", *flags])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


def test_a_port_that_is_taken(model, client, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--model", str(model), "--port", str(client.port)])
    assert "try another --port" in capsys.readouterr().err
