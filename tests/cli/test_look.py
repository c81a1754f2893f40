"""cutaway look: every question is an option, what has no use is refused, and the answers go where they are asked to."""

from __future__ import annotations

import io
import json
from pathlib import Path
from unittest import mock

import pytest

import cutaway as package
from cutaway import inside
from support.commands import Commands, Typed, save_model

PROMPT = "to be or not to be"


def kinds(out: str) -> list[str]:
    return [answer["kind"] for answer in json.loads(out)]


def test_without_a_question_it_is_one_screen(cutaway: Commands, talker: Path) -> None:
    code, out, err = cutaway("look", "-m", talker, PROMPT)
    assert (code, err) == (0, "")
    for title in ("What may come next", "How the layers come to", "What did most for", "What to ask next"):
        assert title in out
    assert out.startswith("After e comes ")
    code, out, _ = cutaway("look", "-m", talker, "--json", stdin=PROMPT.encode() + b"\n")
    seen = inside.look(package.load(talker, dtype="float32"), PROMPT)
    assert json.loads(out) == [seen.to_dict()]


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (["--attention", "1.0"], "head attention"),
        (["--attention", "all"], "attention"),
        (["--lens"], "lens"),
        (["--contributions", "--versus", "x"], "contributions"),
        (["--effects", "ff"], "effects"),
        (["--neighbours", "embed"], "neighbours"),
        (["--compare", "TALKER"], "comparison"),
        (["--findings"], "findings"),
        (["--exact"], "exactness"),
        (["--edit", "zero blocks.1.ff.out"], "edited"),
    ],
)
def test_a_question_is_an_option(cutaway: Commands, talker: Path, options: list[str], kind: str) -> None:
    options = [str(talker) if option == "TALKER" else option for option in options]
    code, out, err = cutaway("look", "-m", talker, *options, "--json", PROMPT)
    assert (code, err) == (0, "")
    assert kinds(out) == [kind]


def test_several_questions_share_a_call(cutaway: Commands, talker: Path) -> None:
    code, out, _ = cutaway(
        "look", "-m", talker, "--exact", "--contributions", "--lens", "--target", "q", "--json", PROMPT
    )
    assert code == 0
    assert kinds(out) == ["lens", "contributions", "exactness"]
    answers = json.loads(out)
    assert answers[1]["target_label"] == "q"
    assert answers[1]["target"] == answers[0]["targets"][-1]


def test_senses_take_several_sentences(cutaway: Commands, talker: Path) -> None:
    sentences = ["a bank by the river", "money in the bank"]
    code, out, _ = cutaway("look", "-m", talker, "--senses", "bank", "--json", *sentences)
    assert (code, kinds(out)) == (0, ["senses"])
    code, _, err = cutaway("look", "-m", talker, "--senses", "bank", sentences[0])
    assert code == 2 and "two sentences or more" in err
    code, _, err = cutaway("look", "-m", talker, *sentences)
    assert code == 2 and "2 prompts" in err
    code, _, err = cutaway("look", "-m", talker, "--senses", "bank", "--lens", *sentences)
    assert code == 2 and "2 prompts" in err


def test_patching_from_a_source(cutaway: Commands, talker: Path) -> None:
    options = ["--effects", "resid", "--source", "to be or now to be", "--target", "x", "--versus", "y"]
    code, out, _ = cutaway("look", "-m", talker, *options, "--json", PROMPT)
    assert code == 0
    [found] = json.loads(out)
    assert (found["how"], found["what"]) == ("patch", "resid")
    first = found["recovery"][0][0]  # into layer 0, where nothing but the changed letter differs
    assert first == pytest.approx(
        [float(i == len(first) - 1 - len("t to be") + 1) for i in range(len(first))], abs=1e-4
    )
    assert "tokens" in cutaway.error("look", "-m", talker, "--effects", "resid", "--source", "short", PROMPT)


def test_effects_are_estimated(cutaway: Commands, talker: Path) -> None:
    options = ["-m", talker, "--effects", "heads", "--target", "x"]
    code, out, _ = cutaway("look", *options, "--estimate", "--json", PROMPT)
    [found], [run] = json.loads(out), json.loads(cutaway("look", *options, "--json", PROMPT)[1])
    assert (code, found["estimated"], run["estimated"]) == (0, True, False)
    assert (
        found["values"]
        == inside.effects(package.load(talker, dtype="float32"), PROMPT, target="x", estimate=True).to_dict()["values"]
    )
    assert found["values"] != run["values"]
    assert ", estimated: each head" in " ".join(cutaway("look", *options, "--estimate", PROMPT)[1].split())


def test_edits_act_together_and_in_the_lens(cutaway: Commands, talker: Path) -> None:
    edits = ["--edit", "zero blocks.*.attn.out", "--edit", "zero blocks.*.ff.out"]
    code, out, _ = cutaway("look", "-m", talker, *edits, "--lens", "--json", PROMPT)
    assert code == 0
    edited, lens = json.loads(out)
    assert (edited["kind"], lens["kind"]) == ("edited", "lens")
    assert len(edited["edits"]) == 2
    assert max(map(max, lens["kl"])) == pytest.approx(0, abs=1e-6)  # nothing is added to the embedding any more
    assert "did you mean blocks.1.attn.z" in cutaway.error("look", "-m", talker, "--edit", "zero blocks.1.attn.zz", "x")
    assert "did you mean zero?" in cutaway.error("look", "-m", talker, "--edit", "zeor blocks.1.attn.z", "x")


def test_the_probe_is_a_text_itself(cutaway: Commands, talker: Path) -> None:
    code, out, _ = cutaway("look", "-m", talker, "--probe", "--attention", "all", "--json")
    assert code == 0
    assert json.loads(out)[0]["tokens"] == inside.probe(package.load(talker))
    code, _, err = cutaway("look", "-m", talker, "--probe", "--lens", PROMPT)
    assert code == 2 and "leave out the PROMPT" in err


def test_a_run_brings_its_log(cutaway: Commands, talker: Path, tmp_path: Path) -> None:
    """The model's own run, also of a checkpoint in it, or the one that is named."""
    save_model(tmp_path / "run" / "step-00000003")
    log = [{"step": step, "loss": 5.0 - step} for step in (1, 2, 3)]
    (tmp_path / "run" / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in log))

    def losses(*options: str | Path) -> list[float]:
        code, out, err = cutaway("look", "--findings", "--json", *options, PROMPT)
        assert code == 0, err
        return json.loads(out)[0]["losses"]

    assert losses("-m", tmp_path / "run" / "step-00000003") == [4, 3, 2]
    assert losses("-m", talker, "--run", tmp_path / "run") == [4, 3, 2]
    assert losses("-m", talker) == []
    assert "no log.jsonl" in cutaway.error("look", "-m", talker, "--findings", "--run", tmp_path, PROMPT)


def test_html_is_a_file_and_nothing_is_printed(cutaway: Commands, talker: Path, tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    code, out, err = cutaway("look", "-m", talker, "--lens", "--contributions", "--html", page, PROMPT)
    assert (code, out, err) == (0, "", f"written: {page}\n")
    assert page.read_text().startswith("<!doctype html>")
    code, out, _ = cutaway("look", "-m", talker, "--lens", "--html", page, "--json", PROMPT)
    assert kinds(out) == ["lens"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--source", "x"], "--source belongs to --effects"),
        (["--how", "zero"], "--how belongs to --effects"),
        (["--estimate"], "--estimate belongs to --effects"),
        (["--run", "x"], "--run belongs to --findings"),
        (["--target", "x", "--exact"], "--target belongs to --lens or --contributions or --effects"),
        (["--versus", "x", "--lens"], "--versus belongs to --contributions or --effects"),
        (["--edit", "zero embed", "--attention", "1.0"], "ask the rest without it"),
        (["--edit", "zero embed", "--contributions"], "ask the rest without it"),
        (["--html", "nowhere/out.html"], "there is no folder nowhere"),
        (["--html", "."], "a folder: name a file, such as look.html"),
    ],
)
def test_what_has_no_use_is_told_before_a_model_is_loaded(cutaway: Commands, options: list[str], said: str) -> None:
    with mock.patch("cutaway.cli.look.open_model", side_effect=AssertionError("loaded")):
        code, _, err = cutaway("look", *options, PROMPT)
    assert code == 2
    assert said in " ".join(err.split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--attention", "9.0"], "layer 9 is outside 0 to 2"),
        (["--attention", "first"], "write it as layer.head"),
        (["--effects", "head"], "it must be one of heads, attn, ff, resid"),
        (["--lens", "--target", "xy"], "give one token or its id"),
        (["--neighbours", "blocks.0.resid"], "did you mean blocks.0.resid_p"),
        (["--findings"], "at least 8 tokens"),
    ],
)
def test_errors_are_one_line(cutaway: Commands, talker: Path, options: list[str], said: str) -> None:
    assert said in cutaway.error("look", "-m", talker, *options, "abc")


def test_nothing_to_look_into(cutaway: Commands) -> None:
    code, _, err = cutaway("look", "--lens", kind=Typed)
    assert code == 2 and "give a text to look into" in err


def test_ids_are_a_text_too(cutaway: Commands, counter: Path) -> None:
    code, out, _ = cutaway("look", "-m", counter, "12 7 3")
    assert code == 0
    assert "12" in out and "What may come next" in out


def test_a_result_prints_as_a_terminal_shows_it(talker: Path) -> None:
    seen = inside.look(package.load(talker, dtype="float32"), PROMPT)
    lines = str(seen).splitlines()
    assert lines[0] == seen.heading
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)
    assert str(seen.figures()[1]) in str(seen)
    assert set(seen._repr_mimebundle_()) == {"text/html", "text/plain"}
    shown = io.StringIO()
    print(seen, file=shown)
    assert "\x1b" not in shown.getvalue()
