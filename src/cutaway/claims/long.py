"""Claim 14: a long answer is so many more passes."""

from __future__ import annotations

from cutaway.account import flops
from cutaway.claims.claim import Claim, Evidence, met
from cutaway.claims.lab import Lab
from cutaway.claims.passes import Counter, runs_of
from cutaway.figures import Lines, Series

PROMPT = 8
LENGTHS = (4, 8, 16, 32)


def measure(lab: Lab, broken: bool) -> Evidence:
    """Passes, and positions computed, against the length of the answer, with the cache and without."""
    config, counter = lab.model.config, Counter(lab.model)
    ids = lab.ids(min(PROMPT, max(1, config.n_ctx // 8)))
    p, lengths = len(ids), [n for n in LENGTHS if len(ids) + n <= config.n_ctx + 1]
    rerun, cached = zip(*(runs_of(counter, ids, n, broken=broken) for n in lengths), strict=True)
    passes = [(one.passes, other.passes) for one, other in zip(rerun, cached, strict=True)]
    layers = {one.runs_of_blocks / one.passes for one in [*rerun, *cached]}
    empties = any(lab.model.network.rotation_changes(p + i, p + i + 1) for i in range(lengths[-1]))
    wanted_rerun = [n * p + n * (n - 1) // 2 for n in lengths]
    wanted_cached = None if empties else [p + n - 1 for n in lengths]
    n = lengths[-1]
    work = [flops.generation(config, p, n, cache=cache).total for cache in (True, False)]
    positions = [[one.positions for one in runs] for runs in (rerun, cached)]
    in_step = [passes == [(n, n) for n in lengths], positions[0] == wanted_rerun]
    if not broken:  # that loop has no cache
        in_step.append(wanted_cached in (None, positions[1]))
    return Evidence(
        holds=met(broken, in_step) and layers == {config.n_layers},
        figures={
            f"passes for {n} tokens": max(passes[-1]),
            "passes a token": max(passes[-1]) / n,
            "layers that run in each pass": max(layers),
            f"positions computed for {n} tokens, re-run": positions[0][-1],
            f"positions computed for {n} tokens, cached": positions[1][-1],
            f"FLOPs for {n} tokens, re-run": work[1],
            f"FLOPs for {n} tokens, cached": work[0],
        },
        drawings=()
        if broken
        else (
            Lines(
                title="passes, and positions computed, against the length of the answer",
                note=f"after a prompt of {p} tokens",
                series=[
                    Series(name="passes", x=lengths, y=[one.passes for one in rerun]),
                    Series(name="positions, cached", x=lengths, y=positions[1]),
                    Series(name="positions, re-run", x=lengths, y=positions[0]),
                ],
                x="new tokens",
                y="number",
                log_y=True,
            ),
        ),
    )


CLAIM = Claim(
    number=14,
    title="A long answer is so many more passes",
    says="Every new token is a whole pass through all layers: five thousand tokens are ten times the passes of five "
    "hundred. The pass that reads the prompt is the one that gives the first token, not an extra one; and layers are "
    "parts of a pass, not passes.",
    criterion="passes lie on a line through zero with a slope of one a token; N tokens after P compute N·P + N(N−1)/2 "
    "positions when everything is run again, and P + N − 1 with the cache; and every pass runs each layer once.",
    control="two tokens from each pass: half the slope.",
    conditions=(
        "The cache changes what a pass costs, not how many there are: each reads one new position, and the keys and "
        "values of all before it.",
        "So the passes grow in step with the answer, but not quite the work: the later the token, the more keys it "
        "meets; re-run, the work itself grows with the square.",
        "Where a rotation depends on the length (dynamic scaling), the cache is emptied as the text grows.",
    ),
    measure=measure,
    code="for n in (2, 4, 8):\n"
    "    print(n, model.generate([5, 9, 2], max_tokens=n, temperature=0, cache=False).passes)",
)
