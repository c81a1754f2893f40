"""Damaged folders, and folders that are none: one line that names what is wrong."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.checkpoint.families import FAMILIES as KNOWN
from cutaway.checkpoint.fields import Fields
from cutaway.config import ModelConfig
from cutaway.errors import CheckpointError, ConfigError, CutawayError, DamagedFileError, UnsupportedError
from cutaway.language_model import load
from cutaway.text.tokenizer_files import end_ids_of
from support.folders import edit_config, edit_tensors, numbers, refused
from support.tiny import FAMILIES, reference_folder


def test_a_missing_parameter_is_named(llama: Path) -> None:
    edit_tensors(llama, lambda t: {k: v for k, v in t.items() if k != "model.layers.1.mlp.up_proj.weight"})
    refused(llama, CheckpointError, "model.layers.1.mlp.up_proj.weight")


def test_another_shape_is_named(llama: Path) -> None:
    edit_config(llama, intermediate_size=2**22)
    refused(llama, CheckpointError, "gate_proj.weight has shape [48, 32]", "[4194304, 32]")


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1])
def test_a_truncated_file_is_named(llama: Path, keep: int) -> None:
    path = llama / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refused(llama, DamagedFileError, "model.safetensors")


@pytest.mark.parametrize("name", [".bin", ".pt"])
def test_a_pickle_is_never_opened(llama: Path, name: str, tmp_path: Path) -> None:
    """R6: the marker is not created, and the way out is said."""
    marker = tmp_path / "marker"

    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (marker,))

    (llama / "model.safetensors").unlink()
    (llama / f"pytorch_model{name}").write_bytes(pickle.dumps({"a": Evil()}))
    refused(llama, CheckpointError, "pickle", "safetensors")
    (llama / "model.safetensors").write_bytes(pickle.dumps({"a": Evil()}))
    refused(llama, DamagedFileError)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"a": "model-1.safetensors"}, "missing"),
        ({"a": "../model.safetensors"}, "no .safetensors file of this folder"),
        ({"a": "/etc/passwd"}, "no .safetensors file of this folder"),
        ({"a": 3}, "weight_map"),
        ([], "weight_map"),
    ],
)
def test_an_index_is_not_believed(llama: Path, table: object, words: str) -> None:
    (llama / "model.safetensors").unlink()
    (llama / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    refused(llama, CheckpointError, words)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"model_type": "llama"}', "\ud800", "[" * 100_000])
def test_a_config_that_is_none(llama: Path, text: str) -> None:
    (llama / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    refused(llama, CutawayError, "config.json")


def test_an_unknown_family_names_the_known(llama: Path) -> None:
    edit_config(llama, model_type="mamba")
    refused(llama, UnsupportedError, "'mamba'", "smollm3")


@pytest.mark.parametrize(
    ("model_type", "change", "word"),
    [
        ("llama", {"hidden_act": "mish"}, "hidden_act"),
        ("llama", {"num_attention_heads": 0}, "num_attention_heads"),
        ("llama", {"hidden_size": "many"}, "hidden_size"),
        ("llama", {"rms_norm_eps": -1}, "rms_norm_eps"),
        ("llama", {"rms_norm_eps": 10**400}, "rms_norm_eps = 1000"),
        ("llama", {"hidden_size": 10**400}, "hidden_size = 1000"),
        ("llama", {"max_position_embeddings": 2**63}, "max_position_embeddings"),
        ("gpt_neox", {"rope_parameters": {"rope_theta": 1, "partial_rotary_factor": 1e308}}, "d_head = 4"),
        ("llama", {"num_hidden_layers": 2**40}, "num_hidden_layers"),
        ("mistral", {"num_hidden_layers": 2**40}, "num_hidden_layers"),
        ("smollm3", {"num_hidden_layers": 2**40}, "num_hidden_layers"),
        ("gpt2", {"n_layer": 2**40}, "n_layers"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("qwen2", {"layer_types": ["linear_attention"] * 3}, "layer_types"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers"),
    ],
)
def test_a_field_that_cannot_be_is_named(tmp_path: Path, model_type: str, change: dict[str, Any], word: str) -> None:
    reference_folder(tmp_path / "model", model_type)
    edit_config(tmp_path / "model", **change)
    refused(tmp_path / "model", ConfigError, word)


junk = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)


@pytest.mark.parametrize("model_type", FAMILIES)
@settings(max_examples=60)
@given(data=st.data())
def test_hostile_configs_give_a_config_or_a_named_error(model_type: str, data: st.DataObject) -> None:
    """Any field may hold anything: nothing but a CutawayError comes out, and no loop of 2⁴⁰ layers runs."""
    base = {"model_type": model_type, **FAMILIES[model_type]}
    rope = {"rope_scaling", "rope_theta", "layer_types", "sliding_window", "no_rope_layers", "head_dim"}
    names = st.sampled_from(sorted({*base, *rope}))
    try:
        config = KNOWN[model_type].read(Fields(base | data.draw(st.dictionaries(names, junk, max_size=3))))
    except CutawayError as error:
        assert "\n" not in str(error)
    else:
        assert isinstance(config, ModelConfig)


def test_names_are_checked_before_anything_is_built(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4096 layers that a config claims and the file lacks cost no 4096 layers."""
    edit_config(llama, num_hidden_layers=4096)
    monkeypatch.setattr("cutaway.checkpoint.load.Transformer", None)
    refused(llama, CheckpointError, "model.layers.3.")


def test_a_huge_index_is_not_read(llama: Path) -> None:
    (llama / "model.safetensors").unlink()
    with (llama / "model.safetensors.index.json").open("wb") as file:
        file.truncate(2**40)
    refused(llama, DamagedFileError, "index.json", "bytes")


@pytest.mark.parametrize("value", ["1", 1.5, True, -2, [3, "x"]])
def test_an_end_id_that_is_none_is_named_without_a_tokenizer_too(llama: Path, value: object) -> None:
    edit_config(llama, eos_token_id=value)
    with pytest.raises(DamagedFileError, match="eos_token_id"):
        end_ids_of(llama)
    with pytest.raises(DamagedFileError, match="eos_token_id"):
        load(llama)
