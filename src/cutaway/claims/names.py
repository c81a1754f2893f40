"""Claim 2: a token's id is a name."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from cutaway.claims.claim import Claim, Evidence
from cutaway.claims.lab import Lab, far, scores_with
from cutaway.figures import Table
from cutaway.inside.labels import labels
from cutaway.network import Transformer

N_TOKENS = 24
SAME = 1e-5  # max|Δ| over max(1, max|logit|)
SHOWN = 6  # tokens in the table


def measure(lab: Lab, broken: bool) -> Evidence:
    """Scores before and after every token gets another number, in the text and in both tables."""
    network = lab.model.network
    ids = lab.ids(min(N_TOKENS, network.config.n_ctx))
    rows_in, rows_out = network.embed.weight.detach(), network.head.weight.detach()
    order = torch.randperm(len(rows_in), generator=torch.Generator().manual_seed(lab.seed))
    number_of = order.argsort()  # the new number of each old one
    others = number_of[torch.tensor(ids)].tolist()
    if broken:
        rows_in = numbers_as_rows(rows_in)
    renumbered = rows_in if broken else rows_in[order]  # a number is no row that could be moved
    with torch.no_grad():
        plain = scores_with(network, ids, {"embed.weight": rows_in})
        found = scores_with(network, others, {"embed.weight": renumbered, "head.weight": rows_out[order]})
    change = far(found[:, number_of], plain)
    looked_up = from_one_hot(network, ids)
    moved = rows_that_move(network, ids)
    return Evidence(
        holds=change <= SAME and looked_up == 0 and moved == set(ids),
        figures={
            "change of the scores when ids are renumbered": change,
            "one-hot times table, less the lookup": looked_up,
            "rows that a step of gradient descent moves": len(moved),
            "different tokens in the text": len(set(ids)),
        },
        drawings=() if broken else (_renamed(lab, ids, others, plain, found[:, number_of]),),
    )


@torch.no_grad()
def from_one_hot(network: Transformer, ids: list[int]) -> float:
    """How far a one-hot vector times the table is from what the embedding gives."""
    table, tokens = network.embed.weight, torch.tensor(ids)
    product = F.one_hot(tokens, len(table)).to(table) @ table * table.new_tensor(network.config.embed_scale)
    return float((product - network.embed(tokens[None])[0]).abs().max())


def numbers_as_rows(rows: Tensor) -> Tensor:
    """A table in which each id is taken as a number: row i is i/V times one direction, as long as a row is."""
    direction = F.normalize(rows.mean(0), dim=0) * rows.norm(dim=-1).mean()
    return torch.arange(len(rows)).to(rows)[:, None] / len(rows) * direction


def rows_that_move(network: Transformer, ids: list[int]) -> set[int]:
    """The rows of the lookup that have a gradient of the text's loss."""
    rows = network.embed.weight.detach().clone().requires_grad_()
    with torch.enable_grad():
        logits = scores_with(network, ids, {"embed.weight": rows})
        (gradient,) = torch.autograd.grad(F.cross_entropy(logits, torch.tensor(ids)), rows)
    return set(gradient.abs().sum(-1).nonzero().flatten().tolist())


def _renamed(lab: Lab, ids: list[int], others: list[int], plain: Tensor, found: Tensor) -> Table:
    names, n = labels(lab.model.tokenizer, ids), min(SHOWN, len(ids))
    return Table(
        title="the same tokens under other numbers",
        columns=["token", ">id", ">other id", ">top score", ">top score then"],
        rows=[[names[i], ids[i], others[i], float(plain[i].max()), float(found[i].max())] for i in range(n)],
    )


CLAIM = Claim(
    number=2,
    title="An id is a name",
    says="A token's id says which row of a table stands for it, and nothing else: id 11141 is not one more than id "
    "11140. Give all tokens other numbers and move their rows along, and nothing changes. What the model reads are "
    "the rows, real numbers that gradient descent moves.",
    criterion=f"scores under new numbers are the old ones, to {SAME:g}; a one-hot vector times the table is the very "
    "lookup; a step on a text moves the rows of its tokens and no others.",
    control="a model that reads the id as a number along one direction: its scores change with the numbering.",
    conditions=(
        "Where table and head are one, the head's own gradient moves every row; here the lookup's is meant.",
        "The numbering may still say something about the tokenizer: early merges have low ids and are frequent.",
    ),
    measure=measure,
    code="import torch\n"
    "rows = model.network.embed.weight\n"
    "one_hot = torch.nn.functional.one_hot(torch.tensor([9, 5]), len(rows)).to(rows.dtype)\n"
    "print((one_hot @ rows - rows[[9, 5]]).abs().max())",
)
