"""Bytes against what tensors take: caches, optimizers, what autograd keeps, and the peaks of whole passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from cutaway.account import memory, parameters, peaks
from cutaway.account.measure import Live
from cutaway.config import CausalMaskConfig, ModelConfig, WindowMaskConfig
from cutaway.inside.trace import predict_bytes
from cutaway.network import Transformer
from cutaway.nn import kernel
from cutaway.nn.cache import Cache
from cutaway.nn.tap import IDLE, Tap
from cutaway.presets import PRESETS, classic, llama
from cutaway.train import loss
from cutaway.train.config import TrainConfig
from cutaway.train.optimizer import build_optimizers, past
from support.tiny import OURS

CONFIGS = {
    "gpt2": classic(2, 4, 64, 1024, 67),
    "gpt2, large vocabulary": classic(2, 4, 64, 1024, 3000),
    "llama": llama(2, 4, 2, 64, 176, n_ctx=1024, d_vocab=67),
    "llama, every head its own keys, narrow": llama(2, 4, 4, 64, 64, n_ctx=1024, d_vocab=67),
    "one layer": classic(1, 4, 64, 1024, 67),
} | {name: replace(config, n_ctx=1024) for name, config in OURS.items()}


def test_constants_are_those_of_the_rooms_they_speak_of() -> None:
    assert memory.CHUNK == kernel.CHUNK
    assert memory.SHORT == kernel.SHORT
    assert memory.SCORES == loss.CHUNK


def test_x19_what_a_trace_would_hold() -> None:
    """12 layers of 12 heads of 1024² patterns in fp32 are 576 MiB, here and where traces are refused."""
    gpt2 = PRESETS["gpt2"]
    assert 12 * memory.scores(gpt2, 1024, 1024) == 576 * 2**20
    assert predict_bytes(gpt2, "blocks.*.attn.pattern", 1024) == 576 * 2**20


@pytest.mark.parametrize("config", OURS.values(), ids=OURS)
def test_the_cache_is_as_built(config: ModelConfig) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        cache = Cache(config, 3, torch.zeros(0, dtype=dtype), 17)
        assert memory.kv_cache(config, 17, dtype.itemsize, 3) == cache.n_bytes


def test_grouped_heads_and_windows_shrink_the_cache() -> None:
    assert memory.kv_cache(PRESETS["llama3-8b"], 1, 2) == 2 * 32 * 8 * 128 * 2
    windows = replace(CONFIGS["gpt2"], mask=(WindowMaskConfig(size=10), CausalMaskConfig()))
    assert memory.kv_needed(windows, 100, 4) == 2 * 64 * 4 * (10 + 100)
    assert memory.kv_cache(windows, 100, 4) == 2 * 64 * 4 * (100 + 100)


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("config", [CONFIGS["gpt2"], OURS["windows"]], ids=["tied", "untied"])
def test_the_optimizer_keeps_what_the_account_says(config: ModelConfig, name: Any) -> None:
    network = Transformer(config)
    kept = past(network, build_optimizers(network, TrainConfig(optimizer=name)))
    numbers = sum(tensor.numel() for slot, tensor in kept.items() if not slot.endswith(".step"))
    assert memory.optimizer_numbers(config, name) == numbers


def test_weights_by_type() -> None:
    n = parameters.total(PRESETS["llama2-7b"])
    assert [memory.weights(PRESETS["llama2-7b"], size) for size in (4, 2, 0.5)] == [4 * n, 2 * n, n // 2]


# --- activations -------------------------------------------------------------------------------------------


class Everything(Tap):
    """Makes every block use the reference kernel."""

    def inside(self, scope: str) -> Tap:
        return self

    def wants(self, *names: str) -> bool:
        return "attn.scores" in names


def kept_by_autograd(
    config: ModelConfig, n_ctx: int, n_windows: int, dtype: torch.dtype, tap: Tap = IDLE, dropout: float = 0
) -> int:
    """Bytes of all that is saved for the backward pass, but for weights."""
    network = Transformer(config)
    if dropout:
        for block in network.blocks:
            block.drop = torch.nn.Dropout(dropout)
    weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=dtype is not torch.float32):
        x = network.final_norm(network.residual(torch.zeros(n_windows, n_ctx, dtype=torch.long), tap=tap))
    assert x.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "autocast"])
@pytest.mark.parametrize("n_ctx", [96, 600])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_activations_are_what_autograd_keeps(config: ModelConfig, n_ctx: int, dtype: torch.dtype) -> None:
    trained = memory.kernel_of_training(n_ctx, dtype.itemsize, "cpu")
    assert trained == ("products" if dtype is torch.bfloat16 and n_ctx == 96 else "fused")
    taps: dict[memory.KernelName, Tap] = {trained: IDLE, "reference": Everything()}
    held = memory.held(config, "adamw", narrow=dtype.itemsize)
    copies = held["weights"] - held["gradients"]
    if copies:
        copies -= config.d_model * config.d_vocab * dtype.itemsize  # the head is not run
    normed = 2 * n_ctx * config.d_model * 4  # what it would read
    for name, tap in taps.items():
        found = kept_by_autograd(config, n_ctx, 2, dtype, tap)
        foreseen = memory.activations(config, n_ctx, 2, narrow=dtype.itemsize, kernel=name)
        assert foreseen + copies - normed == pytest.approx(found, rel=0.03), name


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "autocast"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_dropout_keeps_what_it_multiplied_by(config: ModelConfig, dtype: torch.dtype) -> None:
    without, found = (kept_by_autograd(config, 96, 2, dtype, dropout=share) for share in (0, 0.1))
    plain, dropped = (
        memory.activations(config, 96, 2, narrow=dtype.itemsize, dropout=dropout) for dropout in (False, True)
    )
    assert dropped - plain == found - without


def test_activations_grow_with_the_square_only_where_patterns_are_kept() -> None:
    config = CONFIGS["gpt2"]
    assert memory.activations(config, 512) == 2 * memory.activations(config, 256)
    square = memory.activations(config, 512, kernel="reference") - 2 * memory.activations(
        config, 256, kernel="reference"
    )
    assert square == 2 * (4 * 4 + 1) * (512**2 - 2 * 256**2)  # two layers: four heads in fp32, and the mask


def test_recomputing_keeps_the_inputs_and_one_block() -> None:
    config = CONFIGS["llama"]
    per_block = (memory.activations(replace(config, n_layers=3), 64) - memory.activations(config, 64)) // 1
    less = memory.activations(config, 64) - memory.recomputed_activations(config, 64)
    assert less == per_block - 2 * 64 * 64 * 4


# --- peaks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_tokens", [32, 300])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_peak_of_a_prompt(config: ModelConfig, n_tokens: int) -> None:
    network = Transformer(config).eval()
    for room in (0, 9):
        with torch.inference_mode(), Live(network) as live:
            cache = Cache(config, 2, network.embed.weight, n_tokens + room)
            x = network.residual(torch.zeros(2, n_tokens, dtype=torch.long), cache)
            network.unembed(x[:, -1:])
        foreseen = peaks.prefill(config, n_tokens, n_texts=2, n_slots=n_tokens + room)
        assert foreseen == pytest.approx(live.peak, rel=0.1)


@pytest.mark.parametrize("n_tokens", [8, 32, 300])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_peak_of_a_training_step(config: ModelConfig, n_tokens: int) -> None:
    network = Transformer(config)
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    with Live(network) as live:
        tokens = torch.zeros(2, n_tokens, dtype=torch.long)
        for _ in range(2):
            live.peak = live.now  # the second step alone: the first makes what the optimizer keeps
            loss = torch.nn.functional.cross_entropy(network(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    found = live.peak + memory.weights(config)
    assert peaks.training(config, n_tokens, 2) == pytest.approx(found, rel=0.1)


def test_live_is_what_the_allocator_says() -> None:
    """torch's profiler sees every allocation, inside kernels too: the same peak."""
    network = Transformer(CONFIGS["llama"]).eval()
    tokens = torch.zeros(1, 300, dtype=torch.long)
    network(tokens)  # rotations keep their frequencies
    with torch.inference_mode(), Live(network) as live:
        network(tokens)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.inference_mode(), torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        network(tokens)
    results: Any = profiler.profiler.kineto_results  # type: ignore[union-attr]
    now = peak = 0
    for event in sorted((e for e in results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    assert live.peak == peak
