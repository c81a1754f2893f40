"""Named sizes, as data: the published models people plan with, and two of ours.

Sources: GPT-2, Radford et al. 2019, and its released checkpoints; GPT-3, arXiv:2005.14165, table 2.1 (it alternates
dense and banded attention; the plain classic is given here); Llama, arXiv:2302.13971, 2307.09288 and 2407.21783;
Mistral 7B, arXiv:2310.06825; SmolLM2, arXiv:2502.02737. What a paper leaves out is taken from the released config.
"""

from __future__ import annotations

from dataclasses import replace

from cutaway.config import (
    AttentionConfig,
    FeedForwardConfig,
    Llama3Scaling,
    ModelConfig,
    RMSNormConfig,
    RotaryConfig,
    WindowMaskConfig,
)


def classic(n_layers: int, n_heads: int, d_model: int, n_ctx: int, d_vocab: int = 50257) -> ModelConfig:
    """The transformer of the lecture with GPT-2's biases: learned positions, LayerNorm, GELU, tied head."""
    return ModelConfig(
        n_layers=n_layers,
        n_heads=n_heads,
        d_model=d_model,
        n_ctx=n_ctx,
        d_vocab=d_vocab,
        attention=AttentionConfig(qkv_bias=True, out_bias=True),
    )


def llama(
    n_layers: int,
    n_heads: int,
    n_kv_heads: int,
    d_model: int,
    d_ff: int,
    *,
    n_ctx: int,
    d_vocab: int,
    theta: float = 10_000.0,
    eps: float = 1e-5,
    tied: bool = False,
) -> ModelConfig:
    """Rotary, RMSNorm, SwiGLU, grouped-query attention."""
    return ModelConfig(
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_model=d_model,
        d_ff=d_ff,
        n_ctx=n_ctx,
        d_vocab=d_vocab,
        norm=RMSNormConfig(eps=eps),
        position=RotaryConfig(theta=theta),
        feedforward=FeedForwardConfig(activation="silu", gated=True, bias=False),
        tied=tied,
    )


LLAMA3_2_ROPE = RotaryConfig(
    theta=500_000.0,
    scaling=Llama3Scaling(factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, n_ctx_original=8192),
)
LLAMA3_1_ROPE = RotaryConfig(
    theta=500_000.0,
    scaling=Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, n_ctx_original=8192),
)

PRESETS: dict[str, ModelConfig] = {
    "gpt2": classic(12, 12, 768, 1024),
    "gpt2-medium": classic(24, 16, 1024, 1024),
    "gpt2-large": classic(36, 20, 1280, 1024),
    "gpt2-xl": classic(48, 25, 1600, 1024),
    "gpt3": classic(96, 96, 12288, 2048),
    "llama-7b": llama(32, 32, 32, 4096, 11008, n_ctx=2048, d_vocab=32000, eps=1e-6),
    "llama2-7b": llama(32, 32, 32, 4096, 11008, n_ctx=4096, d_vocab=32000),
    "llama2-13b": llama(40, 40, 40, 5120, 13824, n_ctx=4096, d_vocab=32000),
    "llama2-70b": llama(80, 64, 8, 8192, 28672, n_ctx=4096, d_vocab=32000),
    "mistral-7b": replace(llama(32, 32, 8, 4096, 14336, n_ctx=32768, d_vocab=32000), mask=WindowMaskConfig(size=4096)),
    "llama3-8b": llama(32, 32, 8, 4096, 14336, n_ctx=8192, d_vocab=128256, theta=500_000.0),
    "llama3-70b": llama(80, 64, 8, 8192, 28672, n_ctx=8192, d_vocab=128256, theta=500_000.0),
    "llama3.1-405b": replace(llama(126, 128, 8, 16384, 53248, n_ctx=131072, d_vocab=128256), position=LLAMA3_1_ROPE),
    "llama3.2-1b": replace(
        llama(16, 32, 8, 2048, 8192, n_ctx=131072, d_vocab=128256, tied=True), position=LLAMA3_2_ROPE
    ),
    "smollm2-135m": llama(30, 9, 3, 576, 1536, n_ctx=8192, d_vocab=49152, theta=100_000.0, tied=True),
}
