"""A plan by hand-sized numbers, and against the networks that are built by it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cutaway.account import memory, parameters
from cutaway.config import ModelConfig
from cutaway.errors import TrainingError
from cutaway.network import Transformer
from cutaway.presets import PRESETS, classic, llama
from cutaway.train import plan as room
from cutaway.train.plan import Plan, available_memory, host_memory, make_plan

CPU = torch.device("cpu")
GPT2 = classic(2, 4, 64, 128, 67)
LLAMA = llama(2, 4, 2, 64, 176, n_ctx=128, d_vocab=67)
CONFIGS = {
    "gpt2": GPT2,
    "gpt2 untied": replace(GPT2, tied=False),
    "llama": LLAMA,
    "llama tied": replace(LLAMA, tied=True),
    "sandwich": replace(LLAMA, norm_placement="sandwich"),
    "post": replace(LLAMA, norm_placement="post"),
}


@pytest.fixture(autouse=True)
def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "matrix_peak", lambda dtype, device: 1e9)


def plan_of(config: ModelConfig, **changes: Any) -> Plan:
    choices: dict[str, Any] = {"n_tokens": 1000, "n_val_tokens": 100, "n_documents": 3, "batch_size": 4}
    choices |= {"n_ctx": 32, "n_steps": 10, "optimizer": "adamw", "dtype": torch.float32, "device": CPU}
    return make_plan(config, **(choices | changes))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_parameters_are_those_of_the_network(config: ModelConfig) -> None:
    n = sum(parameter.numel() for parameter in Transformer(config).parameters())
    plan = plan_of(config)
    assert plan.n_parameters == n
    assert plan.memory["weights"] == plan.memory["gradients"] == 4 * n
    assert plan.memory["optimizer"] == 8 * n


def test_a_model_too_large_for_any_machine_is_counted_too() -> None:
    assert plan_of(PRESETS["gpt3"]).n_parameters == 174_604_259_328


def test_flops_by_hand() -> None:
    config = ModelConfig(n_layers=1, n_heads=2, d_model=4, d_ff=8, d_vocab=10, n_ctx=3)
    matrices = 4 * 12 + 4 * 4 + 2 * 4 * 8 + 4 * 10  # q, k, v; out; up and down; head
    scores_and_mixing = 2 * 2 * 3 * 4  # two products with 3 keys, 4 numbers wide, at 2 FLOP each
    assert 2 * matrices + scores_and_mixing == 384
    plan = plan_of(config, n_ctx=3, batch_size=2, n_steps=10, n_tokens=30)
    assert plan.flops_per_token == 3 * 384
    assert plan.tokens_per_step == 6
    assert plan.epochs == 2.0
    assert plan.n_flops == 3 * 384 * 60
    assert plan.seconds == pytest.approx(3 * 384 * 60 / (1e9 * 0.35))
    assert plan_of(config, n_ctx=3, batch_size=2, n_steps=10, n_processes=2, share=0.7).seconds == plan.seconds / 4


def test_activations_grow_with_the_tokens_at_once_and_not_with_their_square() -> None:
    assert memory.activations(GPT2, 256) == 4 * memory.activations(GPT2, 64)
    whole = plan_of(GPT2, batch_size=8).memory["activations"]
    assert plan_of(GPT2, batch_size=8, accumulate=4).memory["activations"] == whole // 4
    assert plan_of(GPT2, batch_size=8, accumulate=2, n_processes=2).memory["activations"] == whole // 4


def test_scores_are_held_a_chunk_at_a_time() -> None:
    large = replace(GPT2, d_vocab=50_000)
    short, long = (plan_of(large, n_ctx=n).memory["logits"] for n in (64, 128))
    assert short == long == pytest.approx(2 * 4 * 2**22 + 4 * 50_000 * 64, rel=0.02)


def test_muon_keeps_one_number_for_a_matrix_in_a_block() -> None:
    n_matrices = 2 * (64 * 192 + 64 * 64 + 2 * 64 * 256)
    adamw, muon = (plan_of(GPT2, optimizer=name).memory["optimizer"] for name in ("adamw", "muon"))
    assert adamw - muon == 4 * n_matrices


def test_shards_hold_a_share_and_the_blocks_at_work() -> None:
    deep = replace(GPT2, n_layers=32)
    whole, shard = plan_of(deep, n_processes=4), plan_of(deep, n_processes=4, sharded=True)
    assert shard.memory["optimizer"] == whole.memory["optimizer"] // 4
    assert whole.memory["weights"] // 4 < shard.memory["weights"] < whole.memory["weights"] // 3
    n_block = sum(math.prod(shape) for name, shape in parameters.shapes(deep).items() if name.startswith("blocks.0."))
    n_outside = whole.n_parameters - 32 * n_block
    assert shard.memory["gradients"] == whole.n_parameters + 4 * (2 * n_block + n_outside)


def test_a_plan_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    plan_of(GPT2)
    assert torch.equal(before, torch.get_rng_state())


def test_a_plan_is_plain_data() -> None:
    plan = plan_of(GPT2)
    assert Plan(**json.loads(json.dumps(plan.to_dict()))) == plan
    assert plan.to_dict()["n_documents"] == 3


def test_what_cannot_fit_is_refused_with_its_numbers() -> None:
    plan = plan_of(GPT2, batch_size=400)
    plan.check(plan.n_bytes)
    with pytest.raises(
        TrainingError, match=r"needs 1\d\d MB .*activations 1\d\d MB.*100 MB are available: lower --batch-size"
    ):
        plan.check(100_000_000)
    with pytest.raises(TrainingError, match=r"optimizer 1 MB.*1 MB are available: choose a smaller --size"):
        plan_of(GPT2, batch_size=1, n_ctx=1).check(1_000_000)


# --- memory there is -----------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    write(tmp_path / "proc/meminfo", "MemTotal:       9000 kB\nMemAvailable:   5000 kB\n")
    return tmp_path


def write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def test_without_groups_the_kernel_says_what_is_there(root: Path) -> None:
    assert host_memory(root) == 5000 * 1024


def test_the_tightest_group_counts(root: Path) -> None:
    """Version 2: the group itself has no limit, the one around it has."""
    write(root / "proc/self/cgroup", "0::/job/step\n")
    groups = root / "sys/fs/cgroup/job"
    write(groups / "step/memory.max", "max\n")
    write(groups / "step/memory.current", "1000\n")
    write(groups / "memory.max", "3000000\n")
    write(groups / "memory.current", "1000000\n")
    write(groups / "memory.stat", "anon 500000\ninactive_file 400000\n")
    assert host_memory(root) == 3_000_000 - 1_000_000 + 400_000


def test_a_container_that_does_not_see_its_own_path(root: Path) -> None:
    """Version 1: the group lies at the root of what is mounted; an unlimited one is a huge number."""
    write(root / "proc/self/cgroup", "9:cpu:/elsewhere\n4:memory:/docker/abc\n0::/\n")
    write(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000\n")
    write(root / "sys/fs/cgroup/memory/memory.usage_in_bytes", "500000\n")
    assert host_memory(root) == 1_500_000
    write(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert host_memory(root) == 5000 * 1024


def test_where_nothing_is_told_nothing_limits(tmp_path: Path) -> None:
    assert host_memory(tmp_path) > 1 << 60


def test_this_machine_has_some() -> None:
    assert available_memory(CPU) > 1 << 20
