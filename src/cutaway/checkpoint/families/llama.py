"""llama: rotary, RMSNorm, SwiGLU, grouped-query; and what its many relatives share with it."""

from __future__ import annotations

from typing import Any

from cutaway.checkpoint.families.family import Family, read_activation, write_activation
from cutaway.checkpoint.fields import Fields
from cutaway.checkpoint.layout import Layout, stacked, whole, with_bias
from cutaway.checkpoint.rope import read_rotary, write_scaling
from cutaway.config import AttentionConfig, FeedForwardConfig, ModelConfig, RMSNormConfig, RotaryConfig

# Where each placement's norms are called what.
NORM_NAMES = {
    "pre": {"attn_norm": "input_layernorm", "ff_norm": "post_attention_layernorm"},
    "post": {"attn_post_norm": "post_attention_layernorm", "ff_post_norm": "post_feedforward_layernorm"},
    "sandwich": {
        "attn_norm": "input_layernorm",
        "attn_post_norm": "post_attention_layernorm",
        "ff_norm": "pre_feedforward_layernorm",
        "ff_post_norm": "post_feedforward_layernorm",
    },
}


def read_like_llama(
    f: Fields,
    *,
    theta: float = 10_000.0,
    n_ctx: int = 2048,
    tied: bool = False,
    eps: float = 1e-6,
    d_head: int | None = None,
    attention: AttentionConfig | None = None,
    activation: tuple[str, str] = ("hidden_act", "silu"),
    mlp_bias: bool = False,
    norm_offset: float = 0.0,
    partial: bool = False,
    **parts: Any,
) -> ModelConfig:
    """The config of a llama relative: the keywords are what differs from one to the next."""
    d_model, n_heads = f.count("hidden_size"), f.count("num_attention_heads")
    n_layers = f.n_layers()
    d_head = f.count("head_dim", d_head or max(d_model // n_heads, 1))
    n_ctx = f.count("max_position_embeddings", n_ctx)
    if "position" not in parts:
        parts["position"] = read_rotary(f, d_head=d_head, n_ctx=n_ctx, theta=theta, partial=partial)
    return ModelConfig(
        n_layers=n_layers,
        n_ctx=n_ctx,
        d_model=d_model,
        d_vocab=f.count("vocab_size"),
        n_heads=n_heads,
        n_kv_heads=f.count("num_key_value_heads", n_heads),
        d_head=d_head,
        d_ff=f.count("intermediate_size"),
        norm=RMSNormConfig(eps=f.number("rms_norm_eps", eps), offset=norm_offset),
        attention=attention or AttentionConfig(),
        feedforward=FeedForwardConfig(activation=read_activation(f, *activation), gated=True, bias=mlp_bias),
        tied=f.flag("tie_word_embeddings", tied),
        **parts,
    )


def write_like_llama(config: ModelConfig) -> dict[str, Any]:
    """The fields every llama relative has."""
    rotary = next((p for p in config.positions if isinstance(p, RotaryConfig)), RotaryConfig())
    fields = {
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.d_head,
        "intermediate_size": config.d_ff,
        "vocab_size": config.d_vocab,
        "max_position_embeddings": config.n_ctx,
        "rms_norm_eps": config.norm.eps,
        "hidden_act": write_activation(config.feedforward.activation, "gelu_pytorch_tanh"),
        "rope_theta": rotary.theta,
        "tie_word_embeddings": config.tied,
    }
    scaling = write_scaling(rotary)
    if scaling is not None:
        fields["rope_scaling"] = scaling
    if rotary.d_rotary is not None:
        fields["partial_rotary_factor"] = rotary.d_rotary / config.d_head
    return fields


def layout_like_llama(config: ModelConfig) -> Layout:
    """Separate q, k, v and gate, up projections; norms named by their placement."""
    layout: Layout = {"embed.weight": whole("model.embed_tokens.weight")}
    d_q, d_kv = config.n_heads * config.d_head, config.n_kv_heads * config.d_head
    options = config.attention
    for i in range(config.n_layers):
        ours, theirs = f"blocks.{i}", f"model.layers.{i}"
        for norm, name in NORM_NAMES[config.norm_placement].items():
            layout[f"{ours}.{norm}.weight"] = whole(f"{theirs}.{name}.weight")
        qkv = stacked([f"{theirs}.self_attn.{x}_proj" for x in "qkv"], (d_q, d_kv, d_kv))
        with_bias(layout, f"{ours}.attn.qkv", qkv, options.qkv_bias)
        if options.qk_norm is not None:
            inner = ".norm" if options.qk_norm == "width" else ""
            for x in "qk":
                layout[f"{ours}.attn.{x}_norm{inner}.weight"] = whole(f"{theirs}.self_attn.{x}_norm.weight")
        with_bias(layout, f"{ours}.attn.out", whole(f"{theirs}.self_attn.o_proj"), options.out_bias)
        gate_up = stacked([f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj"], (config.d_ff, config.d_ff))
        with_bias(layout, f"{ours}.ff.gate_up", gate_up, config.feedforward.bias)
        with_bias(layout, f"{ours}.ff.down", whole(f"{theirs}.mlp.down_proj"), config.feedforward.bias)
    layout["final_norm.weight"] = whole("model.norm.weight")
    layout["head.weight"] = whole("lm_head.weight")
    return layout


def read(f: Fields) -> ModelConfig:
    """A LlamaConfig."""
    bias = f.flag("attention_bias", False)
    attention = AttentionConfig(qkv_bias=bias, out_bias=bias)
    return read_like_llama(f, attention=attention, mlp_bias=f.flag("mlp_bias", False))


def write(config: ModelConfig) -> dict[str, Any]:
    """The inverse of `read`."""
    biases = {"attention_bias": config.attention.qkv_bias, "mlp_bias": config.feedforward.bias}
    return write_like_llama(config) | biases


FAMILY = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    read=read,
    write=write,
    layout=layout_like_llama,
    buffers=(r"\.rotary_emb\.inv_freq$",),
)
