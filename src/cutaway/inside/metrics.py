"""What a sweep measures: one number of a pass, chosen by the user."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from cutaway.errors import InsideError
from cutaway.inside.labels import label
from cutaway.inside.passes import differentiable
from cutaway.inside.targets import Reader, Token, token_of, wide
from cutaway.network import Transformer

MetricName = Literal["logit", "difference", "logprob", "kl"]
Metric = MetricName | Callable[[Tensor], Any]  # a callable turns the logits [T V] into one number


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A metric made ready: what it is called, and the number of each row of a batch."""

    name: str
    unit: str
    position: int | None  # the only one whose logits it reads; None: it reads all of a row, alone [T V]
    of: Callable[[Tensor], Any]  # logits [B V] → [B], or [T V] → a number

    @property
    def rows_at_once(self) -> int:
        """How many rows a product with the head should have: it reads the whole head for them."""
        return 1 if self.position is None else 256

    def reads(self, x: Tensor) -> Tensor:
        """What it needs of the residual stream after the last block [B T D]: all of it, or its position [B 1 D]."""
        return x if self.position is None else x[:, self.position, None].clone()

    def __call__(self, network: Transformer, x: Tensor) -> Tensor:
        """From what it reads to the numbers [B].

        Raises:
            InsideError: the user's metric gives no number.
        """
        if self.position is not None:
            return self.of(wide(network.unembed(x)[:, 0])).double().cpu()
        return torch.tensor([self._number(network.unembed(row[None])[0]) for row in x], dtype=torch.float64)

    def differentiable(self, network: Transformer, x: Tensor) -> Tensor:
        """The number of one text's stream [1 T D] with its graph.

        Raises:
            InsideError: the user's metric gives none.
        """
        if self.position is not None:
            return self(network, self.reads(x))[0]
        logits, role = network.unembed(x)[0], f"metric {self.name}: for an estimate it"
        try:
            return differentiable(self.of(logits), role)
        except RuntimeError as error:  # numpy's, of a tensor with a graph
            said = f"metric {self.name}, with a gradient: {error}"
            raise InsideError(said.splitlines()[0]) from error

    def _number(self, logits: Tensor) -> float:
        found = self.of(logits)
        try:
            return float(found)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InsideError(
                f"metric {self.name} gives {type(found).__name__}: it must turn the logits [T V] into one number"
            ) from error


def measure_of(
    model: Reader,
    metric: Metric | None,
    *,
    target: Token | None,
    versus: Token | None,
    position: int,
    place: str,
    reference: Tensor,
) -> Measure:
    """The metric that a user means.

    Args:
        metric: None takes "difference" where there is a versus, else "logprob".
        target: None takes the likeliest token of the reference.
        place: what the position is called.
        reference: the logits [V] of the run that all others are compared with.
    Raises:
        InsideError: a name that is none, a token that does not fit, or one that the metric has no use for.
    """
    if callable(metric):
        _refuse("a metric of your own", target=target, versus=versus)
        return Measure(name=getattr(metric, "__name__", type(metric).__name__), unit="", position=None, of=metric)
    kinds: Sequence[str] = get_args(MetricName)
    metric = metric or ("logprob" if versus is None else "difference")
    if metric not in kinds:
        near = difflib.get_close_matches(str(metric), kinds, n=1)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(kinds)}, or a function of the logits [T V]"
        raise InsideError(f"metric = {metric!r:.40}: {hint}")
    if metric == "kl":
        _refuse("kl", target=target, versus=versus)
        return Measure(name=f"KL at {place}", unit="nats", position=position, of=Divergence(wide(reference)))
    wanted = int(reference.argmax()) if target is None else token_of(model, target, "target")
    name = label(model.tokenizer, wanted)
    if metric == "difference":
        if versus is None:
            raise InsideError("metric = 'difference': give versus, the token whose logit is taken off")
        other = token_of(model, versus, "versus")
        if other == wanted:
            raise InsideError(f"target and versus are both {name} ({wanted}): take another")
        over = f"logit of {name} over {label(model.tokenizer, other)} at {place}"
        return Measure(name=over, unit="logit", position=position, of=lambda x: x[:, wanted] - x[:, other])
    _refuse(metric, versus=versus)
    if metric == "logit":
        return Measure(name=f"logit of {name} at {place}", unit="logit", position=position, of=lambda x: x[:, wanted])
    return Measure(
        name=f"log-probability of {name} at {place}",
        unit="nats",
        position=position,
        of=lambda x: x.log_softmax(-1)[:, wanted],
    )


@dataclass(frozen=True, eq=False)
class Divergence:
    """KL(reference ‖ row) [nats]: what is lost by taking the row's distribution for that of the reference."""

    reference: Tensor  # logits [V]

    def __call__(self, logits: Tensor) -> Tensor:
        log_p = self.reference.double().log_softmax(-1)
        terms = log_p.exp() * (log_p - logits.double().log_softmax(-1))
        return terms.sum(-1).clamp(min=0)  # rounding may leave −1e-16


def _refuse(metric: str, **unused: Any) -> None:
    for role, value in unused.items():
        if value is not None:
            raise InsideError(f"{role} = {value!r:.40}: {metric} has no use for it; leave it out")
