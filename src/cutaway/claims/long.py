"""Claim 14: a long answer is so many more passes."""

from __future__ import annotations

from cutaway.account import flops
from cutaway.claims.claim import Claim, Evidence
from cutaway.claims.lab import Lab
from cutaway.claims.passes import Counter
from cutaway.figures import Lines, Series

PROMPT = 8
LENGTHS = (4, 8, 16, 32, 64)


def measure(lab: Lab, broken: bool) -> Evidence:
    """Passes, and positions computed, against the length of the answer, with the cache and without."""
    config, counter = lab.model.config, Counter(lab.model)
    ids = lab.ids(min(PROMPT, max(1, config.n_ctx // 8)))
    p, lengths = len(ids), [n for n in LENGTHS if len(ids) + n <= config.n_ctx + 1]
    passes, cached, rerun = [], [], []
    for n in lengths:
        counter.two_at_a_time(ids, n) if broken else counter.greedy(ids, n, cache=False)
        passes.append(counter.passes)
        rerun.append(counter.positions)
        counter.greedy(ids, n, cache=True)
        cached.append(counter.positions)
    stale = any(lab.model.network.rotation_changes(p + i, p + i + 1) for i in range(lengths[-1]))
    wanted_rerun = [n * p + n * (n - 1) // 2 for n in lengths]
    wanted_cached = wanted_rerun if stale else [p + n - 1 for n in lengths]
    n = lengths[-1]
    work = [flops.generation(config, p, n, cache=cache).total for cache in (True, False)]
    return Evidence(
        holds=passes == lengths and rerun == wanted_rerun and (stale or cached == wanted_cached),
        figures={
            f"passes for {n} tokens": passes[-1],
            "passes a token": passes[-1] / n,
            f"positions computed for {n} tokens, re-run": rerun[-1],
            f"positions computed for {n} tokens, cached": cached[-1],
            f"FLOPs for {n} tokens, re-run": work[1],
            f"FLOPs for {n} tokens, cached": work[0],
            "layers, all in one pass": config.n_layers,
        },
        drawings=()
        if broken
        else (
            Lines(
                title="passes, and positions computed, against the length of the answer",
                note=f"after a prompt of {p} tokens",
                series=[
                    Series(name="passes", x=lengths, y=passes),
                    Series(name="positions, cached", x=lengths, y=cached),
                    Series(name="positions, re-run", x=lengths, y=rerun),
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
    "positions when everything is run again, and P + N − 1 with the cache.",
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
