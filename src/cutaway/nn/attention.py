"""Attention gathers: the only place where one position reads from another."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cutaway.config import ModelConfig
from cutaway.nn.cache import LayerCache, NoLayerCache
from cutaway.nn.kernel import build_kernels
from cutaway.nn.linear import Linear
from cutaway.nn.mask import Mask
from cutaway.nn.norm import build_qk_norm
from cutaway.nn.position import Rotation
from cutaway.nn.reference import STAGES
from cutaway.nn.tap import Tap


class Attention(nn.Module):
    """H query heads over K key/value heads of width Dh (K = H: multi-head; 1 < K < H: grouped; K = 1: multi-query).

    W_Q, W_K and W_V lie on top of each other in one matrix: one read of x, one product.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        self.n_kv_heads = config.n_kv_heads
        self.d_head = config.d_head
        options = config.attention
        n_rows = (config.n_heads + 2 * config.n_kv_heads) * config.d_head
        self.qkv = Linear(config.d_model, n_rows, bias=options.qkv_bias)
        self.q_norm = build_qk_norm(options.qk_norm, config.norm, config.n_heads, config.d_head)
        self.k_norm = build_qk_norm(options.qk_norm, config.norm, config.n_kv_heads, config.d_head)
        self.out = Linear(config.n_heads * config.d_head, config.d_model, bias=options.out_bias)
        self.kernel, self.reference = build_kernels(config.attention_scale, options.soft_cap)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        rotate: Rotation,
        mask: Mask,
        cache: LayerCache | NoLayerCache,
        tap: Tap,
    ) -> Float[Tensor, "B T D"]:
        heads = self.qkv(x).view(*x.shape[:2], -1, self.d_head)
        q, k, v = heads.split_with_sizes((self.n_heads, self.n_kv_heads, self.n_kv_heads), dim=2)
        q = tap("attn.q_raw", self.q_norm(q).transpose(1, 2))
        k = tap("attn.k_raw", self.k_norm(k).transpose(1, 2))
        q, k = rotate(q, k)
        k, v = cache.append(k, v.transpose(1, 2))
        q, k, v = tap("attn.q", q), tap("attn.k", k), tap("attn.v", v)
        kernel = self.reference if tap.wants(*STAGES) else self.kernel
        z = tap("attn.z", kernel(q, k, v, mask, tap))
        if tap.wants("attn.head_out"):
            return self.sum_of_heads(z, tap)
        return self.out(z.transpose(1, 2).flatten(2))

    def sum_of_heads(self, z: Float[Tensor, "B H T Dh"], tap: Tap) -> Float[Tensor, "B T D"]:
        """The same output projection, one head at a time, so that each head's share has a name."""
        head_out = tap("attn.head_out", torch.einsum("bhte,hed->bhtd", z, self.W_O))
        total = head_out.sum(dim=1)
        return total if self.out.bias is None else total + self.out.bias

    @property
    def W_Q(self) -> Float[Tensor, "H D Dh"]:
        """Each head's query projection, as x @ W."""
        return self._projection(0, self.n_heads)

    @property
    def W_K(self) -> Float[Tensor, "K D Dh"]:
        """Each key head's projection."""
        return self._projection(self.n_heads, self.n_kv_heads)

    @property
    def W_V(self) -> Float[Tensor, "K D Dh"]:
        """Each value head's projection."""
        return self._projection(self.n_heads + self.n_kv_heads, self.n_kv_heads)

    @property
    def W_O(self) -> Float[Tensor, "H Dh D"]:
        """Each head's slice of the output projection."""
        return self.out.weight.T.unflatten(0, (self.n_heads, self.d_head))

    def _projection(self, first: int, n: int) -> Float[Tensor, "n D Dh"]:
        return self.qkv.weight.unflatten(0, (-1, self.d_head))[first : first + n].mT
