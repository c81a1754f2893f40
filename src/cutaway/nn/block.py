"""One block: attention gathers, the feed-forward processes, and each adds to the residual stream."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from cutaway.config import ModelConfig
from cutaway.nn.attention import Attention
from cutaway.nn.cache import LayerCache, NoLayerCache
from cutaway.nn.feedforward import build_feedforward
from cutaway.nn.few_rows import add
from cutaway.nn.mask import Mask
from cutaway.nn.norm import build_norm, no_norm
from cutaway.nn.position import Rotation
from cutaway.nn.tap import Tap


class Block(nn.Module):
    """x + attention(norm(x)), then that + feedforward(norm(that)).

    Where the config has no norm at a place, the value passes as it is. In a parallel block the feed-forward reads
    the block's own input, through its own norm.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.name = f"blocks.{layer}"
        self.parallel = config.parallel

        def norm_at(*placements: str) -> Callable[[Tensor], Tensor]:
            here = config.norm_placement in placements
            return build_norm(config.norm, config.d_model) if here else no_norm

        self.attn_norm = norm_at("pre", "sandwich")
        self.attn = Attention(config)
        self.attn_post_norm = norm_at("post", "sandwich")
        self.ff_norm = norm_at("pre", "sandwich")
        self.ff = build_feedforward(config)
        self.ff_post_norm = norm_at("post", "sandwich")
        self.drop: Callable[[Tensor], Tensor] = no_norm  # training may set a dropout on what is added

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        rotate: Rotation,
        mask: Mask,
        cache: LayerCache | NoLayerCache,
        tap: Tap,
    ) -> Float[Tensor, "B T D"]:
        tap = tap.inside(self.name)
        x = tap("resid_pre", x)
        read = tap("attn.norm", self.attn_norm(x))
        gathered = tap("attn.out", self.drop(self.attn_post_norm(self.attn(read, rotate, mask, cache, tap))))
        mid = tap("resid_mid", add(x, gathered))
        read = tap("ff.norm", self.ff_norm(x if self.parallel else mid))
        processed = tap("ff.out", self.drop(self.ff_post_norm(self.ff(read, tap))))
        return tap("resid_post", add(mid, processed))
