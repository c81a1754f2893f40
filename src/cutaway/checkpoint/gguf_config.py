"""What a GGUF file's metadata say of its model, told as the config its family reads.

One parser serves both kinds of file: the metadata are translated to the fields of `transformers`, and the family
makes of them what it makes of a config.json. Where the format says nothing, what llama.cpp assumes is said here.

Source: the GGUF specification, ggml docs/gguf.md; llama.cpp's converter and model loaders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutaway.checkpoint.families import FAMILIES
from cutaway.checkpoint.families.family import Family
from cutaway.checkpoint.fields import Fields
from cutaway.checkpoint.gguf import GGUFFile
from cutaway.config import ModelConfig
from cutaway.errors import CheckpointError, DamagedFileError, UnsupportedError

EMBED, HEAD = "token_embd.weight", "output.weight"
ROPE_DIVISORS = "rope_freqs.weight"
ROPE_LONG, ROPE_SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One architecture of llama.cpp.

    `rope_pairs`: the converter laid the coordinates that turn together side by side in the rows of q and k.
    """

    family: str
    fields: Callable[[Fields, GGUFFile], dict[str, Any]]
    rope_pairs: bool = False


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the metadata say. `used` are the tensors that went into the config, `notes` what the user should know."""

    family: Family
    config: ModelConfig
    rope_pairs: bool
    used: tuple[str, ...]
    notes: list[str]


def read_config(file: GGUFFile) -> Reading:
    """The family and the config of the model in a file.

    Raises:
        UnsupportedError: an architecture, or a choice within one, that Cutaway does not implement.
        ConfigError: metadata that are missing or of the wrong type.
        CheckpointError: metadata that cannot belong to these tensors.
    """
    if file.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedError(f"{file.path}: general.architecture = {file.architecture!r:.80}: Cutaway knows {known}")
    architecture = ARCHITECTURES[file.architecture]
    prefix = f"{file.architecture}."
    metadata = {
        key.removeprefix(prefix): _as_written(value) for key, value in file.metadata.items() if key.startswith(prefix)
    }
    f = Fields(metadata, f"{file.path}, {file.architecture}")
    if metadata.get("expert_count"):
        raise _unsupported(f, "expert_count", "mixtures of experts are not implemented")
    if metadata.get("attention.causal") is False:
        raise _unsupported(f, "attention.causal", "only models that look back alone are implemented")
    n_layers = f.count("block_count")
    if n_layers > len(file.tensors):  # before anything is built for each of them
        raise CheckpointError(f"{f.origin}: block_count = {n_layers}, but the file has {len(file.tensors)} tensors")
    if EMBED not in file.tensors:
        raise CheckpointError(f"{file.path}: the file has no tensor {EMBED}: it holds no whole model")
    family = FAMILIES[architecture.family]
    fields = Fields(architecture.fields(f, file), str(file.path))
    config = family.read(fields)
    _check_size(config, file)
    if architecture.rope_pairs and f.count("rope.dimension_count", config.d_head) != config.d_head:
        raise _unsupported(f, "rope.dimension_count", f"here all {config.d_head} coordinates of a head turn")
    used = tuple(name for name in ROPE_TENSORS if name in file.tensors and ROTARY in metadata_used)
    return Reading(
        family=family, config=config, rope_pairs=architecture.rope_pairs, used=used, notes=f.notes + fields.notes
    )


def _as_written(value: Any) -> Any:
    """The decimal a single-precision number was written from: 1e-05, not 9.99999974737875e-06."""
    if isinstance(value, float) and float(np.float32(value)) == value:
        return float(str(np.float32(value)))
    return value


def _check_size(config: ModelConfig, file: GGUFFile) -> None:
    """Sizes far past what the file holds stop here, before a network of that size is even described."""
    needed = config.n_layers * config.d_model * (config.n_heads * config.d_head + config.d_ff)
    held = sum(int(np.prod(info.shape)) for info in file.tensors.values())
    if needed > held:
        raise CheckpointError(
            f"{file.path}: the metadata describe {needed} weights or more, the file has {held}: they are not of one model"
        )


def _unsupported(f: Fields, name: str, why: str) -> UnsupportedError:
    return UnsupportedError(f"{f.origin}: {name} = {f.data.get(name)!r:.80}: {why}")


def _same_in_all_layers(f: Fields, name: str, default: int | None = None) -> int:
    """A count that the format allows to differ from layer to layer."""
    value = f.data.get(name)
    if isinstance(value, list) and value:
        if any(entry != value[0] for entry in value):
            raise _unsupported(f, name, "only models whose layers are all alike are implemented")
        return Fields({name: value[0]}, f.origin).count(name)
    return f.count(name, default)


def _window(f: Fields, default: int | None = None) -> int | None:
    """The sliding window; 0 and absence are none, unless the architecture has a default."""
    if f.data.get(WINDOW, default) in (None, 0):
        return None
    return f.count(WINDOW, default)


def _layer_types(f: Fields, period: int) -> list[str]:
    """Every `period`-th layer sees everything, the others through the window; the file may say it layer by layer."""
    n_layers = f.count("block_count")
    if isinstance(f.data.get(PATTERN), list):
        windowed = [bool(entry) for entry in f.items(PATTERN, int, n_layers)]
    else:
        period = f.count(PATTERN, period)
        windowed = [i % period < period - 1 for i in range(n_layers)]
    return ["sliding_attention" if here else "full_attention" for here in windowed]


# --- rotary ------------------------------------------------------------------------------------------------


def _rotary(f: Fields, file: GGUFFile, d_head: int, theta: str = "rope_theta", share: str = "partial_rotary_factor") -> dict[str, Any]:
    """The fields of a rotation, under the names that the family gives its base and its share."""
    if "rope.freq_base" not in f:
        f.notes.append(f"{file.path} has no {file.architecture}.rope.freq_base: the format's default 10000 is used")
    d_rotary = f.count("rope.dimension_count", d_head)
    fields: dict[str, Any] = {theta: f.number("rope.freq_base", 10_000.0), "rope_scaling": _scaling(f, file, d_rotary)}
    if d_rotary != d_head:
        fields[share] = (d_rotary + 0.5) / d_head  # the family multiplies by d_head and rounds down
    return fields


def _scaling(f: Fields, file: GGUFFile, d_rotary: int) -> dict[str, Any] | None:
    kind = f.text("rope.scaling.type", "linear")
    # A factor of 0 is none; the second is its name in old files.
    factors = [f.number(name) for name in ("rope.scaling.factor", "rope.scale_linear") if f.data.get(name)]
    factor = factors[0] if factors and kind != "none" else 1.0
    original = f.count("rope.scaling.original_context_length", f.count("context_length"))
    if ROPE_LONG in file.tensors or ROPE_SHORT in file.tensors or kind == "longrope":
        return {
            "rope_type": "longrope",
            "short_factor": _divisors(file, ROPE_SHORT, d_rotary),
            "long_factor": _divisors(file, ROPE_LONG, d_rotary),
            "attention_factor": f.optional_number("rope.scaling.attn_factor"),
            "original_max_position_embeddings": original,
        }
    if kind == "yarn":
        if ROPE_DIVISORS in file.tensors or f.data.get("rope.scaling.yarn_log_multiplier"):
            raise _unsupported(f, "rope.scaling.type", "yarn is implemented in its plain form alone")
        return {
            "rope_type": "yarn",
            "factor": factor,
            "attention_factor": f.optional_number("rope.scaling.yarn_attn_factor"),
            "beta_fast": f.number("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": f.number("rope.scaling.yarn_beta_slow", 1.0),
            "original_max_position_embeddings": original,
        }
    if kind not in ("none", "linear"):
        raise _unsupported(f, "rope.scaling.type", "Cutaway knows none, linear, yarn, longrope")
    if ROPE_DIVISORS in file.tensors:
        # Llama 3's scaling comes worked out. Divisors that are the same at every length say it exactly.
        divisors = [divisor * factor for divisor in _divisors(file, ROPE_DIVISORS, d_rotary)]
        both = {"short_factor": divisors, "long_factor": divisors}
        return {"rope_type": "longrope", **both, "attention_factor": 1.0, "original_max_position_embeddings": original}
    return None if factor == 1.0 else {"rope_type": "linear", "factor": factor}


def _divisors(file: GGUFFile, name: str, d_rotary: int) -> list[float]:
    """One number for each pair of coordinates that turns."""
    if name not in file.tensors:
        raise CheckpointError(f"{file.path}: the file has no tensor {name}, which its rotary scaling needs")
    shape = file.tensors[name].shape
    if shape != (d_rotary // 2,):
        raise DamagedFileError(f"{file.path}: {name} has shape {list(shape)}, {d_rotary // 2} frequencies turn")
    return [float(value) for value in file.read(name).tolist()]


# --- the architectures -------------------------------------------------------------------------------------


def _llama(f: Fields, file: GGUFFile) -> dict[str, Any]:
    """What llama and its relatives share."""
    d_model, n_heads = f.count("embedding_length"), _same_in_all_layers(f, "attention.head_count")
    d_head = f.count("attention.key_length", max(d_model // n_heads, 1))
    if f.count("attention.value_length", d_head) != d_head:
        raise _unsupported(f, "attention.value_length", f"keys and values of one width ({d_head}) are implemented")
    return {
        "hidden_size": d_model,
        "num_hidden_layers": f.count("block_count"),
        "num_attention_heads": n_heads,
        "num_key_value_heads": _same_in_all_layers(f, "attention.head_count_kv", n_heads),
        "head_dim": d_head,
        "intermediate_size": _same_in_all_layers(f, "feed_forward_length"),
        "vocab_size": file.tensors[EMBED].shape[0],
        "max_position_embeddings": f.count("context_length"),
        "rms_norm_eps": f.number("attention.layer_norm_rms_epsilon"),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors or "blk.0.attn_qkv.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
        "tie_word_embeddings": HEAD not in file.tensors,
        **_rotary(f, file, d_head),
    }


def _without_window(f: Fields, file: GGUFFile) -> dict[str, Any]:
    if _window(f) is not None:  # OLMo 3 in the clothes of OLMo 2, for one
        raise _unsupported(f, WINDOW, f"{file.architecture} is implemented without windows")
    return _llama(f, file)


def _phi3(f: Fields, file: GGUFFile) -> dict[str, Any]:
    return _llama(f, file) | {"sliding_window": _window(f)}


def _gemma(f: Fields, file: GGUFFile, *, n_layers_27b: int, layer_types: list[str]) -> dict[str, Any]:
    """The scale of the scores stands in no file: it is 1/√d_head but for the largest model, known by its depth."""
    fields = _llama(f, file)
    is_27b = fields["num_hidden_layers"] == n_layers_27b
    scalar = fields["hidden_size"] // fields["num_attention_heads"] if is_27b else fields["head_dim"]
    return fields | {"query_pre_attn_scalar": scalar, "layer_types": layer_types}


def _gemma2(f: Fields, file: GGUFFile) -> dict[str, Any]:
    return _gemma(f, file, n_layers_27b=46, layer_types=_layer_types(f, period=2)) | {
        "sliding_window": f.count(WINDOW, 4096),
        "attn_logit_softcapping": f.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": f.number("final_logit_softcapping", 30.0),
    }


def _gemma3(f: Fields, file: GGUFFile) -> dict[str, Any]:
    window = _window(f)
    layer_types = _layer_types(f, period=6) if window else ["full_attention"] * f.count("block_count")
    return _gemma(f, file, n_layers_27b=62, layer_types=layer_types) | {
        "sliding_window": window,
        "rope_local_base_freq": f.number("rope.freq_base_swa", 10_000.0),
        "final_logit_softcapping": f.optional_number("final_logit_softcapping"),
    }


def _gpt2(f: Fields, file: GGUFFile) -> dict[str, Any]:
    return {
        "n_layer": f.count("block_count"),
        "n_positions": f.count("context_length"),
        "n_embd": f.count("embedding_length"),
        "n_head": _same_in_all_layers(f, "attention.head_count"),
        "n_inner": _same_in_all_layers(f, "feed_forward_length"),
        "vocab_size": file.tensors[EMBED].shape[0],
        "layer_norm_epsilon": f.number("attention.layer_norm_epsilon"),
        "tie_word_embeddings": HEAD not in file.tensors,
    }


def _gptneox(f: Fields, file: GGUFFile) -> dict[str, Any]:
    d_model, n_heads = f.count("embedding_length"), _same_in_all_layers(f, "attention.head_count")
    return {
        "hidden_size": d_model,
        "num_hidden_layers": f.count("block_count"),
        "num_attention_heads": n_heads,
        "intermediate_size": _same_in_all_layers(f, "feed_forward_length"),
        "vocab_size": file.tensors[EMBED].shape[0],
        "max_position_embeddings": f.count("context_length"),
        "layer_norm_eps": f.number("attention.layer_norm_epsilon"),
        "use_parallel_residual": f.flag("use_parallel_residual", True),
        "attention_bias": "blk.0.attn_qkv.bias" in file.tensors,
        "tie_word_embeddings": HEAD not in file.tensors,
        **_rotary(f, file, max(d_model // n_heads, 1), theta="rotary_emb_base", share="rotary_pct"),
    }


ARCHITECTURES = {
    "gpt2": Architecture(family="gpt2", fields=_gpt2),
    "gptneox": Architecture(family="gpt_neox", fields=_gptneox),
    "llama": Architecture(family="llama", fields=_without_window, rope_pairs=True),
    "qwen2": Architecture(family="qwen2", fields=_without_window),
    "qwen3": Architecture(family="qwen3", fields=_without_window),
    "gemma2": Architecture(family="gemma2", fields=_gemma2),
    "gemma3": Architecture(family="gemma3_text", fields=_gemma3),
    "phi3": Architecture(family="phi3", fields=_phi3),
    "olmo2": Architecture(family="olmo2", fields=_without_window),
    "smollm3": Architecture(family="smollm3", fields=_without_window, rope_pairs=True),
}
