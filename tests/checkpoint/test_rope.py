"""Rotary positions as a folder's config.json gives them: where theta stands, what scales, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from cutaway.checkpoint.families import FAMILIES as KNOWN
from cutaway.checkpoint.fields import Fields
from cutaway.checkpoint.folder import load_folder
from cutaway.config import LinearScaling, Llama3Scaling, LongRopeScaling, RopeScaling, RotaryConfig
from cutaway.errors import CutawayError, UnsupportedError
from cutaway.nn.position import Rotary
from support.folders import TOKENS, edit_config, numbers
from support.tiny import FAMILIES, distance, random_tokens, reference_folder

LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 500.0}


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "rope_theta": None},
        {"rope_parameters": None, "rope_theta": 500000.0},
        {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}, "rope_theta": 10000.0},
    ],
)
def test_theta_is_found_where_it_stands(llama: Path, fields: dict[str, Any]) -> None:
    """C4: nested or top-level, an explicit theta beats any default."""
    edit_config(llama, **fields)
    network, report = load_folder(llama)
    assert network.config.positions[0] == RotaryConfig(theta=500000.0)
    assert not report.notes


def test_a_default_theta_is_said(llama: Path) -> None:
    """C4: missing everywhere, the default in use is named."""
    edit_config(llama, rope_parameters=None, rope_theta=None)
    network, report = load_folder(llama)
    assert network.config.positions[0] == RotaryConfig(theta=10000.0)
    assert "10000" in report.notes[0]


@pytest.mark.parametrize(
    ("older", "nested", "top"),
    [
        ({"rope_type": "linear", "factor": 4.0}, {"rope_type": "default", "rope_theta": 500.0}, 500.0),
        ({"type": "linear", "factor": 4.0}, {"rope_type": "yarn", "factor": 2.0, "rope_theta": 700.0}, 500.0),
        ({"type": "linear", "factor": 4.0, "rope_theta": 500.0}, {"rope_type": "default", "rope_theta": 7.0}, 7.0),
        ({}, {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}, 7.0),
    ],
)
def test_of_two_scalings_the_older_holds(
    tmp_path: Path, older: dict[str, Any], nested: dict[str, Any], top: float
) -> None:
    """A config with `rope_scaling` beside `rope_parameters` is read as the reference reads it."""
    reference_folder(tmp_path / "model", "llama")
    edit_config(tmp_path / "model", rope_scaling=older, rope_parameters=nested, rope_theta=top)
    network, _ = load_folder(tmp_path / "model")
    assert network.config.positions[0] == RotaryConfig(theta=500.0, scaling=LinearScaling(factor=4.0))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager").eval()
    tokens = random_tokens(1, 20)
    with torch.inference_mode():
        assert distance(network(tokens), theirs(tokens).logits) <= 1e-5


def test_a_theta_that_only_the_newer_object_names_is_used(llama: Path) -> None:
    """C4: an explicit theta beats the default, also beside a scaling that is told elsewhere."""
    nested = {"rope_type": "default", "rope_theta": 500.0}
    edit_config(llama, rope_scaling={"rope_type": "linear", "factor": 4.0}, rope_parameters=nested, rope_theta=None)
    network, report = load_folder(llama)
    assert network.config.positions[0] == RotaryConfig(theta=500.0, scaling=LinearScaling(factor=4.0))
    assert not report.notes


@pytest.mark.parametrize("model_type", ["mistral", "qwen2", "qwen3"])
def test_a_window_of_null_is_none(tmp_path: Path, model_type: str) -> None:
    """C6: `null` is no window, silence the family's 4096: shorter than these contexts, so it would hide keys."""
    reference_folder(tmp_path / "model", model_type)
    changes = {"layer_types": None, "max_window_layers": 1, "use_sliding_window": True}
    edit_config(tmp_path / "model", **changes, sliding_window=8)
    data = json.loads((tmp_path / "model" / "config.json").read_text(encoding="utf-8"))
    for window, expected in (({"sliding_window": None}, None), ({}, 4096), ({"sliding_window": 8}, 8)):
        known = {name: value for name, value in data.items() if name != "sliding_window"} | window
        ours = KNOWN[model_type].read(Fields(known))
        assert getattr(ours.masks[-1], "size", None) == expected
        theirs = AutoConfig.for_model(**known)
        assert theirs.sliding_window == expected


def test_phi3s_yarn_is_longrope_wherever_it_stands() -> None:
    """An early name; the reference reads it as longrope under either key, and knows no other scaling there."""
    scaling = {"short_factor": [1.0, 2.0], "long_factor": [1.0, 3.0], "rope_theta": 500.0}
    for key in ("rope_scaling", "rope_parameters"):
        for kind in ("type", "rope_type"):
            data = {**FAMILIES["phi3"], key: {kind: "yarn", **scaling}, "original_max_position_embeddings": 16}
            [position] = set(KNOWN["phi3"].read(Fields(data)).positions)
            assert isinstance(position, RotaryConfig)
            assert isinstance(position.scaling, LongRopeScaling)


@pytest.mark.parametrize("kind", ["mrope", "quantum", ""])
def test_an_unknown_rope_kind_is_refused(llama: Path, kind: str) -> None:
    edit_config(llama, rope_parameters={"rope_type": kind, "rope_theta": 1.0, "factor": 2.0})
    with pytest.raises(UnsupportedError, match="longrope"):
        load_folder(llama)


@settings(max_examples=300)
@given(
    kind=st.sampled_from(["linear", "dynamic", "llama3", "yarn", "longrope"]),
    scaling=st.dictionaries(
        st.sampled_from(
            [
                *("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
                *("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
                *("rope_theta", "partial_rotary_factor"),
            ]
        ),
        numbers,
        max_size=5,
    ),
    divisors=st.lists(numbers, min_size=4, max_size=4),
    n_ctx=st.sampled_from([1, 2, 64, 2**31]),
)
def test_hostile_scalings_turn_or_are_named(
    kind: str, scaling: dict[str, Any], divisors: list[Any], n_ctx: int
) -> None:
    """What a config is made of can be computed with: no division by zero waits in it."""
    defaults = {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    lists = {"short_factor": divisors, "long_factor": divisors}
    data = {**FAMILIES["llama"], "max_position_embeddings": n_ctx}
    try:
        config = KNOWN["llama"].read(Fields(data | {"rope_scaling": defaults | lists | scaling | {"rope_type": kind}}))
    except CutawayError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 300
    else:
        for position in config.positions[:1]:
            assert isinstance(position, RotaryConfig)
            Rotary(position, config.d_head).frequencies(100, torch.device("cpu"))


def test_gemma3_says_the_default_theta_of_its_near_layers(tmp_path: Path) -> None:
    """C4: both rotations of the family say the default in use."""
    reference_folder(tmp_path / "model", "gemma3_text")
    edit_config(tmp_path / "model", rope_parameters=None, rope_theta=None, rope_local_base_freq=None)
    _, report = load_folder(tmp_path / "model")
    assert [note.split()[1] for note in report.notes] == ["rope_theta", "rope_local_base_freq"]


def test_phi3s_old_name_of_longrope_keeps_the_notes() -> None:
    """C4: the default theta is said although the field was renamed on the way."""
    scaling = {"type": "yarn", "short_factor": [1.0, 2.0], "long_factor": [1.0, 2.0]}
    data = {**FAMILIES["phi3"], "rope_scaling": scaling, "original_max_position_embeddings": 16}
    fields = Fields(data)
    KNOWN["phi3"].read(fields)
    assert "rope_theta" in fields.notes[0]


@pytest.mark.parametrize(
    ("fields", "far", "near"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, 1_000_000.0, 10_000.0),
        ({"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}}, 1_000_000.0, 10_000.0),
        (
            {
                "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
                "rope_theta": 700.0,
                "rope_local_base_freq": 33.0,
            },
            700.0,
            33.0,
        ),
        ({"rope_parameters": {"rope_theta": 5.0, "full_attention": {"rope_theta": 600.0}}}, 600.0, 10_000.0),
    ],
)
def test_gemma3_reads_a_rotation_only_under_its_layer_type(
    tmp_path: Path, fields: dict[str, Any], far: float, near: float
) -> None:
    """What `rope_parameters` says beside the layer types the reference does not use; where it says no more, we tell."""
    reference_folder(tmp_path / "model", "gemma3_text")
    edit_config(tmp_path / "model", **fields)
    network, report = load_folder(tmp_path / "model")
    assert [network.config.positions[i] for i in (5, 0)] == [RotaryConfig(theta=far), RotaryConfig(theta=near)]
    told = [note for note in report.notes if "names no layer type" in note]
    assert len(told) == ("full_attention" not in fields["rope_parameters"])
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager").eval()
    with torch.inference_mode():
        assert distance(network(TOKENS), theirs(TOKENS).logits) <= 1e-5


@pytest.mark.parametrize(
    ("fields", "scaling", "theta"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, None, 1_000_000.0),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_theta": 7.0}, LinearScaling(factor=4.0), 7.0),
        (
            {
                "rope_scaling": {"factor": 4.0},
                "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 600.0}},
            },
            LinearScaling(factor=4.0),
            600.0,
        ),
        (
            {
                "rope_scaling": {"type": "default"},
                "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 600.0}},
            },
            LinearScaling(factor=2.0),
            600.0,
        ),
        (
            {
                "rope_parameters": {"full_attention": {**LLAMA3, "original_max_position_embeddings": 8}},
                "original_max_position_embeddings": 64,
            },
            Llama3Scaling(factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, n_ctx_original=8),
            500.0,
        ),
    ],
)
def test_gemma3_scales_its_far_layers_as_the_reference_does(
    tmp_path: Path, fields: dict[str, Any], scaling: RopeScaling | None, theta: float
) -> None:
    """`rope_scaling` is laid over their entry, by the name `rope_type` alone; the top of the config is not asked."""
    reference_folder(tmp_path / "model", "gemma3_text")
    edit_config(tmp_path / "model", **({"rope_parameters": None} | fields))
    network, report = load_folder(tmp_path / "model")
    assert network.config.positions[5] == RotaryConfig(theta=theta, scaling=scaling)
    assert any("as type" in note for note in report.notes) == ("type" in fields.get("rope_scaling", {}))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager").eval()
    with torch.inference_mode():
        assert distance(network(TOKENS), theirs(TOKENS).logits) <= 1e-5


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    ("top", "inner", "original"), [(None, None, 4096), (None, 32, 4096), (16, None, 16), (16, 32, 16)]
)
def test_phi3_changes_its_divisors_where_the_top_of_the_config_says(
    tmp_path: Path, place: str, top: int | None, inner: int | None, original: int
) -> None:
    """4096 where it says nothing, also for a scaling that does; 20 tokens are past 16 and short of 4096."""
    scaling = {"rope_type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [1.0, 9.0], "rope_theta": 500.0}
    reference_folder(tmp_path / "model", "phi3")
    given = {place: scaling | ({} if inner is None else {"original_max_position_embeddings": inner})}
    edit_config(
        tmp_path / "model",
        **({"rope_scaling": None, "rope_parameters": None} | given),
        original_max_position_embeddings=top,
    )
    network, report = load_folder(tmp_path / "model")
    position = network.config.positions[0]
    assert isinstance(position, RotaryConfig)
    assert isinstance(position.scaling, LongRopeScaling)
    assert position.scaling.n_ctx_original == original
    assert any("4096" in note for note in report.notes) == (top is None)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager").eval()
    tokens = random_tokens(1, 20)
    with torch.inference_mode():
        assert distance(network(tokens), theirs(tokens).logits) <= 1e-5
