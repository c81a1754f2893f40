"""Folders of transformers: what is filled, what is refused, and in which words."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.activations import ACT2FN

from cutaway.checkpoint.families import FAMILIES as KNOWN
from cutaway.checkpoint.families.family import read_activation
from cutaway.checkpoint.fields import Fields
from cutaway.checkpoint.folder import load_folder, native_family, save_folder
from cutaway.checkpoint.load import LoadReport
from cutaway.checkpoint.weights import SafetensorsFolder
from cutaway.config import LinearScaling, LongRopeScaling, ModelConfig, NoPositionConfig, RotaryConfig
from cutaway.errors import CheckpointError, ConfigError, CutawayError, DamagedFileError, UnsupportedError
from cutaway.language_model import LanguageModel, load
from cutaway.nn.position import Rotary
from cutaway.text.ids import IdTokenizer
from cutaway.text.tokenizer import Tokenizer
from cutaway.text.tokenizer_files import end_ids_of
from support.tiny import FAMILIES, OURS, distance, random_network, random_tokens, reference_folder
from support.vocabularies import byte_level

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


numbers = (
    st.integers() | st.floats() | st.sampled_from([0, 1, 2, 2**31, 2**63, 10**400, -(10**400), 1e308, 5e-324, 1.0])
)
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


def test_a_changed_copy_notes_in_the_same_place() -> None:
    fields = Fields({"a": 1, "b": 2, "c": None})
    other = fields.replace(a=None, b=3)
    assert other.data == {"b": 3, "c": None}
    other.notes.append("here")
    assert fields.notes == ["here"]


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


def test_gelu_fast_is_the_tanh_form() -> None:
    x = torch.linspace(-4, 4, 41)
    ours = read_activation(Fields({"hidden_act": "gelu_fast"}), "hidden_act", "silu")
    assert ours == "gelu_tanh"
    torch.testing.assert_close(ACT2FN["gelu_fast"](x), torch.nn.functional.gelu(x, approximate="tanh"))


def test_the_type_is_that_of_most_bytes(llama: Path) -> None:
    """Many small float32 norms do not outweigh the matrices; equal shares are float32."""
    edit_tensors(llama, lambda tensors: {k: v.bfloat16() if v.ndim > 1 else v for k, v in tensors.items()})
    extra = {f"small.{i}": torch.zeros(1) for i in range(100)}
    edit_tensors(llama, lambda tensors: tensors | extra)
    assert SafetensorsFolder(llama).dtype == torch.bfloat16
    for kinds in ((torch.float32, torch.float16), (torch.float16, torch.float32)):
        sizes = {torch.float32: 2, torch.float16: 4}
        save_file({f"t{i}": torch.zeros(sizes[k], dtype=k) for i, k in enumerate(kinds)}, llama / "model.safetensors")
        assert SafetensorsFolder(llama).dtype == torch.float32


def test_names_are_checked_before_anything_is_built(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4096 layers that a config claims and the file lacks cost no 4096 layers."""
    edit_config(llama, num_hidden_layers=4096)
    monkeypatch.setattr("cutaway.checkpoint.load.Transformer", None)
    refused(llama, CheckpointError, "model.layers.3.")


def test_a_huge_index_is_not_read(llama: Path) -> None:
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


def test_a_full_disk_is_one_line_in_the_librarys_words_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: Any, **__: Any) -> None:
        raise SafetensorError("Error while serializing:\nNo space left on device")

    monkeypatch.setattr("cutaway.checkpoint.folder.save_file", full_disk)
    with pytest.raises(CheckpointError, match=r"serializing: No space left on device.*another folder"):
        save_folder(random_network(OURS["classic"]), tmp_path / "out")


STALE = ["chat_template.jinja", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"]


def language_model(name: str = "grouped", tokenizer: Tokenizer | None = None, **ids: Any) -> LanguageModel:
    report = LoadReport(family="llama", source="test", stored="float32")
    network = random_network(replace(OURS[name], d_vocab=260))
    return LanguageModel(network, tokenizer or IdTokenizer(260), report, frozenset(ids.get("ends", ())))


def bytes_tokenizer(template: str | None = None) -> Tokenizer:
    backend = byte_level({}, special=("<b>", "<e>"))
    return Tokenizer(backend, bos_id=256, eos_ids=frozenset({257}), add_bos=True, chat_template=template)


@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_saving_over_another_model_leaves_nothing_of_it(tmp_path: Path, has_tokenizer: bool) -> None:
    """Its shards, index, tokenizer and template would win the next time; a file of no known name stays."""
    folder = tmp_path / "model"
    old = language_model(tokenizer=bytes_tokenizer("old"), ends=[99])
    old.save(folder)
    save_folder(old.network, folder, preferred="llama", shard_bytes=10_000)
    assert not (folder / "model.safetensors").exists()
    for name in [*STALE, "notes.txt", "other.safetensors"]:
        (folder / name).write_text("{}")
    new = language_model(tokenizer=bytes_tokenizer("new") if has_tokenizer else None, ends=[3, 5, 300])
    new.save(folder)
    tokenizer_files = {"tokenizer.json", "tokenizer_config.json"} if has_tokenizer else set()
    assert {path.name for path in folder.iterdir()} == tokenizer_files | {
        *("config.json", "generation_config.json", "model.safetensors", "notes.txt", "other.safetensors"),
    }
    again = load(folder, device="cpu")
    assert torch.equal(again.network.embed.weight, new.network.embed.weight)
    assert again.end_ids == ({3, 5, 257} if has_tokenizer else {3, 5})
    assert getattr(again.tokenizer, "chat_template", None) == ("new" if has_tokenizer else None)


def test_the_ids_are_in_generation_config(tmp_path: Path) -> None:
    """An id that the vocabulary does not have is left out alone."""
    language_model(tokenizer=bytes_tokenizer(), ends=[3, 5, 300]).save(tmp_path / "model")
    found = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    assert found == {"bos_token_id": 256, "eos_token_id": [3, 5], "pad_token_id": None}
    assert GenerationConfig.from_pretrained(tmp_path / "model").eos_token_id == [3, 5]


def test_sampling_defaults_and_ids_survive_a_save(llama: Path, tmp_path: Path) -> None:
    """Without a tokenizer, whose BOS and pad are the folder's own; G11: an empty prompt begins with BOS."""
    edit_config(llama, bos_token_id=7, pad_token_id=99)
    sampling = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
    stated = sampling | {"eos_token_id": [1, 5], "pad_token_id": 0}
    (llama / "generation_config.json").write_text(json.dumps(stated))
    model = load(llama, device="cpu")
    assert (
        model.generate("", max_tokens=4, temperature=0).tokens
        == model.generate("7", max_tokens=4, temperature=0).tokens
    )
    model.save(tmp_path / "again")
    ids = {"bos_token_id": 7, "eos_token_id": [1, 5], "pad_token_id": 0}
    assert json.loads((tmp_path / "again" / "generation_config.json").read_text()) == sampling | ids
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert {name: config[name] for name in ids} == ids
    again = load(tmp_path / "again", device="cpu").tokenizer
    assert (again.bos_id, again.pad_id) == (7, 0)


def test_an_id_past_the_vocabulary_is_no_bos(llama: Path) -> None:
    (llama / "generation_config.json").unlink()
    edit_config(llama, bos_token_id=1000)
    assert load(llama, device="cpu").tokenizer.bos_id is None


def test_ids_that_only_the_config_names_survive_beside_a_tokenizer(tmp_path: Path) -> None:
    """A pad that no tokenizer file knows."""
    language_model(tokenizer=bytes_tokenizer()).save(tmp_path / "model")
    edit_config(tmp_path / "model", pad_token_id=3)
    load(tmp_path / "model", device="cpu").save(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["pad_token_id"] == 3


@pytest.mark.parametrize("dtype", ["bfloat16", "bf16", torch.bfloat16])
def test_weights_are_saved_in_the_type_asked_for(tmp_path: Path, dtype: Any) -> None:
    language_model().save(tmp_path / "model", dtype=dtype)
    assert {t.dtype for t in load_file(tmp_path / "model" / "model.safetensors").values()} == {torch.bfloat16}


@pytest.mark.parametrize("dtype", ["float64", torch.float64, torch.int8, 5])
def test_a_type_that_cannot_be_loaded_is_not_saved(tmp_path: Path, dtype: Any) -> None:
    with pytest.raises(ConfigError, match=r"dtype = .*: use float32, bfloat16 or float16"):
        language_model().save(tmp_path / "model", dtype=dtype)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("device", ["meta", "nonsense", torch.device("meta"), 1.5])
def test_a_device_that_holds_no_numbers_is_refused(llama: Path, device: Any) -> None:
    with pytest.raises(ConfigError, match="device = ") as error:
        load(llama, device=device)
    assert "\n" not in str(error.value)


def test_what_no_family_can_express_writes_nothing(tmp_path: Path) -> None:
    config = ModelConfig.from_dict(OURS["classic"].to_dict() | {"position": {"kind": "NoPositionConfig"}})
    report = LoadReport(family="llama", source="test", stored="float32")
    model = LanguageModel(random_network(config), bytes_tokenizer(), report, frozenset())
    with pytest.raises(UnsupportedError):
        model.save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("blocked", ["tokenizer.json", "generation_config.json", "merges.txt"])
def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, blocked: str) -> None:
    (tmp_path / "out" / blocked / "inside").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"cannot be written .*another folder") as error:
        language_model(tokenizer=bytes_tokenizer()).save(tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not [path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


def test_a_folder_may_be_named_like_a_file_and_a_file_in_capitals(tmp_path: Path) -> None:
    language_model().save(tmp_path / "x.gguf")
    assert load(tmp_path / "x.gguf", device="cpu").config.d_vocab == 260
    (tmp_path / "M.GGUF").write_bytes(b"GGUF")
    with pytest.raises(DamagedFileError, match=r"M\.GGUF"):
        load(tmp_path / "M.GGUF")


def test_saving_over_the_loaded_folder_is_safe(llama: Path) -> None:
    expected = logits(llama)
    network, _ = load_folder(llama)
    save_folder(network, llama, preferred="llama")
    assert torch.equal(logits(llama), expected)


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_folder(random_network(OURS["classic"]), tmp_path / "file")
