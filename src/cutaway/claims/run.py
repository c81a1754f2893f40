"""All claims, or some, put to the test on one model."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cutaway.checked import short
from cutaway.claims import (
    context,
    dot,
    gather,
    heads,
    length,
    long,
    mask,
    names,
    order,
    passes,
    roles,
    scale,
    share,
    square,
)
from cutaway.claims.claim import Claim, Finding
from cutaway.claims.lab import Lab
from cutaway.errors import InsideError
from cutaway.figures import Figure, Result, Table
from cutaway.language_model import LanguageModel, load

CLAIMS: tuple[Claim, ...] = tuple(
    module.CLAIM
    for module in (
        passes,
        names,
        context,
        dot,
        gather,
        roles,
        scale,
        mask,
        heads,
        order,
        share,
        length,
        square,
        long,
    )
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Claims(Result):
    """What came out of each claim, and how long it took [s]."""

    model: str
    findings: tuple[Finding, ...]
    seconds: tuple[float, ...]

    @property
    def hold(self) -> bool:
        """Whether all of them do."""
        return all(finding.verdict == "holds" for finding in self.findings)

    @property
    def heading(self) -> str:
        n = sum(finding.verdict == "holds" for finding in self.findings)
        return f"{n} of {len(self.findings)} claims hold on {self.model}"

    def figures(self) -> list[Figure]:
        table = Table(
            title="verdicts",
            columns=[">", "claim", "verdict", ">seconds"],
            rows=[
                [finding.claim.number, finding.claim.title, finding.verdict, seconds]
                for finding, seconds in zip(self.findings, self.seconds, strict=True)
            ],
        )
        keys = Table(
            title="what tells the model from the control",
            columns=[">", "figure", f">{self.model}", ">control"],
            rows=[
                [one.claim.number, one.key, one.found.figures[one.key], one.control.figures.get(one.key)]
                for one in self.findings
            ],
        )
        return [table, keys]

    @property
    def answers(self) -> tuple[Finding, ...]:
        return self.findings

    def to_dict(self) -> dict[str, Any]:
        findings = [finding.to_dict() for finding in self.findings]
        return {"kind": "claims", "model": self.model, "hold": self.hold, "findings": findings}


def claims(
    model: LanguageModel | str | Path | None = None,
    numbers: int | Sequence[int] = (),
    *,
    seed: int = 0,
    name: str = "",
    progress: Callable[[str], None] = lambda said: None,
) -> Claims:
    """Put the claims to the test.

    Args:
        model: a language model, or what `load` takes; None is the default one. It is measured in float32 on the CPU,
            where sums come out the same each time; a model held otherwise is copied.
        numbers: which claims; none means all.
        name: what the model is called in the answer [what was given, or "the model"].
        progress: is told what is being done.
    Raises:
        InsideError: a number that no claim has, or a model of too few tokens to tell anything.
        CheckpointError: a model that cannot be loaded.
    """
    wanted = [numbers] if isinstance(numbers, int) else list(numbers)
    for number in wanted:
        if number not in range(1, len(CLAIMS) + 1):
            raise InsideError(f"there is no claim {short(number)}: they are 1 to {len(CLAIMS)}")
    subject = plainly_held(model if isinstance(model, LanguageModel) else load(model, dtype="float32", device="cpu"))
    name = name or ("the model" if isinstance(model, LanguageModel) else str(model or "the default model"))
    lab = Lab(model=subject, name=name, seed=seed, progress=progress)
    findings, seconds = [], []
    for claim in CLAIMS:
        if wanted and claim.number not in wanted:
            continue
        progress(f"{claim.number}. {claim.title}")
        begun = time.perf_counter()
        findings.append(claim.test(lab))
        seconds.append(time.perf_counter() - begun)
    return Claims(model=name, findings=tuple(findings), seconds=tuple(seconds))


def plainly_held(model: LanguageModel) -> LanguageModel:
    """The model in float32 on the CPU; the very one if it is."""
    if model.dtype == torch.float32 and model.device.type == "cpu":
        return model
    held = copy.copy(model)
    held.network = copy.deepcopy(model.network).to("cpu", torch.float32).eval()
    held.network.tie()
    return held
