"""How a token knows where it stands: a learned row, a rotation of q and k, or nothing.

A position module acts at two places of a pass: `embed` adds to the looked-up rows, and `at` prepares, once for all
layers that share it, the rotation of q and k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from cutaway.config import (
    DynamicScaling,
    LearnedPositionConfig,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ModelConfig,
    NoPositionConfig,
    PositionConfig,
    RopeScaling,
    RotaryConfig,
    YarnScaling,
)
from cutaway.nn import few_rows
from cutaway.nn.tap import Tap


class Rotation:
    """The turn of q and k at the positions of one pass."""

    def __init__(self, *tables: Tensor) -> None:
        self.tables = tables  # cos and sin, or none: standing still

    def __call__(
        self, q: Float[Tensor, "B H T Dh"], k: Float[Tensor, "B K T Dh"]
    ) -> tuple[Float[Tensor, "B H T Dh"], Float[Tensor, "B K T Dh"]]:
        return self.turn(q), self.turn(k)

    def turn(self, x: Float[Tensor, "B heads T Dh"]) -> Float[Tensor, "B heads T Dh"]:
        """One of both."""
        return _rotate(x, *self.tables) if self.tables else x


class NoPosition(nn.Module):
    """Adds nothing and turns nothing."""

    depends_on_length = False

    def changes(self, n_before: int, n_after: int) -> bool:
        """Whether keys cached in a text of `n_before` tokens are stale in one of `n_after`."""
        return False

    def embed(self, x: Float[Tensor, "B T D"], positions: Int[Tensor, "b T"], tap: Tap) -> Float[Tensor, "B T D"]:
        return x

    def at(self, positions: Int[Tensor, "b T"], lengths: Sequence[int]) -> Rotation:
        return Rotation()


class LearnedPosition(NoPosition):
    """A table of n_ctx learned rows, added to the embeddings."""

    def __init__(self, n_ctx: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_ctx, d_model))
        nn.init.normal_(self.weight, std=0.02)

    def embed(self, x: Float[Tensor, "B T D"], positions: Int[Tensor, "b T"], tap: Tap) -> Float[Tensor, "B T D"]:
        return x + tap("pos_embed", F.embedding(positions, self.weight).expand_as(x))


class Rotary(NoPosition):
    """Coordinates i and i + d_rotary/2 of q and k turn together by position · frequency_i [rad]."""

    def __init__(self, config: RotaryConfig, d_head: int) -> None:
        super().__init__()
        self.config = config
        self.d_rotary = config.d_rotary or d_head
        self.depends_on_length = _depends_on_length(config.scaling)
        self.amplitude = getattr(config.scaling, "attention_factor", 1.0)
        self._known: dict[tuple[int, torch.device], Tensor] = {}

    def frequencies(self, n_tokens: int, device: torch.device) -> Float[Tensor, " half"]:
        """Radians per position of each pair, in a text of `n_tokens`. fp32 on purpose: bf16 cannot count to 300."""
        if not self.depends_on_length:
            n_tokens = 0
        found = self._known.get((n_tokens, device))
        if found is None:
            if len(self._known) > 64:  # a text that grows token by token asks for a new length each time
                self._known.clear()  # maybe of what another thread has just stored: each returns its own
            found = _frequencies(self.config, self.d_rotary, n_tokens).to(device)
            self._known[n_tokens, device] = found
        return found

    def changes(self, n_before: int, n_after: int) -> bool:
        cpu = torch.device("cpu")
        return self.depends_on_length and not torch.equal(
            self.frequencies(n_before, cpu), self.frequencies(n_after, cpu)
        )

    def at(self, positions: Int[Tensor, "b T"], lengths: Sequence[int]) -> Rotation:
        """The rotation of q and k [B, heads, T, Dh] that stand at `positions`, in texts `lengths` long."""
        per_row = lengths if self.depends_on_length else lengths[:1]
        inverse = torch.stack([self.frequencies(n, positions.device) for n in per_row])
        angles = positions[:, None, :, None].float() * inverse[:, None, None, :]
        cos, sin = angles.cos() * self.amplitude, angles.sin() * self.amplitude
        cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        return Rotation(cos, sin)


def _depends_on_length(scaling: RopeScaling | None) -> bool:
    if isinstance(scaling, LongRopeScaling):
        return scaling.short_factor != scaling.long_factor
    return isinstance(scaling, DynamicScaling)


def _rotate(
    x: Float[Tensor, "B H T Dh"], cos: Float[Tensor, "b 1 T R"], sin: Float[Tensor, "b 1 T R"]
) -> Float[Tensor, "B H T Dh"]:
    if few_rows.rotate_applies(x, cos):
        return few_rows.rotate(x, cos, sin)
    d_rotary = cos.shape[-1]
    if x.shape[-1] > d_rotary:
        turned, kept = x.split((d_rotary, x.shape[-1] - d_rotary), dim=-1)
        return torch.cat((_rotate(turned, cos, sin), kept), dim=-1)
    return (x * cos.to(x.dtype)).addcmul_(x.roll(d_rotary // 2, dims=-1), sin.to(x.dtype))


def _frequencies(config: RotaryConfig, d_rotary: int, n_tokens: int) -> Float[Tensor, " half"]:
    """One angle per position and pair, with the scaling applied.

    Source: the papers named in config.py; constants as in transformers 5, modeling_rope_utils.py.
    """
    exponents = torch.arange(0, d_rotary, 2, dtype=torch.float32, device="cpu") / d_rotary
    scaling = config.scaling
    match scaling:
        case None:
            return 1.0 / config.theta**exponents
        case LinearScaling():
            return 1.0 / config.theta**exponents / scaling.factor
        case DynamicScaling():
            n = max(n_tokens, scaling.n_ctx_original)
            stretch = scaling.factor * n / scaling.n_ctx_original - (scaling.factor - 1)
            return 1.0 / (config.theta * stretch ** (d_rotary / (d_rotary - 2))) ** exponents
        case LongRopeScaling():
            long = n_tokens > scaling.n_ctx_original
            chosen = scaling.long_factor if long else scaling.short_factor
            factors = torch.tensor(chosen, dtype=torch.float32, device="cpu")
            return 1.0 / (factors * config.theta**exponents)
        case Llama3Scaling():
            return _llama3(1.0 / config.theta**exponents, scaling)
        case YarnScaling():
            return _yarn(config.theta, exponents, scaling)


def _llama3(base: Float[Tensor, " half"], scaling: Llama3Scaling) -> Float[Tensor, " half"]:
    turns = scaling.n_ctx_original * base / (2 * math.pi)  # how often each pair turns in the original context
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = keep.clamp(0, 1)
    return (1 - keep) * base / scaling.factor + keep * base


def _yarn(theta: float, exponents: Float[Tensor, " half"], scaling: YarnScaling) -> Float[Tensor, " half"]:
    n_pairs = len(exponents)

    def pair_that_turns(times: float) -> float:
        return n_pairs * math.log(scaling.n_ctx_original / (times * 2 * math.pi)) / math.log(theta)

    low, high = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * n_pairs - 1)
    high += 0.001 * (low == high)  # a ramp of no width would divide by zero
    ramp = ((torch.arange(n_pairs, dtype=torch.float32, device="cpu") - low) / (high - low)).clamp(0, 1)
    extrapolated = 1.0 / theta**exponents
    interpolated = 1.0 / (scaling.factor * theta**exponents)
    return interpolated * ramp + extrapolated * (1 - ramp)


class Positions(nn.ModuleList):
    """The kinds of position a network has; layers of one kind share its module."""

    def __init__(self, kinds: Sequence[PositionConfig], config: ModelConfig) -> None:
        super().__init__(build_position(kind, config) for kind in kinds)

    def __iter__(self) -> Iterator[NoPosition]:
        return cast(Iterator[NoPosition], super().__iter__())


def build_position(position: PositionConfig, config: ModelConfig) -> NoPosition:
    """The module of one position kind."""
    match position:
        case NoPositionConfig():
            return NoPosition()
        case LearnedPositionConfig():
            return LearnedPosition(config.n_ctx, config.d_model)
        case RotaryConfig():
            return Rotary(position, config.d_head)
