"""The OpenAPI document, and schemathesis asking everything that it allows, and more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings

if TYPE_CHECKING:
    from tests.service.serving import Served

schemathesis = pytest.importorskip("schemathesis")
CHECKS = pytest.importorskip("schemathesis.specs.openapi.checks")

OPERATIONS = [
    ("/v1/chat/completions", "POST"),
    ("/v1/completions", "POST"),
    ("/v1/responses", "POST"),
    ("/v1/models", "GET"),
    ("/v1/models/{model}", "GET"),
    ("/healthz", "GET"),
    ("/readyz", "GET"),
]


@pytest.fixture(scope="module")
def document(tiny: Served) -> Any:
    return schemathesis.openapi.from_url(f"{tiny.url}/openapi.json")


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_answers_are_as_documented(
    document: Any, path: str, method: str, mode: Any, tiny: Served
) -> None:
    """No answer is a fault of ours, and each has a status and a body that are documented; what
    the document forbids is refused."""
    operation = document[path][method]
    if mode is schemathesis.GenerationMode.NEGATIVE and "GET" in method:
        pytest.skip("there is nothing to send")

    @settings(
        max_examples=10,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        _shorten(case, path)
        answer = case.call(timeout=60)
        assert answer.status_code < 500, answer.text
        checks = [
            CHECKS.status_code_conformance,
            CHECKS.content_type_conformance,
            CHECKS.response_schema_conformance,
            CHECKS.negative_data_rejection,
        ]
        case.validate_response(answer, checks=checks)

    ask()
    tiny.settle()


def _shorten(case: Any, path: str) -> None:
    """What is accepted is to be answered soon."""
    if isinstance(case.body, dict):
        name = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
        if isinstance(case.body.get(name), int) and not isinstance(case.body[name], bool):
            case.body[name] = min(case.body[name], 4)


def test_every_route_says_what_it_is_for(tiny: Served) -> None:
    with tiny.client() as client:
        document = client.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation.get("summary") or operation.get("description"), (path, method)
    body = document["components"]["schemas"]["ChatRequest"]
    assert body["additionalProperties"] is False
    assert "messages" in body["required"]


def test_nothing_is_left_behind(tiny: Served) -> None:
    tiny.settle()
    tiny.engine.check_integrity()
