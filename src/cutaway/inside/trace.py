"""A pass, or a whole generation, with its inside kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from cutaway.config import ModelConfig
from cutaway.errors import InsideError
from cutaway.generate.decoding import Generation
from cutaway.inside.edits import Edit
from cutaway.inside.names import Target, fitting, sizes
from cutaway.inside.passes import Of, run_backward, run_generations, run_texts
from cutaway.inside.tap import Row, TraceTap
from cutaway.inside.values import Values
from cutaway.network import Transformer

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
    Where a rotation depends on the length and the text was read again on the way, the last reading stands.
    """

    def __init__(
        self, values: Values, generation: Generation, *, keep: Sequence[str], grad: Values | None = None
    ) -> None:
        super().__init__(values.entries, values.n_prompt)
        n_read = values["logits"].shape[1]
        self.tokens = generation.tokens[:n_read]
        self.new_tokens = generation.tokens[values.n_prompt :]
        self.keep = list(keep)
        self.grad = grad

    @property
    def logits(self) -> Tensor:
        """The scores of each next token [T V]."""
        return self["logits"][0]

    def to_dict(self, *, values: bool | Iterable[str] = False, digits: int = 4) -> dict[str, Any]:
        """Plain data: names and shapes; the numbers too of the names in `values`, or of all if it is True.

        Numbers are rounded; one that is not finite, such as a masked score, is None.
        """
        shown = list(self) if values is True else list(values or ())
        return {
            "tokens": self.tokens,
            "n_prompt": self.n_prompt,
            "new_tokens": self.new_tokens,
            "n_bytes": self.n_bytes,
            "shapes": {name: list(value.shape) for name, value in self.items()},
            "values": {name: plain(self[name].tolist(), digits) for name in shown},
        }


def trace(
    model: Model,
    prompts: Sequence[Any],
    *,
    keep: str | Sequence[str] = "*",
    edits: Sequence[Edit] = (),
    generate: int = 0,
    grad: bool = False,
    of: Of | None = None,
    limit: int = LIMIT,
    **options: Any,
) -> list[Trace]:
    """The inside of one pass over several texts, each as if it were alone.

    Args:
        keep: names, with wildcards and brackets; the logits are always kept. Blocks of which only names outside the
            kernel are wanted keep the fast kernel, and then the logits are those of a plain pass, bit for bit.
        edits: what to change on the way, in this order.
        generate: continue each text by this many tokens, and keep every step; `options` are those of
            `LanguageModel.stream`.
        grad: also keep the gradient of `of` by every kept value, as `trace.grad[name]`.
        of: a function of the logits [T V] to one number, or (position, token) for that logit;
            None takes the highest logit of the last position.
        limit: what the traces may hold together [B].
    Raises:
        InsideError: a name or an edit that does not fit; more bytes than the limit, found before anything runs.
        ContextError, TokenizerError, GenerationError: as in `generate`.
    """
    config = model.network.config
    if not generate and options:
        raise InsideError(f"{next(iter(options))} is an option of generating: give generate = how many tokens")
    if of is not None and not grad:
        raise InsideError("of without grad: give grad=True, or leave it out")
    if grad and generate:
        raise InsideError(f"generate = {generate} with grad: trace the text that it gave, with grad=True")
    generations = model.generations(prompts, max_tokens=generate, **options)
    texts = [list(generation.request.prompt) for generation in generations]
    # the last new token is picked and not read
    lengths = [(len(text), min(len(text) + max(generate - 1, 0), max(len(text), config.n_ctx))) for text in texts]
    wanted = fitting(config, [keep, "logits"] if isinstance(keep, str) else [*keep, "logits"], lengths)
    aimed = [(edit, target) for edit in edits for target in fitting(config, edit.at, lengths)]
    for edit, target in aimed:
        edit.check(target)
    check_bytes(bytes_of(config, wanted, lengths, model.network.embed.weight.dtype.itemsize), limit, grad=grad)
    if not texts:
        return []
    tap = TraceTap(wanted, aimed, grad=grad)
    rows = [Row(n_prompt=len(text)) for text in texts]
    gradients: Sequence[Values | None] = [None] * len(rows)
    if grad:
        gradients = run_backward(model.network, tap, rows, texts, of)
    elif generate:
        run_generations(model.network, tap, rows, generations)
    else:
        run_texts(model.network, tap, rows, texts)
    keys = [str(target) for target in wanted]
    return [
        Trace(row.values(), generation, keep=keys, grad=gradient)
        for row, generation, gradient in zip(rows, generations, gradients, strict=True)
    ]


def predict_bytes(
    config: ModelConfig, keep: str | Sequence[str], n_tokens: int | Sequence[int], *, itemsize: int = 4
) -> int:
    """What a trace of texts this long would hold, from the config alone [B].

    Args:
        n_tokens: of one text, or of each of several.
        itemsize: of the weights' type [B/number].
    Raises:
        InsideError: a name that does not fit.
    """
    lengths = [(n, n) for n in ([n_tokens] if isinstance(n_tokens, int) else n_tokens)]
    return sum(bytes_of(config, fitting(config, keep, lengths), lengths, itemsize).values())


def bytes_of(
    config: ModelConfig, wanted: Sequence[Target], lengths: Sequence[tuple[int, int]], itemsize: int
) -> dict[Target, int]:
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
    largest = max(taken, key=lambda target: taken[target])
    kind = largest.name.split(".", 2)[-1]
    alike = sum(n for target, n in taken.items() if target.name.split(".", 2)[-1] == kind)
    less = "[head 0]" if "H" in largest.axes else "[position -1]"
    raise InsideError(
        f"the trace would hold {total} bytes ({_mib(total)}){' with gradients' * grad}, the limit is {limit}: "
        f"all {kind} are {_mib(alike)}, {largest} alone {_mib(taken[largest])}; keep fewer names or parts, "
        f"such as {largest.name}{less}, or raise limit"
    )


def plain(value: Any, digits: int) -> Any:
    """Nested lists with rounded numbers; None for one that is not finite."""
    if isinstance(value, list):
        return [plain(item, digits) for item in value]
    return (round(value, digits) if math.isfinite(value) else None) if isinstance(value, float) else value


def _mib(n: int) -> str:
    return f"{n / 2**20:,.1f} MiB"
