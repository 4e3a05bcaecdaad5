"""A tiny model that takes known labels, a server of it in a thread, and a client of the standard library."""

import contextlib
import http.client
import io
import json
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import uvicorn
from PIL import Image

import contextcaps
from contextcaps.models.trained import Trained
from contextcaps.serving.app import create_app
from contextcaps.serving.config import ServeConfig
from contextcaps.serving.engine import Engine
from contextcaps.serving.opening import open_engine
from contextcaps.serving.server import settings_of
from contextcaps.serving.service import Service
from contextcaps.serving.torch_engine import TorchEngine

CLASSES = ("oven", "sink", "bed", "chair, folding", "car")


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    """A model's folder; its field has relations between the classes."""
    torch.manual_seed(4)
    network = contextcaps.create_model("contextcaps", 5, 32, "small", capsules={"types": 2}, class_names=CLASSES).eval()
    assert network.field is not None
    with torch.no_grad():
        network.field.start_at(torch.randn(5, 5))
        network.field.trust.fill_(0.5)
    folder = tmp_path_factory.mktemp("kitchens") / "model"
    network.save_pretrained(folder)
    Trained((0.3, 0.05, 0.1, 0.04, 0.6), (0.1,) * 5, seed=7, data="scenes", epoch=1).write(folder, network.config)
    return folder


@pytest.fixture(scope="session")
def engine(model) -> Engine:
    return open_engine("kitchens", str(model), "cpu")


@pytest.fixture(scope="session")
def photographs() -> list[bytes]:
    """Seven JPEG files of different sizes."""
    random = np.random.default_rng(5)
    found = []
    for index in range(7):
        ground = random.integers(0, 256, (4, 4, 3)).astype(np.uint8)
        picture = Image.fromarray(ground).resize((60 + 20 * index, 50), Image.Resampling.BILINEAR)
        written = io.BytesIO()
        picture.save(written, "JPEG")
        found.append(written.getvalue())
    return found


class Answer:
    """A response that was read."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.content = response.status, response.headers, response.read()

    def json(self):
        return json.loads(self.content)


class Client:
    """Sends requests to a server."""

    def __init__(self, port: int, service: Service | None = None) -> None:
        self.port, self.service = port, service
        self.address = f"http://127.0.0.1:{port}"

    def request(self, method: str, path: str, body=None, headers: dict | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            return Answer(connection.getresponse())

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def post_json(self, path: str, document, **headers: str) -> Answer:
        return self.request("POST", path, json.dumps(document), {"Content-Type": "application/json", **headers})

    def post_form(self, path: str, files: list[tuple[str, bytes]], fields: dict | None = None, **headers) -> Answer:
        content_type, body = form(files, fields or {})
        return self.request("POST", path, body, {"Content-Type": content_type, **headers})

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


def form(files: list[tuple[str, bytes]], fields: dict) -> tuple[str, bytes]:
    """Return the content type and the body of a form."""
    boundary = uuid.uuid4().hex
    body = b""
    for name, value in fields.items():
        body += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
    for name, content in files:
        body += f'--{boundary}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n'.encode()
        body += b"Content-Type: image/jpeg\r\n\r\n" + content + b"\r\n"
    return f"multipart/form-data; boundary={boundary}", body + f"--{boundary}--\r\n".encode()


@contextlib.contextmanager
def running(config: ServeConfig, engines: dict[str, Engine]) -> Iterator[Client]:
    """Run a server in a thread, at a free port."""
    app = create_app(config, engines)
    server = uvicorn.Server(settings_of(config, app))
    listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    while not server.started:
        assert thread.is_alive()
        threading.Event().wait(0.01)
    try:
        yield Client(listening.getsockname()[1], app.service)
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def client(engine) -> Iterator[Client]:
    """A server with default limits, which all tests share."""
    with running(ServeConfig(model=("kitchens=unused",)), {"kitchens": engine}) as found:
        yield found


class Slow(TorchEngine):
    """A model that computes only when it may."""

    def __init__(self, name: str, tagger) -> None:
        super().__init__(name, tagger)
        self.may, self.batches = threading.Event(), []

    def compute(self, pixels, known):
        self.batches.append(len(pixels))
        assert self.may.wait(20)
        return super().compute(pixels, known)


@pytest.fixture
def slow(engine) -> Slow:
    return Slow("kitchens", engine.tagger)
