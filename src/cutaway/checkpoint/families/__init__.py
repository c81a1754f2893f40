"""The foreign families, by their `model_type`."""

from __future__ import annotations

from cutaway.checkpoint.families import (
    gemma2,
    gemma3,
    gpt2,
    gpt_neox,
    llama,
    mistral,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    smollm3,
)
from cutaway.checkpoint.families.family import Family

FAMILIES: dict[str, Family] = {
    module.FAMILY.model_type: module.FAMILY
    for module in (gpt2, gpt_neox, llama, mistral, qwen2, qwen3, gemma2, gemma3, phi3, olmo2, smollm3)
}
