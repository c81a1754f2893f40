"""Without a part: the weights are the same, and what the part did is gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cutaway.errors import InsideError, UnsupportedError
from cutaway.inside.altered import altered
from cutaway.language_model import LanguageModel
from support.tiny import FAMILIES, distance

Build = Callable[..., LanguageModel]
PROMPT = [5, 9, 2, 40, 30, 11]


@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_mask_every_key_counts(build: Build, family: str) -> None:
    model = build(family)
    open_model = altered(model, "mask")
    last = [*PROMPT[:-1], PROMPT[-1] + 1]
    assert torch.equal(model.logits(PROMPT)[:-1], model.logits(last)[:-1])
    assert not torch.allclose(open_model.logits(PROMPT)[0], open_model.logits(last)[0], atol=1e-4)
    pattern = open_model.trace(PROMPT, keep="blocks.0.attn.pattern")["blocks.0.attn.pattern"]
    assert (pattern > 0).all()
    assert distance(open_model.trace(PROMPT, keep="blocks.*.attn.pattern").logits, open_model.logits(PROMPT)) < 1e-5


def test_without_a_mask_cached_still_equals_full_and_batched_alone(build: Build) -> None:
    model = altered(build("llama"), "mask")
    options = {"max_tokens": 5, "temperature": 0, "logprobs": 1}
    cached, full = (model.generate(PROMPT, cache=cache, **options) for cache in (True, False))
    assert cached.tokens == full.tokens
    alone, together = model.logits(PROMPT[:2]), model.logits([PROMPT, PROMPT[:2]])[1]
    assert distance(together, alone) < 1e-5


def test_without_the_scale_scores_are_not_divided(build: Build) -> None:
    model = build("gpt2")
    name = "blocks.0.attn.scaled"
    plain, bare = (m.trace(PROMPT, keep=name)[name] for m in (model, altered(model, "scale")))
    assert torch.allclose(bare, plain * model.config.d_head**0.5, atol=1e-6)


@pytest.mark.parametrize("family", ["gpt2", "llama", "smollm3"])
def test_without_positions_the_order_before_the_last_is_lost(build: Build, family: str) -> None:
    """The last token sees the same set, whatever the order; with one layer nothing else tells."""
    model = build(family)
    turned = [*reversed(PROMPT[:-1]), PROMPT[-1]]
    z = "blocks.0.attn.z[position -1]"
    before, after = (model.trace(p, keep=z)[z] for p in (PROMPT, turned))
    assert not torch.allclose(before, after, atol=1e-5)
    bare = altered(model, "positions")
    before, after = (bare.trace(p, keep=z)[z] for p in (PROMPT, turned))
    assert torch.allclose(before, after, atol=1e-6)


def test_weights_are_shared_and_the_model_is_left_alone(build: Build, tmp_path: Path) -> None:
    model = build("gpt2")
    before = model.logits(PROMPT)
    other = altered(model, ["mask", "scale", "positions"])
    assert other.network.embed.weight.data_ptr() == model.network.embed.weight.data_ptr()
    assert other.network.head.weight is other.network.embed.weight
    assert torch.equal(model.logits(PROMPT), before)
    with pytest.raises(UnsupportedError):
        other.save(tmp_path / "saved")


def test_what_cannot_be_left_out(build: Build) -> None:
    with pytest.raises(InsideError, match="one of mask, scale, positions"):
        altered(build("gpt2"), "head")
