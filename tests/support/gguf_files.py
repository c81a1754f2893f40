"""GGUF files of tiny transformers models, written as llama.cpp's converter writes them.

Keys and tensor names come from the gguf library, so that a wrong name in the reader cannot hide in the writer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import torch
from gguf import GGMLQuantizationType
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from support.tiny import OURS

# Ours, as the format can say them.
WIDE = {"d_model": 64, "d_vocab": 300}  # rows that blocks of 32 tile
GPT2 = replace(OURS["classic"], **WIDE, d_head=16, d_ff=256)
LLAMA = replace(OURS["grouped"], **WIDE, d_ff=96, tied=False)

ARCHITECTURES = {
    "gpt2": "gpt2",
    "gpt_neox": "gptneox",
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "olmo2": "olmo2",
    "smollm3": "smollm3",
}


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    *,
    kind: str = "F32",
    change: Callable[[dict[str, Tensor]], None] = lambda tensors: None,
    more: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> Path:
    """The model as a GGUF file, matrices stored as `kind`.

    `change` edits the tensors under their GGUF names; `more` adds metadata, or puts others in the place of some.
    """
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, architecture)
    if config.model_type == "gpt2":
        _describe_gpt2(writer, config)
    elif config.model_type == "gpt_neox":
        _describe_gpt_neox(writer, config)
    else:
        _describe_llama(writer, config)
    more(writer)
    tensors = dict(_named(model, architecture)) | dict(_rope_tensors(config))
    change(tensors)
    for name, tensor in tensors.items():
        stored = GGMLQuantizationType[kind if tensor.ndim > 1 else "F32"]
        data = gguf.quants.quantize(tensor.float().contiguous().numpy(), stored)
        writer.add_tensor(name, data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def pairs(x: Tensor, n_heads: int) -> Tensor:
    """The converter's order of q's and k's rows: per head the i-th of the first half, then of the second half."""
    return x.reshape(n_heads, 2, x.shape[0] // n_heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def _named(model: PreTrainedModel, architecture: str) -> Iterator[tuple[str, Tensor]]:
    config = model.config
    by_name = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(by_name[architecture], config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if config.tie_word_embeddings and name == "lm_head.weight":
            continue
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, name
        yield theirs, _converted(name, tensor, config)


def _converted(name: str, tensor: Tensor, config: PreTrainedConfig) -> Tensor:
    module, kind = name.split(".")[-2:]
    match config.model_type:
        case "gpt2" if kind == "weight" and module in ("c_attn", "c_proj", "c_fc"):
            return tensor.T
        case "gpt_neox" if module == "query_key_value":
            by_head = tensor.reshape(config.num_attention_heads, 3, -1, *tensor.shape[1:])
            return torch.cat([by_head[:, i].reshape(-1, *tensor.shape[1:]) for i in range(3)])
        case "llama" | "mistral" | "smollm3" if module == "q_proj":
            return pairs(tensor, config.num_attention_heads)
        case "llama" | "mistral" | "smollm3" if module == "k_proj":
            return pairs(tensor, config.num_key_value_heads)
        case "gemma2" | "gemma3_text" if name.endswith("norm.weight"):
            return tensor + 1
    return tensor


def _rope(config: PreTrainedConfig) -> dict:
    return config.rope_parameters.get("full_attention", config.rope_parameters)


def _d_head(config: PreTrainedConfig) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _rope_tensors(config: PreTrainedConfig) -> Iterator[tuple[str, Tensor]]:
    rope = {} if config.model_type == "gpt2" else _rope(config)
    if rope.get("rope_type") == "longrope":
        yield "rope_factors_long.weight", torch.tensor(rope["long_factor"])
        yield "rope_factors_short.weight", torch.tensor(rope["short_factor"])
    if rope.get("rope_type") == "llama3":
        yield "rope_freqs.weight", torch.tensor(list(_llama3_divisors(rope, _d_head(config))))


def _llama3_divisors(rope: dict, d_head: int) -> Iterator[float]:
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    for i in range(0, d_head, 2):
        turns = rope["original_max_position_embeddings"] * rope["rope_theta"] ** (-i / d_head) / (2 * math.pi)
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        yield 1 / ((1 - smooth) / factor + smooth)


def _describe_gpt2(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    writer.add_block_count(config.n_layer)
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(config.n_inner or 4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)


def _describe_gpt_neox(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_rope_dimension_count(int(_rope(config)["partial_rotary_factor"] * _d_head(config)))
    writer.add_rope_freq_base(_rope(config)["rope_theta"])
    writer.add_head_count(config.num_attention_heads)
    writer.add_parallel_residual(config.use_parallel_residual)
    writer.add_layer_norm_eps(config.layer_norm_eps)


def _describe_llama(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if getattr(config, "head_dim", None) is not None:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    _describe_rope(writer, config)
    match config.model_type:
        case "phi3":
            writer.add_sliding_window(config.sliding_window or 0)
        case "gemma2":
            writer.add_sliding_window(config.sliding_window)
            writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
        case "gemma3_text":
            writer.add_sliding_window(config.sliding_window)


def _describe_rope(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    rope = _rope(config)
    writer.add_rope_freq_base(rope["rope_theta"])
    share = rope.get("partial_rotary_factor", 1.0)
    if config.model_type in ("llama", "mistral", "smollm3", "phi3"):
        writer.add_rope_dimension_count(int(share * _d_head(config)))
    match rope["rope_type"]:
        case "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        case "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        case "longrope":
            original = rope["original_max_position_embeddings"]
            scale = config.max_position_embeddings / original
            writer.add_rope_scaling_orig_ctx_len(original)
            writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
