"""What is wrong with a trained model, where numbers can tell: dead heads, collapsed attention, loss spikes, repetition.

Every finding is a sentence with its number, the threshold it passed, and why the threshold is there. Thresholds are
far out on purpose: what is listed is worth a look, and what is not listed is not proven well.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch

from cutaway.errors import InsideError
from cutaway.figures import Cell, Figure, HeatMap, Lines, Numbers, Prose, Result, Series, Table, plain
from cutaway.generate.decoding import decode
from cutaway.inside.compare import apart
from cutaway.inside.edits import Zero
from cutaway.inside.heads import entropy, first_keys, share_on
from cutaway.inside.targets import Reader, wide
from cutaway.inside.trace import LIMIT, trace
from cutaway.nn.attention import Attention
from cutaway.text.prompt import as_list

Kind = Literal["dead head", "collapsed attention", "loss spike", "repetition"]

DEAD_SIZE = 1e-4  # of the stream's length
DEAD_KL = 1e-6  # [nats]
N_ABLATED = 64  # heads taken out one by one, the smallest first
COLLAPSED = 0.01  # [nats]
ON_FIRST = 0.99
MIN_TOKENS = 8  # of a text, before a pattern says anything
SPIKE = 8.0  # standard deviations
REACH = 20  # records before and behind that a loss is held against
GRAM, N_NEW, REPEATED = 4, 96, 0.5


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing found: where, the number, the threshold, and both in a sentence with the reason."""

    kind: Kind
    where: str
    value: float
    threshold: float
    says: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings(Result):
    """What was found, and the numbers that it was looked for in.

    `size` is how long what a head adds is, against the stream it is added to (against the sum of the heads, where a
    norm stands behind attention). `effect` is KL(plain ‖ without the head), NaN where it was not taken out [nats].
    """

    found: tuple[Finding, ...]
    n_tokens: int
    size: Numbers  # [layer, head], as all below
    effect: Numbers
    entropy: Numbers
    first: Numbers  # the share of the attention that is on the first position
    steps: tuple[int, ...]  # of the run's log
    losses: tuple[float, ...]
    repeated: float | None  # the share of a greedy continuation's 4-grams that were there before
    notes: tuple[str, ...]  # how far was looked

    @property
    def heading(self) -> str:
        n = len(self.found)
        said = "nothing found" if not n else "1 finding" if n == 1 else f"{n} findings"
        return f"Findings on {self.n_tokens} tokens: {said}"

    def figures(self) -> list[Figure]:
        sentences = [finding.says for finding in self.found] or ["Nothing passed a threshold."]
        rows: list[list[Cell]] = [[f.kind, f.where, f.value, f.threshold] for f in self.found]
        found: list[Figure] = [Prose(title="What was found", lines=sentences)]
        if rows:
            found.append(Table(title="In numbers", columns=["finding", "where", ">value", ">threshold"], rows=rows))
        if self.losses:
            line = Series(name="loss", x=list(self.steps), y=list(self.losses))
            found.append(Lines(title="The loss of the run", series=[line], x="step", y="loss [nat/token]"))
        found += [
            _map("How much each head adds to the stream", self.size, "of the stream's length", ""),
            _map("What the predictions lose without each head", self.effect, "nats", "not taken out"),
            _map("How spread out each head looks", self.entropy, "nats", ""),
        ]
        return [*found, Prose(title="How far was looked", lines=self.notes)]

    def to_dict(self) -> dict[str, Any]:
        held = vars(self) | {"found": [plain(asdict(finding), 6) for finding in self.found]}
        return {"kind": "findings"} | {name: plain(value, 6) for name, value in held.items()}


@torch.no_grad()
def findings(model: Reader, texts: Any, *, run: str | Path | None = None, limit: int = LIMIT) -> Findings:
    """Look for what commonly goes wrong in a model that somebody has just trained.

    Args:
        texts: one prompt or a list, of the kind that the model was trained on; at least one of 8 tokens.
        run: the run's folder, or a checkpoint in it, whose log.jsonl tells the losses.
        limit: what the trace of one text may hold [B].
    Raises:
        InsideError: texts too short; a folder without a log; more bytes than the limit.
        ContextError, TokenizerError, GenerationError: as in `generate`.
    """
    prompts, _ = as_list(texts)
    read = [ids for ids in map(model.ids, prompts) if len(ids) >= MIN_TOKENS]
    if not read:
        raise InsideError(f"a text of at least {MIN_TOKENS} tokens is needed: what shorter ones show is chance")
    steps, losses, missing = losses_of(run) if run is not None else ([], [], [])
    size, spread, first = heads_of(model, read, limit)
    effect, n_ablated = effects_of(model, read, size, limit)
    repeated = repetition(model, read[0])
    config = model.network.config
    notes = [f"{n_ablated} of {config.n_layers * config.n_heads} heads were taken out one by one, the smallest first."]
    notes.append(
        f"{len(losses)} losses of the run's log were read." if run is not None else "No run was given: no log."
    )
    notes.append(
        "The continuation was too short to tell whether it repeats itself."
        if repeated is None
        else f"Of a greedy continuation {repeated:.0%} of all runs of {GRAM} tokens were written before."
    )
    found = [*dead(size, effect), *collapsed(spread, first), *spikes(steps, losses), *not_numbers(missing)]
    return Findings(
        found=(*found, *repeats(repeated)),
        n_tokens=sum(map(len, read)),
        size=size,
        effect=effect,
        entropy=spread,
        first=first,
        steps=tuple(steps),
        losses=tuple(losses),
        repeated=repeated,
        notes=tuple(notes),
    )


def heads_of(model: Reader, texts: Sequence[list[int]], limit: int) -> tuple[Numbers, Numbers, Numbers]:
    """Size, entropy and share on the first position of every head [layer, head], on average over the texts' tokens."""
    network = model.network
    total, n = torch.zeros(3, network.config.n_layers, network.config.n_heads, dtype=torch.float64), 0
    for ids in texts:
        (seen,) = trace(
            model, [ids], keep=["blocks.*.attn.pattern", "blocks.*.attn.z", "blocks.*.resid_pre"], limit=limit
        )
        for layer in range(network.config.n_layers):
            name = f"blocks.{layer}"
            attention = cast(Attention, network.get_submodule(f"{name}.attn"))
            added = torch.einsum("hte,hed->htd", wide(seen[f"{name}.attn.z"][0]), wide(attention.W_O))
            onto = wide(seen[f"{name}.resid_pre"][0]) if network.config.norm_placement == "pre" else added.sum(0)
            size = added.norm(dim=-1).mean(-1) / onto.norm(dim=-1).mean().clamp(min=1e-30)
            pattern = wide(seen[f"{name}.attn.pattern"][0]).cpu()
            numbers = [size.cpu(), entropy(pattern), share_on(pattern, first_keys(ids))]
            total[:, layer] += len(ids) * torch.stack(numbers).double()
        n += len(ids)
    size, spread, first = (total / n).numpy()
    return size, spread, first


def effects_of(model: Reader, texts: Sequence[list[int]], size: Numbers, limit: int) -> tuple[Numbers, int]:
    """KL(plain ‖ without the head) for the smallest heads, on average over the positions [nats]; and for how many."""
    chosen = sorted(np.ndindex(*size.shape), key=lambda place: size[place])[:N_ABLATED]
    before = [found.logits for found in trace(model, texts, keep=(), limit=limit)]
    effect = np.full(size.shape, math.nan)
    for layer, head in chosen:
        after = trace(model, texts, keep=(), edits=Zero(f"blocks.{layer}.attn.z[head {head}]"), limit=limit)
        moved = sum(float(apart(plain, cut.logits)[1]) for plain, cut in zip(before, after, strict=True))
        effect[layer, head] = max(moved / sum(map(len, texts)), 0.0)
    return effect, len(chosen)


def dead(size: Numbers, effect: Numbers) -> list[Finding]:
    """Heads that add nothing, or whose absence changes nothing."""
    found = []
    for layer, head in np.ndindex(*size.shape):
        small, moved = float(size[layer, head]), float(effect[layer, head])
        if small < DEAD_SIZE:
            said = f"what it adds is {small:.2g} of the stream's length (threshold {DEAD_SIZE:g}: too short to turn it)"
            value, threshold = small, DEAD_SIZE
        elif moved < DEAD_KL:
            said = (
                f"without it the predictions move by {moved:.2g} nats (threshold {DEAD_KL:g}: less than a loss shows), "
                f"although it adds {small:.2g} of the stream's length"
            )
            value, threshold = moved, DEAD_KL
        else:
            continue
        says = f"Head {layer}.{head} is dead on this text: {said}."
        found.append(Finding(kind="dead head", where=f"{layer}.{head}", value=value, threshold=threshold, says=says))
    return found


def collapsed(spread: Numbers, first: Numbers) -> list[Finding]:
    """Heads that look at one position whatever is read."""
    found = []
    for layer, head in np.ndindex(*spread.shape):
        low, share = float(spread[layer, head]), float(first[layer, head])
        if share > ON_FIRST:
            says = (
                f"Head {layer}.{head} looks only at the first position: {share:.2%} of its attention (threshold "
                f"{ON_FIRST:.0%}: hardly any of the text reaches it). A head may rest there until a text concerns it."
            )
            value, threshold = share, ON_FIRST
        elif low < COLLAPSED:
            says = (
                f"Head {layer}.{head} looks at one key for every query: entropy {low:.2g} nats (threshold "
                f"{COLLAPSED:g}: 99.9 % on one key, where a softmax passes almost no gradient back to its scores)."
            )
            value, threshold = low, COLLAPSED
        else:
            continue
        where = f"{layer}.{head}"
        found.append(Finding(kind="collapsed attention", where=where, value=value, threshold=threshold, says=says))
    return found


def losses_of(run: str | Path) -> tuple[list[int], list[float], list[int]]:
    """Steps and training losses of a run's log, and the steps whose loss was no number.

    Raises:
        InsideError: there is no log.
    """
    places = [Path(run) / "log.jsonl", Path(run).parent / "log.jsonl"]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise InsideError(f"{run} has no log.jsonl: give the folder of a run, or leave run out")
    steps, losses, missing = [], [], []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # the half line of a killed run
            continue
        if not (isinstance(record, dict) and "loss" in record and isinstance(record.get("step"), int)):
            continue
        if isinstance(record["loss"], int | float):
            steps.append(record["step"])
            losses.append(float(record["loss"]))
        else:
            missing.append(record["step"])
    return steps, losses, missing


def spikes(steps: Sequence[int], losses: Sequence[float]) -> list[Finding]:
    """Losses far above their neighbours: the median of those before and behind, and their median deviation.

    And far above the median of those before alone: a run begins high and falls, which is no jump.
    """
    above = []
    for i, loss in enumerate(losses):
        before, behind = losses[max(i - REACH, 0) : i], losses[i + 1 : i + REACH + 1]
        near = [*before, *behind]
        if not before or len(near) < REACH:
            continue
        middle = statistics.median(near)
        spread = 1.4826 * statistics.median(abs(other - middle) for other in near)  # of normal noise: its deviation
        usual = max(middle, statistics.median(before))
        if loss - usual > SPIKE * max(spread, 1e-3):
            above.append((i, (loss - usual) / max(spread, 1e-3), usual))
    groups: list[list[tuple[int, float, float]]] = []
    for spike in above:  # neighbours are one spike
        if groups and spike[0] - groups[-1][-1][0] <= 2:
            groups[-1].append(spike)
        else:
            groups.append([spike])
    found = []
    for group in groups:
        i, far, usual = max(group, key=lambda spike: spike[1])
        says = (
            f"The loss jumped at step {steps[i]}: {losses[i]:.3g} where {usual:.3g} was usual, {far:.0f} deviations "
            f"above (threshold {SPIKE:g}: noise does not come so far). Look at that step's batch and learning rate."
        )
        found.append(Finding(kind="loss spike", where=f"step {steps[i]}", value=far, threshold=SPIKE, says=says))
    return found


def not_numbers(steps: Sequence[int]) -> list[Finding]:
    """A loss that was infinite or no number at all."""
    if not steps:
        return []
    says = f"The loss was no number at {len(steps)} steps, the first {steps[0]} (threshold 0): something overflowed."
    n = float(len(steps))
    return [Finding(kind="loss spike", where=f"step {steps[0]}", value=n, threshold=0.0, says=says)]


def repetition(model: Reader, ids: list[int]) -> float | None:
    """The share of the 4-grams of a greedy continuation that it has written before; None if it is too short.

    It goes on from the end of the text, as far back as leaves it room.
    """
    n_ctx = model.network.config.n_ctx
    prompt = ids[-max(n_ctx - N_NEW, n_ctx // 2, 1) :]
    generations = model.generations([prompt], max_tokens=N_NEW, temperature=0)
    for _ in decode(model.network, generations):
        pass
    new = generations[0].tokens[len(prompt) :]
    grams = [tuple(new[i : i + GRAM]) for i in range(len(new) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if len(grams) >= MIN_TOKENS else None


def repeats(share: float | None) -> list[Finding]:
    """Whether a continuation goes in circles."""
    if share is None or share <= REPEATED:
        return []
    says = (
        f"It repeats itself: of a greedy continuation {share:.0%} of all runs of {GRAM} tokens were written before "
        f"(threshold {REPEATED:.0%}: a text of people stays far below). A temperature above 0 or a repetition penalty "
        "hides it; more or more varied training mends it."
    )
    return [Finding(kind="repetition", where="continuation", value=share, threshold=REPEATED, says=says)]


def _map(title: str, values: Numbers, unit: str, absent: str) -> HeatMap:
    return HeatMap(
        title=title,
        rows=[str(i) for i in range(len(values))],
        columns=[str(i) for i in range(values.shape[1])],
        values=values,
        row_axis="layer",
        column_axis="head",
        says="layer {row}, head {column}: {value} " + unit,
        scale="size",
        unit=unit,
        absent=absent or "no number",
    )
