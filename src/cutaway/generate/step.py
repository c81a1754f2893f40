"""One new token for every row of a cache: by the network's forward the first time, then by its record."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from cutaway.network import Shared, Transformer
from cutaway.nn import few_rows
from cutaway.nn.cache import Cache
from cutaway.nn.tape import Tape


class Step:
    """The scores after one more token a row.

    A tape holds while rows, buffers and threads stay what they were. Hooks and weights are those of the beginning:
    a network with hooks or somebody's own forward is not recorded, because the tape would leave their Python out;
    weights replaced while a text runs are read from its next text on.
    """

    def __init__(self, network: Transformer, cache: Cache) -> None:
        self.network = network
        self.cache = cache
        self._records = not _has_any_global_hook() and all(map(_runs_its_own_forward, network.modules()))
        self._weights = [parameter.detach() for parameter in network.parameters()]  # the tape holds their addresses
        self._tape: Tape | None = None
        self._key: tuple[int, ...] = ()
        self._inputs: list[Tensor] = []
        self._logits: Float[Tensor, "B 1 V"]

    def scores(self, tokens: Int[Tensor, "B 1"]) -> Float[Tensor, "B V"]:
        """Read one token a row. Call it without gradients."""
        n_new = [1] * len(tokens)
        self.cache.prepare(1)
        x, shared = self.network.enter(tokens, self.cache, n_new)
        records = self._records and few_rows.readable(x, self.network.embed.weight)
        logits = self._again(x, shared) if records else self._forward(x, shared)
        self.cache.advance(n_new)
        return logits[:, 0]

    def _forward(self, x: Float[Tensor, "B 1 D"], shared: Shared) -> Float[Tensor, "B 1 V"]:
        return self.network.unembed(self.network.pass_blocks(x, shared, self.cache))

    def _again(self, x: Float[Tensor, "B 1 D"], shared: Shared) -> Float[Tensor, "B 1 V"]:
        """Run the tape on this step's numbers, or record one if there is none that fits."""
        tables = [table for rotation in shared.rotations for table in rotation.tables]
        inputs = [x, *tables, *(mask.ranges for mask in shared.masks), self.cache.slots]
        key = (self.cache.n_slots, torch.get_num_threads(), *(n for t in inputs for n in t.shape))
        if self._tape is None or key != self._key:
            with Tape.recording() as tape:
                self._logits = self._forward(x, shared)
            self._records = tape.complete
            self._tape, self._key, self._inputs = tape, key, inputs
        else:
            for old, new in zip(self._inputs, inputs, strict=True):
                old.copy_(new)
            self._tape.run()
        return self._logits.clone()  # the next step writes over it


def _runs_its_own_forward(module: nn.Module) -> bool:
    """Whether a call of this module is the forward written here, without a hook."""
    replaced = "forward" in module.__dict__ or not type(module).forward.__module__.startswith(("cutaway.", "torch."))
    return not (replaced or module._forward_hooks or module._forward_pre_hooks)
