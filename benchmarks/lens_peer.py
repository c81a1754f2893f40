"""TransformerLens in a process of its own: `python lens_peer.py FOLDER`, then a job a line, its seconds a line back.

It may live in another environment, so nothing here is ours. A job is "forward T" or "cache T".
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
            found = bridge.run_with_cache(tokens) if job == "cache" else bridge(tokens)
        print(time.perf_counter() - start, flush=True)
        del found


main(sys.argv[1])
