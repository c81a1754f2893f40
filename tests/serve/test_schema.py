"""Requests made up from the API's own schema: each answer is one that the schema knows, and none is our fault."""

from __future__ import annotations

import json
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from support.serving import Live, error_of

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


CHAT = "/v1/chat/completions"
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
fields = st.sampled_from(
    ["prompt", "messages", "n", "stop", "seed", "stream", "logprobs", "echo", "temperature", "top_p", "stream_options"]
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["/v1/completions", CHAT, "/v1/trace", "/v1/lens"]), st.dictionaries(fields, values, max_size=4))
def test_any_body_is_answered_or_refused(talker: Live, path: str, body: dict[str, Any]) -> None:
    least: dict[str, Any] = {CHAT: {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}}.get(
        path, {"prompt": "a"}
    )
    least |= {"keep": "blocks.0.attn.pattern"} if path == "/v1/trace" else {}
    sent = json.dumps(least | body)
    response = talker.client.post(path, content=sent, headers={"content-type": "application/json"})
    assert response.status_code in (200, 400)
    if response.status_code == 400:
        error_of(response, 400)
