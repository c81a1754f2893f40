"""What memory holds [B]: weights, gradients, what the optimizer keeps, activations, scores, keys and values.

Everything is what tensors take, here, by this code: an allocator may keep more, and another code may hold other
things. `wide` is the bytes of a weight and of the residual stream in training, `narrow` those of the products' type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cutaway.account import parameters
from cutaway.account.flops import reach
from cutaway.config import LayerNormConfig, MaskConfig, ModelConfig, RotaryConfig

FP32 = 4
SCORES = 1 << 22  # scores at a time that the loss of a training run holds; train/loss.py has the same
CHUNK = 256  # queries at a time where a mask is written out; nn/kernel.py has the same
SHORT = 256  # tokens up to which a text is learned in products, in 16 bits on the CPU; as there
BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "8 bits": 1.0, "4 bits": 0.5}

Optimizer = Literal["muon", "adamw"]
KernelName = Literal["fused", "reference", "products"]

# --- what stays --------------------------------------------------------------------------------------------


def weights(config: ModelConfig, bytes_per_weight: float = FP32) -> int:
    """The numbers alone; the scales of a quantised file come on top."""
    return int(parameters.total(config) * bytes_per_weight)


def optimizer_numbers(config: ModelConfig, optimizer: Optimizer) -> int:
    """AdamW keeps two numbers for each weight; Muon one, for the matrices in the blocks."""
    n_matrices = config.n_layers * parameters.block_matrices(config)
    return 2 * parameters.total(config) - (n_matrices if optimizer == "muon" else 0)


def held(
    config: ModelConfig, optimizer: Optimizer, *, narrow: int = FP32, wide: int = FP32, n_shards: int = 1
) -> dict[str, int]:
    """What a process holds from step to step: weights, gradients, optimizer.

    Where products are narrower than weights (autocast), a copy of the matrices in their type is counted. A sharded
    network holds, beside its share, what is outside the blocks whole, and two blocks: the one at work and the next.
    """
    n_weights = parameters.total(config)
    n_in_block = parameters.in_block(config)
    if n_shards > 1:
        at_work = (2 * n_in_block + n_weights - config.n_layers * n_in_block) * narrow
        copied = 0
    else:
        at_work = 0
        n_multiplied = config.n_layers * parameters.block_matrices(config) + config.d_model * config.d_vocab
        copied = n_multiplied * narrow if narrow < wide else 0
    share = n_weights * wide // n_shards
    return {
        "weights": share + at_work + copied,
        "gradients": share + at_work,
        "optimizer": optimizer_numbers(config, optimizer) * wide // n_shards,
    }


def kv_cache(config: ModelConfig, n_tokens: int, itemsize: float, n_texts: int = 1) -> int:
    """Keys and values of all layers, as this program keeps them: every token, also past a window."""
    return int(2 * config.n_layers * config.n_kv_heads * config.d_head * n_tokens * n_texts * itemsize)


def kv_needed(config: ModelConfig, n_tokens: int, itemsize: float, n_texts: int = 1) -> int:
    """The same without what has left its layer's window, which no later query reads."""
    n_kept = sum(reach(mask, n_tokens) for mask in config.masks)
    return int(2 * config.n_kv_heads * config.d_head * n_kept * n_texts * itemsize)


def scores(config: ModelConfig, n_queries: int, n_keys: int, itemsize: float = FP32) -> int:
    """One layer's matrix of every query with every key, all heads: what the fused kernel never holds."""
    return int(config.n_heads * n_queries * n_keys * itemsize)


def loss_in_chunks(config: ModelConfig, n_tokens: int, n_scores: int = SCORES, *, wide: int = FP32) -> int:
    """What a loss holds that never has all scores: `n_scores` of them and their slopes in fp32, the head's gradient."""
    n_rows = min(n_tokens, max(1, n_scores // config.d_vocab))
    return 2 * FP32 * n_rows * config.d_vocab + wide * config.d_model * config.d_vocab


# --- what a pass holds -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Widths:
    """The widths of one token's vectors in a block."""

    d: int  # residual stream
    q: int  # all query heads
    kv: int  # all key heads
    f: int  # feed-forward

    @classmethod
    def of(cls, config: ModelConfig) -> _Widths:
        return cls(
            d=config.d_model,
            q=config.n_heads * config.d_head,
            kv=config.n_kv_heads * config.d_head,
            f=config.d_ff,
        )

    @property
    def heads(self) -> int:
        """Queries, keys and values, as they leave their one matrix."""
        return self.q + 2 * self.kv


def activations(
    config: ModelConfig,
    n_ctx: int,
    n_windows: int = 1,
    *,
    narrow: int = FP32,
    wide: int = FP32,
    kernel: KernelName = "fused",
    dropout: bool = False,
) -> int:
    """What autograd keeps of a forward pass over `n_windows` of `n_ctx` tokens for the backward one, the head's not.

    Wide numbers: what each norm reads (RMSNorm also keeps it normalised). Narrow ones: what each matrix reads, what
    the kernel reads and gives, and the feed-forward before and after the non-linearity (a gated one keeps gate and
    value, and the gate's non-linearity too); a dropout keeps what it multiplied by. The reference kernel also keeps
    every pattern, T×T, and so do the products that a short text is learned in. A compiled network keeps less, because
    it computes some of it again.
    """
    wide = max(narrow, wide)
    w = _Widths.of(config)
    normed = _kept_by_norm(config)
    n_tokens = n_ctx * n_windows
    block = 0
    for mask, position in zip(config.masks, config.positions, strict=True):
        block += n_tokens * wide * _norms_read(config, w, normed)
        block += n_tokens * narrow * (2 * w.d + (4 if config.feedforward.gated else 2) * w.f)
        block += n_tokens * _norms_of_heads(config, w, normed, narrow, wide)
        block += n_tokens * narrow * 2 * w.d if dropout else 0
        rotates = isinstance(position, RotaryConfig)
        block += _kept_by_kernel(config, mask, rotates, n_ctx, n_windows, narrow, kernel)
    return block + wide * n_tokens * final_numbers(config) + tables(config, n_ctx)


def kernel_of_training(n_ctx: int, narrow: int, device: str) -> KernelName:
    """Which kernel a training run takes."""
    return "products" if device == "cpu" and narrow < FP32 and n_ctx <= SHORT else "fused"


def recomputed_activations(
    config: ModelConfig, n_ctx: int, n_windows: int = 1, *, narrow: int = FP32, wide: int = FP32
) -> int:
    """The same where a block keeps its input alone and runs again in the backward pass: inputs, and one block's."""
    whole = activations(config, n_ctx, n_windows, narrow=narrow, wide=wide)
    n_tokens, wide = n_ctx * n_windows, max(narrow, wide)
    outside = wide * n_tokens * final_numbers(config) + tables(config, n_ctx)
    inputs = wide * n_tokens * config.d_model * config.n_layers
    return inputs + -(-(whole - outside) // config.n_layers) + outside


def final_numbers(config: ModelConfig) -> int:
    """What is kept of a token after the last block: for the final norm, and for the head."""
    return (_kept_by_norm(config) + 1) * config.d_model


def _kept_by_norm(config: ModelConfig) -> int:
    """Copies of its input that a norm keeps: itself, and RMSNorm also the normalised."""
    return 1 if isinstance(config.norm, LayerNormConfig) else 2


def _norms_read(config: ModelConfig, w: _Widths, normed: int) -> int:
    """What the norms in a block keep of one token. In a parallel block two read the same."""
    n_norms = 4 if config.norm_placement == "sandwich" else 2
    return (n_norms * normed - (1 if config.parallel and config.norm_placement != "post" else 0)) * w.d


def _norms_of_heads(config: ModelConfig, w: _Widths, normed: int, narrow: int, wide: int) -> int:
    """What norms of q and k keep of one token [B]: in fp32, from copies, where the products are narrower."""
    if config.attention.qk_norm is None:
        return 0
    if narrow < wide:
        return wide * normed * (w.q + w.kv)
    return wide * (w.heads + (normed - 1) * (w.q + w.kv))


def _kept_by_kernel(
    config: ModelConfig, mask: MaskConfig, rotates: bool, n_ctx: int, n_windows: int, narrow: int, kernel: KernelName
) -> int:
    """What attention keeps between its two projections."""
    w, n_tokens = _Widths.of(config), n_ctx * n_windows
    capped = config.attention.soft_cap is not None
    if kernel == "reference" or capped:
        n_pairs = n_ctx * n_ctx if kernel == "reference" else pairs_in_chunks(mask, n_ctx)
        pattern = narrow + (FP32 if narrow < FP32 else 0)  # a softmax is computed in fp32
        a_pair = config.n_heads * n_windows * (pattern + (narrow if capped else 0)) + 1  # the mask's bit takes a byte
        return n_tokens * narrow * (2 * w.q + 2 * w.kv) + n_pairs * a_pair  # q, k, v and z
    log_totals = n_tokens * FP32 * config.n_heads
    if is_triangle(mask, n_ctx) and kernel == "products":
        return n_tokens * narrow * (2 * w.q + 2 * w.kv) + scores(config, n_ctx, n_ctx, narrow) * n_windows
    if is_triangle(mask, n_ctx):
        return n_tokens * narrow * (2 * w.q + 2 * w.kv + w.q) + log_totals
    turned = w.q + w.kv if rotates or config.attention.qk_norm else 0
    own = 0 if config.attention.qk_norm and rotates else w.heads  # the norm keeps these already
    z = w.q if n_ctx <= CHUNK else 2 * w.q  # put together from its chunks
    return n_tokens * narrow * (own + turned + z) + pairs_in_chunks(mask, n_ctx) * narrow + log_totals


def tables(config: ModelConfig, n_ctx: int) -> int:
    """Cosines and sines of the rotations, for all layers of a kind and all texts once."""
    kinds = {kind for kind in config.positions if isinstance(kind, RotaryConfig)}
    return sum(2 * FP32 * n_ctx * (kind.d_rotary or config.d_head) for kind in kinds)


# --- what a kernel reads -----------------------------------------------------------------------------------


def is_triangle(mask: MaskConfig, n_tokens: int) -> bool:
    """Whether a whole text is the plain causal case that torch's fused kernel knows without a mask."""
    return reach(mask, n_tokens) == n_tokens


def pairs_in_chunks(mask: MaskConfig, n_tokens: int) -> int:
    """Pairs of query and key that a kernel in chunks computes: each chunk with the keys in its reach."""
    total = 0
    for first in range(0, n_tokens, CHUNK):
        last = min(first + CHUNK, n_tokens)
        total += (last - first) * (last - max(0, first + 1 - reach(mask, n_tokens)))
    return total
