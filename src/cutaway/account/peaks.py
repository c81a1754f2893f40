"""The most that tensors take at any moment of a pass or of a training step [B], moment by moment.

Worked out from the forward as it is written, for a network without torch.compile: which values are still named when
the largest product of each sub-layer is made. Scratch inside torch's own kernels is left out.
"""

from __future__ import annotations

from cutaway.account import memory, parameters
from cutaway.account.flops import reach
from cutaway.account.memory import CHUNK, FP32, Optimizer
from cutaway.config import MaskConfig, ModelConfig, PositionConfig, RotaryConfig

INT64 = 8


def prefill(config: ModelConfig, n_tokens: int, *, itemsize: int = FP32, n_texts: int = 1, n_slots: int = 0) -> int:
    """A prompt's pass with a cache of `n_slots` tokens a text (0: as many as the prompt), without gradients.

    The weights are not in it. The head reads the last position alone.
    """
    n = n_tokens * n_texts
    cache = memory.kv_cache(config, n_slots or n_tokens, itemsize, n_texts)
    ids = INT64 * (n + n_tokens)
    roomy = n_slots > n_tokens  # what is read of a buffer with room lies apart, and is copied
    moments = [itemsize * (n * config.d_model + n_texts * (config.d_vocab + config.d_model))]
    for mask, position in dict.fromkeys(zip(config.masks, config.positions, strict=True)):
        moments.append(_attending(config, mask, position, n_tokens, n_texts, itemsize, roomy))
    moments.append(itemsize * n * (_stream(config) + _feedforward(config)))
    return cache + ids + memory.tables(config, n_tokens) + max(moments)


def _stream(config: ModelConfig) -> int:
    """Numbers of the residual stream's width that a token has while the feed-forward's last product is made.

    The embedding's row, what entered the block, what attention added, their sum, what is read, what is made. In the
    first layer the first two are one.
    """
    n = 6 if config.n_layers > 1 else 5
    return config.d_model * (n if config.norm_placement != "post" else n - 1)


def _feedforward(config: ModelConfig) -> int:
    """What lies between the feed-forward's two products: before and after the non-linearity; gate, value and both."""
    return (3 if config.feedforward.gated else 2) * config.d_ff


def _attending(
    config: ModelConfig,
    mask: MaskConfig,
    position: PositionConfig,
    n_tokens: int,
    n_texts: int,
    itemsize: int,
    roomy: bool,
) -> int:
    """While the kernel runs."""
    n = n_tokens * n_texts
    q, kv = config.n_heads * config.d_head, config.n_kv_heads * config.d_head
    entered = (2 if config.n_layers > 1 else 1) + (config.norm_placement != "post")
    turned = q + kv if isinstance(position, RotaryConfig) or config.attention.qk_norm else 0
    before = n * itemsize * (entered * config.d_model + q + 2 * kv + turned)
    n_keys = min(n_tokens, CHUNK - 1 + reach(mask, n_tokens))
    n_queries = min(n_tokens, CHUNK)
    if config.attention.soft_cap is not None:
        pairs = 3 * n_texts * config.n_heads * n_queries * n_keys * itemsize + n_queries * n_keys
        return before + n * itemsize * q + pairs
    totals = FP32 * n * config.n_heads
    if memory.is_triangle(mask, n_tokens):
        return before + n * itemsize * (2 * q + (2 * kv if roomy else 0)) + totals
    return before + 2 * n * itemsize * q + n_queries * n_keys * (1 + itemsize)


def training(
    config: ModelConfig,
    n_ctx: int,
    n_windows: int = 1,
    *,
    optimizer: Optimizer = "adamw",
    itemsize: int = FP32,
    device: str = "cpu",
) -> int:
    """A step after the first: forward, loss, backward, update; all of one type, nothing sharded or compiled.

    The loss is the plain one, with the scores of all positions. Weights and optimizer are in it. Gradients come as
    activations go, a block at a time, so one end or the other is the peak: where the scores are, where the backward
    pass begins, or where it has ended.
    """
    n = n_ctx * n_windows
    n_weights = parameters.total(config)
    kernel = memory.kernel_of_training(n_ctx, itemsize, device)
    kept = memory.activations(config, n_ctx, n_windows, narrow=itemsize, wide=itemsize, kernel=kernel)
    head = config.d_model * config.d_vocab
    scored = (3 if config.logit_soft_cap is None else 4) * n * config.d_vocab
    begins = head - n * memory.final_numbers(config) + _slopes(config, n_ctx, n_windows, kernel)
    ends = n_weights + (2 * head if config.tied else 0) + n * config.d_model  # both uses of a shared table, and the sum
    always = (n_weights + memory.optimizer_numbers(config, optimizer)) * itemsize + 2 * INT64 * n
    return always + max(kept + itemsize * max(scored, begins), itemsize * ends)


def _slopes(config: ModelConfig, n_ctx: int, n_windows: int, kernel: memory.KernelName) -> int:
    """Gradients inside the last block, while its own activations are still there: of either sub-layer."""
    n = n_ctx * n_windows
    inside = (2 if config.feedforward.gated else 1) * config.d_ff * n
    if config.attention.soft_cap is not None or kernel == "products":  # the patterns have gradients that are held
        n_queries = min(n_ctx, CHUNK)
        pairs = max(n_queries * min(n_ctx, CHUNK - 1 + reach(mask, n_ctx)) for mask in config.masks)
        inside = max(inside, n_windows * config.n_heads * 2 * pairs + 3 * n * config.n_heads * config.d_head)
    return 2 * n * config.d_model + inside
