"""GGUF files as networks: each architecture equal to transformers, and one named error for what cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from cutaway.checkpoint.folder import load_folder, save_folder
from cutaway.checkpoint.gguf import GGUFFile
from cutaway.checkpoint.gguf_layout import halves, pairs
from cutaway.checkpoint.gguf_model import load_gguf
from cutaway.checkpoint.load import LoadReport
from cutaway.config import CausalMaskConfig, LongRopeScaling, RotaryConfig, WindowMaskConfig
from cutaway.errors import CheckpointError, ConfigError, CutawayError, DamagedFileError, UnsupportedError
from cutaway.network import Transformer
from support.gguf_files import ARCHITECTURES, write_gguf
from support.tiny import FAMILIES, VARIANTS, distance, random_tokens, reference_model

# What the format cannot say, as llama.cpp takes it: the scale of Gemma's scores, and that Mistral has no window.
UNSAID: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 8},
    "gemma3_text": {"query_pre_attn_scalar": 8},
    "mistral": {"sliding_window": None},
}
SAID = [
    "gpt2 untied",
    "gpt_neox sequential",
    "gpt_neox whole head turns",
    "llama biases, tied",
    "llama multi-query",
    "llama multi-head",
    "llama linear",
    "llama llama3",
    "llama yarn",
    "llama longrope, short",
    "phi3 longrope, long",
    "phi3 window",
    "qwen3 biases",
]
CASES = {name: (name, {}) for name in FAMILIES} | {name: VARIANTS[name] for name in SAID}
# These say their scaling in numbers worked out or rounded by the converter: equal in effect, not in form.
WORKED_OUT = {"llama llama3", "llama longrope, short", "phi3 longrope, long"}
IN_TRANSFORMERS = ["gpt2", "llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3"]


def load(path: Path, **options: Any) -> tuple[Transformer, LoadReport]:
    with GGUFFile(path) as file:
        return load_gguf(file, **options)


def apart(network: Transformer, model: PreTrainedModel, n_tokens: int = 20) -> float:
    tokens = random_tokens(2, n_tokens)
    with torch.inference_mode():
        return distance(network(tokens), model(tokens).logits)


def llama(path: Path, model_type: str = "llama", **edits: Any) -> Path:
    """A file whose model does not matter."""
    return write_gguf(path / "model.gguf", reference_model(model_type, **UNSAID.get(model_type, {})), **edits)


def entry(key: str, value: Any) -> Callable[[gguf.GGUFWriter], None]:
    """Metadata put in the place of what the converter wrote; None takes it out."""

    def edit(writer: gguf.GGUFWriter) -> None:
        (entries,) = writer.kv_data
        entries.pop(key, None)
        if value is not None:
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))

    return edit


# --- equal to transformers ---


@pytest.mark.parametrize("case", CASES)
def test_logits_and_config_equal_those_of_the_model_that_was_converted(case: str, tmp_path: Path) -> None:
    """Contract 1; C2 in the llama cases (8 query heads, 2 key heads), C6, C7 and C9 in the others."""
    model_type, overrides = CASES[case]
    model = reference_model(model_type, **UNSAID.get(model_type, {}), **overrides)
    network, report = load(write_gguf(tmp_path / "model.gguf", model))
    assert apart(network, model) <= 1e-5
    with GGUFFile(tmp_path / "model.gguf") as file:
        assert sorted(report.used) == sorted(file.tensors)
    assert not report.unused
    assert not report.notes
    assert not network.training
    if case not in WORKED_OUT:
        model.save_pretrained(tmp_path / "folder")
        assert network.config == load_folder(tmp_path / "folder")[0].config


@pytest.mark.parametrize("model_type", IN_TRANSFORMERS)
def test_transformers_reads_the_same_tensors_from_the_file(model_type: str, tmp_path: Path) -> None:
    """So that the writer of these tests is no mirror of the reader: names, rows and offsets, read by a peer."""
    model = reference_model(model_type, **UNSAID.get(model_type, {}))
    write_gguf(tmp_path / "model.gguf", model, more=lambda writer: writer.add_name("tiny"))
    # Its own reading of the metadata leaves some to the defaults of its classes.
    peer = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", config=model.config, dtype=torch.float32
    )
    assert apart(load(tmp_path / "model.gguf")[0], peer.eval()) <= 1e-5


def test_transformers_reads_the_same_metadata_of_a_llama(tmp_path: Path) -> None:
    model = reference_model("llama", rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    write_gguf(tmp_path / "model.gguf", model, more=lambda writer: writer.add_name("tiny"))
    peer = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    assert apart(load(tmp_path / "model.gguf")[0], peer.eval()) <= 1e-5


# --- what the converter did to the tensors ---


def test_rows_of_a_head_of_eight_by_eye() -> None:
    """C2: rows 0-7 lie in the file as 0 4 1 5 2 6 3 7; undone by 0 2 4 6 1 3 5 7, head by head."""
    rows = torch.arange(16.0)
    assert pairs(2, rows).tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]
    assert halves(2, rows).tolist() == [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]
    assert torch.equal(halves(2, pairs(2, rows[:, None])), rows[:, None])


def test_q_by_its_query_heads_and_k_by_its_key_heads(tmp_path: Path) -> None:
    """C2: 8 and 2 heads of 8; v is not touched."""
    counted = torch.arange(64.0)[:, None].expand(64, 32)

    def count(tensors: dict[str, Tensor]) -> None:
        tensors["blk.0.attn_q.weight"] = counted
        tensors["blk.0.attn_k.weight"] = counted[:16]
        tensors["blk.0.attn_v.weight"] = counted[:16]

    network, _ = load(llama(tmp_path, change=count))
    rows = network.blocks[0].attn.qkv.weight[:, 0].view(12, 8)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    assert [row.tolist() for row in rows[:8]] == [(order + 8 * head).tolist() for head in range(8)]
    assert [row.tolist() for row in rows[8:10]] == [(order + 8 * head).tolist() for head in range(2)]
    assert rows[10:].flatten().tolist() == list(range(16))


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_q_k_v_in_one_tensor(model_type: str, tmp_path: Path) -> None:
    """A converter may put them on top of each other; the rows of q and k keep their order."""
    model = reference_model(model_type)

    def fuse(tensors: dict[str, Tensor]) -> None:
        for kind in ("weight", "bias"):
            for i in range(3):
                names = [f"blk.{i}.attn_{x}.{kind}" for x in "qkv"]
                if names[0] in tensors:
                    tensors[f"blk.{i}.attn_qkv.{kind}"] = torch.cat([tensors.pop(name) for name in names])

    network, report = load(write_gguf(tmp_path / "model.gguf", model, change=fuse))
    assert "blk.2.attn_qkv.weight" in report.used
    assert apart(network, model) <= 1e-5


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_1"])
def test_other_tensor_types_give_their_own_numbers(kind: str, tmp_path: Path) -> None:
    """X16: a half-precision file keeps its type unless asked; a quantised one becomes float32."""
    model = reference_model("llama", intermediate_size=64)
    network, report = load(write_gguf(tmp_path / "model.gguf", model, kind=kind))
    stored = gguf.GGMLQuantizationType[kind]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                data = gguf.quants.quantize(parameter.numpy(), stored)
                parameter.copy_(torch.from_numpy(np.array(gguf.quants.dequantize(data, stored))))
    assert report.stored == f"{kind}, F32"
    assert network.embed.weight.dtype == {"F16": torch.float16, "BF16": torch.bfloat16}.get(kind, torch.float32)
    widened, _ = load(tmp_path / "model.gguf", dtype=torch.float32)
    assert apart(widened, model) <= 1e-5


def test_norms_of_gemma_lose_their_offset_before_they_are_rounded(tmp_path: Path) -> None:
    model = reference_model("gemma2", **UNSAID["gemma2"])
    network, _ = load(write_gguf(tmp_path / "model.gguf", model), dtype=torch.bfloat16)
    weight = network.blocks[1].ff_post_norm.weight.float()
    expected = model.model.layers[1].post_feedforward_layernorm.weight
    assert (weight - expected).abs().max() <= expected.abs().max() / 256  # bfloat16 of 1 + x would be off by 1/256
    assert network.blocks[0].attn.qkv.weight.dtype == torch.bfloat16


def test_a_head_of_its_own_is_kept_and_a_missing_one_tied(tmp_path: Path) -> None:
    """C1: the format has no flag; the file's tensors decide."""
    untied, _ = load(llama(tmp_path))
    assert not untied.config.tied
    tied, report = load(llama(tmp_path, change=lambda tensors: tensors.pop("output.weight")))
    assert tied.config.tied
    assert tied.head.weight is tied.embed.weight
    assert not report.notes


def test_tensors_that_fill_nothing_are_listed_with_the_reason(tmp_path: Path) -> None:
    def add(tensors: dict[str, Tensor]) -> None:
        tensors["blk.0.attn_rot_embd.weight"] = torch.ones(4)
        tensors["blk.0.ffn_gate_inp.weight"] = torch.ones(4, 4)

    _, report = load(llama(tmp_path, change=add))
    assert report.unused == {
        "blk.0.attn_rot_embd.weight": "a buffer, computed anew",
        "blk.0.ffn_gate_inp.weight": "no place in this family",
    }
    assert report.notes == ["not used: blk.0.ffn_gate_inp.weight, which has no place in this family"]


# --- what the metadata say ---


def test_the_scaling_of_llama3_is_its_divisors_and_survives_a_save(tmp_path: Path) -> None:
    """rope_freqs.weight is a divisor a frequency: kept to the bit, and said to transformers in its own words."""
    divisors = torch.tensor([1.0, 1.7, 5.3, 8.0])
    path = llama(tmp_path, change=lambda tensors: tensors.update({"rope_freqs.weight": divisors}))
    network, report = load(path)
    (rotary,) = set(network.config.positions)
    assert isinstance(rotary, RotaryConfig) and isinstance(rotary.scaling, LongRopeScaling)
    assert rotary.scaling.short_factor == rotary.scaling.long_factor == tuple(divisors.tolist())
    assert rotary.scaling.attention_factor == 1.0
    assert "rope_freqs.weight" in report.used
    save_folder(network, tmp_path / "folder", preferred=report.family)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "folder").eval()
    assert apart(network, again) <= 1e-5


def test_linear_scaling_under_its_old_name_and_on_top_of_divisors(tmp_path: Path) -> None:
    old, _ = load(llama(tmp_path, more=entry("llama.rope.scale_linear", 4.0)))
    new, _ = load(llama(tmp_path, more=entry("llama.rope.scaling.factor", 4.0)))
    assert old.config == new.config != load(llama(tmp_path))[0].config
    both = llama(
        tmp_path,
        more=entry("llama.rope.scaling.factor", 4.0),
        change=lambda tensors: tensors.update({"rope_freqs.weight": torch.tensor([1.0, 1.0, 2.0, 8.0])}),
    )
    (rotary,) = set(load(both)[0].config.positions)
    assert rotary.scaling.long_factor == (4.0, 4.0, 8.0, 32.0)


def test_a_missing_theta_is_ten_thousand_and_said(tmp_path: Path) -> None:
    """C4: the format's default, whatever the family's own is."""
    network, report = load(llama(tmp_path, "smollm3", more=entry("smollm3.rope.freq_base", None)))
    assert network.config.positions[0] == RotaryConfig(theta=10_000.0)
    assert report.notes == ["no smollm3.rope.freq_base in the file: the format's default 10000 is used"]


@pytest.mark.parametrize(("model_type", "depth"), [("gemma2", 46), ("gemma3_text", 62)])
def test_the_largest_gemma_scales_by_its_width(model_type: str, depth: int, tmp_path: Path) -> None:
    """No file says the scale: the 27B models, known by their depth, take d_model / n_heads = 4 for d_head = 8."""
    model = reference_model(model_type, num_hidden_layers=depth, query_pre_attn_scalar=4)
    network, _ = load(write_gguf(tmp_path / "model.gguf", model))
    assert network.config.attention_scale == 0.5
    assert apart(network, model, n_tokens=6) <= 1e-5


def test_windows_of_gemma_by_period_by_layer_or_not_at_all(tmp_path: Path) -> None:
    near, far = WindowMaskConfig(size=4), CausalMaskConfig()

    def masks(**edits: Any) -> tuple[Any, ...]:
        return load(llama(tmp_path, "gemma3_text", **edits))[0].config.masks

    pattern = "gemma3.attention.sliding_window_pattern"
    assert masks() == (near, near, near, near, near, far)
    assert masks(more=entry(pattern, 3)) == (near, near, far, near, near, far)
    assert masks(more=entry(pattern, [True, False, False, False, True, True])) == (near, far, far, far, near, near)
    assert masks(more=entry("gemma3.attention.sliding_window", 0)) == (far,) * 6


def test_local_theta_of_gemma3_if_the_file_has_one(tmp_path: Path) -> None:
    near, *_, far = load(llama(tmp_path, "gemma3_text"))[0].config.positions
    assert (near.theta, far.theta) == (10_000.0, 1_000_000.0)
    near, *_, far = load(llama(tmp_path, "gemma3_text", more=entry("gemma3.rope.freq_base_swa", 500.0)))[
        0
    ].config.positions
    assert (near.theta, far.theta) == (500.0, 1_000_000.0)


def test_counts_given_layer_by_layer_must_agree(tmp_path: Path) -> None:
    plain, _ = load(llama(tmp_path))
    same, _ = load(llama(tmp_path, more=entry("llama.attention.head_count_kv", [2, 2, 2])))
    assert same.config == plain.config
    with pytest.raises(UnsupportedError, match=r"attention\.head_count_kv = \[2, 1, 2\]"):
        load(llama(tmp_path, more=entry("llama.attention.head_count_kv", [2, 1, 2])))


# --- what cannot be read ---

METADATA_ERRORS: list[tuple[str, str, Any, type[CutawayError], str]] = [
    ("llama", "general.architecture", "mamba", UnsupportedError, "mamba': Cutaway knows gpt2, gptneox, llama"),
    ("llama", "llama.expert_count", 8, UnsupportedError, "expert_count = 8"),
    ("llama", "llama.attention.causal", False, UnsupportedError, "attention.causal = False"),
    ("llama", "llama.attention.sliding_window", 16, UnsupportedError, "attention.sliding_window = 16"),
    ("olmo2", "olmo2.attention.sliding_window", 16, UnsupportedError, "attention.sliding_window = 16"),
    ("llama", "llama.attention.value_length", 4, UnsupportedError, "attention.value_length = 4"),
    ("llama", "llama.rope.dimension_count", 4, UnsupportedError, "rope.dimension_count = 4"),
    ("llama", "llama.rope.scaling.type", "ntk", UnsupportedError, "rope.scaling.type = 'ntk'"),
    ("llama", "llama.rope.scaling.type", "longrope", CheckpointError, "no tensor rope_factors_short.weight"),
    ("llama", "llama.block_count", None, ConfigError, "llama: block_count is missing"),
    ("llama", "llama.block_count", "three", ConfigError, "block_count = 'three'"),
    ("llama", "llama.block_count", 2**31 - 1, CheckpointError, "block_count = 2147483647"),
    ("llama", "llama.block_count", 4, CheckpointError, "no tensor blk.3.attn_norm.weight"),
    ("llama", "llama.context_length", True, ConfigError, "context_length = True"),
    ("llama", "llama.attention.head_count", 0, ConfigError, "attention.head_count = 0"),
    ("llama", "llama.attention.head_count", 1024, CheckpointError, "blk.0.attn_q.weight has shape"),
    ("llama", "llama.attention.head_count_kv", 3, ConfigError, "n_kv_heads = 3 does not divide"),
    ("qwen2", "qwen2.attention.key_length", 2**30, ConfigError, "d_head = 1073741824"),
    ("llama", "llama.feed_forward_length", 40, CheckpointError, "blk.0.ffn_gate.weight has shape"),
    ("llama", "llama.attention.layer_norm_rms_epsilon", None, ConfigError, "rms_epsilon is missing"),
    ("llama", "llama.rope.freq_base", float("nan"), ConfigError, "rope.freq_base = nan"),
    ("gpt2", "gpt2.attention.layer_norm_epsilon", None, ConfigError, "layer_norm_epsilon is missing"),
    ("gpt_neox", "gptneox.use_parallel_residual", "yes", ConfigError, "use_parallel_residual = 'yes'"),
    ("gemma3_text", "gemma3.attention.sliding_window_pattern", [True], ConfigError, "sliding_window_pattern"),
]


@pytest.mark.parametrize(("model_type", "key", "value", "error", "message"), METADATA_ERRORS)
def test_metadata_that_cannot_be_used_get_one_line(
    model_type: str, key: str, value: Any, error: type[CutawayError], message: str, tmp_path: Path
) -> None:
    path = llama(tmp_path, model_type, more=entry(key, value))
    with pytest.raises(error) as caught:
        load(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


TENSOR_ERRORS: list[tuple[str, Tensor | None, type[CutawayError], str]] = [
    ("token_embd.weight", None, CheckpointError, "no tensor token_embd.weight"),
    ("blk.1.attn_k.weight", None, CheckpointError, "no tensor blk.1.attn_k.weight"),
    ("blk.1.attn_k.weight", torch.ones(8, 32), CheckpointError, "blk.1.attn_k.weight has shape [8, 32]"),
    ("token_embd.weight", torch.ones(32), CheckpointError, "token_embd.weight has shape [32]"),
    ("rope_freqs.weight", torch.ones(3), DamagedFileError, "rope_freqs.weight has shape [3], 4 pairs turn"),
    ("rope_freqs.weight", torch.zeros(4), ConfigError, "one divisor above 0"),
    ("rope_factors_long.weight", torch.ones(4), CheckpointError, "no tensor rope_factors_short.weight"),
]


@pytest.mark.parametrize(("name", "tensor", "error", "message"), TENSOR_ERRORS)
def test_tensors_that_are_missing_or_of_another_shape_are_named(
    name: str, tensor: Tensor | None, error: type[CutawayError], message: str, tmp_path: Path
) -> None:
    """C7: every parameter is filled from the file, or loading fails naming the tensor."""

    def edit(tensors: dict[str, Tensor]) -> None:
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor

    with pytest.raises(error) as caught:
        load(llama(tmp_path, change=edit))
    assert message in str(caught.value)


VALUES = st.one_of(
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([0, 1, 2, 3, 4, 8, 2**31 - 1]),
    st.floats(width=32),
    st.booleans(),
    st.text(max_size=8),
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.none(),
)


@pytest.fixture(scope="module")
def models() -> dict[str, PreTrainedModel]:
    return {
        name: reference_model(name, **UNSAID.get(name, {})) for name in ("llama", "gpt_neox", "gemma3_text", "phi3")
    }


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_metadata_load_or_give_one_named_error(
    data: st.DataObject, models: dict[str, PreTrainedModel], tmp_path: Path
) -> None:
    model_type = data.draw(st.sampled_from(sorted(models)))
    prefix = ARCHITECTURES[model_type]

    def edit(writer: gguf.GGUFWriter) -> None:
        keys = [key for key in writer.kv_data[0] if key.startswith(f"{prefix}.")]
        keys += [f"{prefix}.{rest}" for rest in ("rope.scaling.type", "attention.sliding_window_pattern")]
        for key in data.draw(st.lists(st.sampled_from(keys), min_size=1, max_size=3)):
            entry(key, data.draw(VALUES))(writer)

    path = write_gguf(tmp_path / "model.gguf", models[model_type], more=edit)
    try:
        network, _ = load(path)
    except CutawayError as error:
        assert "\n" not in str(error)
    else:
        assert all(parameter.isfinite().all() for parameter in network.parameters())
