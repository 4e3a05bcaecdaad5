"""Parts of the server by themselves: settings, what is kept, and what is taken on at once."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from contextcaps.serving.admission import Admission
from contextcaps.serving.batching import BATCH, Batcher
from contextcaps.serving.config import ServeConfig
from contextcaps.serving.connections import send_at_once
from contextcaps.serving.engine import Features
from contextcaps.serving.kept import Kept
from contextcaps.serving.refusals import Refused


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"host": "0.0.0.0"}, "host: other machines can reach 0.0.0.0; add --token"),
        ({"host": "::", "token": "short"}, "token: expected 8 letters"),
        ({"token": "long enough", "no_token": True}, "leave one of them out"),
        ({"workers": 0}, "workers: expected at least 1"),
        ({"port": 70000}, "port: expected at most"),
        ({"max_files": 10, "queue": 5}, "queue: expected at least max_files"),
        ({"time_limit": float("nan")}, "time_limit: expected a number above 0"),
        ({"model": ("a=runs/x", "a=runs/y")}, "two of them are called a"),
        ({"model": ("/",)}, "has no name that clients could use"),
        ({"label_studio": "localhost:8080"}, "label_studio: expected an address"),
    ],
)
def test_settings_that_do_not_go_together(settings, words) -> None:
    with pytest.raises(ValueError, match=words):
        ServeConfig(**settings)


def test_settings_go_to_workers() -> None:
    config = ServeConfig(model=("coco80", "mine=runs/first"), host="0.0.0.0", token="a secret of mine", workers=3)
    assert ServeConfig.from_json(config.to_json()) == config


def test_a_token_in_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("CONTEXTCAPS_TOKEN", "from outside")
    assert ServeConfig(host="0.0.0.0").secret == "from outside"
    assert ServeConfig(token="from a flag").secret == "from a flag"
    assert ServeConfig(no_token=True).secret is None
    assert "outside" not in repr(ServeConfig()) + ServeConfig().to_json()


def test_models_have_names() -> None:
    given = ("coco80", "mine=runs/first", "runs/second", "runs/third/model", "hf:owner/tagger")
    assert ServeConfig(model=given).models == {
        "coco80": "coco80",
        "mine": "runs/first",
        "second": "runs/second",
        "third": "runs/third/model",
        "tagger": "hf:owner/tagger",
    }


def test_the_oldest_photographs_are_forgotten_first() -> None:
    kept = Kept(4000)
    for key in "abc":
        kept.put("m", key, Features(None, 1600))  # 1600 bytes
        kept.get("m", "a")
    assert kept.get("m", "b") is None
    assert kept.get("m", "a") is not None
    assert kept.get("other", "a") is None
    kept.put("m", "a", Features(None, 1600))
    assert kept.size == 3200
    kept.put("m", "large", Features(None, 40000))
    assert kept.size == 0


def test_places_are_given_back_whatever_happens() -> None:
    admission = Admission(3)

    def fail() -> None:
        with admission.held(3):
            with pytest.raises(Refused) as caught:
                admission.held(1).__enter__()
            assert (caught.value.status, caught.value.retry_after) == (429, 1)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert admission.taken == 0


class _Numbers:
    """An engine whose scores are twice the pixels; 13 is more than it can bear."""

    def __init__(self) -> None:
        self.batches = []

    def compute(self, pixels, known):
        self.batches.append(len(pixels))
        if any(each == 13 for each in pixels):
            raise MemoryError("13")
        return [(each, 2 * each) for each in pixels]


def test_batches() -> None:
    engine, told = _Numbers(), []

    async def run():
        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(engine, thread, told.append)
            waiting = [asyncio.ensure_future(batcher.compute(np.array(n), {})) for n in range(40)]
            await asyncio.sleep(0)
            waiting[3].cancel()
            batcher.start()
            found = await asyncio.gather(*waiting, return_exceptions=True)
            await batcher.stop()
            return found

    found = asyncio.run(run())
    assert isinstance(found[3], asyncio.CancelledError)
    assert isinstance(found[13], MemoryError)
    assert [each.scores for n, each in enumerate(found) if n not in (3, 13)] == [
        2 * n for n in range(40) if n not in (3, 13)
    ]
    assert told == [BATCH, BATCH, 39 - 2 * BATCH]
    assert engine.batches == [BATCH, *[1] * BATCH, BATCH, 39 - 2 * BATCH]


def test_a_photograph_alone_does_not_wait_and_others_are_waited_for() -> None:
    engine = _Numbers()

    async def run() -> None:
        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(engine, thread, lambda count: None)
            batcher.start()
            await batcher.compute(np.array(1), {})
            batcher.coming = 1
            first = asyncio.ensure_future(batcher.compute(np.array(2), {}))
            await asyncio.sleep(0.001)
            batcher.coming = 0
            second = asyncio.ensure_future(batcher.compute(np.array(3), {}))
            await asyncio.gather(first, second)
            await batcher.stop()

    asyncio.run(run())
    assert engine.batches == [1, 2]


def test_answers_are_sent_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0  # asyncio's own would leave it
            send_at_once(asyncio.Transport({"socket": accepted}))
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
