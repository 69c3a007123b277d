"""The OpenAPI document, and schemathesis asking everything that it allows, and more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.service.serving import Served

schemathesis = pytest.importorskip("schemathesis")

PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/models",
    "/v1/models/{model}",
    "/healthz",
    "/readyz",
)


@pytest.fixture
def api(tiny: Served) -> Any:
    """The document of the running service, without what other tests look at."""
    loaded = schemathesis.openapi.from_url(f"{tiny.url}/openapi.json")
    return loaded.include(path=list(PATHS))


schema = schemathesis.pytest.from_fixture("api")


@schema.parametrize()  # type: ignore[untyped-decorator]
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_answers_are_as_documented(case: Any, tiny: Served) -> None:
    """No answer is a fault of ours, and each has a status and a body that are documented."""
    if isinstance(case.body, dict):  # so that an accepted request is a short one
        limit = "max_output_tokens" if case.path == "/v1/responses" else "max_tokens"
        if isinstance(case.body.get(limit), int) and not isinstance(case.body[limit], bool):
            case.body[limit] = min(case.body[limit], 4)
    answer = case.call(timeout=60)
    assert answer.status_code < 500, answer.text
    case.validate_response(
        answer,
        excluded_checks=[
            schemathesis.checks.not_a_server_error,  # above, with the text
            schemathesis.specs.openapi.checks.positive_data_acceptance,
            schemathesis.specs.openapi.checks.unsupported_method,
            schemathesis.specs.openapi.checks.missing_required_header,
            schemathesis.specs.openapi.checks.ignored_auth,
        ],
    )


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
