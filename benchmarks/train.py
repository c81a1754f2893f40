"""Training: tokens per second against transformers' GPT-2, seconds to a loss, and memory against the context."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import transformers
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import cutaway
from benchmarks import machine
from cutaway.account.flops import per_token
from cutaway.account.machine import matrix_peak
from cutaway.config import ModelConfig
from cutaway.network import Transformer
from cutaway.train.config import TrainConfig
from cutaway.train.initialise import initialise
from cutaway.train.loss import Objective
from cutaway.train.optimizer import build_optimizers, clip

PLAYS = Path(__file__).parents[2] / "shared" / "data" / "nine_plays.txt"
GOAL, NANOGPT = 1.917, 80.0  # a validation loss, and the seconds nanoGPT took to it on the machine of the first figures
Step = Callable[[], object]


def main() -> None:
    """Print the ratios."""
    transformers.logging.set_verbosity_error()
    print("train: the lecture's transformer from nothing, AdamW on both sides where they are compared")
    memory()
    small = TrainConfig(size="nano", n_ctx=64, batch_size=12, optimizer="adamw")
    compare("0.8 M parameters, fp32, as they come", small, 65, bf16=False, compiled=False, n=30)
    compare("0.8 M parameters, bf16, as they come", small, 65, bf16=True, compiled=False, n=30)
    compare("0.8 M parameters, fp32, both compiled", small, 65, bf16=False, compiled=True, n=30)
    large = TrainConfig(size="small", n_ctx=256, batch_size=8, optimizer="adamw")
    compare("13.8 M parameters, vocabulary 8192, bf16, both compiled", large, 8192, bf16=True, compiled=True, n=9)
    to_the_goal()
    print()


def compare(title: str, config: TrainConfig, d_vocab: int, *, bf16: bool, compiled: bool, n: int) -> None:
    """One line: our tokens per second, the ratio, and the share of the matrix peak."""
    model = config.model(d_vocab)
    ids = torch.randint(d_vocab, (config.batch_size, model.n_ctx + 1), generator=torch.Generator().manual_seed(0))
    fast, slow, _ = machine.pairs(
        step_of(ours(model, compiled), config, ids, bf16), step_of(theirs(model, compiled), config, ids, bf16), n
    )
    speed = config.batch_size * model.n_ctx / median(fast)
    flops = 3 * per_token(model, model.n_ctx) * speed
    share = flops / matrix_peak(torch.bfloat16 if bf16 else torch.float32, torch.device("cpu"))
    print(
        f"  {title}: {speed:6.0f} tokens/s   ratio {machine.median_ratio(slow, fast):.2f}   "
        f"{share:.0%} of the matrix peak ({flops / 1e9:.0f} GFLOP/s)"
    )


Loss = tuple[nn.Module, Callable[[Tensor], Tensor]]  # whose parameters are trained, and the mean loss of ids


def ours(model: ModelConfig, compiled: bool) -> Loss:
    """The objective that `cutaway train` runs."""
    objective = Objective(Transformer(model))
    initialise(objective.network, 0)
    if compiled:
        objective.compile()
    return objective, lambda ids: objective(ids[:, :-1], ids[:, 1:]) / ids[:, 1:].numel()


def theirs(model: ModelConfig, compiled: bool) -> Loss:
    """The same model from transformers, which shifts the ids itself."""
    network = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=model.d_vocab,
            n_positions=model.n_ctx,
            n_embd=model.d_model,
            n_layer=model.n_layers,
            n_head=model.n_heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    )
    run = torch.compile(network) if compiled else network
    return network, lambda ids: run(ids[:, :-1], labels=ids[:, :-1]).loss


def step_of(loss: Loss, config: TrainConfig, ids: Tensor, bf16: bool) -> Step:
    """Forward, backward, clip and step, the same optimizer for both."""
    module, mean_loss = loss
    optimizers = build_optimizers(module, config)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            value = mean_loss(ids)
        value.backward()
        clip(module, config.clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


def to_the_goal() -> None:
    """Seconds from the first step to the goal on the last tenth of the text, evaluations included."""
    if not PLAYS.exists():
        print(f"  {PLAYS} is not here: seconds to a loss not measured")
        return
    options = {
        "tokenizer": "chars",
        "size": "nano",
        "n_ctx": 64,
        "batch_size": 12,
        "sample_every": 0,
        "precision": "bf16",
    }
    steps = {"steps": 480, "lr": 0.01, "warmup": 20, "eval_every": 480, "eval_windows": 0, "save_every": 10**6}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = cutaway.train(PLAYS, out=Path(folder) / "run", **options, **steps)
        records = [json.loads(line) for line in (Path(folder) / "run" / "log.jsonl").read_text().splitlines()]
    reached = [r for r in records if r.get("val_loss", 9.0) <= GOAL]
    if not reached:
        print(f"  nine plays, characters: {result.best_loss:.3f} after {result.seconds:.0f} s, the goal is {GOAL}")
        return
    print(
        f"  nine plays, characters: validation loss {result.best_loss:.3f} after {result.step} steps and "
        f"{result.seconds:.1f} s; nanoGPT took {NANOGPT:.0f} s to {GOAL}: ratio {NANOGPT / result.seconds:.1f}"
    )


def memory() -> None:
    """Peak memory of a step above the model, at a context and at four times that."""
    peaks = []
    for n_ctx in (256, 512, 2048):  # the first to have all that is loaded once
        config = TrainConfig(size="nano", n_ctx=n_ctx, batch_size=1, optimizer="adamw")
        ids = torch.randint(65, (1, n_ctx + 1))
        step = step_of(ours(config.model(65), compiled=False), config, ids, bf16=False)
        peaks.append(machine.peak_memory(step))
    print(
        f"  peak memory of a step: {peaks[1] / 1e6:.0f} MB at 512 tokens, {peaks[2] / 1e6:.0f} MB at 2048: "
        f"{peaks[2] / peaks[1]:.1f} times (4 is linear, 16 quadratic)"
    )
