"""A prompt that is sent back as the beginning of its texts."""

from __future__ import annotations

from typing import Any

import pytest

from support.serving import Live


def test_a_prompt_that_several_texts_echo_is_read_once(talker: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not at all for a request of more texts than may ever wait."""
    looks: list[Any] = []
    look = talker.service.scheduler.look
    monkeypatch.setattr(talker.service.scheduler, "look", lambda work, **how: looks.append(work) or look(work, **how))
    options: dict[str, Any] = {"max_tokens": 2, "echo": True, "logprobs": 1, "temperature": 0}
    one, *rest = talker.ok("/v1/completions", prompt="ab", n=3, **options)["choices"]
    assert len(looks) == 1
    assert len(one["logprobs"]["tokens"]) == 3 + 2  # BOS, both letters, two new ones
    assert [choice | {"index": 0} for choice in rest] == [one, one]
    assert "4096 texts" in talker.error("/v1/completions", prompt=["a"] * 64, n=64, **options)["message"]
    assert len(looks) == 1
