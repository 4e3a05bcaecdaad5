"""The API answers as the library does; what is wrong is refused with its status, and the others go on."""

import base64
import http.client
import io
import json
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest_of_serving import CLASSES, form, running
from PIL import Image

from contextcaps.serving import connections
from contextcaps.serving.config import ServeConfig
from contextcaps.tagging.formats import row_object
from contextcaps.tagging.questions import ask_image

KNOWN = {"oven": True, "bed": False}


def named(photographs):
    return [(f"{index}.jpg", content) for index, content in enumerate(photographs)]


def as_json(photographs, **options):
    images = [{"data": base64.b64encode(content).decode()} for content in photographs]
    return {"images": images, **options}


def offline(engine, photographs, names, all_scores=False, **options):
    taggings = engine.tagger.tag(photographs, **options)
    rows = [row_object(tagging, engine.classes, all_scores) for tagging in taggings]
    return [{**row, "image": name} for row, name in zip(rows, names, strict=True)]


def assert_same(rows, expected) -> None:
    """Batches differ, and with them the last bits of a score."""
    assert [row["image"] for row in rows] == [row["image"] for row in expected]
    for row, other in zip(rows, expected, strict=True):
        assert row.keys() == other.keys()
        assert [tag["name"] for tag in row["tags"]] == [tag["name"] for tag in other["tags"]]
        for tag, same in zip(row["tags"], other["tags"], strict=True):
            assert tag["score"] == pytest.approx(same["score"], abs=1e-5)
            assert tag.get("given") == same.get("given")
        for name, score in other.get("scores", {}).items():
            assert row["scores"][name] == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, {}),
        ({"known": "oven=yes,bed=no"}, {"known": KNOWN}),
        ({"known": json.dumps(KNOWN), "scores": "all"}, {"known": KNOWN, "all_scores": True}),
        ({"threshold": "0", "top_k": "2"}, {"threshold": 0.0, "top_k": 2}),
        ({"threshold": '{"car": 0.01}'}, {"threshold": {"car": 0.01}}),
    ],
)
def test_answers_are_those_of_tag(client, engine, photographs, fields, options) -> None:
    names = [name for name, _ in named(photographs)]
    answer = client.post_form("/v1/tag", named(photographs), fields)
    assert answer.status == 200, answer.content
    assert answer.json()["model"] == "kitchens"
    assert_same(answer.json()["results"], offline(engine, photographs, names, **options))
    as_values = {name: value for name, value in options.items() if name != "all_scores"}
    as_values |= {"scores": "all"} if "all_scores" in options else {}
    same = client.post_json("/v1/tag", as_json(photographs, **as_values))
    assert_same(same.json()["results"], offline(engine, photographs, range(7), **options))


def test_explanations_are_those_of_explain(client, engine, photographs) -> None:
    fields = {"known": "oven=yes", "classes": '["car", "chair, folding"]', "parts": "all"}
    (row,) = client.post_form("/v1/explain", [("a.jpg", photographs[0])], fields).json()["results"]
    expected = engine.tagger.explain(photographs[0], ["car", "chair, folding"], {"oven": True})
    assert [each["name"] for each in row["classes"]] == [each.name for each in expected.classes]
    for found, same in zip(row["classes"], expected.classes, strict=True):
        np.testing.assert_allclose(found["parts"]["evidence"], same.evidence, atol=1e-4)
        np.testing.assert_allclose(found["heat_map"], same.heat_map(), atol=2e-4)
        assert found["logit"] == pytest.approx(same.logit, abs=1e-4)
        assert found["why"].startswith(found["name"])
    assert [move["name"] for move in row["moves"]] == [move.name for move in expected.moves]
    (short,) = client.post_form("/v1/explain", [("a.jpg", photographs[0])]).json()["results"]
    each = short["classes"][0]
    parts = each["parts"]
    assert parts["image"] + sum(parts["messages"].values()) + parts["rest"] == pytest.approx(each["logit"], abs=1e-3)


def test_many_clients_get_their_own_answers(client, engine, photographs) -> None:
    expected = offline(engine, photographs, range(7), True)
    with ThreadPoolExecutor(16) as pool:
        answers = pool.map(
            lambda index: client.post_json("/v1/tag", as_json([photographs[index % 7]], scores="all")), range(64)
        )
        for index, answer in enumerate(answers):
            assert_same(answer.json()["results"], [{**expected[index % 7], "image": 0}])


def test_a_poisoned_photograph_fails_alone(client, photographs) -> None:
    bad = [("cut.jpg", photographs[0][:300]), ("text.jpg", b"words"), ("empty.jpg", b"")]
    results = client.post_form("/v1/tag", [*bad, *named(photographs)]).json()["results"]
    assert [("error" in row) for row in results] == [True] * 3 + [False] * 7
    alone = client.post_form("/v1/tag", bad[:1])
    assert (alone.status, alone.json()["code"]) == (422, "bad_image")
    assert alone.json()["results"][0]["image"] == "cut.jpg"


def bomb() -> bytes:
    written = io.BytesIO()
    Image.new("1", (9000, 9000)).save(written, "PNG")  # 81 million pixels in 12 kB
    return written.getvalue()


@pytest.mark.parametrize(
    ("document", "status", "words"),
    [
        ({"images": [{"data": "!"}]}, 422, "images, 0: its data are no base64"),
        ({"images": []}, 422, "at least 1 item"),
        ({}, 422, "images: Field required"),
        ({"images": [{"data": "", "path": "/etc/passwd"}]}, 422, "Extra inputs"),
        ([1], 422, "Input should be an object"),
        ("model", 422, "there is none of this name"),
        ({"threshold": 2}, 422, "less than or equal to 1"),
        ({"threshold": {"zebra": 0.5}}, 422, "no class 'zebra'"),
        ({"known": {"oven": "yes"}}, 422, "valid boolean"),
        ({"known": {"ovn": True}}, 422, "did you mean"),
        ({"top_k": 0}, 422, "greater than or equal to 1"),
        ({"threshold": 0.5, "recall_at_least": 0.5}, 422, "expected one of them"),
        ({"precision_at_least": 0.9}, 422, "does not know what its scores were worth"),
    ],
)
def test_what_cannot_be_understood_is_refused(client, photographs, document, status, words) -> None:
    if document == "model":
        document = {"model": "../../../etc/passwd"}
    if isinstance(document, dict) and "images" not in document and document:
        document = as_json(photographs[:1], **document)
    answer = client.post_json("/v1/tag", document)
    assert answer.status == status
    assert words in answer.json()["error"]


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        ("text/plain", b"words", 415),
        ("", b"", 415),
        ("application/json", b"{", 422),
        ("application/json", b"\xff\xfe", 422),
        ("application/json", b"[" * 100_000, 422),
        ("multipart/form-data", b"--x", 422),
        ("multipart/form-data; boundary=x", b"", 422),
        ("multipart/form-data; boundary=x", b"--x\r\n", 422),
        ("multipart/form-data; boundary=x", b"--x\r\nA: " + b"b" * 10_000 + b"\r\n\r\n--x--\r\n", 422),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\n\r\n" * 500 + b"--x--\r\n", 413),
    ],
)
def test_damaged_bodies_are_refused(client, content_type, body, status) -> None:
    answer = client.request("POST", "/v1/tag", body, {"Content-Type": content_type})
    assert answer.status == status, answer.content
    assert answer.json().keys() == {"error", "code"}


def test_mutated_forms_and_photographs_are_no_error_of_ours(client, photographs) -> None:
    """300 of each: bytes changed, cut off, doubled."""
    random = np.random.default_rng(1)
    content_type, whole = form([("a.jpg", photographs[0])], {"known": "oven=yes", "threshold": "0.4"})
    statuses = set()
    for index in range(300):
        source = whole if index % 2 else photographs[index % 7]
        changed = bytearray(source)
        for _ in range(random.integers(1, 8)):
            place = random.integers(len(changed))
            kind = random.integers(3)
            if kind == 0:
                changed[place] = random.integers(256)
            elif kind == 1:
                del changed[place : place + random.integers(1, 50)]
            else:
                changed[place:place] = changed[place : place + random.integers(1, 50)]
            changed = changed or bytearray(b"x")
        if index % 2:
            answer = client.request("POST", "/v1/tag", bytes(changed), {"Content-Type": content_type})
        else:
            answer = client.post_form("/v1/tag", [("m.jpg", bytes(changed))])
        statuses.add(answer.status)
        assert answer.json()
    assert statuses <= {200, 413, 415, 422}
    assert client.service.photographs.taken == client.service.bytes.taken == 0


def test_limits(engine, photographs) -> None:
    config = ServeConfig(model=("kitchens=unused",), max_megabytes=0.5, max_files=2, max_megapixels=0.004)
    with running(config, {"kitchens": engine}) as client:
        many = client.post_form("/v1/tag", named(photographs[:3]))
        assert (many.status, many.json()["code"]) == (413, "too_many")
        long = client.post_form("/v1/tag", [("long.jpg", bytes(2**20))])
        assert (long.status, long.json()["code"]) == (413, "too_large")
        huge = client.request("POST", "/v1/tag", bytes(100 * 2**20), {"Content-Type": "application/json"})
        assert huge.status == 413
        chunks = client.request("POST", "/v1/tag", iter([bytes(2**16)] * 40), {"Content-Type": "application/json"})
        assert chunks.status == 413
        rows = client.post_form("/v1/tag", named(photographs[:2])).json()["results"]
        assert "error" not in rows[0]  # 60 × 50 pixels
        assert "pixels" in client.post_form("/v1/tag", [("b.png", bomb())]).json()["results"][0]["error"]
        assert client.service.bytes.taken == 0


def test_a_full_queue_says_when_to_come_again(slow, photographs) -> None:
    config = ServeConfig(model=("kitchens=unused",), max_files=4, queue=4)
    with running(config, {"kitchens": slow}) as client, ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post_form, "/v1/tag", named(photographs[:4]))
        wait_until(lambda: slow.batches)
        busy = client.post_form("/v1/tag", named(photographs[:1]))
        assert (busy.status, busy.json()["code"]) == (429, "busy")
        assert int(busy.headers["Retry-After"]) >= 1
        assert client.get("/readyz").status == 503
        slow.may.set()
        assert first.result().status == 200
        assert client.post_form("/v1/tag", named(photographs[:1])).status == 200
        assert client.get("/readyz").status == 200


def test_too_many_bytes_at_once(slow) -> None:
    config = ServeConfig(model=("kitchens=unused",), max_megabytes=0.01)
    with running(config, {"kitchens": slow}) as client:
        half = [client.connect() for _ in range(8)]
        for each in half:
            each.sendall(b"POST /v1/tag HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000\r\n\r\n")
        wait_until(lambda: client.service.bytes.taken == 80000)
        full = client.post_json("/v1/tag", {"images": [{"data": "A" * 6000}]})
        assert (full.status, full.json()["code"]) == (503, "full")
        for each in half:
            each.close()
        wait_until(lambda: client.service.bytes.taken == 0)


def test_a_client_that_hangs_up_frees_its_work(slow, photographs) -> None:
    with running(ServeConfig(model=("kitchens=unused",)), {"kitchens": slow}) as client:
        content_type, body = form(named(photographs), {})
        head = f"POST /v1/tag HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
        for _ in range(3):  # the first is being computed, the others wait
            sender = client.connect()
            sender.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_until(lambda: client.service.photographs.taken > 0)
            sender.close()
            wait_until(lambda: client.service.photographs.taken == 0)
        assert client.service.bytes.taken == 0
        slow.may.set()
        assert client.post_form("/v1/tag", named(photographs[:1])).status == 200
        assert sum(slow.batches) <= 7 + 1


def test_what_takes_too_long_is_ended(slow, photographs) -> None:
    with running(ServeConfig(model=("kitchens=unused",), time_limit=0.3), {"kitchens": slow}) as client:
        late = client.post_form("/v1/tag", named(photographs[:2]))
        assert (late.status, late.json()["code"]) == (503, "too_late")
        assert client.service.photographs.taken == 0
        with client.connect() as half:  # a body that never comes
            half.sendall(b"POST /v1/tag HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc")
            assert b"503" in half.recv(1000)
        slow.may.set()


def test_half_a_head_is_closed(client, monkeypatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.2)
    for begun in (b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        with client.connect() as half:
            half.sendall(begun)
            if begun.endswith(b"\n"):
                assert half.recv(1000)
                half.sendall(b"GET /hea")
            while half.recv(1000):
                pass  # until it is closed


def test_a_token(engine, photographs) -> None:
    config = ServeConfig(model=("kitchens=unused",), token="very secret")
    with running(config, {"kitchens": engine}) as client:
        files = named(photographs[:1])
        basic = base64.b64encode(b"anyone:very secret").decode()
        assert client.post_form("/v1/tag", files).status == 401
        assert client.post_form("/v1/tag", files, Authorization="Bearer wrong").status == 401
        assert client.post_form("/v1/tag", files, Authorization="Bearer very secret").status == 200
        assert client.post_form("/v1/tag", files, Authorization=f"Basic {basic}").status == 200
        assert client.get("/metrics").status == client.get("/v1/models").status == 401
        assert client.get("/healthz").status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "photographs.example"}, 421),
        ({"Host": "localhost.example:80"}, 421),
        ({"Host": "["}, 421),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "localhost", "Origin": "http://photographs.example"}, 403),
        ({"Host": "localhost", "Origin": "null"}, 403),
        ({"Host": "localhost:80", "Origin": "http://localhost:80"}, 200),
    ],
)
def test_other_sites_cannot_use_it(client, headers, status) -> None:
    answer = client.request("GET", "/v1/models", headers=headers)
    assert answer.status == status
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_figures(client, photographs) -> None:
    client.post_form("/v1/tag", named(photographs[:2]))
    client.get("/v1/nothing/of/this/name")
    text = client.get("/metrics").content.decode()
    assert 'contextcaps_requests_total{route="/v1/tag",status="200"}' in text
    assert "contextcaps_batch_photographs_bucket" in text
    assert "nothing" not in text
    assert client.get("/readyz").json() == {"status": "ready", "models": ["kitchens"]}


def test_models_are_described(client, engine) -> None:
    (found,) = client.get("/v1/models").json()["models"]
    assert found["classes"] == list(CLASSES)
    assert found["thresholds"]["car"] == pytest.approx(0.6)
    assert (found["takes_known"], found["explains"]) == (True, True)


def test_a_photograph_that_is_kept(client, engine, photographs) -> None:
    key = "0123456789abcdef" * 2
    kept = client.request("PUT", f"/v1/photographs/{key}?model=kitchens", photographs[0]).json()
    (plain,) = offline(engine, photographs[:1], [key], True)
    assert_same([{name: kept[name] for name in plain}], [plain])
    told = client.post_json(f"/v1/photographs/{key}", {"known": KNOWN, "since": {"oven": True}}).json()
    (expected,) = offline(engine, photographs[:1], [key], True, known=KNOWN)
    assert_same([{name: told[name] for name in expected}], [expected])
    before = offline(engine, photographs[:1], [key], True, known={"oven": True})[0]["scores"]
    for move in told["moves"]:
        assert move["before"] == pytest.approx(before[move["name"]], abs=1e-5)
        assert move["after"] == pytest.approx(expected["scores"][move["name"]], abs=1e-5)
        assert next(iter(move["through"])) in CLASSES
    why = client.post_json(f"/v1/photographs/{key}/explain", {"classes": ["car"]}).json()
    assert "car" in [each["name"] for each in why["classes"]]
    asked = client.post_json(f"/v1/photographs/{key}/question", {"known": KNOWN}).json()
    best = ask_image(engine.tagger, photographs[0], 1, KNOWN)[0]
    assert asked == {"name": best.name, "bits": pytest.approx(best.settles, abs=1e-3)}
    everything = dict.fromkeys(CLASSES, True)
    assert client.post_json(f"/v1/photographs/{key}/question", {"known": everything}).json()["name"] is None
    assert client.request("DELETE", f"/v1/photographs/{key}").status == 204
    gone = client.post_json(f"/v1/photographs/{key}", {})
    assert (gone.status, gone.json()["code"]) == (404, "not_kept")
    assert client.request("PUT", "/v1/photographs/..%2f..%2fetc", b"").status == 404
    assert client.request("PUT", f"/v1/photographs/{key}", b"words").json()["code"] == "bad_image"


def test_a_connection_is_used_again(client, photographs) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", client.port)
    for _ in range(3):
        content_type, body = form(named(photographs[:1]), {})
        connection.request("POST", "/v1/tag", body, {"Content-Type": content_type})
        assert connection.getresponse().read()
    connection.close()


def wait_until(is_true) -> None:
    until = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.01)
