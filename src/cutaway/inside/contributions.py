"""Contributions: how much every part of the model adds to one logit, or to the difference of two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from cutaway.config import ModelConfig
from cutaway.errors import InsideError
from cutaway.figures import Bars, Cell, Figure, HeatMap, Numbers, Prose, Result, Table, Tokens, plain
from cutaway.inside.labels import label, labels
from cutaway.inside.names import AFTER, names
from cutaway.inside.targets import Reader, Token, count_of, position_of, token_of
from cutaway.inside.trace import LIMIT, Trace, trace
from cutaway.network import Transformer
from cutaway.nn.block import Block
from cutaway.nn.norm import LayerNorm, RMSNorm

NOTE = (
    "The parts add up because the norms between a part and the logit are held at the statistics of this pass: in a "
    "pass without the part they would be others.",
    "Only the direct way is counted, from a part straight to the logit. What a head does by changing what later heads "
    "and feed-forwards read is in their bars; to see it, ablate the head.",
)
ALONE = "One logit alone says little, because a part may raise all logits alike: give versus, and that cancels."


@dataclass(frozen=True, kw_only=True, eq=False)
class Contributions(Result):
    """The parts of `value`, which is the target's logit at a position, less that of `versus` where there is one.

    `value` = embedding + positions + Σ heads + Σ biases + Σ feed_forwards + final_bias + remainder, the last being
    what rounding leaves. Where the model caps its logits, `value` is before the cap and `logit` after it; otherwise
    they are the same.
    """

    tokens: tuple[int, ...]
    labels: tuple[str, ...]
    position: int
    target: int
    versus: int | None
    target_label: str
    versus_label: str | None
    value: float
    logit: float
    soft_cap: float | None
    embedding: float
    positions: float | None  # of the learned position row; None where the model has none
    heads: Numbers  # [layer, head]
    biases: Numbers  # [layer]: of attention's output, and of a norm behind it
    feed_forwards: Numbers  # [layer], with their biases
    final_bias: float  # of the final norm
    remainder: float
    n_shown: int

    @property
    def heading(self) -> str:
        return f"What adds to {self._what} at {self.labels[self.position]} ({self.position})"

    @property
    def parts(self) -> dict[str, float]:
        """Every part by name, without the remainder: "embedding", "head 3.5", "ff 3", …"""
        found = {"embedding": self.embedding}
        if self.positions is not None:
            found["positions"] = self.positions
        for layer, heads in enumerate(self.heads):
            found |= {f"head {layer}.{head}": float(value) for head, value in enumerate(heads)}
            found[f"bias {layer}"] = float(self.biases[layer])
            found[f"ff {layer}"] = float(self.feed_forwards[layer])
        return found | {"final bias": self.final_bias}

    @property
    def largest(self) -> list[tuple[str, float]]:
        """The parts that did most, for or against."""
        return sorted(self.parts.items(), key=lambda part: -abs(part[1]))[: self.n_shown]

    def figures(self) -> list[Figure]:
        largest = self.largest
        n_rest = len(self.parts) - len(largest)
        rest = [(f"{n_rest} others and rounding", self.value - sum(value for _, value in largest))]
        shown = [*largest, *rest] if n_rest else largest
        layers = [str(layer) for layer in range(len(self.heads))]
        return [
            Tokens(title="The text", labels=self.labels, ids=self.tokens),
            Bars(
                title=f"What did most for {self._what}, or against it",
                note=f"Together they are {self.value:.4g}.".replace("-", "−"),
                labels=[name for name, _ in shown],
                values=[value for _, value in shown],
                unit="logit",
            ),
            HeatMap(
                title="Every head",
                rows=layers,
                columns=[str(head) for head in range(self.heads.shape[1])],
                values=self.heads,
                row_axis="layer",
                column_axis="head",
                says="head {row}.{column} adds {value}",
                scale="signed",
                unit="logit",
            ),
            Bars(
                title="Every feed-forward",
                labels=layers,
                values=[float(value) for value in self.feed_forwards],
                unit="logit",
            ),
            self._sums(),
            Prose(title="What this leaves out", lines=self._left_out()),
        ]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "contributions"} | {name: plain(value, 9) for name, value in vars(self).items()}

    @property
    def _what(self) -> str:
        return self.target_label if self.versus_label is None else f"{self.target_label} over {self.versus_label}"

    def _sums(self) -> Table:
        positions: list[list[Cell]] = [] if self.positions is None else [["positions", self.positions]]
        return Table(
            title="The sum",
            note="The remainder is what rounding leaves between the parts and the logit of the pass.",
            columns=["part", ">logit"],
            rows=[
                ["embedding", self.embedding],
                *positions,
                ["all heads", float(self.heads.sum())],
                ["all biases of attention", float(self.biases.sum())],
                ["all feed-forwards", float(self.feed_forwards.sum())],
                ["bias of the final norm", self.final_bias],
                ["remainder", self.remainder],
                ["sum", self.value],
            ],
        )

    def _left_out(self) -> list[str]:
        lines = [*NOTE] if self.versus is not None else [*NOTE, ALONE]
        if self.soft_cap is not None:
            lines.append(
                f"The model bends its logits to within ±{self.soft_cap:g}: the parts add up to {self.value:.6g}, "
                f"the value before that; after it, it is {self.logit:.6g}."
            )
        return lines


@torch.no_grad()
def contributions(
    model: Reader,
    prompt: Any,
    *,
    target: Token | None = None,
    versus: Token | None = None,
    position: int = -1,
    top: int = 10,
    limit: int = LIMIT,
) -> Contributions:
    """What each part of the model adds directly to a logit, or to the logit of `target` over that of `versus`.

    Every part of the residual stream is read by the final norm, whose statistics at this position are held, and by
    the head. A norm behind attention is held in the same way, so each head has its share there too. A LayerNorm takes
    the mean of each part from it, and its bias is a part of its own. Logits that the model caps are taken before the
    cap, which does not add up.

    Args:
        target: by its text or id; None takes what the model itself says at the position.
        top: how many parts the first figure shows.
        limit: what the trace may hold [B].
    Raises:
        InsideError: a target that is not one token, no such position, or more bytes than the limit.
        ContextError, TokenizerError, GenerationError: as in `generate`.
    Source: Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021; for a difference of two logits
        arXiv:2211.00593, section 3.
    """
    ids, config = model.ids(prompt), model.network.config
    at = position_of(position, len(ids))
    over = None if versus is None else token_of(model, versus, "versus")
    chosen = None if target is None else token_of(model, target, "target")
    n_shown = count_of(top, 10**6, "top")
    (found,) = trace(model, [ids], keep=read(config, at), limit=limit)
    return summed(model, found, at, target=chosen, versus=over, n_shown=n_shown)


def read(config: ModelConfig, position: int) -> list[str]:
    """What is read of a pass to tell the parts at a position, counted from the start, apart."""
    added = [name for name in ("embed", "pos_embed") if name in names(config)]
    parts = [*added, "blocks.*.attn.z", "blocks.*.ff.out", f"blocks.{config.n_layers - 1}.resid_post", *AFTER]
    return [f"{name}[position {position}]" for name in parts]


def summed(
    model: Reader, found: Trace, position: int, *, target: int | None, versus: int | None, n_shown: int
) -> Contributions:
    """The parts at a position of a pass of which `read` was kept.

    Raises:
        InsideError: target and versus are the same.
    """
    network, config, here = model.network, model.network.config, f"[position {position}]"
    chosen = int(found.logits[0].argmax()) if target is None else target
    if chosen == versus:
        raise InsideError(f"target and versus are both {label(model.tokenizer, chosen)} ({chosen}): take another")
    direction = network.head.weight[chosen].double()
    logit = float(found.logits[0, chosen].double())
    if versus is not None:
        direction = direction - network.head.weight[versus].double()
        logit -= float(found.logits[0, versus].double())
    value = logit
    if config.logit_soft_cap is not None:
        value = float(found["final_norm" + here].flatten().double() @ direction)  # a cap does not add up
    parts = Held(network, found, here).parts(direction)
    return Contributions(
        tokens=tuple(found.tokens),
        labels=tuple(labels(model.tokenizer, found.tokens)),
        position=position,
        target=chosen,
        versus=versus,
        target_label=label(model.tokenizer, chosen),
        versus_label=None if versus is None else label(model.tokenizer, versus),
        value=value,
        logit=logit,
        soft_cap=config.logit_soft_cap,
        remainder=value - float(sum(np.sum(part) for part in parts.values() if part is not None)),
        n_shown=n_shown,
        **parts,
    )


class Held:
    """One position of a traced pass, with every norm on the way to the logit held at its statistics there."""

    def __init__(self, network: Transformer, found: Trace, here: str) -> None:
        self.network, self.found, self.here = network, found, here

    def value(self, name: str) -> Tensor:
        """A value of this position: [D], or [H Dh]."""
        return self.found[name + self.here].double().squeeze(0).squeeze(-2)

    def parts(self, direction: Tensor) -> dict[str, Any]:
        """What each part adds along a direction [D] of what the head reads, in fp64."""
        n_layers = self.network.config.n_layers
        along, final_bias = held(self.network.final_norm, self.value(f"blocks.{n_layers - 1}.resid_post"), direction)
        shares = [self.attention(layer, along) for layer in range(n_layers)]
        processed = [float(self.value(f"blocks.{layer}.ff.out") @ along) for layer in range(n_layers)]
        learned = "pos_embed" + self.here in self.found
        return {
            "embedding": float(self.value("embed") @ along),
            "positions": float(self.value("pos_embed") @ along) if learned else None,
            "heads": torch.stack([heads for heads, _ in shares]).cpu().numpy(),
            "biases": np.array([bias for _, bias in shares]),
            "feed_forwards": np.array(processed),
            "final_bias": final_bias,
        }

    def attention(self, layer: int, along: Tensor) -> tuple[Tensor, float]:
        """Each head's share in one layer [H], and that of the biases."""
        block = cast(Block, self.network.blocks[layer])
        z, w_o = self.value(f"blocks.{layer}.attn.z"), block.attn.W_O.double()
        head_out = torch.einsum("he,hed->hd", z, w_o)
        bias = torch.zeros_like(along) if block.attn.out.bias is None else block.attn.out.bias.double()
        along, norm_bias = held(block.attn_post_norm, head_out.sum(0) + bias, along)
        return head_out @ along, float(bias @ along) + norm_bias


def held(norm: Callable[[Tensor], Tensor], x: Tensor, along: Tensor) -> tuple[Tensor, float]:
    """A norm as the linear map that it is at x, seen from behind.

    Returns:
        w and b, so that norm(x) · along = x · w + b, where what adds up to x may stand for it.
    """
    if isinstance(norm, LayerNorm):
        scaled = norm.weight.double() * along
        spread = (x.var(correction=0) + norm.eps).sqrt()
        return (scaled - scaled.mean()) / spread, 0.0 if norm.bias is None else float(norm.bias.double() @ along)
    if isinstance(norm, RMSNorm):
        return (norm.weight.double() + norm.offset) * along / (x.square().mean() + norm.eps).sqrt(), 0.0
    return along, 0.0
