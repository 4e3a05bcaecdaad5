"""Requests drawn from the OpenAPI schema, right and wrong: no answer is an error of ours, each is declared."""

import contextlib

import pytest

schemathesis = pytest.importorskip("schemathesis")
hypothesis = pytest.importorskip("hypothesis")

pytestmark = pytest.mark.long


def test_the_schema_names_every_route(client) -> None:
    schema = client.get("/openapi.json").json()
    assert {"/v1/tag", "/v1/explain", "/v1/models", "/healthz", "/readyz", "/metrics", "/predict"} <= set(
        schema["paths"]
    )
    operation = schema["paths"]["/v1/tag"]["post"]
    assert set(operation["requestBody"]["content"]) == {"application/json", "multipart/form-data"}
    assert {"413", "422", "429", "503"} <= set(operation["responses"])


def test_requests_of_the_schema(client) -> None:
    """Every operation, 12 requests of each kind."""
    schema = schemathesis.openapi.from_url(f"{client.address}/openapi.json")
    counted: dict[int, int] = {}
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            cases = operation.as_strategy(generation_mode=mode)

            @hypothesis.settings(
                max_examples=12,
                derandomize=True,
                deadline=None,
                database=None,
                suppress_health_check=list(hypothesis.HealthCheck),
            )
            @hypothesis.given(cases)
            def check(case) -> None:
                answer = case.call(timeout=20)
                counted[answer.status_code] = counted.get(answer.status_code, 0) + 1
                assert answer.status_code < 500, (case.as_curl_command(), answer.text)
                if answer.status_code not in (400, 404, 405):  # of HTTP itself
                    declared = set(case.operation.definition.raw["responses"])
                    assert str(answer.status_code) in declared, (case.as_curl_command(), answer.text)

            with contextlib.suppress(hypothesis.errors.Unsatisfiable):  # nothing could be wrong without parameters
                check()
    assert min(counted[200], counted[422]) > 5
    assert client.service.photographs.taken == client.service.bytes.taken == 0
