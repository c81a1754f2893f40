"""TransformerLens in a process of its own: `python lens_peer.py FOLDER`, then a job a line, its seconds a line back.

It may live in another environment, so nothing here is ours. A job is "forward T", "cache T", or "ablate T": one head
of a block in the middle at zero.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import transformers
from transformer_lens.model_bridge import TransformerBridge

N_THREADS = 2


def main(folder: str) -> None:
    """Say "ready", then time what is asked for."""
    torch.set_num_threads(N_THREADS)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    network = transformers.AutoModelForCausalLM.from_pretrained(
        Path(folder), attn_implementation="eager", dtype=torch.float32
    )
    bridge = TransformerBridge.boot_transformers(folder, hf_model=network.eval(), device="cpu")
    print("ready", flush=True)
    for line in sys.stdin:
        job, length = line.split()
        tokens = torch.arange(1000, 1000 + int(length))[None]
        start = time.perf_counter()
        with torch.inference_mode():
            found = JOBS[job](bridge, tokens)
        print(time.perf_counter() - start, flush=True)
        del found


def ablate(bridge: TransformerBridge, tokens: torch.Tensor) -> torch.Tensor:
    """The logits without one head."""

    def zero(z: torch.Tensor, hook: object) -> torch.Tensor:
        z[:, :, 3] = 0
        return z

    return bridge.run_with_hooks(tokens, fwd_hooks=[(f"blocks.{bridge.cfg.n_layers // 2}.attn.hook_z", zero)])


JOBS = {"forward": lambda bridge, tokens: bridge(tokens), "cache": TransformerBridge.run_with_cache, "ablate": ablate}
main(sys.argv[1])
