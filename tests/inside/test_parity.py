"""What is inside equals what transformers (eager) has inside: hidden states and attention, 1e-5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cutaway.checkpoint.folder import load_folder
from cutaway.inside.names import fitting
from cutaway.inside.passes import run_texts
from cutaway.inside.tap import Row, TraceTap
from support.tiny import FAMILIES, VARIANTS, distance, random_tokens, reference_folder

INSIDE = [
    "llama multi-query",
    "llama multi-head",
    "llama dynamic, past the context",
    "phi3 partial",
    "phi3 longrope, long",
    "phi3 window",
    "qwen2 windows above",
    "gemma2 no caps",
    "smollm3 chosen layers",
    "gpt_neox sequential",
]
CASES: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in FAMILIES}
CASES |= {name: VARIANTS[name] for name in INSIDE}


@pytest.mark.parametrize("case", CASES)
def test_hidden_states_and_patterns_equal_the_reference(case: str, tmp_path: Path) -> None:
    """Windows of 4 over 20 tokens and grouped queries among them; transformers norms its last hidden state."""
    model_type, overrides = CASES[case]
    theirs = reference_folder(tmp_path, model_type, **overrides)
    network, _ = load_folder(tmp_path)
    tokens = random_tokens(1, 20)
    with torch.inference_mode():
        expected = theirs(tokens, output_attentions=True, output_hidden_states=True, use_cache=False)
    keep = ["blocks.*.resid_pre", "blocks.*.attn.pattern", "final_norm"]
    row, tap = Row(n_prompt=20), TraceTap(fitting(network.config, keep, [(20, 20)]), [])
    run_texts(network, tap, [row], tokens.tolist())
    found = row.values()

    n_layers = network.config.n_layers
    assert len(expected.hidden_states) == n_layers + 1
    assert len(expected.attentions) == n_layers
    for layer in range(n_layers):
        assert distance(found[f"blocks.{layer}.resid_pre"], expected.hidden_states[layer]) <= 1e-5
        assert distance(found[f"blocks.{layer}.attn.pattern"], expected.attentions[layer]) <= 1e-5
    assert distance(found["final_norm"], expected.hidden_states[-1]) <= 1e-5
