"""What a GGUF file's metadata say of its model, told as the config its family reads.

One parser serves both kinds of file: the metadata are translated to the fields of `transformers`, and the family
makes of them what it makes of a config.json. Where the file may be silent, the values are those llama.cpp takes.

Source: the GGUF specification, ggml docs/gguf.md; llama.cpp's converter and loader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cutaway.checkpoint.families import FAMILIES
from cutaway.checkpoint.families.family import Family
from cutaway.checkpoint.fields import Fields
from cutaway.checkpoint.gguf import GGUFFile
from cutaway.checkpoint.gguf_metadata import WINDOW, Metadata
from cutaway.config import ModelConfig
from cutaway.errors import CheckpointError, UnsupportedError

EMBED, HEAD = "token_embd.weight", "output.weight"
ROPE_DIVISORS = "rope_freqs.weight"
ROPE_LONG, ROPE_SHORT = "rope_factors_long.weight", "rope_factors_short.weight"


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One architecture of llama.cpp: the family it is, and that family's fields.

    `rope_pairs`: the converter laid the coordinates that turn together side by side in the rows of q and k.
    """

    family: str
    fields: Callable[[Metadata], dict[str, Any]]
    rope_pairs: bool = False


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the metadata say: `used` are the tensors that went into the config, `notes` what the user should know."""

    family: Family
    config: ModelConfig
    rope_pairs: bool
    used: list[str]
    notes: list[str]


def read_config(file: GGUFFile) -> Reading:
    """The family and the config of the model in a file.

    Raises:
        UnsupportedError: an architecture, or a choice within one, that Cutaway does not implement.
        ConfigError: metadata that are missing or of a wrong type.
        CheckpointError: metadata that cannot be of these tensors.
    """
    if file.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedError(f"{file.path}: general.architecture = {file.architecture!r:.80}: Cutaway knows {known}")
    architecture = ARCHITECTURES[file.architecture]
    m = Metadata(file)
    if m.data.get("expert_count"):
        raise m.unsupported("expert_count", "mixtures of experts are not implemented")
    if m.data.get("attention.causal") is False:
        raise m.unsupported("attention.causal", "only models that look back alone are implemented")
    if EMBED not in file.tensors:
        raise CheckpointError(f"{file.path}: the file has no tensor {EMBED}: it holds no whole model")
    n_layers = m.count("block_count")
    if n_layers > len(file.tensors):  # checked before anything is built for each of them
        raise CheckpointError(f"{m.origin}: block_count = {n_layers}, but the file has {len(file.tensors)} tensors")
    family = FAMILIES[architecture.family]
    fields = Fields(architecture.fields(m), str(file.path))
    config = family.read(fields)
    if architecture.rope_pairs and m.count("rope.dimension_count", config.d_head) != config.d_head:
        raise m.unsupported("rope.dimension_count", f"all {config.d_head} coordinates of a head turn here")
    return Reading(
        family=family, config=config, rope_pairs=architecture.rope_pairs, used=m.used, notes=m.notes + fields.notes
    )


# --- rotary ------------------------------------------------------------------------------------------------


def _rotary(
    m: Metadata, d_head: int, theta: str = "rope_theta", share: str = "partial_rotary_factor"
) -> dict[str, Any]:
    """The fields of a rotation, under the family's names for its base and for the share of a head that turns."""
    if "rope.freq_base" not in m:
        m.notes.append(f"no {m.file.architecture}.rope.freq_base in the file: the format's default 10000 is used")
    d_rotary = m.count("rope.dimension_count", d_head)
    return {
        theta: m.number("rope.freq_base", 10_000.0),
        share: (d_rotary + 0.5) / d_head,  # the family multiplies by d_head and rounds down
        "rope_scaling": _scaling(m, d_rotary),
    }


def _scaling(m: Metadata, d_rotary: int) -> dict[str, Any] | None:
    kind = m.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise m.unsupported("rope.scaling.type", "Cutaway knows none, linear, yarn, longrope")
    n_ctx_original = m.count("rope.scaling.original_context_length", m.count("context_length"))
    if ROPE_LONG in m.file.tensors or ROPE_SHORT in m.file.tensors or kind == "longrope":
        return {
            "rope_type": "longrope",
            "short_factor": m.divisors(ROPE_SHORT, d_rotary),
            "long_factor": m.divisors(ROPE_LONG, d_rotary),
            "attention_factor": m.optional_number("rope.scaling.attn_factor"),
            "original_max_position_embeddings": n_ctx_original,
        }
    # The second is the name in old files; 0 is no factor.
    factors = [m.number(name) for name in ("rope.scaling.factor", "rope.scale_linear") if m.data.get(name)]
    factor = factors[0] if factors and kind != "none" else 1.0
    if kind == "yarn":
        if ROPE_DIVISORS in m.file.tensors or m.data.get("rope.scaling.yarn_log_multiplier"):
            raise m.unsupported("rope.scaling.type", "yarn is implemented in its plain form alone")
        return {
            "rope_type": "yarn",
            "factor": factor,
            "attention_factor": m.optional_number("rope.scaling.yarn_attn_factor"),
            "beta_fast": m.number("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": m.number("rope.scaling.yarn_beta_slow", 1.0),
            "original_max_position_embeddings": n_ctx_original,
        }
    if ROPE_DIVISORS in m.file.tensors:
        # Llama 3's scaling comes worked out, a divisor a frequency: longrope says that exactly, the same at any length.
        divisors = [factor * divisor for divisor in m.divisors(ROPE_DIVISORS, d_rotary)]
        return {
            "rope_type": "longrope",
            "short_factor": divisors,
            "long_factor": divisors,
            "attention_factor": 1.0,
            "original_max_position_embeddings": n_ctx_original,
        }
    return None if factor == 1.0 else {"rope_type": "linear", "factor": factor}


# --- the architectures -------------------------------------------------------------------------------------


def _relative_of_llama(m: Metadata) -> dict[str, Any]:
    """What all but the two oldest share."""
    d_model, n_heads = m.count("embedding_length"), m.same_in_all_layers("attention.head_count")
    d_head = m.count("attention.key_length", max(d_model // n_heads, 1))
    if m.count("attention.value_length", d_head) != d_head:
        raise m.unsupported("attention.value_length", f"only values as wide as keys ({d_head}) are implemented")
    tensors = m.file.tensors
    return {
        "hidden_size": d_model,
        "num_hidden_layers": m.count("block_count"),
        "num_attention_heads": n_heads,
        "num_key_value_heads": m.same_in_all_layers("attention.head_count_kv", n_heads),
        "head_dim": d_head,
        "intermediate_size": m.same_in_all_layers("feed_forward_length"),
        "vocab_size": tensors[EMBED].shape[0],
        "max_position_embeddings": m.count("context_length"),
        "rms_norm_eps": m.number("attention.layer_norm_rms_epsilon"),
        "attention_bias": "blk.0.attn_q.bias" in tensors or "blk.0.attn_qkv.bias" in tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in tensors,
        "tie_word_embeddings": HEAD not in tensors,
        **_rotary(m, d_head),
    }


def _llama(m: Metadata) -> dict[str, Any]:
    if m.window() is not None:  # OLMo 3 comes as olmo2 with windows
        raise m.unsupported(WINDOW, f"{m.file.architecture} is implemented without windows")
    return _relative_of_llama(m)


def _phi3(m: Metadata) -> dict[str, Any]:
    """Where its scaling changes over stands at the top of its config."""
    fields = _relative_of_llama(m) | {"sliding_window": m.window()}
    original = "original_max_position_embeddings"
    return fields | {original: (fields["rope_scaling"] or {}).get(original, fields["max_position_embeddings"])}


def _gemma(m: Metadata, n_layers_27b: int) -> dict[str, Any]:
    """The scale of the scores stands in no file: 1/√d_head, but for the largest model, which its depth betrays."""
    fields = _relative_of_llama(m)
    is_27b = fields["num_hidden_layers"] == n_layers_27b
    fields["query_pre_attn_scalar"] = (
        fields["hidden_size"] // fields["num_attention_heads"] if is_27b else fields["head_dim"]
    )
    return fields


def _gemma2(m: Metadata) -> dict[str, Any]:
    return _gemma(m, n_layers_27b=46) | {
        "layer_types": m.layer_types(period=2),
        "sliding_window": m.count(WINDOW, 4096),
        "attn_logit_softcapping": m.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": m.number("final_logit_softcapping", 30.0),
    }


def _gemma3(m: Metadata) -> dict[str, Any]:
    window = m.window()
    return _gemma(m, n_layers_27b=62) | {
        "layer_types": m.layer_types(period=6) if window else ["full_attention"] * m.count("block_count"),
        "sliding_window": window,
        "rope_local_base_freq": m.number("rope.freq_base_swa", 10_000.0),
        "final_logit_softcapping": m.optional_number("final_logit_softcapping"),
    }


def _gpt2(m: Metadata) -> dict[str, Any]:
    return {
        "n_layer": m.count("block_count"),
        "n_positions": m.count("context_length"),
        "n_embd": m.count("embedding_length"),
        "n_head": m.same_in_all_layers("attention.head_count"),
        "n_inner": m.same_in_all_layers("feed_forward_length"),
        "vocab_size": m.file.tensors[EMBED].shape[0],
        "layer_norm_epsilon": m.number("attention.layer_norm_epsilon"),
        "tie_word_embeddings": HEAD not in m.file.tensors,
    }


def _gptneox(m: Metadata) -> dict[str, Any]:
    d_model, n_heads = m.count("embedding_length"), m.same_in_all_layers("attention.head_count")
    return {
        "hidden_size": d_model,
        "num_hidden_layers": m.count("block_count"),
        "num_attention_heads": n_heads,
        "intermediate_size": m.same_in_all_layers("feed_forward_length"),
        "vocab_size": m.file.tensors[EMBED].shape[0],
        "max_position_embeddings": m.count("context_length"),
        "layer_norm_eps": m.number("attention.layer_norm_epsilon"),
        "use_parallel_residual": m.flag("use_parallel_residual", True),
        "attention_bias": "blk.0.attn_qkv.bias" in m.file.tensors,
        "tie_word_embeddings": HEAD not in m.file.tensors,
        **_rotary(m, max(d_model // n_heads, 1), theta="rotary_emb_base", share="rotary_pct"),
    }


ARCHITECTURES = {
    "gpt2": Architecture(family="gpt2", fields=_gpt2),
    "gptneox": Architecture(family="gpt_neox", fields=_gptneox),
    "llama": Architecture(family="llama", fields=_llama, rope_pairs=True),
    "qwen2": Architecture(family="qwen2", fields=_llama),
    "qwen3": Architecture(family="qwen3", fields=_llama),
    "gemma2": Architecture(family="gemma2", fields=_gemma2),
    "gemma3": Architecture(family="gemma3_text", fields=_gemma3),
    "phi3": Architecture(family="phi3", fields=_phi3),
    "olmo2": Architecture(family="olmo2", fields=_llama),
    "smollm3": Architecture(family="smollm3", fields=_llama, rope_pairs=True),
}
