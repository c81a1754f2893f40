"""The contract between the ways to run one network: cached = full, batched = alone, every kernel = the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cutaway.network import Transformer
from cutaway.nn.cache import Cache
from cutaway.nn.reference import STAGES
from cutaway.nn.tap import IDLE, Tap
from support.tiny import OURS, distance, random_network, random_tokens

WITH_FIXED_ROTATION = [name for name in OURS if name not in ("dynamic", "longrope")]


class Recorder(Tap):
    """Keeps every value under its full name, the kernel's stages and each head's share included."""

    def __init__(self, *stages: str) -> None:
        self.kept: dict[str, Tensor] = {}
        self.scope = ""
        self.stages = stages

    def __call__(self, name, value):  # type: ignore[no-untyped-def]
        self.kept[self.scope + name] = value.detach()
        return value

    def inside(self, scope: str) -> Tap:
        inner = Recorder(*self.stages)
        inner.kept, inner.scope = self.kept, f"{scope}."
        return inner

    def wants(self, *names: str) -> bool:
        return any(name in self.stages for name in names)


def full(network: Transformer, tokens: Tensor) -> Tensor:
    with torch.inference_mode():
        return network(tokens)


@pytest.mark.parametrize("name", WITH_FIXED_ROTATION)
@pytest.mark.parametrize("cuts", [(1,) * 20, (7, 1, 1, 11), (19, 1), (3, 17)])
def test_cached_equals_full(name: str, cuts: tuple[int, ...]) -> None:
    """Contract 2, for any way to cut the text into passes; G9: exact to 1e-5 in fp32."""
    network = random_network(OURS[name])
    tokens = random_tokens(2, 20)
    expected = full(network, tokens)
    cache = Cache(network.config, 2, network.embed.weight)
    with torch.inference_mode():
        parts = [network(part, cache) for part in tokens.split(cuts, dim=1)]
    assert cache.lengths == [20, 20]
    assert distance(torch.cat(parts, dim=1), expected) <= 1e-5


@pytest.mark.parametrize("name", OURS)
def test_a_ragged_batch_equals_each_text_alone(name: str) -> None:
    """Contract 3: rows of 1, 9 and 20 tokens in one pass, padded with ids that would matter if they were seen."""
    network = random_network(OURS[name])
    tokens = random_tokens(3, 20)
    lengths = [1, 9, 20]
    with torch.inference_mode():
        together = network.unembed(network.residual(tokens, n_new=lengths))
    for row, n in enumerate(lengths):
        assert distance(together[row, :n], full(network, tokens[row : row + 1, :n])[0]) <= 1e-5


@pytest.mark.parametrize("name", WITH_FIXED_ROTATION)
def test_ragged_caches_equal_each_text_alone(name: str) -> None:
    """Contract 3 with a cache: rows of different lengths go on together, then one leaves."""
    network = random_network(OURS[name])
    tokens = random_tokens(3, 20)
    cache = Cache(network.config, 3, network.embed.weight)
    with torch.inference_mode():
        network.residual(tokens[:, :9], cache, [2, 9, 5])
        step = torch.stack([tokens[0, 2:5], tokens[1, 9:12], tokens[2, 5:8]])
        found = network(step, cache)
        cache.keep([0, 2])
        last = network(torch.stack([tokens[0, 5:6], tokens[2, 8:9]]), cache)
    for row, start in enumerate((2, 9, 5)):
        expected = full(network, tokens[row : row + 1, : start + 3])[0, start:]
        assert distance(found[row], expected) <= 1e-5
    assert distance(last[0, 0], full(network, tokens[:1, :6])[0, 5]) <= 1e-5
    assert distance(last[1, 0], full(network, tokens[2:, :9])[0, 8]) <= 1e-5


@pytest.mark.parametrize("name", OURS)
def test_every_kernel_equals_the_reference_kernel(name: str) -> None:
    """Contract 4: 1e-5 forward, 1e-4 backward."""
    network = random_network(OURS[name])
    tokens = random_tokens(2, 20)

    def run(tap: Tap) -> tuple[Tensor, list[Tensor]]:
        network.zero_grad()
        logits = network(tokens, tap=tap)
        logits.log_softmax(-1)[..., 3].sum().backward()
        return logits.detach(), [p.grad.clone() for p in network.parameters() if p.grad is not None]

    (fast, fast_grads), (slow, slow_grads) = run(IDLE), run(Recorder(*STAGES))
    assert distance(fast, slow) <= 1e-5
    for a, b in zip(fast_grads, slow_grads, strict=True):
        assert distance(a, b) <= 1e-4


@pytest.mark.parametrize("name", OURS)
def test_the_names_of_a_pass_and_their_shapes(name: str) -> None:
    """The table of names: what a trace can ask for, everywhere, with the shape it is promised in."""
    network = random_network(OURS[name])
    c = network.config
    recorder = Recorder(*STAGES, "attn.head_out")
    tokens = random_tokens(2, 20)
    with torch.inference_mode():
        logits = network(tokens, tap=recorder)
        plain = network(tokens)
    b, t, d = 2, 20, c.d_model
    q, kv, square = (b, c.n_heads, t, c.d_head), (b, c.n_kv_heads, t, c.d_head), (b, c.n_heads, t, t)
    shapes = {
        "tokens": (b, t),
        "positions": (1, t),
        "embed": (b, t, d),
        "final_norm": (b, t, d),
        "logits": (b, t, c.d_vocab),
    }
    if name == "classic":
        shapes["pos_embed"] = (b, t, d)
    stream = dict.fromkeys(
        ("resid_pre", "attn.norm", "attn.out", "resid_mid", "ff.norm", "ff.out", "resid_post"), (b, t, d)
    )
    heads = {"attn.q_raw": q, "attn.q": q, "attn.k_raw": kv, "attn.k": kv, "attn.v": kv, "attn.z": q}
    inner = dict.fromkeys(STAGES, square) | {"attn.head_out": (b, c.n_heads, t, d)}
    ff = dict.fromkeys(("ff.pre", *["ff.up"] * c.feedforward.gated, "ff.post"), (b, t, c.d_ff))
    for i in range(c.n_layers):
        shapes |= {f"blocks.{i}.{key}": shape for key, shape in (stream | heads | inner | ff).items()}
    assert {key: tuple(value.shape) for key, value in recorder.kept.items()} == shapes
    assert distance(logits, plain) <= 1e-5
    pattern = recorder.kept["blocks.0.attn.pattern"]
    assert torch.allclose(pattern.sum(-1), torch.ones(b, c.n_heads, t))
    assert pattern.triu(1).abs().max() == 0


@pytest.mark.parametrize("name", OURS)
def test_what_is_added_is_what_is_named(name: str) -> None:
    """Contract 6, the network's side: the embedding and every named addition sum to the final residual."""
    network = random_network(OURS[name])
    recorder = Recorder("attn.head_out")
    with torch.inference_mode():
        network(random_tokens(1, 20), tap=recorder)
    kept = recorder.kept
    total = kept["embed"] + kept.get("pos_embed", 0)
    for i in range(network.config.n_layers):
        total = total + kept[f"blocks.{i}.attn.out"] + kept[f"blocks.{i}.ff.out"]
        if network.config.norm_placement == "pre":
            bias = network.blocks[i].attn.out.bias
            heads = kept[f"blocks.{i}.attn.head_out"].sum(1) + (0 if bias is None else bias.detach())
            assert distance(heads, kept[f"blocks.{i}.attn.out"]) <= 1e-5
    assert distance(total, kept[f"blocks.{network.config.n_layers - 1}.resid_post"]) <= 1e-5


def test_the_idle_tap_is_the_identity() -> None:
    value = torch.ones(1)
    assert IDLE("blocks.0.resid_pre", value) is value
    assert IDLE.inside("blocks.0") is IDLE
    assert not IDLE.wants(*STAGES)


def test_an_edit_through_the_tap_changes_the_pass_and_nothing_remains() -> None:
    network = random_network(OURS["classic"])
    tokens = random_tokens(1, 8)

    class Silence(Tap):
        def __call__(self, name, value):  # type: ignore[no-untyped-def]
            return torch.zeros_like(value) if name == "attn.out" else value

    before = full(network, tokens)
    with torch.inference_mode():
        edited = network(tokens, tap=Silence())
    assert distance(edited, before) > 1e-2
    assert torch.equal(full(network, tokens), before)


def test_no_weight_but_the_position_table_knows_a_length() -> None:
    """The lecture: one θ for all lengths; a learned position table is the exception."""
    long = {**OURS["grouped"].to_dict(), "n_ctx": 640}
    shapes = lambda c: {k: tuple(v.shape) for k, v in Transformer(c).named_parameters()}  # noqa: E731
    assert shapes(OURS["grouped"]) == shapes(type(OURS["grouped"]).from_dict(long))
    long = {**OURS["classic"].to_dict(), "n_ctx": 640}
    short, longer = shapes(OURS["classic"]), shapes(type(OURS["classic"]).from_dict(long))
    assert {k for k in short if short[k] != longer[k]} == {"positions.0.weight"}


def test_a_failed_pass_leaves_the_cache_as_it_was() -> None:
    network = random_network(OURS["grouped"])
    cache = Cache(network.config, 1, network.embed.weight)
    tokens = random_tokens(1, 8)

    class Fail(Tap):
        def __call__(self, name, value):  # type: ignore[no-untyped-def]
            if name == "final_norm" or name == "ff.out":
                raise KeyboardInterrupt
            return value

    with torch.inference_mode():
        network(tokens[:, :5], cache)
        with pytest.raises(KeyboardInterrupt):
            network(tokens[:, 5:], cache, tap=Fail())
        assert cache.lengths == [5]
        found = network(tokens[:, 5:], cache)
    assert distance(found, full(network, tokens)[:, 5:]) <= 1e-5


def test_the_cache_grows_by_doubling_and_says_its_size() -> None:
    network = random_network(OURS["grouped"])
    cache = Cache(network.config, 2, network.embed.weight, n_slots=4)
    tokens = random_tokens(2, 9)
    with torch.inference_mode():
        network(tokens[:, :4], cache)
        assert cache.n_slots == 4
        network(tokens[:, 4:5], cache)
        assert cache.n_slots == 8
        network(tokens[:, 5:], cache)
    assert cache.n_slots == 16
    # layers · (k, v) · rows · kv heads · slots · d_head · 4 B
    assert cache.n_bytes == 3 * 2 * 2 * 2 * 16 * 8 * 4
