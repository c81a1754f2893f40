"""Folders of transformers: what is filled, what is refused, and in which words."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from cutaway.checkpoint.families import FAMILIES as KNOWN
from cutaway.checkpoint.fields import Fields
from cutaway.checkpoint.folder import load_folder, native_family, save_folder
from cutaway.config import ModelConfig, NoPositionConfig, RotaryConfig
from cutaway.errors import CheckpointError, ConfigError, CutawayError, DamagedFileError, UnsupportedError
from support.tiny import FAMILIES, OURS, distance, random_network, random_tokens, reference_folder

TOKENS = random_tokens(1, 12)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    reference_folder(tmp_path / "model", "llama")
    return tmp_path / "model"


def edit_config(folder: Path, **changes: Any) -> None:
    """Change fields; None removes one."""
    path = folder / "config.json"
    data = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not None}))


def edit_tensors(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    path = folder / "model.safetensors"
    save_file({k: v.contiguous() for k, v in change(load_file(path)).items()}, path)


def logits(folder: Path) -> Tensor:
    network, _ = load_folder(folder)
    with torch.inference_mode():
        return network(TOKENS)


# --- the head: C1 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("head", ["absent", "equal", "different"])
def test_the_head_is_what_the_file_holds(tmp_path: Path, flag: bool, head: str) -> None:
    """C1: tied flag × head. The file decides where it and the config disagree; every such choice is noted."""
    folder = tmp_path / "model"
    reference_folder(folder, "llama", tie_word_embeddings=False)

    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if head == "absent":
            del tensors["lm_head.weight"]
        elif head == "equal":
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        return tensors

    edit_tensors(folder, change)
    edit_config(folder, tie_word_embeddings=flag)
    network, report = load_folder(folder)
    tied = head == "absent" or (flag and head == "equal")
    assert network.config.tied == tied
    assert (network.head.weight is network.embed.weight) == tied
    surprising = (flag, head) in ((True, "different"), (False, "absent"))
    assert bool(report.notes) == surprising
    stored = load_file(folder / "model.safetensors")
    expected = stored.get("lm_head.weight", stored["model.embed_tokens.weight"])
    assert torch.equal(network.head.weight, expected)
    assert ("lm_head.weight" in report.unused) == (flag and head == "equal")


# --- rotary: C4 ---------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("kind", ["mrope", "quantum", ""])
def test_an_unknown_rope_kind_is_refused(llama: Path, kind: str) -> None:
    edit_config(llama, rope_parameters={"rope_type": kind, "rope_theta": 1.0, "factor": 2.0})
    with pytest.raises(UnsupportedError, match="longrope"):
        load_folder(llama)


# --- layouts: C5, C7 ----------------------------------------------------------------------------------------


def test_gpt2_weights_are_transposed_all_four(tmp_path: Path) -> None:
    """C5: c_attn, both c_proj and c_fc are stored input × output; mask buffers are no weights, c_attn.bias is one."""
    theirs = reference_folder(tmp_path / "model", "gpt2")

    def add_buffers(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        for i in range(3):
            tensors[f"transformer.h.{i}.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
            tensors[f"transformer.h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
        return tensors

    edit_tensors(tmp_path / "model", add_buffers)
    network, report = load_folder(tmp_path / "model")
    with torch.inference_mode():
        assert distance(network(TOKENS), theirs(TOKENS).logits) <= 1e-5
    block = theirs.transformer.h[1]
    assert torch.equal(network.blocks[1].attn.out.weight, block.attn.c_proj.weight.T)
    assert torch.equal(network.blocks[1].attn.qkv.bias, block.attn.c_attn.bias)
    assert set(report.unused.values()) == {"a buffer, computed anew"}
    assert len(report.unused) == 6
    assert not report.notes


def test_qwen2_biases_load_without_a_flag(tmp_path: Path) -> None:
    """C7: q, k, v have biases because the file and the family have them; o has none."""
    reference_folder(tmp_path / "model", "qwen2")
    assert "attention_bias" not in json.loads((tmp_path / "model" / "config.json").read_text())
    edit_tensors(
        tmp_path / "model",
        lambda tensors: {k: torch.ones_like(v) if k.endswith("proj.bias") else v for k, v in tensors.items()},
    )
    network, _ = load_folder(tmp_path / "model")
    assert torch.equal(network.blocks[0].attn.qkv.bias, torch.ones(48))
    assert network.blocks[0].attn.out.bias is None


def test_a_tensor_nobody_wants_is_listed(llama: Path) -> None:
    """C7: nothing in the file is dropped without a word."""
    edit_tensors(llama, lambda tensors: tensors | {"model.layers.0.self_attn.q_proj.bias": torch.ones(64)})
    _, report = load_folder(llama)
    assert report.unused == {"model.layers.0.self_attn.q_proj.bias": "no place in this family"}
    assert "q_proj.bias" in report.notes[0]


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")  # of torch.compile's own import
@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "_orig_mod.module.", "module._orig_mod."])
def test_wrapper_prefixes_are_dropped(llama: Path, prefix: str, tmp_path: Path) -> None:
    """R1: what torch.compile and data parallel put in front; a saved file never has it."""
    expected = logits(llama)
    edit_tensors(llama, lambda tensors: {prefix + name: tensor for name, tensor in tensors.items()})
    assert torch.equal(logits(llama), expected)
    network, _ = load_folder(llama)
    save_folder(torch.compile(network), tmp_path / "again")
    assert not [name for name in load_file(tmp_path / "again" / "model.safetensors") if "_orig_mod" in name]


@pytest.mark.parametrize("model_type", ["gpt2", "llama", "gpt_neox"])
def test_a_base_model_without_its_first_word_loads(tmp_path: Path, model_type: str) -> None:
    model = reference_folder(tmp_path / "whole", model_type, tie_word_embeddings=True)
    model.base_model.save_pretrained(tmp_path / "base")
    edit_config(tmp_path / "base", tie_word_embeddings=True)
    assert torch.equal(logits(tmp_path / "base"), logits(tmp_path / "whole"))


# --- damage -------------------------------------------------------------------------------------------------


def refused(folder: Path, kind: type[CutawayError], *words: str) -> None:
    with pytest.raises(kind) as error:
        load_folder(folder)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


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
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
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


# --- saving -------------------------------------------------------------------------------------------------


def test_a_family_is_found_for_a_network_that_has_none(tmp_path: Path) -> None:
    for name, expected in {"classic": "gpt2", "parallel": "gpt_neox", "grouped": "llama"}.items():
        config = OURS[name]
        if name == "parallel":  # GPT-NeoX has biases
            config = ModelConfig.from_dict(config.to_dict() | {"attention": OURS["classic"].to_dict()["attention"]})
        assert native_family(config)[0].model_type == expected


def test_an_architecture_of_our_own_is_refused(tmp_path: Path) -> None:
    config = ModelConfig.from_dict(OURS["classic"].to_dict() | {"position": {"kind": "NoPositionConfig"}})
    assert isinstance(config.positions[0], NoPositionConfig)
    with pytest.raises(UnsupportedError, match="no transformers family"):
        save_folder(random_network(config), tmp_path / "out")


def test_a_save_that_fails_leaves_what_was_there(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, _ = load_folder(llama)
    before = {path.name: path.read_bytes() for path in llama.iterdir()}

    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cutaway.checkpoint.folder.save_file", full_disk)
    with pytest.raises(CheckpointError, match="No space left"):
        save_folder(network, llama)
    assert {path.name: path.read_bytes() for path in llama.iterdir()} == before


def test_saving_over_the_loaded_folder_is_safe(llama: Path) -> None:
    expected = logits(llama)
    network, _ = load_folder(llama)
    save_folder(network, llama, preferred="llama")
    assert torch.equal(logits(llama), expected)


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_folder(random_network(OURS["classic"]), tmp_path / "file")
