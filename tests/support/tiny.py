"""Tiny random models of every family, made by transformers, and one of ours for each kind of part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from cutaway.config import (
    AttentionConfig,
    CausalMaskConfig,
    DynamicScaling,
    FeedForwardConfig,
    LongRopeScaling,
    ModelConfig,
    NoPositionConfig,
    RMSNormConfig,
    RotaryConfig,
    WindowMaskConfig,
)
from cutaway.network import Transformer

transformers.logging.set_verbosity_error()

D_VOCAB = 67  # odd on purpose

IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
LLAMA = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": D_VOCAB,
    "max_position_embeddings": 64,
    **IDS,
}
WIDE = {**LLAMA, "head_dim": 8}  # d_head ≠ d_model / n_heads
GEMMA = {**WIDE, "sliding_window": 4, "query_pre_attn_scalar": 20}
GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": D_VOCAB, "n_positions": 64, **IDS}
NEOX = {
    **LLAMA,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "gpt_neox": NEOX,
    "llama": WIDE,
    "mistral": {**WIDE, "sliding_window": 4},
    "qwen2": LLAMA,
    "qwen3": WIDE,
    "gemma2": GEMMA,
    "gemma3_text": {**GEMMA, "num_hidden_layers": 6},
    "phi3": LLAMA,
    "olmo2": LLAMA,
    "smollm3": {**LLAMA, "num_hidden_layers": 5},
}

LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.5],
    "long_factor": [2.0, 4.0],
    "original_max_position_embeddings": 16,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2 untied": ("gpt2", {"tie_word_embeddings": False}),
    "gpt2 relu, n_inner": ("gpt2", {"activation_function": "relu", "n_inner": 40}),
    "gpt_neox sequential": ("gpt_neox", {"use_parallel_residual": False}),
    "gpt_neox whole head turns": (
        "gpt_neox",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0}},
    ),
    "llama with a share it ignores": (
        "llama",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}},
    ),
    "phi3 partial": (
        "phi3",
        {"head_dim": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}},
    ),
    "llama biases, tied": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama multi-query": ("llama", {"num_key_value_heads": 1}),
    "llama multi-head": ("llama", {"num_key_value_heads": 8}),
    "llama linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    ),
    "llama dynamic": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}},
    ),
    "llama dynamic, past the context": (
        "llama",
        {
            "max_position_embeddings": 16,
            "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
        },
    ),
    "llama llama3": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "llama yarn": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 500.0,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        },
    ),
    "llama longrope, short": (
        "llama",
        {
            "rope_parameters": {
                **LONGROPE,
                "rope_theta": 500.0,
                "short_factor": [1.0, 1.5, 1.0, 2.0],
                "long_factor": [2.0, 4.0, 3.0, 1.0],
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "phi3 longrope, long": (
        "phi3",
        {"original_max_position_embeddings": 16, "rope_parameters": {**LONGROPE, "rope_theta": 500.0}},
    ),
    "phi3 window": ("phi3", {"sliding_window": 4}),
    "mistral no window": ("mistral", {"sliding_window": None}),
    "qwen2 windows above": (
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 4,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3 biases": ("qwen3", {"attention_bias": True}),
    "gemma2 no caps": ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3 scaled far layers": (
        "gemma3_text",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            }
        },
    ),
    "gemma3 caps": ("gemma3_text", {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "smollm3 windows": ("smollm3", {"use_sliding_window": True, "sliding_window": 4}),
    "smollm3 windows by layer type": (
        "smollm3",
        {"layer_types": [*["sliding_attention", "full_attention"] * 2, "sliding_attention"], "sliding_window": 4},
    ),
    "smollm3 chosen layers": ("smollm3", {"no_rope_layers": [0, 1, 1, 0, 1], "attention_bias": True}),
}


def reference_model(model_type: str, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A random model of transformers whose every tensor, norms and biases too, is far from its default."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **{**FAMILIES[model_type], "initializer_range": 0.2, **overrides})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def reference_folder(folder: Path, model_type: str, **overrides: Any) -> PreTrainedModel:
    """The same, saved to `folder`."""
    model = reference_model(model_type, **overrides)
    model.save_pretrained(folder)
    return model


def random_tokens(n_rows: int, n_tokens: int, seed: int = 1, d_vocab: int = D_VOCAB) -> Tensor:
    """Ids that mean nothing."""
    return torch.randint(0, d_vocab, (n_rows, n_tokens), generator=torch.Generator().manual_seed(seed))


def distance(ours: Tensor, theirs: Tensor) -> float:
    """max|Δ| over max(1, max|theirs|): the measure that the contract bounds by 1e-5."""
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))


SIZES: dict[str, Any] = {"n_layers": 3, "n_ctx": 64, "d_model": 32, "d_vocab": D_VOCAB}
MODERN: dict[str, Any] = {
    **SIZES,
    "n_heads": 8,
    "n_kv_heads": 2,
    "d_head": 8,
    "norm": RMSNormConfig(),
    "position": RotaryConfig(),
    "feedforward": FeedForwardConfig(activation="silu", gated=True, bias=False),
}
WINDOW = WindowMaskConfig(size=4)

OURS: dict[str, ModelConfig] = {
    "classic": ModelConfig(n_heads=4, attention=AttentionConfig(qkv_bias=True, out_bias=True), **SIZES),
    "parallel": ModelConfig(n_heads=4, parallel=True, position=RotaryConfig(d_rotary=4), **SIZES),
    "grouped": ModelConfig(**MODERN),
    "windows": ModelConfig(mask=(WINDOW, CausalMaskConfig(), WINDOW), tied=False, **MODERN),
    "capped sandwich": ModelConfig(
        norm_placement="sandwich",
        attention=AttentionConfig(soft_cap=5.0, qk_norm="head"),
        mask=WINDOW,
        logit_soft_cap=3.0,
        embed_scale=5.0,
        **MODERN,
    ),
    "post norms": ModelConfig(norm_placement="post", attention=AttentionConfig(qk_norm="width"), **MODERN),
    "no positions in layer 2": ModelConfig(
        **{**MODERN, "position": (RotaryConfig(), NoPositionConfig(), RotaryConfig(theta=100.0))}
    ),
    "dynamic": ModelConfig(
        **{**MODERN, "position": RotaryConfig(scaling=DynamicScaling(factor=2.0, n_ctx_original=8))}
    ),
    "longrope": ModelConfig(
        **{
            **MODERN,
            "position": RotaryConfig(
                scaling=LongRopeScaling(
                    short_factor=(1.0,) * 4, long_factor=(2.0,) * 4, n_ctx_original=12, attention_factor=1.1
                )
            ),
        }
    ),
}


def random_network(config: ModelConfig, seed: int = 0) -> Transformer:
    """A network whose every tensor is random, with logits of the order of 1."""
    torch.manual_seed(seed)
    network = Transformer(config).eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim == 2:
                parameter.copy_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.add_(torch.randn_like(parameter) * (0.1 if "norm" in name else 0.2))
    return network
