"""All fourteen together: they hold on models of every shape, their code runs, and what is said of them is data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import cutaway
from cutaway.claims.claim import Claim, Evidence, met
from cutaway.claims.lab import LEAST_CONTEXT, Lab
from cutaway.claims.run import CLAIMS, Claims, claims, plainly_held
from cutaway.errors import InsideError
from cutaway.language_model import LanguageModel
from support.tiny import OURS
from support.trials import fresh, tried

SHAPES = ["capped sandwich", "gpt2", "parallel"]  # grouped and windowed; learned; side by side
QUICK = (2, 3, 6, 12)  # claims that take a moment


@pytest.fixture(scope="module")
def bard() -> LanguageModel:
    return cutaway.load("bard", dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def found() -> Claims:
    return claims(fresh("grouped"), QUICK)


def by_number(claim: Claim) -> str:
    return str(claim.number)


@pytest.mark.parametrize("shape", SHAPES)
def test_all_hold_on_models_of_every_shape(shape: str) -> None:
    model = fresh(shape)
    before = {name: p.clone() for name, p in model.network.named_parameters()}
    for claim in CLAIMS:
        finding = tried(claim, model, seed=1)
        assert (finding.found.holds, finding.control.holds) == (True, False), f"{claim.title}: {finding.to_dict()}"
    for name, parameter in model.network.named_parameters():
        assert torch.equal(parameter, before[name]), f"{name} has changed"


def test_they_are_fourteen_in_the_order_of_their_numbers() -> None:
    assert [claim.number for claim in CLAIMS] == list(range(1, 15))
    assert len({claim.title for claim in CLAIMS}) == 14


@pytest.mark.parametrize("claim", CLAIMS, ids=by_number)
def test_what_a_claim_says_is_sentences(claim: Claim) -> None:
    for text in (claim.says, claim.criterion, claim.control, *claim.conditions):
        assert text.endswith("."), text
        assert "  " not in text
    assert claim.conditions
    assert 2 <= len(claim.code.splitlines()) <= 6


@pytest.mark.parametrize("claim", CLAIMS, ids=by_number)
def test_its_code_runs_and_prints(claim: Claim, bard: LanguageModel, capsys: pytest.CaptureFixture[str]) -> None:
    for model in (bard, fresh("grouped"), fresh("gpt2")):
        exec(claim.code, {"model": model})
        assert capsys.readouterr().out.strip()


def test_a_result_is_a_table_of_verdicts_and_data(found: Claims) -> None:
    assert found.hold
    assert found.heading == "4 of 4 claims hold on the model"
    verdicts, keys = found.figures()
    assert [row[0] for row in verdicts.rows] == list(QUICK)  # type: ignore[attr-defined]
    for row in keys.rows:  # type: ignore[attr-defined]
        assert row[2] != row[3]
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert len(data["findings"]) == len(QUICK)
    for one in data["findings"]:
        assert {"claim", "figures", "control", "conditions", "verdict"} <= one.keys()
        assert one["verdict"] == "holds"
        assert one["control"]["broken"]
        assert one["control"]["holds"] is False
        assert all(isinstance(value, int | float) for value in one["figures"].values())


def test_all_of_it_goes_into_one_file(found: Claims, tmp_path: Path) -> None:
    found.to_html(tmp_path / "claims.html")
    page = (tmp_path / "claims.html").read_text(encoding="utf-8")
    for finding in found.findings:
        assert finding.heading in page
        assert finding.claim.conditions[0][:30] in page


def test_some_numbers_run_alone_and_tell_what_they_do() -> None:
    said: list[str] = []
    result = cutaway.claims(fresh("grouped"), 3, progress=said.append)
    assert [finding.claim.number for finding in result.findings] == [3]
    assert said == ["3. A row knows no context"]


@pytest.mark.parametrize("seed", [2**32 + 1, -(2**32) - 1, 10**20])
def test_a_seed_too_large(seed: int) -> None:
    with pytest.raises(InsideError, match=r"^seed = .*: it must be a whole number from -2\^32 to 2\^32$"):
        claims(fresh("grouped"), 4, seed=seed)


def test_a_number_that_no_claim_has() -> None:
    with pytest.raises(InsideError, match="there is no claim 15: they are 1 to 14"):
        claims(fresh("grouped"), [3, 15])
    for wrong, said in (("3", "'3'"), ([3.5], "3.5")):
        with pytest.raises(InsideError, match=f"there is no claim {said}"):
            claims(fresh("grouped"), wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("small", "said"),
    [({"n_ctx": 3}, "a context of 3 is too small"), ({"d_vocab": 1}, "a vocabulary of 1 is too small")],
)
def test_a_model_too_small_to_tell_anything_is_told(small: dict[str, int], said: str) -> None:
    with pytest.raises(InsideError, match=said):
        claims(fresh(replace(OURS["grouped"], **small)), 1)


def test_all_hold_on_a_context_of_four() -> None:
    model = fresh(replace(OURS["grouped"], n_ctx=LEAST_CONTEXT))
    for claim in CLAIMS:
        assert tried(claim, model).verdict == "holds", claim.title


def test_a_model_in_bfloat16_is_measured_in_float32_and_left_as_it_is() -> None:
    model = fresh("grouped")
    model.network.to(torch.bfloat16)
    assert plainly_held(model).dtype == torch.float32
    assert model.dtype == torch.bfloat16
    assert claims(model, QUICK).hold
    again = fresh("grouped")
    assert plainly_held(again) is again


def test_a_seed_gives_the_same_figures() -> None:
    one, same, other = (claims(fresh("grouped"), 2, seed=seed).to_dict()["findings"] for seed in (3, 3, 4))
    assert one == same != other


def evidence(*, holds: bool) -> Evidence:
    return Evidence(holds=holds, figures={"n": 1})


@pytest.mark.parametrize(
    ("subject", "control", "verdict"),
    [(True, False, "holds"), (True, True, "fails"), (False, False, "fails"), (False, True, "fails")],
)
def test_a_claim_that_its_control_meets_has_shown_nothing(subject: bool, control: bool, verdict: str) -> None:
    claim = Claim(
        number=1,
        title="t",
        says="s",
        criterion="c",
        control="b",
        conditions=(),
        measure=lambda lab, broken: evidence(holds=control if broken else subject),
        code="",
    )
    finding = claim.test(Lab(model=fresh("grouped")))
    assert finding.verdict == verdict
    assert finding.heading == f"1. t: {verdict}"


def test_a_control_must_miss_every_part() -> None:
    assert met(False, [True, True])
    assert not met(False, [True, False])
    assert met(True, [True, False])
    assert not met(True, [False, False])
