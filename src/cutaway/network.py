"""The decoder-only transformer: embed → blocks → norm → head."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cutaway.config import ModelConfig, NoMaskConfig
from cutaway.nn.block import Block
from cutaway.nn.cache import Cache, NoCache
from cutaway.nn.linear import Embedding, Linear
from cutaway.nn.mask import Mask, build_mask
from cutaway.nn.norm import build_norm
from cutaway.nn.position import Positions, Rotation
from cutaway.nn.reference import soft_cap
from cutaway.nn.tap import IDLE, Tap


class Shared(NamedTuple):
    """What the blocks of one pass share: one rotation and one mask of each kind."""

    rotations: list[Rotation]
    masks: list[Mask]


class Transformer(nn.Module):
    """Token ids in, the scores of each next token out. No weight but a learned position table knows a length."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = Embedding(config.d_vocab, config.d_model, config.embed_scale)
        kinds = list(dict.fromkeys(config.positions))
        self.positions = Positions(kinds, config)
        self.position_of = [kinds.index(kind) for kind in config.positions]
        self.mask_kinds = list(dict.fromkeys(config.masks))
        self.mask_of = [self.mask_kinds.index(kind) for kind in config.masks]
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layers))
        self.final_norm = build_norm(config.norm, config.d_model)
        self.head = Linear(config.d_model, config.d_vocab, bias=False)
        self.tie()

    def tie(self) -> None:
        """Let the head share the embedding's table, where the config says so."""
        if self.config.tied:
            self.head.weight = self.embed.weight

    def forward(
        self, tokens: Int[Tensor, "B T"], cache: Cache | None = None, tap: Tap = IDLE
    ) -> Float[Tensor, "B T V"]:
        """The logits of every position."""
        return self.unembed(self.residual(tokens, cache, tap=tap), tap)

    def residual(
        self,
        tokens: Int[Tensor, "B T"],
        cache: Cache | None = None,
        n_new: Sequence[int] | None = None,
        tap: Tap = IDLE,
    ) -> Float[Tensor, "B T D"]:
        """The residual stream after the last block. Rows of a ragged batch are padded on the right, `n_new` real."""
        n_new = [tokens.shape[1]] * tokens.shape[0] if n_new is None else n_new
        memory = NoCache(tokens.shape[0]) if cache is None else cache
        memory.prepare(tokens.shape[1])
        x, shared = self.enter(tokens, memory, n_new, tap)
        x = self.pass_blocks(x, shared, memory, tap)
        memory.advance(n_new)
        return x

    def enter(
        self, tokens: Int[Tensor, "B T"], memory: Cache | NoCache, n_new: Sequence[int], tap: Tap = IDLE
    ) -> tuple[Float[Tensor, "B T D"], Shared]:
        """Ids to rows, with their positions; and what all blocks of this pass share."""
        n_queries, starts = tokens.shape[1], memory.lengths
        tokens = tap("tokens", tokens)
        positions = tap("positions", positions_of(starts, n_queries, tokens.device))
        lengths = [start + n for start, n in zip(starts, n_new, strict=True)]
        rotations = [position.at(positions, lengths) for position in self.positions]
        masks = [build_mask(kind, starts, n_queries, lengths, tokens.device) for kind in self.mask_kinds]
        x = tap("embed", self.embed(tokens))
        for position in self.positions:
            x = position.embed(x, positions, tap)
        return x, Shared(rotations, masks)

    def pass_blocks(
        self, x: Float[Tensor, "B T D"], shared: Shared, memory: Cache | NoCache, tap: Tap = IDLE, first: int = 0
    ) -> Float[Tensor, "B T D"]:
        """The residual stream through all blocks, or from the `first` on."""
        for i, block in islice(enumerate(self.blocks), first, None):
            rotation, mask = shared.rotations[self.position_of[i]], shared.masks[self.mask_of[i]]
            x = block(x, rotation, mask, memory.layer(i), tap)
        return x

    def rotation_changes(self, n_before: int, n_after: int) -> bool:
        """Whether keys cached in a text of `n_before` tokens are stale in one of `n_after`."""
        unmasked = any(isinstance(kind, NoMaskConfig) for kind in self.mask_kinds)  # then old tokens read the new one
        return unmasked or any(position.changes(n_before, n_after) for position in self.positions)

    def unembed(self, x: Float[Tensor, "B T D"], tap: Tap = IDLE) -> Float[Tensor, "B T V"]:
        """From the residual stream to logits: the final norm, then the head."""
        logits = self.head(tap("final_norm", self.final_norm(x)))
        return tap("logits", soft_cap(logits, self.config.logit_soft_cap))


def positions_of(starts: Sequence[int], n_queries: int, device: torch.device) -> Int[Tensor, "b T"]:
    """Absolute positions; one row for all texts where they start together."""
    steps = torch.arange(n_queries, device=device)
    if min(starts) == max(starts):
        return (steps + starts[0])[None]
    return torch.tensor(starts, device=device)[:, None] + steps
