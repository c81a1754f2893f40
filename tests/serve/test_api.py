"""The API as programs see it: every answer is the library's own, in the shapes that clients know."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

import cutaway
from cutaway.checkpoint.load import LoadReport
from cutaway.language_model import LanguageModel
from support.commands import BEGIN, save_model
from support.serving import Live, error_of, serving
from support.tiny import OURS, random_network

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
GREEDY: dict[str, Any] = {"temperature": 0}


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The objects of a stream, whose every event is one line of data and an empty line, the last one [DONE]."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *found, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(event.startswith("data: ") and "\n" not in event for event in found)
    return [json.loads(event.removeprefix("data: ")) for event in found]


def solo(live: Live, prompt: Any, n: int = 16, **options: Any) -> Any:
    return live.model.generate(prompt, max_tokens=n, **{"temperature": 0, **options})


def test_a_completion_is_what_the_library_generates(talker: Live) -> None:
    answer = talker.ok(COMPLETIONS, model="talker", prompt="To be,", **GREEDY)
    out = solo(talker, "To be,")
    assert answer["object"] == "text_completion"
    assert answer["model"] == "talker"
    assert answer["choices"] == [{"index": 0, "text": out.text, "logprobs": None, "finish_reason": "length"}]
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (7, 16, 23)


def test_a_chat_is_what_the_library_generates(talker: Live) -> None:
    """S10: the template writes BOS, and no second one is added; a raw completion gets its one."""
    answer = talker.ok(CHAT, messages=HELLO, max_tokens=12, **GREEDY)
    ids = talker.model.tokenizer.chat(HELLO)
    assert ids.count(BEGIN) == 1
    assert answer["object"] == "chat.completion"
    message = {"role": "assistant", "content": solo(talker, ids, 12).text, "refusal": None}
    assert answer["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"]["prompt_tokens"] == len(ids)
    assert talker.model.ids("a").count(BEGIN) == 1
    assert talker.ok(COMPLETIONS, prompt="a", max_tokens=1)["usage"]["prompt_tokens"] == 2


def test_parts_and_roles_of_messages(talker: Live) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    turns = [{"role": "developer", "content": "Be kind"}, {"role": "user", "content": parts}]
    turns += [{"role": "assistant", "content": "yes", "refusal": None, "tool_calls": None, "annotations": []}]
    turns += [{"role": "user", "content": "?"}]
    plain = [
        {"role": "system", "content": "Be kind"},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "?"},
    ]
    answer = talker.ok(CHAT, messages=turns, max_tokens=6, **GREEDY)
    assert answer["choices"][0]["message"]["content"] == solo(talker, talker.model.tokenizer.chat(plain), 6).text
    picture = [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]
    assert "text alone" in talker.error(CHAT, messages=[{"role": "user", "content": picture}])["message"]


@pytest.mark.parametrize("usage", [None, False, True])
@pytest.mark.parametrize(
    ("options", "reason"), [({"max_tokens": 8}, "length"), ({"max_tokens": 8, "stop": "STOP"}, "stop")]
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_the_shape_of_a_stream(
    talker: Live, path: str, options: dict[str, Any], reason: str, usage: bool | None
) -> None:
    """S3: no finish reason until one last chunk has it; then, only if asked for, the count; then [DONE]."""
    body = {"prompt": "abc"} if path == COMPLETIONS else {"messages": HELLO}
    prompt = "abc" if path == COMPLETIONS else talker.model.tokenizer.chat(HELLO)
    if reason == "stop":
        options = options | {"stop": solo(talker, prompt, 8).text[3:5]}
    asked = {} if usage is None else {"stream_options": {"include_usage": usage}}
    chunks = events(talker.post(path, stream=True, **body, **options, **asked, **GREEDY))
    assert len({chunk["id"] for chunk in chunks}) == 1
    if usage:
        last = chunks.pop()
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == (8 if reason == "length" else last["usage"]["completion_tokens"])
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert all("usage" not in chunk for chunk in chunks)
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [reason]
    if path == CHAT:
        assert chunks[0]["object"] == "chat.completion.chunk"
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    else:
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert text == solo(talker, prompt, 8, stop=options.get("stop", ())).text  # contract 9 through the socket


def test_no_new_tokens(talker: Live) -> None:
    """G12: 0 is 0, and is never read as "not set"."""
    assert "max_tokens" in talker.error(COMPLETIONS, prompt="abc", max_tokens=0)["message"]
    assert talker.error(COMPLETIONS, prompt="abc", max_tokens=-1)["param"] == "max_tokens"
    talker.error(CHAT, messages=HELLO, max_tokens=0)
    answer = talker.ok(COMPLETIONS, prompt="abc", max_tokens=0, echo=True)
    assert answer["choices"][0] == {"index": 0, "text": "abc", "logprobs": None, "finish_reason": "length"}
    assert answer["usage"]["completion_tokens"] == 0
    chunks = events(talker.post(COMPLETIONS, prompt="abc", max_tokens=0, echo=True, stream=True))
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["abc", ""]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("n", [1, 5, 20])
def test_tokens_are_counted_not_chunks(talker: Live, n: int) -> None:
    """X20."""
    answer = talker.ok(COMPLETIONS, prompt="count", max_tokens=n, **GREEDY)
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (n, "length")


def test_the_end_token_ends_with_stop(folder: Path) -> None:
    """X20, S7: `stop` [] and null are none, and leave the model's own end tokens alone."""
    model = cutaway.load(save_model(folder), progress=False)
    out = model.generate("x", max_tokens=50, temperature=0)
    model.end_ids = frozenset({out.tokens[4]})
    expected = model.generate("x", max_tokens=50, temperature=0)
    assert expected.finish_reason == "stop"
    with serving(model) as live:
        for stop in ([], None):
            answer = live.ok(COMPLETIONS, prompt="x", max_tokens=50, stop=stop, **GREEDY)
            assert answer["choices"][0]["finish_reason"] == "stop"
            assert answer["choices"][0]["text"] == expected.text
            assert answer["usage"]["completion_tokens"] == len(expected.tokens)


def test_stop_strings(talker: Live) -> None:
    """S7: text and list alike; an empty string is refused; up to 16, as documented."""
    text = solo(talker, "x").text
    one, listed, several = (
        talker.ok(COMPLETIONS, prompt="x", stop=stop, **GREEDY)["choices"][0]
        for stop in (text[5:7], [text[5:7]], [text[5:7], "1", "2", "3", "4"])
    )
    assert one == listed == several
    assert (one["text"], one["finish_reason"]) == (text[: text.index(text[5:7])], "stop")
    for wrong in ([""], "", [1], 5, [str(i) for i in range(17)]):
        assert talker.error(COMPLETIONS, prompt="x", stop=wrong)["param"] == "stop"


def test_several_prompts_and_several_texts_of_each(talker: Live) -> None:
    answer = talker.ok(COMPLETIONS, prompt=["ab", "xyz"], n=2, max_tokens=6, seed=5, temperature=1.5)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    expected = [
        talker.model.generate(p, max_tokens=6, seed=5 + i, temperature=1.5).text for p in ("ab", "xyz") for i in (0, 1)
    ]
    assert [choice["text"] for choice in answer["choices"]] == expected
    assert answer["usage"]["prompt_tokens"] == 3 + 4  # each once, with its BOS
    assert answer["usage"]["completion_tokens"] == 24


def test_ids_go_in_wherever_text_does(talker: Live) -> None:
    ids = talker.model.encode("ab")
    for prompt in (ids, [ids], [ids, ids]):
        for choice in talker.ok(COMPLETIONS, prompt=prompt, echo=True, **GREEDY)["choices"]:
            assert choice["text"] == "ab" + solo(talker, "ab").text
    assert "outside the vocabulary" in talker.error(COMPLETIONS, prompt=[1, 258])["message"]
    for wrong in ([1, "a"], [[]], [], [None], {"a": 1}, 5, [1.5], [True], None, ["a", [1]] * 33):
        talker.error(COMPLETIONS, prompt=wrong)


@pytest.mark.parametrize("options", [{"temperature": 0.5, "seed": 3}, {"top_p": 0.5, "seed": 4}, {"temperature": 0}])
def test_logprobs_are_the_models_own(talker: Live, options: dict[str, Any]) -> None:
    """X21: of the raw logits, whatever temperature and filters the token was drawn under."""
    answer = talker.ok(COMPLETIONS, prompt="log", max_tokens=5, logprobs=3, echo=True, **options)
    found = answer["choices"][0]["logprobs"]
    whole = [*talker.model.ids("log"), *solo(talker, "log", 5, **({"temperature": 1.0} | options)).tokens]
    expected = talker.model.logits(whole)[:-1].double().log_softmax(-1)  # type: ignore[union-attr]
    assert found["token_logprobs"][0] is None
    assert found["token_logprobs"][1:] == pytest.approx(
        [float(row[token]) for row, token in zip(expected, whole[1:], strict=True)], abs=1e-5
    )
    for best, row in zip(found["top_logprobs"][1:], expected, strict=True):
        assert sorted(best.values(), reverse=True) == pytest.approx(row.topk(3).values.tolist(), abs=1e-5)
    assert len(found["tokens"]) == len(found["text_offset"]) == len(whole)
    assert found["tokens"][1:4] == ["l", "o", "g"]


@pytest.mark.parametrize("stream", [False, True])
def test_offsets_are_those_of_the_text(talker: Live, stream: bool) -> None:
    """Characters before each token in the text that is sent: a part of one adds none, nor does a token left out."""
    text = "aé日b"  # in bytes, behind the begin token
    asked = {"prompt": text, "max_tokens": 2, "logprobs": 0, "echo": True, "stream": stream} | GREEDY
    if stream:
        pieces = [chunk["choices"][0]["logprobs"] for chunk in events(talker.post(COMPLETIONS, **asked))]
        offsets = [offset for piece in pieces if piece is not None for offset in piece["text_offset"]]
    else:
        offsets = talker.ok(COMPLETIONS, **asked)["choices"][0]["logprobs"]["text_offset"]
    assert offsets[:8] == [0, 0, 1, 1, 2, 2, 2, 3]
    assert offsets[8] == len(text)
    alone = talker.ok(COMPLETIONS, prompt=text, max_tokens=2, logprobs=0, **GREEDY)["choices"][0]["logprobs"]
    assert alone["text_offset"][0] == 0


def test_logprobs_of_a_chat(talker: Live) -> None:
    prompt = talker.model.tokenizer.chat(HELLO)
    body = {"messages": HELLO, "max_tokens": 5, "logprobs": True, **GREEDY}
    whole = talker.ok(CHAT, top_logprobs=2, **body)["choices"][0]["logprobs"]["content"]
    tokens = solo(talker, prompt, 5).tokens
    logprobs = talker.model.logits([*prompt, *tokens])[len(prompt) - 1 : -1].double().log_softmax(-1)  # type: ignore[union-attr]
    for entry, token, row in zip(whole, tokens, logprobs, strict=True):
        piece = talker.model.tokenizer.token_bytes(token)  # type: ignore[union-attr]
        assert entry["bytes"] == list(piece)
        assert entry["logprob"] == pytest.approx(float(row[token]), abs=1e-5)
        assert [best["logprob"] for best in entry["top_logprobs"]] == pytest.approx(
            row.topk(2).values.tolist(), abs=1e-5
        )
    chunks = events(talker.post(CHAT, stream=True, top_logprobs=2, **body))
    streamed = [e for c in chunks if c["choices"][0]["logprobs"] for e in c["choices"][0]["logprobs"]["content"]]
    assert [e["token"] for e in streamed] == [e["token"] for e in whole]
    alone = talker.ok(CHAT, **body)["choices"][0]["logprobs"]["content"]
    assert all(entry["top_logprobs"] == [] for entry in alone)
    assert "logprobs" in talker.error(CHAT, messages=HELLO, top_logprobs=2)["message"]
    numbers = talker.ok(COMPLETIONS, prompt="a", max_tokens=2, logprobs=0)["choices"][0]["logprobs"]
    assert len(numbers["token_logprobs"]) == 2
    assert numbers["top_logprobs"] is None


def test_seeds(talker: Live) -> None:
    body = {"prompt": "seed", "max_tokens": 12, "temperature": 2.0}

    def text(**more: Any) -> str:
        return talker.ok(COMPLETIONS, **body, **more)["choices"][0]["text"]

    assert text(seed=42) == text(seed=42)
    assert len({text(), text(), text(seed=None)}) == 3
    assert text(seed=2**64 - 1)
    assert talker.error(COMPLETIONS, **body, seed=2**64)["param"] == "seed"
    assert talker.error(COMPLETIONS, **body, seed="x")["param"] == "seed"


def test_names_of_models(talker: Live) -> None:
    listed = talker.client.get("/v1/models").json()
    assert [entry["id"] for entry in listed["data"]] == ["talker"]
    assert talker.client.get("/v1/models/talker").json() == listed["data"][0]
    assert error_of(talker.client.get("/v1/models/some/other"), 404)["code"] == "model_not_found"
    assert talker.error(COMPLETIONS, 404, model="gpt-4", prompt="a")["code"] == "model_not_found"
    assert talker.error(CHAT, 404, model="gpt-4", messages=HELLO)["param"] == "model"
    error_of(talker.client.get("/v1/nothing"), 404)
    error_of(talker.client.get(COMPLETIONS), 405)


def test_what_is_not_supported_is_refused_and_never_ignored(talker: Live) -> None:
    for name, value in {"presence_penalty": 0.5, "logit_bias": {"5": 1}, "suffix": "x", "best_of": 3}.items():
        assert name in talker.error(COMPLETIONS, prompt="a", **{name: value})["message"]
    tool = {"type": "function", "function": {"name": "f"}}
    for name, value in {"tools": [tool], "response_format": {"type": "json_object"}, "functions": [tool]}.items():
        assert talker.error(CHAT, messages=HELLO, **{name: value})["param"] == name
    nothing = {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "user": "me", "metadata": {"a": "b"}}
    assert talker.ok(COMPLETIONS, prompt="a", max_tokens=1, best_of=1, suffix=None, **nothing)
    assert talker.ok(CHAT, messages=HELLO, max_tokens=1, tools=[], response_format={"type": "text"}, **nothing)
    error = talker.error(COMPLETIONS, prompt="a", temprature=1)
    assert (error["message"], error["param"]) == ("temprature is no field: did you mean temperature?", "temprature")
    assert "stream" in talker.error(COMPLETIONS, prompt="a", stream_options={"include_usage": True})["message"]
    assert "differ" in talker.error(CHAT, messages=HELLO, max_tokens=1, max_completion_tokens=2)["message"]


@pytest.mark.parametrize(
    "body",
    [
        *(b"{not json", b"", b"[]", b"\xff", b'"\xff"', b"null", b"5", b"{}", b"[" * 100_000),
        *(b'{"prompt": NaN}', b'{"prompt": "a", "temperature": 1e999}', b'{"prompt": "a", "max_tokens": "many"}'),
        *(b'{"messages": []}', b'{"messages": 5}', b'{"messages": [5]}', b'{"messages": [{"content": "a"}]}'),
        *(b'{"prompt": "a", "n": 0}', b'{"prompt": "a", "n": 65}', b'{"prompt": "a", "top_p": 0}'),
        b'{"prompt": "\\ud800", "\\ud800": 1}',
    ],
)
def test_a_bad_body_is_told_and_the_server_goes_on(talker: Live, body: bytes) -> None:
    """S4."""
    for path in (COMPLETIONS, CHAT, "/v1/trace", "/v1/lens"):
        error_of(talker.client.post(path, content=body, headers={"content-type": "application/json"}), 400)
    error_of(talker.client.post(COMPLETIONS, content=b'{"prompt": "a"}'), 400)
    assert talker.client.get("/health").json()["status"] == "ok"
    assert talker.ok(COMPLETIONS, prompt="a", max_tokens=1)


def test_halves_of_characters(talker: Live) -> None:
    """X10: half a pair becomes U+FFFD, a pair is one character; both as text and in a message."""
    json_type = {"content-type": "application/json"}
    for sent, meant in ((r"\ud83d", "\ufffd"), (r"\ud83d\udc4d", "👍"), (r"a\udc4d\ud83d", "a\ufffd\ufffd")):
        body = f'{{"prompt": "{sent}", "temperature": 0, "max_tokens": 3, "echo": true}}'
        answer = talker.client.post(COMPLETIONS, content=body, headers=json_type)
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["text"] == meant + solo(talker, meant, 3).text
        chat = f'{{"messages": [{{"role": "user", "content": "{sent}"}}], "max_tokens": 1}}'
        assert talker.client.post(CHAT, content=chat, headers=json_type).status_code == 200


def test_a_template_that_reaches_out_is_stopped(folder: Path, tmp_path: Path) -> None:
    """S11: through the endpoint, marker absent, 400."""
    marker = tmp_path / "marker"
    reach = (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}" + f"{{{{ cycler.__init__.__globals__.os.mknod('{marker}') }}}}"
    )
    model = cutaway.load(save_model(folder, template=reach), progress=False)
    with serving(model) as live:
        assert "template" in live.error(CHAT, messages=HELLO)["message"]
        assert not marker.exists()
        assert live.ok(COMPLETIONS, prompt="a", max_tokens=1)


def test_prompts_past_the_context(folder: Path) -> None:
    model = cutaway.load(save_model(folder, n_ctx=32), progress=False)
    with serving(model) as live:
        error = live.error(COMPLETIONS, prompt="a" * 32)
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        answer = live.ok(COMPLETIONS, prompt="a" * 31, max_tokens=5, **GREEDY)
        assert answer["usage"]["completion_tokens"] == 1  # scored, and never read
        assert live.ok(CHAT, messages=[{"role": "user", "content": ""}])["choices"][0]["finish_reason"] == "length"


def test_a_padded_vocabulary(folder: Path) -> None:
    """X25: an odd size, and more rows in the model than the tokenizer has ids: these are never sampled."""
    small = cutaway.load(save_model(folder), progress=False)
    network = random_network(replace(OURS["grouped"], n_ctx=256, d_vocab=263))
    report = LoadReport(family="llama", source="test", stored="float32")
    model = LanguageModel(network, small.tokenizer, report, frozenset())
    with serving(model) as live:
        answer = live.ok(COMPLETIONS, prompt="a", max_tokens=64, temperature=50.0, logprobs=20, seed=1)
        assert answer["usage"]["completion_tokens"] == 64
        assert max(model.generate("a", max_tokens=64, temperature=50.0, seed=1).tokens) < small.tokenizer.d_vocab


def test_traces(talker: Live) -> None:
    name = "blocks.1.attn.pattern[head 2]"
    answer = talker.ok("/v1/trace", prompt="abc", keep=name)
    trace = talker.model.trace("abc", keep=name)
    assert answer["tokens"] == trace.tokens  # type: ignore[union-attr]
    assert answer["labels"][1:] == ["a", "b", "c"]
    assert list(answer["values"]) == [name]
    found = torch.tensor(answer["values"][name])
    assert found.shape == (1, 1, 4, 4)
    assert (found - trace[name]).abs().max() <= 5.1e-5  # type: ignore[index]
    assert talker.ok("/v1/trace", prompt="abc", keep="logits")["values"]["logits"]
    shapes = talker.ok("/v1/trace", prompt="abc", keep=["blocks.*.resid_post"], values=False)
    assert shapes["values"] == {}
    assert shapes["shapes"]["blocks.2.resid_post"] == [1, 4, 32]
    assert "did you mean" in talker.error("/v1/trace", prompt="abc", keep="blocks.1.attn.patern")["message"]
    big = talker.error("/v1/trace", prompt="a" * 1000, keep="blocks.*.attn.pattern")
    assert "24048024 numbers" in big["message"]


def test_lenses(talker: Live) -> None:
    answer = talker.ok("/v1/lens", prompt="abc", k=2)
    assert len(answer["states"]) == 4
    last = talker.model.logits("abc")[-1].log_softmax(-1)  # type: ignore[union-attr]
    assert answer["top"][-1][-1] == last.topk(2).indices.tolist()
    assert answer["top_probability"][-1][-1][0] == pytest.approx(math.exp(last.max()), rel=1e-4)
    assert "numbers" in talker.error("/v1/lens", prompt="a" * 30_000)["message"]
    assert talker.error("/v1/lens", prompt="abc", target="two tokens")["param"] == "target"


def test_health_and_metrics(talker: Live) -> None:
    talker.ok(COMPLETIONS, prompt="metrics", max_tokens=3)
    assert talker.client.get("/health").json() == {"status": "ok", "model": "talker", "running": 0, "waiting": 0}
    assert [talker.client.head(path).status_code for path in ("/health", "/")] == [200, 200]
    text = talker.client.get("/metrics").text
    numbers = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert int(numbers["cutaway_new_tokens_total"]) >= 3
    assert int(numbers['cutaway_requests_total{path="/v1/completions",status="200"}']) >= 1
    assert numbers["cutaway_running"] == "0"
    assert numbers["cutaway_first_token_seconds_count"] == numbers['cutaway_first_token_seconds_bucket{le="+Inf"}']
    assert set(httpx.get(f"{talker.url}/openapi.json").json()["paths"]) >= {COMPLETIONS, CHAT, "/health", "/metrics"}
