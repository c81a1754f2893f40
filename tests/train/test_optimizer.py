"""Which optimizer moves what, and clipping."""

from __future__ import annotations

import torch
from torch.optim import AdamW, Muon

from cutaway.network import Transformer
from cutaway.presets import classic
from cutaway.train.config import TrainConfig
from cutaway.train.initialise import initialise
from cutaway.train.loss import Objective
from cutaway.train.optimizer import build_optimizers, clip, past, set_rate


def objective() -> Objective:
    network = Transformer(classic(2, 2, 16, 8, d_vocab=11))
    initialise(network, 0)
    return Objective(network)


def test_muon_takes_the_matrices_of_the_blocks_and_decay_spares_vectors() -> None:
    o = objective()
    adamw, muon = build_optimizers(o, TrainConfig())
    assert isinstance(adamw, AdamW)
    assert isinstance(muon, Muon)
    assert len(muon.param_groups[0]["params"]) == 2 * 4  # qkv, out, up, down
    decayed, spared = adamw.param_groups
    assert [tuple(p.shape) for p in decayed["params"]] == [(11, 16), (8, 16)]  # the table and the positions
    assert spared["weight_decay"] == 0.0
    assert all(p.ndim == 1 for p in spared["params"])
    assert sum(len(g["params"]) for opt in (adamw, muon) for g in opt.param_groups) == len(list(o.parameters()))


def test_adamw_alone_takes_all() -> None:
    o = objective()
    (adamw,) = build_optimizers(o, TrainConfig(optimizer="adamw"))
    assert sum(len(g["params"]) for g in adamw.param_groups) == len(list(o.parameters()))
    set_rate([adamw], 0.5)
    assert {g["lr"] for g in adamw.param_groups} == {0.5}


def test_clip_scales_the_common_norm_and_leaves_what_is_not_finite() -> None:
    layer = torch.nn.Linear(1, 2, bias=False)
    layer.weight.grad = torch.tensor([[3.0], [4.0]])
    assert clip(layer, 1.0) == 5.0
    torch.testing.assert_close(layer.weight.grad, torch.tensor([[0.6], [0.8]]))
    layer.weight.grad = torch.tensor([[float("nan")], [4.0]])
    assert str(clip(layer, 1.0)) == "nan"
    assert layer.weight.grad[1] == 4.0


def test_the_past_made_of_zeros_is_what_a_first_step_starts_from() -> None:
    """Restoring needs the slots before the first step; with zeros in them that step is bit for bit the same."""
    ids = torch.arange(8)[None]
    after = []
    for prepared in (False, True):
        o = objective()
        optimizers = build_optimizers(o, TrainConfig())
        if prepared:
            past(o, optimizers)
        o(ids, ids).backward()
        for optimizer in optimizers:
            optimizer.step()
        after.append(torch.cat([p.detach().flatten() for p in o.parameters()]))
    assert torch.equal(*after)
    kept = past(o, optimizers)
    assert {name.rsplit(".", 1)[1] for name in kept} == {"exp_avg", "exp_avg_sq", "step", "momentum_buffer"}


def test_first_numbers_follow_the_recipe() -> None:
    """Deviation 0.02, 0.02/√(2L) where the residual stream is written to, zeros and ones for vectors."""
    network = Transformer(classic(8, 4, 128, 64, d_vocab=1000))
    initialise(network, 0)
    block = network.blocks[3]
    assert abs(block.attn.qkv.weight.std() - 0.02) < 5e-4
    assert abs(block.ff.down.weight.std() - 0.02 / 4) < 1e-4
    assert abs(block.attn.out.weight.std() - 0.02 / 4) < 2e-4
    assert not block.attn.qkv.bias.any()
    assert (block.attn_norm.weight == 1).all()
    again = Transformer(classic(8, 4, 128, 64, d_vocab=1000))
    initialise(again, 0)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
