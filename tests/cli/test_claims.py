"""cutaway claims and cutaway quiz: what is printed, kept and returned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cutaway.claims import quiz as questions
from cutaway.claims.claim import Claim
from cutaway.claims.quiz import right_letter
from support.commands import Commands, Typed, save_ids_model


def test_some_claims_are_shown_in_full(cutaway: Commands, counter: Path) -> None:
    code, out, err = cutaway("claims", "3", "12", "-m", counter)
    assert (code, err) == (0, "")
    assert f"2 of 2 claims hold on {counter}" in out
    for said in ("3. A row knows no context: holds", "12. No weight knows the length: holds", "Control: ", "in Python"):
        assert said in out


def test_json_is_a_list(cutaway: Commands, counter: Path) -> None:
    code, out, _ = cutaway("claims", "2", "6", "-m", counter, "--json", "--seed", "5")
    assert code == 0
    found = json.loads(out)
    assert [one["number"] for one in found] == [2, 6]
    assert all({"claim", "figures", "control", "conditions", "verdict"} <= one.keys() for one in found)


def test_all_of_it_goes_into_a_page(cutaway: Commands, counter: Path, tmp_path: Path) -> None:
    code, _, _ = cutaway("claims", "3", "-m", counter, "--html", tmp_path / "claims.html")
    assert code == 0
    assert "3. A row knows no context: holds" in (tmp_path / "claims.html").read_text()


@pytest.mark.parametrize("command", [("claims", "3"), ("cost", "gpt2")])
def test_a_page_that_has_no_folder_is_told_before_the_work(
    cutaway: Commands, counter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    def worked(*_: Any, **__: Any) -> Any:
        raise AssertionError("the work was done first")

    monkeypatch.setattr(Claim, "test", worked)
    monkeypatch.setattr("cutaway.account.cost.cost", worked)
    page = tmp_path / "none" / "page.html"
    assert f"{page}: there is no folder {page.parent}" in cutaway.error(*command, "--html", page)


def test_a_claim_that_fails_is_red(cutaway: Commands, tmp_path: Path) -> None:
    """Attention that adds nothing: no token ever has a context."""
    folder = save_ids_model(tmp_path / "silent")
    weights = load_file(folder / "model.safetensors")
    for name in weights:
        if "o_proj" in name:
            weights[name] = torch.zeros_like(weights[name])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    code, out, _ = cutaway("claims", "3", "-m", folder)
    assert code == 1
    assert "0 of 1 claims hold" in out
    assert "3. A row knows no context: fails" in out


def test_a_number_that_no_claim_has(cutaway: Commands, counter: Path) -> None:
    assert "there is no claim 15: they are 1 to 14" in cutaway.error("claims", "15", "-m", counter)


SLOW = (1, 5, 7, 8, 13, 14)


def right_letters(seed: int) -> list[str]:
    return [right_letter(question) for question in questions.questions(seed)]


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The experiments that were asked for; those that take seconds are not made."""
    ran: list[int] = []
    test = Claim.test

    def counted(self: Any, lab: Any) -> Any:
        ran.append(self.number)
        return Nothing(self) if self.number in SLOW else test(self, lab)

    monkeypatch.setattr(Claim, "test", counted)
    return ran


class Nothing:
    """A finding without figures, in place of an experiment that takes seconds."""

    def __init__(self, claim: Any) -> None:
        self.claim = claim
        self.subject = "nothing"
        self.found = self.control = type("Evidence", (), {"figures": {}})


def test_a_quiz_from_a_pipe(cutaway: Commands, counter: Path, tmp_path: Path, fast: list[int]) -> None:
    letters = right_letters(7)
    letters[3] = "a" if letters[3] != "a" else "b"
    command = ("quiz", "-m", counter, "--seed", "7", "--file", tmp_path / "quiz.json")
    code, out, err = cutaway(*command, stdin="\n".join(letters).encode())
    assert (code, err) == (0, "")
    assert "1/14  " in out
    assert "14/14  " in out
    assert f"{letters[3]} is wrong, {right_letters(7)[3]} is right" in out
    assert "13 of 14 right" in out
    assert sorted(fast) == list(range(1, 15))


def test_a_quiz_broken_off_goes_on(cutaway: Commands, counter: Path, tmp_path: Path, fast: list[int]) -> None:
    file = tmp_path / "quiz.json"
    letters = right_letters(7)
    command = ("quiz", "-m", counter, "--seed", "7", "--file", file)
    code, out, err = cutaway(*command, stdin="\n".join(letters[:5]).encode())
    assert code == 0
    assert "5 of 5 right, 9 questions left" in out
    assert f"`cutaway quiz --resume --file {file}` goes on" in err
    code, out, err = cutaway("quiz", "--resume", "--file", file, "--json", stdin="\n".join(letters[5:]).encode())
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert (data["score"], data["answered"], data["of"], data["left"]) == (14, 14, 14, [])
    assert [one["given"] for one in data["answers"]] == letters
    assert all(one["is_right"] for one in data["answers"])
    assert sorted(fast) == list(range(1, 15))  # none twice


def test_what_was_answered_is_kept_when_the_experiment_is_broken_off(
    cutaway: Commands, counter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Any, lab: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Claim, "test", interrupted)
    file = tmp_path / "quiz.json"
    code, _, err = cutaway("quiz", "-m", counter, "--seed", "7", "--file", file, stdin=b"a\nb\n")
    assert code == 130
    assert "--resume" in err
    assert list(questions.resumed(file).given.values()) == ["a"]


def test_a_wrong_key_is_told_on_a_terminal_and_ends_a_pipe(
    cutaway: Commands, counter: Path, tmp_path: Path, fast: list[int]
) -> None:
    command = ("quiz", "-m", counter, "--seed", "7", "--file", tmp_path / "quiz.json")
    code, _, err = cutaway(*command, stdin=b"x\n\na\n", kind=Typed)
    assert code == 0
    assert "'x' is no answer: type a, b, c or d" in err
    assert len(fast) == 1
    code, _, err = cutaway(*command, stdin=b"x\n")
    assert code == 1
    assert "'x' is no answer" in err


def test_the_questions_are_had_without_answers(cutaway: Commands, counter: Path, tmp_path: Path) -> None:
    code, out, _ = cutaway("quiz", "-m", counter, "--seed", "7", "--file", tmp_path / "q.json", "--json")
    assert code == 0
    data = json.loads(out)
    assert (data["answered"], len(data["left"])) == (0, 14)
    assert data["left"][0]["answers"].keys() == set("abcd")


def test_it_is_kept_in_the_users_cache(
    cutaway: Commands, counter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: list[int]
) -> None:
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))
    code, _, err = cutaway("quiz", "-m", counter, "--seed", "7", stdin=b"a\n")
    assert code == 0
    assert questions.resumed(tmp_path / "cache" / "quiz.json").seed == 7
    assert "`cutaway quiz --resume` goes on" in err


def test_a_quiz_without_answers_leaves_the_kept_one(cutaway: Commands, counter: Path, tmp_path: Path) -> None:
    file = tmp_path / "quiz.json"
    kept = questions.begun(7, str(counter))
    kept = kept.answered(kept.questions[0], "a")
    kept.save(file)
    for options in ((), ("--json",)):
        code, _, err = cutaway("quiz", "-m", counter, "--seed", "8", "--file", file, *options)
        assert (code, err.count("kept in")) == (0, 0)
    assert questions.resumed(file).given == kept.given


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--seed", "8"), "--seed 8: the quiz kept in"),
        (("-m", "other"), "--model other: the quiz kept in"),
    ],
)
def test_what_contradicts_the_kept_quiz(
    cutaway: Commands, counter: Path, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    file = tmp_path / "quiz.json"
    questions.begun(7, str(counter)).save(file)
    assert said in cutaway.error("quiz", "--resume", "--file", file, *options)


def test_nothing_to_resume(cutaway: Commands, tmp_path: Path) -> None:
    assert "no quiz is kept there" in cutaway.error("quiz", "--resume", "--file", tmp_path / "none.json")
