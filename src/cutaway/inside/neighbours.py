"""Neighbours: the tokens whose rows lie nearest to a row, or to any vector of a pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from cutaway.errors import InsideError
from cutaway.figures import Bars, Figure, Prose, Result, Table, plain
from cutaway.inside.labels import label, labels
from cutaway.inside.names import WORDS, Target, matching, names
from cutaway.inside.targets import Reader, count_of, position_of, token_of, wide
from cutaway.inside.trace import LAST, trace

By = Literal["cosine", "dot"]
Space = Literal["embedding", "unembedding"]
AT_ONCE = 1 << 24  # numbers of a table that are widened at a time


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A token, and how near its row is."""

    token: int
    label: str
    rank: int  # 1 is the nearest of the whole vocabulary
    cosine: float
    dot: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Neighbours(Result):
    """The nearest tokens in a table of rows.

    `own` is the token whose row it is, or that stands at the position: it is not among the nearest of its own row, and
    may be among those of a vector. `mean_cosine` is over the whole vocabulary: what a cosine has to be compared with.
    """

    tokens: tuple[int, ...]
    labels: tuple[str, ...]
    name: str | None  # of the vector in the trace; None for a token's own row
    position: int
    space: Space
    by: By
    own: Neighbour
    nearest: tuple[Neighbour, ...]
    mean_cosine: float
    norm: float  # of the vector

    @property
    def heading(self) -> str:
        return f"Tokens nearest to {self._what}, by {self.by} in the {self.space}"

    def figures(self) -> list[Figure]:
        by = "dot product" if self.by == "dot" else "cosine"
        mark = " (itself)" if self.name is None else " (stands there)"
        return [
            Bars(
                title=f"Nearest to {self._what}",
                note=f"By {by} with the rows of the {self.space}.",
                labels=[one.label + mark * (one.token == self.own.token) for one in self.nearest],
                values=[one.cosine if self.by == "cosine" else one.dot for one in self.nearest],
                unit=by,
            ),
            Table(
                title="By rank",
                note=f"The mean cosine with the whole vocabulary is {self.mean_cosine:.3f}.",
                columns=[">rank", "token", ">id", ">cosine", ">dot product"],
                rows=[
                    [one.rank, one.label + mark * (one.token == self.own.token), one.token, one.cosine, one.dot]
                    for one in self._listed()
                ],
            ),
            Prose(title="How to read it", lines=self._note()),
        ]

    def to_dict(self) -> dict[str, Any]:
        listed = {"own": vars(self.own), "nearest": [vars(one) for one in self.nearest]}
        return {"kind": "neighbours"} | plain(vars(self) | listed, 6)

    @property
    def _what(self) -> str:
        if self.name is None:
            return f"the row of {self.own.label}"
        return f"{self.name} at {self.labels[self.position]} ({self.position})"

    def _listed(self) -> list[Neighbour]:
        listed = [*self.nearest, *([self.own] if self.own not in self.nearest else [])]
        return sorted(listed, key=lambda one: one.rank)

    def _note(self) -> list[str]:
        lines = ["Cosine compares directions alone; the dot product also favours long rows."]
        if self.name not in (None, "final_norm"):
            lines.append(
                "The vector is compared as it is. To see what the head would make of it, with the final norm, use lens."
            )
        return lines


@torch.no_grad()
def neighbours(
    model: Reader,
    what: Any,
    *,
    by: By = "cosine",
    k: int = 10,
    name: str | None = None,
    position: int = -1,
    space: Space = "embedding",
) -> Neighbours:
    """The tokens whose rows are nearest to the row of a token, or to a vector of a pass.

    Args:
        what: a token, by its text or id; with `name` a prompt.
        by: "cosine" or "dot", for the order; both are given.
        k: how many.
        name: of a value of width D in the trace of the prompt, such as "blocks.3.resid_post" or
            "blocks.3.attn.head_out[head 5]".
        position: where in the prompt.
        space: whose rows: "embedding" (W_E), or "unembedding" (W_U), which are one table in a tied model.
    Raises:
        InsideError: no such token, name, position, order or space; a value that is no single vector of width D.
        ContextError, TokenizerError, GenerationError: as in `generate`.
    """
    for role, value, known in (("by", by, get_args(By)), ("space", space, get_args(Space))):
        if value not in known:
            raise InsideError(f"{role} = {value!r:.40}: it must be {' or '.join(known)}")
    network = model.network
    table = (network.embed if space == "embedding" else network.head).weight
    k = count_of(k, len(table) - 1, "k")
    if name is None:
        own = token_of(model, what, "what")
        ids, at, vector = [own], 0, wide(table[own])
    else:
        ids = model.ids(what)
        at = position_of(position, len(ids))
        own, vector = ids[at], vector_of(model, ids, name, at)
    cosine, dot = nearness(table, vector)
    scores = cosine if by == "cosine" else dot
    order = scores.argsort(descending=True, stable=True).tolist()
    ranks = {token: rank for rank, token in enumerate(order, start=1)}

    def one(token: int) -> Neighbour:
        numbers = {"cosine": float(cosine[token]), "dot": float(dot[token])}
        return Neighbour(token=token, label=label(model.tokenizer, token), rank=ranks[token], **numbers)

    nearest = [token for token in order[: k + 1] if name is not None or token != own][:k]
    return Neighbours(
        tokens=tuple(ids),
        labels=tuple(labels(model.tokenizer, ids)),
        name=name,
        position=at,
        space=space,
        by=by,
        own=one(own),
        nearest=tuple(map(one, nearest)),
        mean_cosine=float(cosine.mean()),
        norm=float(vector.norm()),
    )


def vector_of(model: Reader, ids: list[int], name: str, position: int) -> Tensor:
    """The value of that name at one position of a pass [D].

    Raises:
        InsideError: no such name, or no single vector of width D.
    """
    config = model.network.config
    target, *others = matching(names(config), name)
    if others or "D" not in target.axes:
        wanted = "blocks.3.resid_post or blocks.3.attn.head_out[head 5]"
        raise InsideError(f"{name}: name one value of width {config.d_model}, such as {wanted}")
    if any("T" in WORDS[word] for word, _ in target.picks):
        raise InsideError(f"{name}: give the position as position=, not in the brackets")
    picks = (*target.picks, ("position", ((position, position + 1),)))
    here = str(Target(name=target.name, axes=target.axes, picks=picks))
    (found,) = trace(model, [ids], keep=[here, LAST])
    value = found[here]
    if value.numel() != config.d_model:
        raise InsideError(f"{name} holds {value.numel() // config.d_model} vectors: pick one, as in {name}[head 0]")
    return wide(value.flatten())


def nearness(table: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and dot product of a vector with every row."""
    dots, lengths = [], []
    for rows in table.split(max(1, AT_ONCE // table.shape[1])):
        rows = wide(rows)
        dots.append(rows @ vector.to(rows))
        lengths.append(rows.norm(dim=-1))
    dot, length = torch.cat(dots), torch.cat(lengths) * vector.norm()
    return dot / length.clamp(min=torch.finfo(dot.dtype).tiny), dot  # a row of zeros is near to nothing
