"""Contract 1: logits equal transformers' for every family, and a saved folder loads there as the native class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from cutaway.checkpoint.folder import load_folder, save_folder
from support.tiny import FAMILIES, VARIANTS, distance, random_tokens, reference_folder

CASES: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in FAMILIES} | VARIANTS


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_the_reference_and_survive_a_save(case: str, tmp_path: Path) -> None:
    model_type, overrides = CASES[case]
    theirs = reference_folder(tmp_path / "theirs", model_type, **overrides)
    network, report = load_folder(tmp_path / "theirs")
    tokens = random_tokens(2, 20)
    with torch.inference_mode():
        expected, found = theirs(tokens).logits, network(tokens)
    assert distance(found, expected) <= 1e-5
    assert not report.unused
    assert len(report.used) == len(set(report.used))

    save_folder(network, tmp_path / "ours", preferred=model_type)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", attn_implementation="eager").eval()
    assert type(again) is type(theirs)
    with torch.inference_mode():
        assert distance(again(tokens).logits, found) <= 1e-5
    ours_again, _ = load_folder(tmp_path / "ours")
    assert ours_again.config == network.config
    for (name, saved), (_, kept) in zip(ours_again.named_parameters(), network.named_parameters(), strict=True):
        assert torch.equal(saved, kept), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_files_keep_their_type_and_their_numbers(dtype: torch.dtype, tmp_path: Path) -> None:
    """X16: a half-precision file works on the CPU, as it is or widened; the widened one equals the reference."""
    reference_folder(tmp_path / "f32", "llama").to(dtype).save_pretrained(tmp_path / "half")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "half", dtype=torch.float32).eval()
    as_stored, report = load_folder(tmp_path / "half")
    assert as_stored.embed.weight.dtype == dtype
    assert report.stored == str(dtype).removeprefix("torch.")
    widened, _ = load_folder(tmp_path / "half", dtype=torch.float32)
    tokens = random_tokens(1, 20)
    with torch.inference_mode():
        assert distance(widened(tokens), theirs(tokens).logits) <= 1e-5
        assert as_stored(tokens).isfinite().all()


def test_many_shards_are_written_and_read(tmp_path: Path) -> None:
    reference_folder(tmp_path / "theirs", "llama")
    network, _ = load_folder(tmp_path / "theirs")
    save_folder(network, tmp_path / "ours", preferred="llama", shard_bytes=10_000)
    assert len(list((tmp_path / "ours").glob("*.safetensors"))) > 2
    tokens = random_tokens(1, 10)
    again, _ = load_folder(tmp_path / "ours")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    with torch.inference_mode():
        assert torch.equal(again(tokens), network(tokens))
        assert distance(network(tokens), theirs(tokens).logits) <= 1e-5
