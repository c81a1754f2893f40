"""Reading a long prompt: speed against transformers, and memory against the length."""

from __future__ import annotations

from statistics import median

import torch
from transformers import PreTrainedModel

from benchmarks import machine
from benchmarks.peers import smollm2
from cutaway import LanguageModel
from cutaway.generate.decoding import next_scores
from cutaway.nn.cache import Cache

LENGTHS = (1024, 4096, 8192)


def main() -> None:
    """Print the ratio and the peak memory above the model, per token, at each length."""
    print("prompt: SmolLM2-135M, fp32, one prompt into an empty cache, last position's scores")
    ours, theirs = smollm2(torch.float32)
    for length in LENGTHS:
        compare(ours, theirs, length)
    print()


def compare(ours: LanguageModel, theirs: PreTrainedModel, length: int) -> None:
    """One line of the table."""
    tokens = torch.randint(1000, 40000, (length,), generator=torch.Generator().manual_seed(0)).tolist()

    @torch.inference_mode()
    def run_ours() -> None:
        next_scores(ours.network, [tokens], Cache(ours.config, 1, ours.network.embed.weight))

    @torch.inference_mode()
    def run_theirs() -> None:
        theirs(torch.tensor([tokens]), use_cache=True, logits_to_keep=1)

    peak = machine.peak_memory(run_ours)
    fast, slow, _ = machine.pairs(run_ours, run_theirs, n=15 if length < 4096 else 5)
    print(
        f"  T = {length:5}   {length / median(fast):6.0f} tokens/s   ratio {machine.median_ratio(slow, fast):5.2f}   "
        f"peak {peak / 1e6:6.0f} MB, {peak / length / 1e3:5.1f} kB a token"
    )
