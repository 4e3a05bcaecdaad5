"""The ML backend speaks Label Studio's protocol, and fetches photographs from nowhere else."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conftest_of_serving import running

from contextcaps.serving.config import ServeConfig
from contextcaps.serving.label_studio import control_of, prediction
from contextcaps.serving.label_studio_photographs import KEY, TaskPhotographs, photograph_address
from contextcaps.serving.refusals import Refused

CONFIG = """<View>
  <Image name="photo" value="$image"/>
  <Choices name="shows" toName="photo" choice="multiple">
    <Choice value="Oven"/><Choice value="Sink"/><Choice value="Furniture" predicted_values="bed,chair"/>
    <Choice value="chair, folding"/><Choice value="Nothing of the model"/>
  </Choices>
</View>"""
PERSONAL = "eyJ.personal.token"
CHOICES = {"oven": "Oven", "sink": "Sink", "bed": "Furniture", "chair, folding": "chair, folding"}


def test_the_choices_of_a_photograph() -> None:
    control = control_of(CONFIG)
    assert control[:3] == ("shows", "photo", "image")
    assert control.choices["bed"] == "Furniture"
    assert control.is_multiple


@pytest.mark.parametrize(
    "config",
    [
        "",
        "<View/>",
        "<View",
        '<View><Text name="t" value="$t"/><Choices name="c" toName="t"/></View>',
        '<!DOCTYPE x [<!ENTITY a "b">]><View/>',
        "<View>" * 5000,
    ],
)
def test_a_configuration_without_them(config) -> None:
    with pytest.raises(Refused) as caught:
        control_of(config)
    assert caught.value.status == 422


@pytest.mark.parametrize(
    "given",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://localhost:8080@evil.example/data/a.jpg",
        "http://localhost:80801/data/a.jpg",
        "https://localhost:8080/data/a.jpg",
        "//evil.example/data/a.jpg",
        "file:///etc/passwd",
        "/etc/passwd",
        "/data/../api/users",
        "/data/%2e%2e/api/users",
        "/data/..\\api",
        "/api/current-user/token",
        "s3://bucket/a.jpg",
        "",
    ],
)
def test_addresses_elsewhere_are_never_opened(given) -> None:
    with pytest.raises(ValueError, match="not in the Label Studio"):
        photograph_address(given, "http://localhost:8080")


def test_addresses_of_label_studio() -> None:
    for studio in ("http://localhost:8080", "http://localhost:8080/"):
        expected = "http://localhost:8080/data/upload/a.jpg"
        assert photograph_address("/data/upload/a.jpg", studio) == expected
        assert photograph_address(expected, studio) == expected
    under = photograph_address("/data/local-files/?d=a%20b.jpg", "https://host/studio")
    assert under == "https://host/studio/data/local-files/?d=a%20b.jpg"
    with pytest.raises(ValueError, match="without --label-studio"):
        photograph_address("/data/a.jpg", None)


@pytest.fixture
def studio(photographs):
    """A Label Studio that has photographs, wants its key, and once leads elsewhere.

    It takes a legacy token; or gives access for a personal one, which lasts for three photographs.
    """
    given, left = [], 0

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal left
            wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            is_right = self.path == "/api/token/refresh/" and wanted == {"refresh": PERSONAL}
            self.send_response(200 if is_right else 401)
            self.end_headers()
            if is_right:
                given.append(f"access {len(given)}")
                left = 3
                self.wfile.write(json.dumps({"access": given[-1]}).encode())

        def do_GET(self) -> None:
            if self.path == "/data/upload/moved.jpg":
                self.send_response(302)
                self.send_header("Location", "http://127.0.0.1:1/secret")
                self.end_headers()
                return
            nonlocal left
            shown = self.headers.get("Authorization")
            is_personal = bool(given) and shown == f"Bearer {given[-1]}" and left > 0
            left -= is_personal
            is_allowed = is_personal or shown == "Token of label studio"
            self.send_response(200 if is_allowed else 401)
            self.end_headers()
            if is_allowed:
                self.wfile.write(photographs[int(self.path[-5])])

        def log_message(self, *arguments) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_personal_access_token_is_exchanged_and_exchanged_again_when_its_minutes_are_over(
    studio, photographs, monkeypatch
) -> None:
    monkeypatch.setenv(KEY, PERSONAL)
    found = TaskPhotographs(ServeConfig(model=("kitchens=unused",), label_studio=studio))
    for _ in range(3):
        for place in range(3):
            assert found.content(f"/data/upload/{place}.jpg") == photographs[place]
    assert found._access == "access 2"
    monkeypatch.setenv(KEY, "eyJ.another.token")
    stranger = TaskPhotographs(ServeConfig(model=("kitchens=unused",), label_studio=studio))
    with pytest.raises(ValueError, match="Label Studio answers 401"):
        stranger.content("/data/upload/0.jpg")


def test_the_protocol(studio, engine, photographs, monkeypatch) -> None:
    monkeypatch.setenv(KEY, "of label studio")
    inline = "data:image/jpeg;base64," + base64.b64encode(photographs[2]).decode()
    images = ["/data/upload/0.jpg", f"{studio}/data/upload/1.jpg", inline]
    bad = ["/data/upload/moved.jpg", "http://127.0.0.1:1/data/a.jpg", "data:image/png;base64,!", None, "file:///a"]
    config = ServeConfig(model=("kitchens=unused",), label_studio=studio)
    with running(config, {"kitchens": engine}) as client:
        assert client.get("/health").json()["status"] == "UP"
        setup = {"project": "1.17", "schema": CONFIG, "hostname": "http://evil.example", "access_token": "x"}
        assert client.post_json("/setup", setup).json() == {"model_version": "kitchens"}
        assert client.post_json("/setup", {**setup, "schema": "<View/>"}).status == 422
        tasks = [{"id": place, "data": {"image": image}} for place, image in enumerate([*images, *bad])]
        asked = {"tasks": tasks, "project": "1.17", "label_config": CONFIG, "params": {"context": None}}
        results = client.post_json("/predict", asked).json()["results"]
        assert len(results) == 8
        for result, photograph in zip(results[:3], photographs, strict=False):
            tags = [tag for tag in engine.tagger.tag(photograph)[0].tags if tag.name in CHOICES]
            assert "error" not in result
            assert result["model_version"] == "kitchens"
            assert result["score"] == pytest.approx(sum(tag.score for tag in tags) / len(tags), abs=1e-5)
            (found,) = result["result"]
            assert found["value"]["choices"] == [CHOICES[tag.name] for tag in tags]
            assert (found["from_name"], found["to_name"], found["type"]) == ("shows", "photo", "choices")
        for result in results[3:]:
            assert result["result"] == []
            assert result["error"]


def test_its_sdk_takes_the_predictions(engine, photographs) -> None:
    """Label Studio's own classes check them."""
    label_interface = pytest.importorskip("label_studio_sdk.label_interface")
    objects = pytest.importorskip("label_studio_sdk.label_interface.objects")
    interface, control = label_interface.LabelInterface(CONFIG), control_of(CONFIG)
    for tagging in engine.tagger.tag(photographs):
        result = json.loads(json.dumps(prediction(control, tagging.tags, "kitchens")))
        objects.PredictionValue(**result)
        assert interface.validate_prediction(result)
        assert interface.validate_task({"data": {"image": "/data/upload/a.jpg"}})
