"""A pass, or a whole generation, with its inside kept."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from cutaway import pages
from cutaway.config import ModelConfig
from cutaway.errors import InsideError
from cutaway.figures import plain
from cutaway.generate.decoding import Generation, Piece
from cutaway.inside.edits import Edit
from cutaway.inside.made import follows, made
from cutaway.inside.names import Target, fitting, listed, sizes
from cutaway.inside.passes import Of, gradients, residual, run_backward, run_generations
from cutaway.inside.tap import Row, TraceTap
from cutaway.inside.values import Entry, NotKept, Values
from cutaway.network import Transformer

LAST = "logits[position -1]"  # where no other scores are read: the head runs for one position
LIMIT = 2 * 2**30  # what the traces of one call may hold [B]


@runtime_checkable
class Model(Protocol):
    """What a trace needs of a language model."""

    network: Transformer

    def ids(self, prompt: Any) -> list[int]: ...

    def generations(self, prompts: Sequence[Any], /, **options: Any) -> list[Generation]: ...


class Trace(Values):
    """What was kept of one text, by name; every value keeps the batch axis of its shape, with one text in it.

    `tokens` are the ids that were read, `logits` [T V] their scores. Of a generation, `new_tokens` are those picked,
    the last of which was not read; the steps are joined to the shape of one pass over `tokens`. What a step has no
    number for, because the key came later, is 0 in a pattern, −inf in `masked` and NaN in `scores` and `scaled`.
    Where a rotation depends on the length and the text was read again on the way, the last reading stands. Some values
    are made of others at each reading: to change one, copy it; what is written into a source shows in them.
    """

    def __init__(
        self, entries: Sequence[Entry], row: Row, generation: Generation, *, keep: Sequence[str], grad: Values | None
    ) -> None:
        super().__init__(entries, row.n_prompt)
        self.tokens = generation.tokens[: row.end]
        self.new_tokens = generation.tokens[row.n_prompt :]
        self.keep = list(keep)
        self.grad = grad

    @property
    def logits(self) -> Tensor:
        """The scores of each next token [T V]; of the positions that `keep` names, where it names some of them.

        Raises:
            InsideError: it names them in several parts, or such as a generation ended before.
        """
        kept = self.parts_of("logits")
        if not kept:
            raise NotKept(f"no logits were kept: the text ended after {len(self.tokens)} positions, before those named")
        if len(kept) > 1:
            raise InsideError(f"the logits were kept in {len(kept)} parts: read them by name, such as {kept[0].target}")
        return kept[0].value[0]

    def to_dict(self, *, values: bool | Iterable[str] = False, digits: int = 4) -> dict[str, Any]:
        """Plain data: names and shapes; the numbers too of the names in `values`, or of all if it is True.

        Numbers are rounded to that many significant digits; one that is not finite, such as a masked score, is None.
        """
        shown = list(self) if values is True else list(values or ())
        return {
            "tokens": self.tokens,
            "n_prompt": self.n_prompt,
            "new_tokens": self.new_tokens,
            "n_bytes": self.n_bytes,
            "shapes": {str(entry.target): list(map(len, entry.index)) for entry in self.entries},
            "values": {name: plain(self[name].tolist(), digits) for name in shown},
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Watch:
    """Some texts that are about to be read, and what is wanted of it: all of it checked, nothing run."""

    network: Transformer
    tap: TraceTap
    rows: list[Row]
    wanted: list[Target]
    derived: Mapping[Target, tuple[Target, ...]]  # which of them are made from which

    @property
    def idle(self) -> bool:
        """Whether nothing is kept and nothing edited, so that any pass will do."""
        return not (self.tap.kept or self.tap.edits)

    def decode(
        self, generations: Sequence[Generation], *, use_cache: bool = True
    ) -> Iterator[tuple[Generation, Piece]]:
        """As `decode` of the generate room, each pass through the tap."""
        return run_generations(self.network, self.tap, self.rows, generations, use_cache=use_cache)

    def values(self, row: Row) -> Values:
        """What was kept of one text."""
        return Values(self.entries(row), row.n_prompt)

    def entries(self, row: Row) -> list[Entry]:
        """The same in the order of the pass, and what follows from it."""
        self.tap.settle()
        entries = row.entries()
        for target, names in self.derived.items():
            sources = [entries[name] for name in names if name in entries]
            if len(sources) == len(names):  # a generation may end before the positions that were named
                entries[target] = made(self.network, target, sources)
        found = map(entries.get, self.wanted)
        return [entry for entry in found if entry is not None]

    def traces(
        self, generations: Sequence[Generation], gradients: Sequence[Values | None] | None = None
    ) -> list[Trace]:
        """What was kept of each, once it is read."""
        keys = [str(target) for target in self.wanted]
        below = [None] * len(self.rows) if gradients is None else gradients
        return [
            Trace(self.entries(row), row, generation, keep=keys, grad=gradient)
            for row, generation, gradient in zip(self.rows, generations, below, strict=True)
        ]


def watching(
    network: Transformer,
    generations: Sequence[Generation],
    *,
    keep: str | Sequence[str] | None,
    edits: Edit | Sequence[Edit] = (),
    grad: bool = False,
    limit: int = LIMIT,
) -> Watch:
    """What a look into these texts takes, checked against their lengths. `keep` None: nothing, not even the logits.

    Raises:
        InsideError: a name or an edit that does not fit; more bytes than the limit.
    """
    config = network.config
    # the last new token is picked and not read
    lengths = [
        (n, min(n + max(n_new - 1, 0), max(n, config.n_ctx)))
        for n, n_new in ((len(g.request.prompt), g.request.max_tokens) for g in generations)
    ]
    names = listed(keep or ())
    if not any(name.lstrip().startswith("logits") for name in names):
        names = [*names, "logits"]
    wanted = [] if keep is None else fitting(config, names, lengths)
    several = [edits] if isinstance(edits, Edit | str) else list(edits)  # a string is refused as a whole
    for edit in several:
        if not isinstance(edit, Edit):
            raise InsideError(
                f"{edit!r} is no edit: give Zero(...), Scale(...), Patch(...) or another of cutaway.inside"
            )
    aimed = [(edit, target) for edit in several for target in fitting(config, edit.at, lengths)]
    for edit, target in aimed:
        edit.check(target)
        for n_prompt, n in lengths:
            reach = edit.reach(target.axes, n_prompt) or (0,)  # in order
            if not (reach[0] >= 0 and reach[-1] < n):
                place = reach[0] if reach[0] < 0 else reach[-1]
                raise InsideError(f"{type(edit).__name__} at {target}: position {place} is outside 0 to {n - 1}")
    edited = frozenset(target.name for _, target in aimed)
    derived = {} if grad else follows(config, tuple(wanted), edited, in_one_pass=in_one_pass(lengths))
    stored = [target for target in wanted if target not in derived]
    if wanted:
        itemsize = network.embed.weight.dtype.itemsize
        taken = bytes_of(config, tuple(stored), tuple(lengths), itemsize)
        check_bytes(taken, limit, grad=grad)
        if network.embed.weight.is_cpu and max(taken.values()) >= pages.MAPPED:
            pages.make_room(sum(taken.values()) + 2 * pages.MAPPED)
    rows = [Row(n_prompt=n_prompt) for n_prompt, _ in lengths]
    return Watch(network=network, tap=TraceTap(stored, aimed, grad=grad), rows=rows, wanted=wanted, derived=derived)


def trace(
    model: Model,
    prompts: Sequence[Any],
    *,
    keep: str | Sequence[str] | None = "*",
    edits: Edit | Sequence[Edit] = (),
    generate: int = 0,
    grad: bool = False,
    of: Of | None = None,
    limit: int = LIMIT,
    **options: Any,
) -> list[Trace]:
    """The inside of one pass over several texts, each as if it were alone.

    Args:
        keep: names, with wildcards and brackets, or None; the logits are always kept, of all positions unless some are
            named: with `logits[position -1]` the head of a plain pass runs for the last one alone, within rounding the
            same. Blocks of which only names outside the kernel are wanted keep the fast kernel, and then the logits
            of all positions are those of a plain pass, bit for bit where no gradient is kept.
        edits: what to change on the way, in this order.
        generate: continue each text by this many tokens, and keep every step; `options` are those of
            `LanguageModel.stream`.
        grad: also keep the gradient of `of` by every kept value, as `trace.grad[name]`.
        of: a function of the logits [T V] to one number, (position, token) for that logit, or "loss" for the mean
            cross-entropy of the text's own next tokens [nats]; None takes the highest logit of the last position.
        limit: what the traces may hold together [B].
    Raises:
        InsideError: a name or an edit that does not fit; more bytes than the limit, found before anything runs.
        ContextError, TokenizerError, GenerationError: as in `generate`.
    """
    if not generate and options:
        raise InsideError(f"{next(iter(options))} is an option of generating: give generate = how many tokens")
    if of is not None and not grad:
        raise InsideError("of without grad: give grad=True, or leave it out")
    if grad and generate:
        raise InsideError(f"generate = {generate} with grad: trace the text that it gave, with grad=True")
    generations = model.generations(prompts, max_tokens=generate, **options)
    watch = watching(model.network, generations, keep=keep or (), edits=edits, grad=grad, limit=limit)
    if grad and generations:
        texts = [list(generation.request.prompt) for generation in generations]
        return watch.traces(generations, run_backward(model.network, watch.tap, watch.rows, texts, of))
    for _ in watch.decode(generations, use_cache=options.get("cache", True)):
        pass
    return watch.traces(generations)


@dataclass(frozen=True, kw_only=True, eq=False)
class Headless:
    """One text read up to the head: what was kept, and the residual stream after the last block [1 T D]."""

    watch: Watch
    kept: Values
    x: Tensor

    def gradient(self, number: Tensor) -> Values:
        """Of a number that was made of `x`, by every kept value; once, where the text was read for gradients."""
        (gradient,) = gradients(self.watch.tap, self.watch.rows, number)
        return gradient


def headless(model: Model, ids: list[int], *, keep: Sequence[str], grad: bool = False, limit: int = LIMIT) -> Headless:
    """Read a text up to the head, for those who need the scores of few positions; `grad` leaves a graph behind.

    Raises:
        InsideError: a name that does not fit; more bytes than the limit, gradients included.
    """
    watch = watching(model.network, model.generations([ids], max_tokens=0), keep=[*keep, LAST], grad=grad, limit=limit)
    with torch.inference_mode(False), torch.set_grad_enabled(bool(grad)):
        x, _ = residual(model.network, watch.tap, watch.rows, [ids])
    return Headless(watch=watch, kept=watch.values(watch.rows[0]), x=x)


def in_one_pass(lengths: Sequence[tuple[int, int]]) -> bool:
    """Whether (prompt, whole) lengths are those of a single text of several tokens that is only read.

    One token goes through the loops of a step where nobody follows torch's operations, so who reads would matter.
    """
    return len(lengths) == 1 and lengths[0][0] == lengths[0][1] > 1


def predict_bytes(
    config: ModelConfig, keep: str | Sequence[str], n_tokens: int | Sequence[int], *, itemsize: int = 4
) -> int:
    """What a trace of texts this long, read in one pass, would hold without gradients and edits, from the config [B].

    Args:
        n_tokens: of one text, or of each of several.
        itemsize: of the weights' type [B/number].
    Raises:
        InsideError: a name that does not fit.
    """
    lengths = [(n, n) for n in ([n_tokens] if isinstance(n_tokens, int) else n_tokens)]
    wanted = fitting(config, keep, lengths)
    derived = follows(config, tuple(wanted), frozenset(), in_one_pass=in_one_pass(lengths))
    stored = tuple(target for target in wanted if target not in derived)
    return sum(bytes_of(config, stored, tuple(lengths), itemsize).values())


@functools.lru_cache(maxsize=32)
def bytes_of(
    config: ModelConfig, wanted: tuple[Target, ...], lengths: tuple[tuple[int, int], ...], itemsize: int
) -> Mapping[Target, int]:
    """What each name takes in texts of (prompt, whole) lengths [B]."""
    axes = [(sizes(config, 1, n, n), n_prompt) for n_prompt, n in lengths]
    return {target: sum(target.n_bytes(*one, itemsize) for one in axes) for target in wanted}


def check_bytes(taken: Mapping[Target, int], limit: int, *, grad: bool) -> None:
    """Refuse what would not fit, before anything is computed.

    Raises:
        InsideError: more than the limit.
    """
    total = sum(taken.values()) * (2 if grad else 1)
    if total <= limit:
        return
    optional = {target: n for target, n in taken.items() if target.name != "logits" or target.picks}
    said = f"the trace would hold {total} bytes ({_mib(total)}){' with gradients' * grad}, the limit is {limit}: "
    if not optional:
        raise InsideError(f"{said}all of it logits, which are always kept; give a shorter text, or raise limit")
    largest = max(optional, key=lambda target: optional[target])
    kind = largest.scope[1]
    alike = sum(n for target, n in taken.items() if target.scope[1] == kind)
    less = "[head 0]" if "H" in largest.axes else "[position -1]"
    raise InsideError(
        f"{said}all {kind} are {_mib(alike)}, {largest} alone {_mib(taken[largest])}; keep fewer names or parts, "
        f"such as {largest.name}{less}, or raise limit"
    )


def _mib(n: int) -> str:
    return f"{n / 2**20:,.1f} MiB"
