"""Claim 11: two-thirds of a block is feed-forward."""

from __future__ import annotations

from dataclasses import replace

import torch

from cutaway.account import parameters
from cutaway.claims.claim import Claim, Evidence, met
from cutaway.claims.lab import Lab
from cutaway.config import ModelConfig
from cutaway.figures import Table
from cutaway.network import Transformer
from cutaway.presets import PRESETS

WIDTHS = (64, 256, 1024, 4096, 12288)
NEAR = 0.01  # of two-thirds: biases and norms take some
GPT3 = PRESETS["gpt3"]
BILLION = 10**9


def measure(lab: Lab, broken: bool) -> Evidence:
    """The shares of built blocks of the classic shape, of GPT-3, and of the model."""
    shares = {d: share_of(classic(d, broken)) for d in WIDTHS}
    gpt3 = replace(GPT3, d_ff=GPT3.d_model) if broken else GPT3
    groups = parameters.by_group(gpt3)
    config, network = lab.model.config, lab.model.network
    own, built = parameters.by_group(config), {name: p.numel() for name, p in network.named_parameters()}
    counted = sum(n for name, n in built.items() if ".ff." in name)
    table = Table(
        title="where GPT-3 keeps its weights",
        columns=["part", ">billions", ">share"],
        rows=[[name, n / BILLION, n / sum(groups.values())] for name, n in groups.items()],
    )
    return Evidence(
        holds=met(broken, (abs(share / (2 / 3) - 1) < NEAR for share in shares.values()))
        and sum(own.values()) == sum(built.values())
        and own["feed-forward"] == counted,
        figures={f"share of the feed-forward in a block at d = {d}": share for d, share in shares.items()}
        | {
            "GPT-3: billions of weights in feed-forwards": groups["feed-forward"] / BILLION,
            "GPT-3: billions of weights in all": sum(groups.values()) / BILLION,
            "GPT-3: share of the feed-forwards in all": groups["feed-forward"] / sum(groups.values()),
            "the model's own share in a block": share_of(config),
            "the model's own share in all": counted / sum(built.values()),
            "the model's weights, predicted": sum(own.values()),
            "the model's weights, counted": sum(built.values()),
            "the weights of its feed-forwards, predicted": own["feed-forward"],
            "the weights of its feed-forwards, counted": counted,
        },
        drawings=() if broken else (table,),
    )


def classic(d_model: int, narrow: bool) -> ModelConfig:
    """A GPT-2 block of that width; `narrow`: with a feed-forward no wider than the stream."""
    d_ff = d_model if narrow else 4 * d_model
    return replace(PRESETS["gpt2"], n_layers=1, n_heads=1, n_kv_heads=1, d_head=d_model, d_model=d_model, d_ff=d_ff)


def share_of(config: ModelConfig) -> float:
    """The feed-forward's share of one built block, biases and norms counted too."""
    with torch.device("meta"):
        block = Transformer(replace(config, n_layers=1, position=config.positions[0], mask=config.masks[0])).blocks[0]
    sizes = {name: p.numel() for name, p in block.named_parameters()}
    return sum(n for name, n in sizes.items() if name.startswith("ff.")) / sum(sizes.values())


CLAIM = Claim(
    number=11,
    title="Two-thirds of a block is feed-forward",
    says="Attention has four matrices of d × d, the feed-forward two of d × 4d: 4d² against 8d². Norms are lost in "
    "rounding. In GPT-3 that makes well over a hundred billion weights that work on each token by itself.",
    criterion=f"in built blocks of the classic shape the feed-forward has two-thirds of the weights, within "
    f"{NEAR:.0%}, at every width; and the model's own weights, all and its feed-forwards', are as many as the account "
    "says.",
    control="a feed-forward as wide as the stream: a third.",
    conditions=(
        "Two-thirds of a block, not of the model: embedding and positions come once, and shrink as the model grows.",
        "Gated feed-forwards have three matrices, grouped queries fewer keys and values: the model's own share says.",
        "'Routing' and 'storage' are pictures: how much a part knows is not counted by its weights.",
    ),
    measure=measure,
    code="sizes = {name: p.numel() for name, p in model.network.blocks[0].named_parameters()}\n"
    "print(sum(n for name, n in sizes.items() if name.startswith('ff.')) / sum(sizes.values()))",
)
