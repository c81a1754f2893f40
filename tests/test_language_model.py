"""What a user holds: prompts in any form, N tokens in N passes, and every answer as if it had been alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cutaway.checkpoint.load import LoadReport
from cutaway.config import ModelConfig
from cutaway.errors import ConfigError, ContextError, GenerationError, NumericsError, TokenizerError
from cutaway.language_model import LanguageModel, Output, load
from cutaway.text.ids import IdTokenizer
from support.tiny import D_VOCAB, OURS, distance, random_network, random_tokens

FIVE = [3, 14, 15, 9, 26]
TWO = [5, 35]


def build(name: str = "grouped", *, end: int | None = None, n_ctx: int = 64, bos: int | None = None) -> LanguageModel:
    config = ModelConfig.from_dict(OURS[name].to_dict() | {"n_ctx": n_ctx})
    tokenizer = IdTokenizer(D_VOCAB)
    tokenizer.bos_id = bos
    report = LoadReport(family="llama", source="test", stored="float32")
    return LanguageModel(random_network(config), tokenizer, report, frozenset() if end is None else frozenset({end}))


def greedy(model: LanguageModel, prompt: Any, n: int = 8, **options: Any) -> Any:
    return model.generate(prompt, max_tokens=n, temperature=0, **options)


class Counting:
    """Counts forward passes and the tokens they read."""

    def __init__(self, model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.widths: list[int] = []
        original = model.network.enter

        def enter(tokens: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.widths.append(tokens.shape[1])
            return original(tokens, *args, **kwargs)

        monkeypatch.setattr(model.network, "enter", enter)


def test_n_tokens_are_n_passes_and_the_prompts_pass_gives_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lecture's loop: with the cache each pass reads one token, without it the whole text."""
    model = build()
    passes = Counting(model, monkeypatch)
    out = greedy(model, FIVE)
    assert out.passes == len(out.tokens) == 8
    assert passes.widths == [5, 1, 1, 1, 1, 1, 1, 1]
    passes.widths.clear()
    again = greedy(model, FIVE, cache=False)
    assert again.passes == 8
    assert passes.widths == [5, 6, 7, 8, 9, 10, 11, 12]
    assert again.tokens == out.tokens


@pytest.mark.parametrize("name", OURS)
def test_with_and_without_cache_the_tokens_are_the_same(name: str) -> None:
    """Contract 2 in use, also where the rotation depends on the length and cached keys go stale on the way."""
    model = build(name)
    assert greedy(model, FIVE, 20).tokens == greedy(model, FIVE, 20, cache=False).tokens


@pytest.mark.parametrize("name", OURS)
def test_a_ragged_batch_equals_solo_runs(name: str) -> None:
    """G8: prompts of 2 and 5 tokens, greedy, 8 new tokens."""
    model = build(name)
    together = greedy(model, [TWO, FIVE, TWO])
    assert [out.tokens for out in together] == [greedy(model, p).tokens for p in (TWO, FIVE, TWO)]
    ragged = model.logits([TWO, FIVE])
    for found, prompt in zip(ragged, (TWO, FIVE), strict=True):
        assert distance(found, model.logits(prompt)) <= 1e-5


def test_rows_that_end_early_leave_the_others_alone() -> None:
    model = build()
    alone = greedy(model, FIVE, 12)
    model.end_ids = frozenset({alone.tokens[4]})
    first_end = alone.tokens.index(alone.tokens[4])
    outs = greedy(model, [FIVE, TWO, [1]], 12)
    assert outs[0].tokens == alone.tokens[: first_end + 1]
    assert outs[0].finish_reason == "stop"
    assert [out.tokens for out in outs[1:]] == [greedy(model, p, 12).tokens for p in (TWO, [1])]


def test_the_end_token_is_counted_but_is_no_text() -> None:
    model = build()
    tokens = greedy(model, FIVE).tokens
    model.end_ids = frozenset({tokens[2]})
    out = greedy(model, FIVE)
    assert out.tokens == tokens[: tokens.index(tokens[2]) + 1]
    assert out.finish_reason == "stop"


@pytest.mark.parametrize(
    ("n_prompt", "n_new", "expected"), [(16, 1, 1), (10, 10, 7), (1, 40, 16), (16, 0, 0), (16, 5, 1)]
)
@pytest.mark.parametrize("cache", [True, False])
def test_the_context_is_the_limit(n_prompt: int, n_new: int, expected: int, cache: bool) -> None:
    """G10, context 16. A full context still has a next token, which is scored and never read: the chosen rule."""
    model = build(n_ctx=16)
    out = greedy(model, random_tokens(1, n_prompt)[0].tolist(), n_new, cache=cache)
    assert (len(out.tokens), out.finish_reason) == (expected, "length")


def test_a_prompt_past_the_context_is_refused() -> None:
    """G10: context 16, prompt 17."""
    model = build("classic", n_ctx=16)
    for call in (model.generate, model.logits, lambda p: list(model.stream(p))):
        with pytest.raises(ContextError, match=r"17 tokens.*16"):
            call([1] * 17)


def test_empty_prompts() -> None:
    """G11: BOS where there is one, else an error; an empty list is an empty result."""
    with pytest.raises(GenerationError, match="begin token"):
        build().generate("")
    model = build(bos=7)
    assert greedy(model, "").tokens == greedy(model, [7]).tokens
    assert model.generate([]) == []
    assert model.logits([]) == []
    with pytest.raises(GenerationError):
        build().logits("  ")


def test_max_tokens_zero_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """G12: no token, no pass, and never the default."""
    model = build()
    passes = Counting(model, monkeypatch)
    out = model.generate(FIVE, max_tokens=0)
    assert (out.tokens, out.text, out.passes, out.finish_reason) == ([], "", 0, "length")
    assert passes.widths == []


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": -1},
        {"max_tokens": 1.5},
        {"max_tokens": True},
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_p": 0},
        {"top_k": -1},
        {"stop": [""]},
        {"stop": ""},
        {"stop": 5},
        {"stop": [5]},
        {"logprobs": -1},
        {"logprobs": True},
        {"seed": 2**70},
    ],
)
def test_an_option_out_of_range_is_named_before_anything_runs(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(GenerationError, match=name):
        build().generate(FIVE, **options)


def test_numbers_of_numpy_are_numbers() -> None:
    """Whole numbers and floats of any width, without a warning; its truth values are none."""
    model = build()
    ours = {"max_tokens": 5, "seed": 7, "top_k": 9, "logprobs": 1, "temperature": 0.5, "top_p": 0.75}
    theirs = {name: (np.int64 if isinstance(value, int) else np.float16)(value) for name, value in ours.items()}
    assert model.generate(FIVE, **theirs) == model.generate(FIVE, **ours)
    for name in ours:
        for value in (True, False, np.True_, np.False_):
            with pytest.raises(GenerationError, match=f"{name} = "):
                model.generate(FIVE, **{name: value})


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("max_token", "max_token is no option: did you mean max_tokens?"),
        ("prompts", "prompts is no option: use max_tokens, temperature, "),
    ],
)
def test_an_option_that_there_is_not_is_named(option: str, says: str) -> None:
    model = build()
    for call in (model.generate, model.stream):
        with pytest.raises(GenerationError) as error:
            call(FIVE, **{option: 3})
        assert str(error.value).startswith(says)


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        (5, "prompt = 5: "),
        (None, "prompt = None: "),
        (torch.tensor(5), "prompt = tensor(5): "),
        (b"3 14", "prompt = b'3 14': "),
        ({3, 14}, "prompt = {3, 14}: "),
        ({"3": [1]}, "prompt = {'3': [1]}: "),
        ([[1], b"3"], "prompt = b'3': "),
        ([1.5], "1.5 is no token id"),
        ([None], "None is no token id"),
        ([1, "a"], "'a' is no token id"),
        (["1", 1], "prompt = 1: "),
        ([[1], [1.5]], "1.5 is no token id"),
        (torch.tensor([1.5]), "tensor(1.5000) is no token id"),
        (torch.zeros(2, 2, 2, 2, dtype=torch.long), "tensor([[0, 0], [0, 0]]) is no token id"),
    ],
)
def test_what_is_neither_text_nor_ids_is_named(prompt: Any, says: str) -> None:
    model = build()
    for call in (model.generate, model.logits):
        with pytest.raises(TokenizerError) as error:
            call(prompt)
        assert " ".join(str(error.value).split()).startswith(says)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("tokens", [5, None, torch.tensor(5), 1.5, [1.5], "a"])
def test_what_is_no_list_of_ids_cannot_be_decoded(tokens: Any) -> None:
    with pytest.raises(TokenizerError, match="token id") as error:
        build().decode(tokens)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", [None, 5, b"a", ["a"]])
def test_what_is_no_text_cannot_be_encoded(text: Any) -> None:
    with pytest.raises(TokenizerError, match="no text to encode") as error:
        build().encode(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("token", [-1, D_VOCAB, 2**40])
def test_an_id_outside_the_vocabulary_is_refused(token: int) -> None:
    """K5: before the embedding lookup."""
    with pytest.raises(TokenizerError, match=f"{token}.*{D_VOCAB - 1}"):
        build().generate([1, token])


def test_ids_above_the_known_ones_are_never_sampled() -> None:
    """K5: model vocabulary 67, tokenizer 40; the forced id 50 loses to the best known one."""
    model = build()
    model.tokenizer.d_vocab = 40
    with torch.no_grad():
        model.network.head.weight[50] *= 100
    assert max(model.generate(FIVE, max_tokens=30, temperature=2.0, seed=1).tokens) < 40


def test_a_seed_reproduces_whatever_runs_beside_it() -> None:
    """G13: alone, with others, twice at once; unseeded runs differ; the global generator is untouched."""
    model = build()
    torch.manual_seed(0)
    state = torch.get_rng_state()
    alone = model.generate(FIVE, max_tokens=12, seed=42)
    beside = model.generate([TWO, FIVE, FIVE], max_tokens=12, seed=42)
    assert beside[1].tokens == beside[2].tokens == alone.tokens
    unseeded = {tuple(model.generate(FIVE, max_tokens=12).tokens) for _ in range(3)}
    assert len(unseeded) == 3
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("n", [1, 5, 20])
def test_a_text_cut_by_length_has_exactly_that_many_tokens(n: int) -> None:
    """X20, the library's side: tokens are counted, not pieces; `stop` at an end token is tested above."""
    out = build().generate(FIVE, max_tokens=n, seed=1)
    assert (len(out.tokens), out.passes, out.finish_reason) == (n, n, "length")


def test_two_greedy_runs_are_identical() -> None:
    """X7; its training side, with dropout, is tested with training. X18 and X19 belong to the account and the
    trace, X23 to the server."""
    model = build()
    assert greedy(model, FIVE).tokens == greedy(model, FIVE).tokens
    assert torch.equal(model.logits(FIVE), model.logits(FIVE))


def test_streamed_is_buffered() -> None:
    """Contract 9."""
    model = build()
    pieces = list(model.stream(FIVE, max_tokens=20, seed=3))
    assert len(pieces) == 20
    assert "".join(pieces) == model.generate(FIVE, max_tokens=20, seed=3).text


def test_a_stop_string_spread_over_tokens_ends_the_text_before_it() -> None:
    """G6 through the model: nothing of the stop is streamed, although its first part came in an earlier token."""
    model = build()
    options: dict[str, Any] = {"max_tokens": 8, "temperature": 1.0, "seed": 5}
    free = model.generate(FIVE, **options)
    a, b = free.tokens[2:4]
    stop = f"{a} {b} "
    assert free.text.index(stop) == len("".join(f"{token} " for token in free.tokens[:2]))
    out = model.generate(FIVE, stop=stop, **options)
    assert out.text == free.text[: free.text.index(stop)]
    assert (out.finish_reason, len(out.tokens)) == ("stop", 4)
    assert "".join(model.stream(FIVE, stop=["zzz", stop], **options)) == out.text
    held = model.generate(FIVE, stop=stop, **{**options, "max_tokens": 3})  # ends inside what may become a stop
    assert held.text.split() == [str(token) for token in free.tokens[:3]]
    assert held.finish_reason == "length"


def test_logprobs_are_the_models_own() -> None:
    """X21: raw model values, whatever temperature and filters do; checked against the logits of a plain pass."""
    model = build()
    out = model.generate(FIVE, max_tokens=4, temperature=0.5, top_k=3, seed=1, logprobs=2)
    raw = model.logits(FIVE + out.tokens).double().log_softmax(-1)
    assert out.logprobs is not None
    for step, (token, (logprob, best)) in enumerate(zip(out.tokens, out.logprobs, strict=True)):
        row = raw[len(FIVE) - 1 + step]
        assert logprob == pytest.approx(float(row[token]), abs=1e-5)
        assert [i for i, _ in best] == row.topk(2).indices.tolist()
    assert greedy(model, FIVE).logprobs is None


def test_what_each_filter_removed_can_be_asked() -> None:
    model = build()
    steps = list(model.run([FIVE], max_tokens=2, top_k=5, top_p=0.5, seed=0, explain=True))
    for _, piece in steps:
        assert [removed.filter for removed in piece.choice.removed] == ["top_k", "top_p"]
        assert piece.choice.removed[0].n_ids == D_VOCAB - 5


def test_nan_logits_stop_with_the_step() -> None:
    """G4 through the model."""
    model = build()
    with torch.no_grad():
        model.network.head.weight[3] = float("nan")
    with pytest.raises(NumericsError, match="step 0"):
        model.generate(FIVE)


@pytest.mark.parametrize("cache", [True, False])
def test_nan_in_a_query_stops_too(cache: bool) -> None:
    """The fused kernel takes a short text's NaN for a masked score, and what comes out is finite."""
    model = build()
    with torch.no_grad():
        model.network.blocks[0].attn.qkv.weight[0] = float("nan")
    with pytest.raises(NumericsError, match="step 0"):
        model.generate(FIVE, cache=cache)


@pytest.mark.parametrize(
    "prompt",
    [FIVE, "3 14 15 9 26", torch.tensor(FIVE), tuple(FIVE), np.array(FIVE), [*torch.tensor(FIVE)], [*np.array(FIVE)]],
)
def test_wherever_text_goes_in_ids_go_in(prompt: Any) -> None:
    model = build()
    assert greedy(model, prompt).tokens == greedy(model, FIVE).tokens
    assert model.logits(prompt).shape == (5, D_VOCAB)


@pytest.mark.parametrize("prompts", [[TWO, TWO], ["5 35", TWO], torch.tensor([TWO, TWO]), np.array([TWO, TWO])])
def test_several_prompts_come_in_any_list(prompts: Any) -> None:
    model = build()
    assert [out.tokens for out in greedy(model, prompts)] == [greedy(model, TWO).tokens] * 2


def test_text_for_a_model_of_ids_is_refused_kindly() -> None:
    with pytest.raises(TokenizerError, match="no tokenizer"):
        build().generate("To be")


def test_bf16_stays_near_fp32() -> None:
    """G9: fp32 gates correctness; half precision is compared with a tolerance, never by its greedy text."""
    model = build()
    exact = model.logits(FIVE)
    half = build()
    half.network.to(torch.bfloat16)
    assert distance(half.logits(FIVE).float(), exact) < 0.05


def test_an_output_is_plain_data() -> None:
    out = greedy(build(), FIVE, 2, logprobs=1)
    data = out.to_dict()
    assert isinstance(out, Output)
    assert set(data) == {"text", "tokens", "finish_reason", "passes", "n_prompt", "logprobs"}
    assert data["n_prompt"] == 5


def test_leaving_a_stream_early_leaves_the_model_as_it_was() -> None:
    model = build()
    before = greedy(model, FIVE).tokens
    stream = model.stream(FIVE, max_tokens=20)
    next(stream)
    stream.close()
    assert greedy(model, FIVE).tokens == before


@pytest.mark.parametrize("option", [{"dtype": "float99"}, {"device": "nowhere"}])
def test_a_wrong_option_is_told_before_a_model_is_fetched(
    option: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutaway.language_model.resolve", lambda *_, **__: pytest.fail("looked for the model"))
    with pytest.raises(ConfigError, match=next(iter(option.values()))):
        load("org/name", **option)
