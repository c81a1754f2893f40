"""cutaway run: the continuation and nothing else in a pipe, every wrong value one line, Ctrl-C clean."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest

import cutaway as library
from cutaway.errors import GenerationError
from support.commands import Commands, Typed, save_model, start

GREEDY = ("--temperature", "0", "--max-tokens", "6")


def expected(folder: Path, prompt: str, **options: object) -> str:
    text = library.load(folder).generate(prompt, **{"temperature": 0, "max_tokens": 6, **options}).text
    assert isinstance(text, str)
    return text


def test_prints_what_the_library_generates_and_a_newline(cutaway: Commands, talker: Path) -> None:
    text = expected(talker, "To be,")
    assert text
    assert cutaway("run", "-m", talker, *GREEDY, "To be,") == (0, text + "\n", "")
    assert cutaway("run", "--model", talker, *GREEDY, "--no-cache", "To be,") == (0, text + "\n", "")


def test_the_model_can_come_from_the_environment(
    cutaway: Commands, talker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTAWAY_MODEL", str(talker))
    assert cutaway("run", *GREEDY, "To be,")[1] == expected(talker, "To be,") + "\n"


@pytest.mark.parametrize("argument", [(), ("-",)])
def test_a_prompt_from_a_pipe_loses_one_newline_and_the_byte_order_mark(
    argument: tuple[str, ...], cutaway: Commands, talker: Path
) -> None:
    found = cutaway("run", "-m", talker, *GREEDY, "--json", *argument, stdin="\ufeffhéllo 😸\n\n".encode())
    assert json.loads(found[1])["prompt"] == "héllo 😸\n"


def test_a_pipe_that_is_not_utf8_is_refused_with_its_first_bad_byte(cutaway: Commands, talker: Path) -> None:
    assert "byte 2 is 0xff" in cutaway.error("run", "-m", talker, stdin=b"ab\xff")


def test_a_prompt_on_the_command_line_that_is_not_utf8_is_refused(cutaway: Commands, talker: Path) -> None:
    """Python keeps such a byte as half of a surrogate pair; the tokenizer would read another text."""
    for command in ("run", "look"):
        assert "the prompt: character 2 is not UTF-8" in cutaway.error(command, "-m", talker, "ab\udcff")


def test_an_empty_prompt_begins_with_the_begin_token_or_is_refused(
    cutaway: Commands, talker: Path, tmp_path: Path
) -> None:
    """G11: empty starts from BOS when there is one, otherwise a clear error; spaces are real text."""
    code, out, _ = cutaway("run", "-m", talker, *GREEDY, "--json", "")
    assert (code, json.loads(out)["n_prompt"]) == (0, 1)
    assert json.loads(cutaway("run", "-m", talker, *GREEDY, "--json", "   ")[1])["n_prompt"] == 4
    without = save_model(tmp_path / "without", begins=False)
    assert "prompt is empty" in cutaway.error("run", "-m", without, "")


def test_json_tells_all_and_its_seed_repeats_the_run(cutaway: Commands, talker: Path) -> None:
    _, out, _ = cutaway("run", "-m", talker, "--max-tokens", "8", "--temperature", "2", "--json", "😸")
    first = json.loads(out)
    assert first["prompt"] == "😸"
    assert (first["model"], first["dtype"]) == (str(talker), "float32")
    assert (first["n_prompt"], first["passes"], len(first["tokens"]), first["finish_reason"]) == (5, 8, 8, "length")
    assert first["seconds"] > 0
    seeded = ("--max-tokens", "8", "--temperature", "2", "--seed", str(first["seed"]))
    again = json.loads(cutaway("run", "-m", talker, *seeded, "--json", "😸")[1])
    assert again["tokens"] == first["tokens"]
    assert cutaway("run", "-m", talker, *seeded, "😸")[1] == first["text"] + "\n"
    other = json.loads(cutaway("run", "-m", talker, *seeded[:4], "--json", "😸")[1])
    assert other["seed"] != first["seed"]


def test_options_reach_the_generation(cutaway: Commands, talker: Path) -> None:
    text = expected(talker, "x", max_tokens=12)
    assert cutaway("run", "-m", talker, *GREEDY, "--max-tokens", "12", "--stop", text[3], "x")[1] == text[:3] + "\n"
    two = ("--stop", "never seen", "--stop", text[3])
    assert cutaway("run", "-m", talker, *GREEDY, *two, "--max-tokens", "12", "x")[1] == text[:3] + "\n"
    hot = ("--temperature", "5", "--max-tokens", "12")
    for option in (("--top-k", "1"), ("--top-p", "1e-9"), ("--min-p", "1")):
        assert cutaway("run", "-m", talker, *hot, *option, "x")[1] == text + "\n"
    assert cutaway("run", "-m", talker, *GREEDY, "--max-tokens", "0", "x") == (0, "\n", "")
    penalised = cutaway("run", "-m", talker, *GREEDY, "--repetition-penalty", "1e9", "--json", "x")[1]
    tokens = json.loads(penalised)["tokens"]
    assert len(set(tokens)) == len(tokens)
    assert json.loads(cutaway("run", "-m", talker, *GREEDY, "--dtype", "bf16", "--json", "x")[1])["dtype"] == "bfloat16"


def test_a_model_without_a_tokenizer_reads_and_writes_ids(cutaway: Commands, counter: Path) -> None:
    code, out, _ = cutaway("run", "-m", counter, *GREEDY, "12 7 3")
    assert code == 0
    assert len([int(word) for word in out.split()]) == 6
    assert "no tokenizer" in cutaway.error("run", "-m", counter, "twelve")
    assert "token id 67" in cutaway.error("run", "-m", counter, "67")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--temperature", "-1", "temperature = -1.0"),
        ("--temperature", "nan", "temperature = nan"),
        ("--top-k", "-1", "top_k = -1"),
        ("--top-p", "0", "top_p = 0.0"),
        ("--min-p", "2", "min_p = 2.0"),
        ("--repetition-penalty", "0", "repetition_penalty = 0.0"),
        ("--max-tokens", "-1", "max_tokens = -1"),
        ("--seed", str(2**64), f"seed = {2**64}"),
        ("--stop", "", "stop = ''"),
        ("--dtype", "int8", "dtype = 'int8'"),
        ("--device", "abacus", "device = 'abacus'"),
        ("--model", "no-such-model", "no model named 'no-such-model'"),
        ("--model", "./no/such/folder", "does not exist"),
        ("--model", "", "no model named ''"),
    ],
)
def test_a_wrong_value_is_one_line_and_exit_code_1(
    option: str, value: str, said: str, cutaway: Commands, talker: Path
) -> None:
    """G1 among them: a negative or NaN temperature is rejected."""
    assert said in cutaway.error("run", "-m", talker, option, value, "x")


@pytest.mark.parametrize("wrong", [("--max-tokens", "many"), ("--seed", "1.5"), ("--nonsense",), ("a", "b")])
def test_what_cannot_be_read_is_exit_code_2(wrong: tuple[str, ...], cutaway: Commands, talker: Path) -> None:
    code, out, err = cutaway("run", "-m", talker, *wrong)
    assert (code, out) == (2, "")
    assert "Usage: cutaway run" in err


def test_no_prompt_at_a_terminal_is_exit_code_2(cutaway: Commands, talker: Path) -> None:
    code, _, err = cutaway("run", "-m", talker, kind=Typed)
    assert code == 2
    assert "give a text to continue" in err


def test_a_prompt_past_the_context_is_refused(cutaway: Commands, tmp_path: Path) -> None:
    """G10: an explicit error, never a silent cut."""
    small = save_model(tmp_path / "small", n_ctx=16)
    assert "the model's context is 16" in cutaway.error("run", "-m", small, "x" * 16)
    found = json.loads(cutaway("run", "-m", small, "--max-tokens", "99", "--json", "x" * 9)[1])
    assert (len(found["tokens"]), found["finish_reason"]) == (7, "length")


def test_debug_keeps_the_traceback(cutaway: Commands, talker: Path) -> None:
    with pytest.raises(GenerationError, match="temperature"):
        cutaway("run", "-m", talker, "--temperature", "-1", "--debug", "x")


# --- as a process of its own ---


def test_ctrl_c_leaves_what_was_streamed_and_ends_the_line(talker: Path) -> None:
    process = start("run", "-m", talker, "--max-tokens", "90000", "--seed", "1", "x")
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert first
    assert rest.endswith(b"\n")
    assert err == b""


def test_a_closed_pipe_ends_it_silently(talker: Path) -> None:
    process = start("run", "-m", talker, "--max-tokens", "90000", "x")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_a_terminal_also_shows_the_prompt_and_a_summary_and_no_control_characters(talker: Path) -> None:
    ours, theirs = pty.openpty()
    arguments = ("--max-tokens", "400", "--temperature", "9", "--seed", "3", "--dtype", "float32")
    process = start("run", "-m", talker, *arguments, "Once\x1b[31m", stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
    os.close(ours)
    process.communicate(timeout=60)
    assert process.returncode == 0
    text = shown.decode()
    assert text.startswith("\x1b[2mOnce␛[31m\x1b[0m")
    assert text.rstrip().endswith("\x1b[0m")
    summary = text.rstrip().splitlines()[-1]
    assert "400 tokens · 400 passes · " in summary
    assert "tokens/s · length · seed 3" in summary
    inside = text.replace("\x1b[2m", "").replace("\x1b[0m", "")
    assert not {c for c in inside if ord(c) < 32} - {"\n", "\r", "\t"}
