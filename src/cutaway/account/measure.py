"""The account held against the network itself: predicted, measured, and how far apart.

The network is built from the config with random weights, which cost what trained ones cost.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from cutaway.account import flops, memory, parameters, peaks
from cutaway.account import time as timing
from cutaway.account.available import available_memory
from cutaway.account.machine import this_machine, wait
from cutaway.config import ModelConfig
from cutaway.errors import ConfigError
from cutaway.generate.step import Step
from cutaway.network import Transformer
from cutaway.nn.cache import Cache

ROOM = 8  # tokens that a cache has room for beyond the prompt
SPENT = 0.5  # seconds for which a pass is repeated when it is timed


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One number as it was foreseen and as it was found. None: not known, or not counted."""

    what: str
    unit: str
    predicted: float | None
    measured: float | None
    exact: bool = False  # whether the two must be equal
    note: str = ""

    @property
    def error(self) -> float | None:
        """How far the prediction is off, as a share of what was measured."""
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured - 1

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return vars(self) | {"error": self.error}


def measure(
    config: ModelConfig,
    n_tokens: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Measured]:
    """A prompt of `n_tokens`, a step after it, and a training step on as many tokens.

    Raises:
        ConfigError: more tokens than the context has room for with a step after them, or more memory than there is;
            found before anything is built.
    """
    if not 2 <= n_tokens < config.n_ctx:
        raise ConfigError(
            f"{n_tokens} tokens to measure with: it must be from 2 to {config.n_ctx - 1}, and one more is the context"
        )
    training = peaks.training(config, n_tokens, itemsize=dtype.itemsize, device=device.type)
    free = available_memory(device)
    if training > free:
        raise ConfigError(
            f"measuring a training step would take {training / 1e9:,.1f} GB, {free / 1e9:,.1f} GB are free: "
            "measure a smaller model, or one on fewer tokens with --context"
        )
    progress("building the network")
    with device:
        network = Transformer(config).to(dtype).eval()
    bench = _Bench(network, n_tokens, dtype, device)
    rows = [*bench.sizes()]
    for name, part in (("FLOPs", bench.work), ("memory", bench.peaks), ("time", bench.times)):
        progress(f"measuring {name}")
        rows += part()
    return rows


class _Bench:
    """A network and what is measured of it."""

    def __init__(self, network: Transformer, n_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        self.network = network
        self.config = network.config
        self.n_tokens = n_tokens
        self.dtype = dtype
        self.device = device
        self.n_slots = n_tokens + ROOM
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(self.config.d_vocab, (1, n_tokens), generator=generator).to(device)

    # --- what is run ---------------------------------------------------------------------------------------

    def cache(self) -> Cache:
        return Cache(self.config, 1, self.network.embed.weight, self.n_slots)

    @torch.inference_mode()
    def prefill(self, cache: Cache) -> Tensor:
        """A prompt through the blocks, its last position through the head."""
        x = self.network.residual(self.tokens, cache)
        return self.network.unembed(x[:, -1:])

    def train(self, optimizer: torch.optim.Optimizer) -> None:
        """One step with the plain loss."""
        logits = self.network(self.tokens)
        F.cross_entropy(logits.flatten(0, 1), self.tokens.flatten()).backward()
        del logits
        optimizer.step()
        optimizer.zero_grad()

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.network.parameters(), lr=1e-6, fused=True)

    # --- what is measured ----------------------------------------------------------------------------------

    def sizes(self) -> Iterator[Measured]:
        """Parameters and bytes."""
        own = list(self.network.parameters())
        yield Measured(
            what="parameters",
            unit="",
            predicted=parameters.total(self.config),
            measured=sum(p.numel() for p in own),
            exact=True,
        )
        yield Measured(
            what="weights",
            unit="B",
            predicted=memory.weights(self.config, self.dtype.itemsize),
            measured=sum(p.nbytes for p in own),
            exact=True,
        )
        yield Measured(
            what=f"keys and values of {self.n_slots} tokens",
            unit="B",
            predicted=memory.kv_cache(self.config, self.n_slots, self.dtype.itemsize),
            measured=self.cache().n_bytes,
            exact=True,
        )

    def work(self) -> Iterator[Measured]:
        """FLOPs by torch's own counter, which knows no fused kernel of the CPU: there the plain one runs."""
        cache = self.cache()
        note = "" if self._whole else "a window's products are made in chunks, which is a little more than the window"
        plain = "counted with torch's plain attention kernel; the fused one is not counted on the CPU"
        yield Measured(
            what=f"prefill of {self.n_tokens}",
            unit="FLOP",
            predicted=self._as_computed(flops.prefill(self.config, self.n_tokens)),
            measured=_counted(lambda: self.prefill(cache), plain=True),
            exact=True,
            note=note or plain,
        )
        other = self.cache()
        fused = _counted(lambda: self.prefill(other), plain=False)
        yield Measured(
            what=f"prefill of {self.n_tokens}, as it runs",
            unit="FLOP",
            predicted=self._as_computed(flops.prefill(self.config, self.n_tokens)),
            measured=fused,
            note="what is missing is scores and mixing, inside the fused kernel",
        )
        step = Step(self.network, cache)
        yield Measured(
            what=f"a step at {self.n_tokens + 1}",
            unit="FLOP",
            predicted=flops.step(self.config, self.n_tokens + 1).total,
            measured=_counted(lambda: self._step(step), plain=True),
            exact=True,
            note="torch's products; as it runs, loops do the same unseen by the counter",
        )
        optimizer = self.optimizer()
        yield Measured(
            what=f"training on {self.n_tokens}",
            unit="FLOP",
            predicted=3 * self._as_computed(flops.forward(self.config, self.n_tokens)),
            measured=_counted(lambda: self.train(optimizer), plain=True),
            exact=True,
            note=note or plain,
        )

    def peaks(self) -> Iterator[Measured]:
        """The most that tensors take at any moment."""
        held = sum(p.nbytes for p in self.network.parameters())
        with Live(self.network) as live:
            self.prefill(self.cache())
        yield Measured(
            what=f"peak of a prefill of {self.n_tokens}",
            unit="B",
            predicted=memory.weights(self.config, self.dtype.itemsize)
            + peaks.prefill(self.config, self.n_tokens, itemsize=self.dtype.itemsize, n_slots=self.n_slots),
            measured=held + live.peak,
            note="weights, cache and what a pass holds",
        )
        optimizer = self.optimizer()
        with Live(self.network) as live:
            self.train(optimizer)
            live.peak = live.now  # the first step makes what the optimizer keeps
            self.train(optimizer)
        yield Measured(
            what=f"peak of a training step on {self.n_tokens}",
            unit="B",
            predicted=peaks.training(self.config, self.n_tokens, itemsize=self.dtype.itemsize, device=self.device.type),
            measured=held + live.peak,
            note="AdamW; weights, gradients, optimizer, activations, all scores of the loss",
        )

    def times(self) -> Iterator[Measured]:
        """Seconds, foreseen from this machine's measured matrix rate and bandwidth: at best."""
        machine = this_machine(self.dtype, self.device)
        name = str(self.dtype).removeprefix("torch.")
        cache = self.cache()
        self.prefill(cache)
        step = Step(self.network, cache)
        self._step(step)
        optimizer = self.optimizer()
        for what, foreseen, work in (
            (
                f"prefill of {self.n_tokens}",
                timing.prefill(self.config, self.n_tokens, machine, name),
                lambda: self.prefill(self.cache()),
            ),
            (
                f"a step at {self.n_tokens + 1}",
                timing.step(self.config, self.n_tokens + 1, machine, name),
                lambda: self._step(step),
            ),
            (
                f"training on {self.n_tokens}",
                timing.training_step(self.config, self.n_tokens, machine, name),
                lambda: self.train(optimizer),
            ),
        ):
            seconds = self._shortest(work, cache)
            share = "" if foreseen.seconds is None else f"; {foreseen.seconds / seconds:.0%} of the roofline reached"
            if foreseen.seconds is not None and seconds < foreseen.seconds:
                share += ": a cache held what was to be read, or the machine was busier when its peak was measured"
            yield Measured(
                what=what, unit="s", predicted=foreseen.seconds, measured=seconds, note=f"{foreseen.bound}{share}"
            )

    def _shortest(self, work: Callable[[], object], cache: Cache) -> float:
        best, spent = math.inf, 0.0
        while best == math.inf or spent < SPENT:
            cache.lengths = [self.n_tokens]  # a step is always the one after the prompt
            wait(self.device)
            begin = time.perf_counter()
            work()
            wait(self.device)
            seconds = time.perf_counter() - begin
            best, spent = min(best, seconds), spent + seconds
        return best

    @torch.inference_mode()
    def _step(self, step: Step) -> Tensor:
        return step.scores(self.tokens[:, :1])

    @property
    def _whole(self) -> bool:
        """Whether the kernel computes the whole square in every layer."""
        return self.config.attention.soft_cap is None and all(
            memory.is_triangle(mask, self.n_tokens) for mask in self.config.masks
        )

    def _as_computed(self, account: flops.Flops) -> int:
        """The account with the pairs that this program's kernel computes."""
        if self._whole:
            return account.total
        capped = self.config.attention.soft_cap is not None
        pairs = sum(
            self.n_tokens**2
            if memory.is_triangle(mask, self.n_tokens) and not capped
            else memory.pairs_in_chunks(mask, self.n_tokens)
            for mask in self.config.masks
        )
        return account.total - account.squares + 4 * pairs * self.config.n_heads * self.config.d_head


def _counted(work: Callable[[], object], *, plain: bool) -> int:
    """FLOPs by torch's counter."""
    counter = FlopCounterMode(display=False)
    with counter:
        if plain:
            with sdpa_kernel(SDPBackend.MATH):
                work()
        else:
            work()
    return counter.get_total_flops()


class Live(TorchDispatchMode):
    """Bytes of all tensors made inside that are still alive: now, and at the most. The network's own do not count."""

    def __init__(self, network: Transformer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._known = {p.untyped_storage()._cdata for p in network.parameters()}

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                self._add(value)
        self.peak = max(self.peak, self.now)
        return result

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._known:
            return
        self._known.add(storage._cdata)
        self.now += storage.nbytes()
        weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())

    def _gone(self, key: int, n_bytes: int) -> None:
        self._known.discard(key)
        self.now -= n_bytes
