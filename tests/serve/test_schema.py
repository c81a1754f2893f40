"""Requests made up from the API's own schema: each answer is one that the schema knows, and none is our fault."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from support.serving import Live

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")  # of schemathesis' own strategies
def test_requests_from_the_schema(talker: Live) -> None:
    schema = schemathesis.openapi.from_url(f"{talker.url}/openapi.json")
    paths = []
    for result in schema.get_all_operations():
        operation = result.ok()
        if not operation.path.startswith(("/v1/", "/health", "/metrics")):
            continue
        paths.append(operation.path)

        @settings(
            max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(operation.as_strategy())
        def ask(case: schemathesis.Case) -> None:
            if isinstance(case.body, dict):  # an endless answer tells nothing more than a short one
                case.body["max_tokens"] = 2
            response = case.call(timeout=30)
            case.validate_response(response, checks=CHECKS)

        ask()
    assert {"/v1/completions", "/v1/chat/completions", "/v1/trace", "/v1/lens", "/v1/models"} < set(paths)
    assert talker.idle()
