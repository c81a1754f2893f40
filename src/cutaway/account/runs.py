"""Runs that others have published, and what the account makes of them: the same quantity, predicted, and the error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cutaway.account import flops, parameters
from cutaway.account.hardware import HARDWARE
from cutaway.account.scale import SHARE, scale
from cutaway.config import ModelConfig
from cutaway.presets import PRESETS

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One published number beside ours."""

    run: str
    quantity: str
    published: float
    predicted: float
    note: str
    source: str

    @property
    def error(self) -> float:
        """How far ours is from theirs, as a share of theirs."""
        return self.predicted / self.published - 1


def comparisons() -> list[Comparison]:
    """Every published number."""
    return [*_gpt3(), *_maxtext(), *_torchtitan(), *_llama2(), *_llm_c(), *_nanogpt()]


def _gpt3() -> Iterator[Comparison]:
    config, n_tokens = PRESETS["gpt3"], 300 * 10**9
    source = "arXiv:2005.14165, table D.1"
    yield Comparison(
        run="GPT-3 175B, 300 B tokens",
        quantity="training, 6 · parameters · tokens [FLOP]",
        published=3.14e23,
        predicted=6.0 * parameters.total(config) * n_tokens,
        note="the paper's own formula",
        source=source,
    )
    yield Comparison(
        run="GPT-3 175B, 300 B tokens",
        quantity="training [FLOP]",
        published=3.14e23,
        predicted=float(flops.training(config, 2048).total * n_tokens // 2048),
        note="the paper leaves out scores and mixing, which are 2.7 % here",
        source=source,
    )


def _maxtext() -> Iterator[Comparison]:
    config = PRESETS["llama2-7b"]
    full, halved = (flops.training(config, 8192, halved=half) for half in (False, True))
    rows = (
        ("scores and mixing, the whole square", 422.21, 3 * full.forward.squares),
        ("scores and mixing, the causal half", 211.11, 3 * halved.forward.squares),
        ("everything, the whole square", 1721.22, full.total),
        ("everything, the causal half", 1510.11, halved.total),
    )
    for quantity, published, one_window in rows:
        yield Comparison(
            run="MaxText, Llama 2 7B, 4 windows of 8192",
            quantity=f"training: {quantity} [TFLOP]",
            published=published,
            predicted=4 * one_window / 1e12,
            note="forward and backward, three times the forward pass",
            source="AI-Hypercomputer/maxtext, pull request 1988",
        )


def _torchtitan() -> Iterator[Comparison]:
    config, rate = PRESETS["llama3-8b"], HARDWARE["h100"].rates["bfloat16"]
    per_token = 3 * flops.per_token(config, 8192)
    for how, published, share in (("eager", 5762, 0.33), ("compiled", 6667, 0.39)):
        yield Comparison(
            run=f"torchtitan, Llama 3.1 8B, 8 H100, {how}",
            quantity="share of the peak",
            published=share,
            predicted=published * per_token / rate,
            note="our FLOPs at the tokens/s they measured",
            source=TORCHTITAN,
        )
    one, again = (
        scale(config, HARDWARE["h100"], 8, strategy="sharded", n_ctx=8192, n_windows=2, recompute=recompute)
        for recompute in (False, True)
    )
    assert one.tokens_per_second is not None
    yield Comparison(
        run="torchtitan, Llama 3.1 8B, 8 H100, compiled",
        quantity="tokens/s of a GPU",
        published=6667,
        predicted=one.tokens_per_second / 8,
        note=f"at {SHARE:.0%} of the peak",
        source=TORCHTITAN,
    )
    for how, held in (("nothing", one), ("every block", again)):
        yield Comparison(
            run="torchtitan, Llama 3.1 8B, 8 H100, eager",
            quantity=f"memory of a GPU, {how} recomputed [GiB]",
            published=82.4,
            predicted=held.n_bytes / GIB,
            note="they recompute a part of every block, which lies between; their loss holds all scores, ours a few",
            source=TORCHTITAN,
        )


TORCHTITAN = "pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"


def _llama2() -> Iterator[Comparison]:
    yield _hours(
        "Llama 2 7B, 2 T tokens, A100 80 GB",
        PRESETS["llama2-7b"],
        n_ctx=4096,
        n_tokens=2 * 10**12,
        n_gpus=1,
        hardware="a100",
        unit="GPU-hours",
        published=184_320,
        source="facebookresearch/llama, MODEL_CARD.md",
    )


def _llm_c() -> Iterator[Comparison]:
    run, source = "llm.c, GPT-2 124M, 18,865 steps of 524,288 tokens, 8 A100", "karpathy/llm.c, discussion 481"
    per_step = 3 * flops.per_token(PRESETS["gpt2"], 1024) * 524_288
    yield Comparison(
        run=run,
        quantity="share of the peak",
        published=0.6,
        predicted=per_step / 0.3 / (8 * HARDWARE["a100"].rates["bfloat16"]),
        note="our FLOPs at their 300 ms a step",
        source=source,
    )
    yield _hours(
        run,
        PRESETS["gpt2"],
        n_ctx=1024,
        n_tokens=18_865 * 524_288,
        n_gpus=8,
        hardware="a100",
        unit="minutes",
        published=94.3,
        source=f"{source} and scripts/run_gpt2_124M.sh",
    )


def _nanogpt() -> Iterator[Comparison]:
    yield _hours(
        "nanoGPT, GPT-2 124M, 600,000 steps of 491,520 tokens, 8 A100 40 GB",
        PRESETS["gpt2"],
        n_ctx=1024,
        n_tokens=600_000 * 491_520,
        n_gpus=8,
        hardware="a100-40gb",
        unit="days",
        published=4.0,
        source="karpathy/nanoGPT, README.md and config/train_gpt2.py",
    )


def _hours(
    run: str,
    config: ModelConfig,
    *,
    n_ctx: int,
    n_tokens: int,
    n_gpus: int,
    hardware: str,
    unit: str,
    published: float,
    source: str,
) -> Comparison:
    """A duration at the usual share of the peak, and the share that the published one means."""
    seconds_at_peak = 3 * flops.per_token(config, n_ctx) * n_tokens / (n_gpus * HARDWARE[hardware].rates["bfloat16"])
    unit_seconds = {"GPU-hours": 3600 / n_gpus, "minutes": 60, "days": 86_400}[unit]
    reached = seconds_at_peak / (published * unit_seconds)
    return Comparison(
        run=run,
        quantity=f"training [{unit}]",
        published=published,
        predicted=seconds_at_peak / SHARE / unit_seconds,
        note=f"at {SHARE:.0%} of the peak; the published time is {reached:.0%}",
        source=source,
    )
