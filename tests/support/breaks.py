"""Models broken on purpose, each in one way, so that a claim must fail on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from cutaway.language_model import LanguageModel
from cutaway.nn.attention import Attention
from cutaway.nn.block import Block
from cutaway.nn.mask import Mask
from cutaway.nn.reference import Reference, by_groups
from cutaway.nn.tap import Tap


def blocks(model: LanguageModel) -> list[Block]:
    return cast(list[Block], list(model.network.blocks))


class WasteAPass(LanguageModel):
    """A model whose loop reads the prompt once for nothing."""

    def run(self, prompts: Any, /, **options: Any) -> Iterator[Any]:
        with torch.no_grad():
            self.network(torch.tensor([self.ids(prompts[0])]))
        return super().run(prompts, **options)


def embedding(model: LanguageModel, change: Callable[[Tensor, Tensor], Tensor]) -> LanguageModel:
    """Its embedding gives `change(ids, rows)`."""
    model.network.embed.register_forward_hook(lambda module, args, rows: change(args[0], rows))
    return model


def feed_forward(model: LanguageModel, change: Callable[[Tensor], Tensor]) -> LanguageModel:
    """The feed-forward of layer 1 gives `change(result)`."""
    blocks(model)[1].ff.register_forward_hook(lambda module, args, out: change(out))
    return model


def output_projection(model: LanguageModel, weight: Callable[[Tensor], Tensor], layer: int = 1) -> LanguageModel:
    """W_O of a layer is `weight(W_O)`."""
    parameter = blocks(model)[layer].attn.out.weight
    parameter.data = weight(parameter.data)
    return model


def one_projection(model: LanguageModel) -> LanguageModel:
    """Values are keys: one projection for both."""
    attention = blocks(model)[0].attn
    width = attention.n_kv_heads * attention.d_head

    def share(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        kept = out[..., :-width]
        return torch.cat((kept, kept[..., -width:]), dim=-1)

    attention.qkv.register_forward_hook(share)
    return model


class ByLength(Reference):
    """A kernel whose scores are the product of two lengths, whatever the direction."""

    def is_near(self, q: Tensor, k: Tensor) -> bool:
        return False

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        return by_groups(q.norm(dim=-1, keepdim=True), k.norm(dim=-1, keepdim=True).mT)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, queries: slice, keys: slice, tap: Tap) -> Tensor:
        scaled = tap("attn.scaled", tap("attn.scores", self.scores(q, k, mask)) * self.scale)
        visible = mask.visible(queries, keys)
        masked = tap("attn.masked", scaled if visible is None else scaled.masked_fill(~visible, -torch.inf))
        return by_groups(tap("attn.pattern", masked.softmax(-1)), v)


def kernels(model: LanguageModel, kernel: Callable[[Attention], Any]) -> LanguageModel:
    """Every layer has that kernel."""
    for block in blocks(model):
        block.attn.kernel = block.attn.reference = kernel(block.attn)
    return model
