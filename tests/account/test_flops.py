"""FLOPs by hand, pass by pass, and against torch's counter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cutaway.account import flops
from cutaway.account.flops import Flops
from cutaway.config import CausalMaskConfig, ModelConfig, WindowMaskConfig
from cutaway.errors import ConfigError
from cutaway.network import Transformer
from cutaway.presets import PRESETS, classic, llama
from support.configs import configs

GPT2 = classic(2, 4, 64, 128, 67)
LLAMA = llama(2, 4, 2, 64, 176, n_ctx=128, d_vocab=67)
SMALL = ModelConfig(n_layers=1, n_heads=2, d_model=4, d_ff=8, d_vocab=10, n_ctx=100)


def test_by_hand() -> None:
    one = flops.forward(SMALL, 3)
    assert one == Flops(
        embedding=0,  # a lookup
        qkv=3 * 2 * 4 * 12,
        scores=2 * 3 * 3 * 4,
        mixing=2 * 3 * 3 * 4,
        out=3 * 2 * 4 * 4,
        feedforward=3 * 2 * 2 * 4 * 8,
        head=3 * 2 * 4 * 10,
    )
    assert one.total == 3 * 384
    assert flops.per_token(SMALL, 3) == 384


def test_a_pass_needs_tokens_and_keys() -> None:
    for n_queries, n_keys in ((0, None), (1, 0)):
        with pytest.raises(ConfigError, match="= 0: it must be a whole number from 1"):
            flops.forward(SMALL, n_queries, n_keys)


def test_n1_the_head_counts_tied_or_not_and_the_lookup_never() -> None:
    tied, untied = (flops.forward(replace(SMALL, tied=tied), 5) for tied in (True, False))
    assert tied == untied
    assert tied.embedding == 0
    assert flops.forward(PRESETS["gpt2"], 1).head == 2 * 38_597_376


def test_x18_with_and_without_the_causal_half() -> None:
    """Another project's table: Llama 2 7B, four windows of 8192, forward and backward [TFLOP]."""
    full, half = (flops.training(PRESETS["llama2-7b"], 8192, halved=halved) for halved in (False, True))
    squares = [round(4 * 3 * one.forward.squares / 1e12, 2) for one in (full, half)]
    assert squares == [422.21, 211.11]
    assert [round(4 * one.total / 1e12, 2) for one in (full, half)] == [1721.22, 1510.11]
    assert round(4 * (full.total - 3 * full.forward.squares) / 1e12, 2) == 1299.00


def test_half_of_a_window_is_the_band_below_the_diagonal() -> None:
    wide, narrow = (replace(SMALL, mask=WindowMaskConfig(size=n)) for n in (100, 2))
    assert flops.forward(wide, 10, halved=True).scores == 2 * 4 * 10 * 10 // 2
    assert flops.forward(narrow, 10, halved=True).scores == 2 * 4 * (10 * 2 - 2)


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_torch_counts_the_same(config: ModelConfig) -> None:
    network = Transformer(config)
    tokens = torch.zeros(3, 96, dtype=torch.long)

    def counted(work: Callable[[], object]) -> int:
        counter = FlopCounterMode(display=False)
        with counter, sdpa_kernel(SDPBackend.MATH):  # torch counts no other kernel of the CPU
            work()
        return counter.get_total_flops()

    with torch.no_grad():
        assert counted(lambda: network(tokens)) == 3 * flops.forward(config, 96).total
    assert counted(lambda: network(tokens).sum().backward()) == 3 * flops.training(config, 96).total


def test_a_window_bounds_the_keys() -> None:
    windowed = replace(LLAMA, mask=WindowMaskConfig(size=8))
    assert flops.per_token(windowed, 96) == flops.per_token(LLAMA, 8)
    assert flops.per_token(windowed, 4) == flops.per_token(LLAMA, 4)
    assert flops.step(windowed, 50) == flops.step(LLAMA, 8)


@given(config=configs(), n_prompt=st.integers(1, 50), n_new=st.integers(1, 40))
def test_tokens_are_the_sum_of_their_passes(config: ModelConfig, n_prompt: int, n_new: int) -> None:
    """N tokens are N passes: the prompt's, and one for each further token."""
    cached = uncached = flops.prefill(config, n_prompt)
    for length in range(n_prompt + 1, n_prompt + n_new):
        cached += flops.step(config, length)
        uncached += flops.prefill(config, length)
    assert flops.generation(config, n_prompt, n_new, cache=True) == cached
    assert flops.generation(config, n_prompt, n_new, cache=False) == uncached


def test_ten_thousand_million_tokens_are_summed_at_once() -> None:
    n = 10**10
    assert flops.generation(SMALL, 1, n, cache=False).scores == 2 * 4 * n * (n + 1) * (2 * n + 1) // 6


def test_recomputing_is_another_forward_pass_of_the_blocks() -> None:
    plain, again = (flops.training(GPT2, 16, recompute=recompute) for recompute in (False, True))
    assert plain.total == 3 * plain.forward.total
    assert again.total - plain.total == plain.forward.total - plain.forward.head


def test_where_the_square_overtakes() -> None:
    """4d in the classic, whatever its heads; a token's scores and mixing are 4·T·d, its feed-forward is 16·d²."""
    for name in ("gpt2", "gpt3"):
        config = PRESETS[name]
        crossing = flops.squares_overtake_feedforward(config)
        assert crossing == 4 * config.d_model
        assert flops.squares_overtake_matrices(config) == 6 * config.d_model
        at, before = flops.forward(config, crossing), flops.forward(config, crossing - 1)
        assert at.squares == at.feedforward
        assert before.squares < before.feedforward


def test_windows_may_keep_the_square_below_for_ever() -> None:
    windowed = replace(GPT2, mask=WindowMaskConfig(size=8))
    assert flops.squares_overtake_feedforward(windowed) is None
    assert flops.squares_overtake_feedforward(replace(GPT2, mask=WindowMaskConfig(size=1000))) == 4 * 64
    half = replace(GPT2, mask=(WindowMaskConfig(size=8), CausalMaskConfig()))
    assert flops.squares_overtake_feedforward(half) == 2 * 4 * 64 - 8
