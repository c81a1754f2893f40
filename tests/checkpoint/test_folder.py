"""Folders of transformers: what is filled, and from which tensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.activations import ACT2FN

from cutaway.checkpoint.families.family import read_activation
from cutaway.checkpoint.fields import Fields
from cutaway.checkpoint.folder import load_folder, save_folder
from cutaway.checkpoint.weights import SafetensorsFolder
from support.folders import TOKENS, edit_config, edit_tensors, logits
from support.tiny import distance, reference_folder, reference_model

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


def test_a_changed_copy_notes_in_the_same_place() -> None:
    fields = Fields({"a": 1, "b": 2, "c": None})
    other = fields.replace(a=None, b=3)
    assert other.data == {"b": 3, "c": None}
    other.notes.append("here")
    assert fields.notes == ["here"]


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


def test_an_index_left_beside_the_whole_file_is_not_read(tmp_path: Path) -> None:
    """transformers leaves it there where it saves over shards, and then reads the whole file too."""
    folder = tmp_path / "model"
    theirs = reference_model("llama")
    theirs.save_pretrained(folder, max_shard_size="10KB")
    theirs.save_pretrained(folder)
    assert (folder / "model.safetensors.index.json").exists()
    with torch.inference_mode():
        assert distance(logits(folder), theirs(TOKENS).logits) <= 1e-5
