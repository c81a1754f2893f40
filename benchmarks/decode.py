"""Decoding one text, token by token: against transformers, and against the memory's own speed.

Every token reads every weight once, so no program can give more tokens a second than the memory's read speed
divided by the weights' size. The share of that limit says how much is left to gain.
"""

from __future__ import annotations

from statistics import median

import torch

from benchmarks import machine
from benchmarks.peers import TEXT, smollm2

N_TOKENS = 128


def main() -> None:
    """Print tokens a second, the ratio, and the share of the memory-bandwidth limit, in fp32 and bf16."""
    print(f"decode: SmolLM2-135M, batch 1, {N_TOKENS} tokens, greedy")
    for dtype in (torch.float32, torch.bfloat16):
        compare(dtype)
    print()


def compare(dtype: torch.dtype) -> None:
    """One line of the table."""
    ours, theirs = smollm2(dtype)
    ours.end_ids = frozenset()  # a fixed number of tokens, whatever they say
    prompt = torch.tensor([ours.encode(TEXT)])

    def run_ours() -> None:
        out = ours.generate(TEXT, max_tokens=N_TOKENS, temperature=0)
        assert len(out.tokens) == N_TOKENS

    @torch.inference_mode()
    def run_theirs() -> None:
        out = theirs.generate(prompt, do_sample=False, min_new_tokens=N_TOKENS, max_new_tokens=N_TOKENS)
        assert out.shape[1] - prompt.shape[1] == N_TOKENS

    fast, slow, bandwidth = machine.pairs(run_ours, run_theirs, n=5)
    n_bytes = sum(p.nbytes for p in ours.network.parameters())
    at_limit = [N_TOKENS * n_bytes / speed for speed in bandwidth]
    print(
        f"  {str(dtype).removeprefix('torch.'):9}"
        f"cutaway {N_TOKENS / median(fast):6.1f} tokens/s   transformers {N_TOKENS / median(slow):6.1f}   "
        f"ratio {machine.median_ratio(slow, fast):5.2f}   "
        f"{machine.median_ratio(at_limit, fast):4.0%} of the memory's limit ({median(bandwidth) / 1e9:.1f} GB/s)"
    )
