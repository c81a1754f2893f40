"""Names: what a config has, how parts are pointed at, and what they take."""

from __future__ import annotations

import pickle

import pytest
import torch

from cutaway.config import ModelConfig
from cutaway.errors import InsideError
from cutaway.inside.names import fitting, names, parse, shape_of
from cutaway.inside.trace import predict_bytes
from cutaway.nn.tap import Tap
from support.tiny import OURS, random_network, random_tokens

GROUPED = OURS["grouped"]  # 3 layers, 8 heads of 8 over 2 key/value heads, d_model 32, d_ff 128


def fit(patterns: str | list[str], n: int = 5, total: int | None = None) -> list[str]:
    return [str(target) for target in fitting(GROUPED, patterns, [(n, total or n)])]


@pytest.mark.parametrize("name", OURS)
def test_the_names_and_shapes_of_a_config_are_those_of_its_pass(name: str) -> None:
    config = OURS[name]
    found: dict[str, tuple[int, ...]] = {}

    class Recorder(Tap):
        def __init__(self, scope: str = "") -> None:
            self.scope = scope

        def __call__(self, name, value):  # type: ignore[no-untyped-def]
            found[self.scope + name] = tuple(value.shape)
            return value

        def inside(self, scope: str) -> Tap:
            return Recorder(f"{scope}.")

        def wants(self, *names: str) -> bool:
            return True

    with torch.inference_mode():
        random_network(config)(random_tokens(2, 7), tap=Recorder())
    found["positions"] = (2, 7)  # one row for all texts that start together
    assert found == {key: shape_of(config, key, 2, 7, 7) for key in names(config)}
    assert list(names(config))[:2] == ["tokens", "positions"]


def test_wildcards_select_many_in_the_order_of_the_pass() -> None:
    assert fit("blocks.*.attn.pattern") == [f"blocks.{i}.attn.pattern" for i in range(3)]
    assert len(fit("blocks.2.attn.*")) == 13
    assert fit(["logits", "embed", "embed"]) == ["embed", "logits"]
    assert len(fit("*")) == len(names(GROUPED))


def test_brackets_pick_heads_positions_neurons_and_keys() -> None:
    (target,) = fitting(GROUPED, "blocks.1.attn.pattern[head 5, 6, query -1, key 0:2]", [(5, 5)])
    lengths = {"B": 1, "H": 8, "T": 5, "S": 5}
    assert [list(index) for index in target.indices(lengths, 5)] == [[0], [5, 6], [4], [0, 1]]
    assert str(target) == "blocks.1.attn.pattern[head 5, 6, query -1, key 0:2]"
    (neurons,) = fitting(GROUPED, "blocks.0.ff.post[neuron 7, position 1:]", [(5, 5)])
    assert neurons.n_bytes({"B": 1, "T": 5, "F": 128}, 5, 4) == 4 * 1 * 4
    (keys,) = fitting(GROUPED, "blocks.0.attn.k[position -2]", [(5, 5)])
    assert [list(index) for index in keys.indices({"B": 1, "K": 2, "S": 5, "Dh": 8}, 5)][2] == [3]


@pytest.mark.parametrize(
    ("written", "first", "stop"),
    [("-1", 4, 5), ("-1:", 4, 9), ("-3:-1", 2, 4), ("2:", 2, 9), (":2", 0, 2), ("0", 0, 1), ("8", 8, 9), ("3:9", 3, 9)],
)
def test_negative_positions_count_from_the_end_of_the_prompt(written: str, first: int, stop: int) -> None:
    """5 tokens of prompt, 9 in all: -1 is the prompt's last also where the text goes on."""
    (target,) = fitting(GROUPED, f"embed[position {written}]", [(5, 9)])
    assert list(target.indices({"B": 1, "T": 9, "D": 32}, 5)[1]) == list(range(first, stop))
    assert parse(str(target)) == (target.name, target.picks)


def test_a_saved_name_is_the_same() -> None:
    (target,) = fitting(GROUPED, "blocks.0.attn.z[head 5]", [(5, 5)])
    found = pickle.loads(pickle.dumps(target))
    assert (str(found), found.axes, found.picks) == (str(target), target.axes, target.picks)


def test_a_wildcard_passes_over_names_that_lack_the_part() -> None:
    """8 query heads over 2 key/value heads: head 5 is a query head, so k and v have none."""
    found = fit("blocks.0.attn.*[head 5]")
    assert found == [
        f"blocks.0.attn.{name}[head 5]"
        for name in ("q_raw", "q", "scores", "scaled", "masked", "pattern", "z", "head_out")
    ]
    assert "blocks.0.attn.k[head 1]" in fit("blocks.0.attn.*[head 1]")


def test_a_whole_value_makes_its_parts_unnecessary() -> None:
    assert fit(["blocks.0.attn.z[head 1]", "blocks.0.attn.z"]) == ["blocks.0.attn.z"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("blocks.0.attn.patern", "did you mean blocks.0.attn.pattern"),
        ("blocks.9.attn.pattern", r"blocks.9.attn.pattern: layer 9 is outside 0 to \d"),
        ("blocks.*.atn.pattern", "did you mean blocks.0.attn.pattern"),
        ("pattern", r"did you mean blocks.\d.attn.pattern"),
        ("zzz", "the names are tokens, positions"),
        ("pos_embed", "no value of this model"),
        ("blocks.0.attn.pattern[head 8]", "head 8 is outside 0 to 7"),
        ("blocks.0.attn.k[head 5]", "head 5 is outside 0 to 1"),
        ("embed[position 5]", "position 5 is outside 0 to 4"),
        ("embed[position -6]", "position -6 is outside 0 to 4"),
        ("embed[position 4:2]", "position 4:2 is outside 0 to 4"),
        ("embed[head 0]", "embed has no head: pick by position"),
        ("blocks.*.resid_post[head 0]", "has no head"),
        ("blocks.0.attn.q[key 0]", "has no key: pick by head, position"),
        ("embed[heads 1]", "'heads 1'"),
        ("embed[]", "''"),
        ("embed[1]", "'1'"),
        ("embed[position 3:0]", "'position 3:0'"),
        ("embed[position 1", "is no name"),
        ("embed]", "is no name"),
        ("", "is no name"),
    ],
)
def test_what_means_nothing_here_gets_one_line_that_helps(pattern: str, message: str) -> None:
    with pytest.raises(InsideError, match=message) as caught:
        fit(pattern)
    assert "\n" not in str(caught.value)


def test_the_size_of_a_trace_is_known_from_the_config() -> None:
    """X19: 12 layers × 12 heads × 1024² patterns in fp32 are 576 MiB for one prompt; one head is 1/12 of a layer's."""
    gpt2 = ModelConfig(n_layers=12, n_ctx=1024, d_model=768, d_vocab=50257, n_heads=12)
    assert predict_bytes(gpt2, "blocks.*.attn.pattern", 1024) == 576 * 2**20
    assert predict_bytes(gpt2, "blocks.3.attn.pattern[head 5]", 1024) == 4 * 2**20
    assert predict_bytes(gpt2, "blocks.3.resid_post", [1024, 10], itemsize=2) == 1034 * 768 * 2
    assert predict_bytes(gpt2, "tokens", 10) == 80
    assert "pos_embed" in names(gpt2)
    assert "pos_embed" not in names(GROUPED)
