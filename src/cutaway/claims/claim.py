"""What a claim is: something said of every transformer, an experiment that could refute it, and a control.

One measurement is made twice: on the subject, where the criterion must be met, and on a subject broken on purpose,
where it must not be. A claim that its own control meets has shown nothing, so it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cutaway.claims.lab import Lab
from cutaway.figures import Figure, Prose, Result, Table, plain

Number = int | float
Verdict = Literal["holds", "fails"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What was measured on one subject, and whether it meets the criterion."""

    holds: bool
    figures: Mapping[str, Number]  # by name, with the unit in the name where there is one
    drawings: Sequence[Figure] = ()


def met(broken: bool, parts: Iterable[bool]) -> bool:
    """Whether a criterion of several parts is met, each of which the control must miss: there, one met is too many."""
    return any(parts) if broken else all(parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class Claim:
    """A statement, and how it is put to the test.

    `measure(lab, broken)` makes the measurement, on the lab's model or, if `broken`, on what `control` names.
    """

    number: int
    title: str
    says: str  # what is claimed
    criterion: str  # what is measured, and what must come out
    control: str  # what is broken, and what must not come out there
    conditions: Sequence[str]  # under which it holds, and where its numbers are loose
    measure: Callable[[Lab, bool], Evidence]
    code: str  # a few lines of Python, with `model` given, that show the same

    def test(self, lab: Lab) -> Finding:
        """Run the experiment and its control."""
        return Finding(claim=self, subject=lab.name, found=self.measure(lab, False), control=self.measure(lab, True))


@dataclass(frozen=True, kw_only=True, eq=False)
class Finding(Result):
    """What came out of one claim's experiment."""

    claim: Claim
    subject: str
    found: Evidence
    control: Evidence

    @property
    def verdict(self) -> Verdict:
        return "holds" if self.found.holds and not self.control.holds else "fails"

    @property
    def key(self) -> str:
        """The first figure in which the control is another than the subject: what tells them apart."""
        found, control = self.found.figures, self.control.figures
        return next((name for name in found if found[name] != control.get(name)), next(iter(found)))

    @property
    def heading(self) -> str:
        return f"{self.claim.number}. {self.claim.title}: {self.verdict}"

    def figures(self) -> list[Figure]:
        claim = self.claim
        rows = [
            (name, self.found.figures.get(name), self.control.figures.get(name))
            for name in dict.fromkeys([*self.found.figures, *self.control.figures])
        ]
        words = [claim.says, f"Measured: {claim.criterion}", f"Control: {claim.control}"]
        words += [f"Condition: {condition}" for condition in claim.conditions]
        return [
            Prose(title="what is claimed", lines=words),
            *self.found.drawings,
            Table(title="figures", columns=("figure", f">{self.subject}", ">control"), rows=rows),
            Prose(title="in Python", lines=claim.code.splitlines()),
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "claim",
            "number": self.claim.number,
            "title": self.claim.title,
            "model": self.subject,
            "claim": self.claim.says,
            "criterion": self.claim.criterion,
            "figures": plain(dict(self.found.figures), 6),
            "control": {
                "broken": self.claim.control,
                "figures": plain(dict(self.control.figures), 6),
                "holds": self.control.holds,
            },
            "conditions": list(self.claim.conditions),
            "verdict": self.verdict,
            "code": self.claim.code,
        }
