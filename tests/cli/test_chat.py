"""cutaway chat: turns that remember, commands, a full context told, Ctrl-C that stops one answer."""

from __future__ import annotations

import json
import os
import pty
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import cutaway as library
from cutaway.errors import ContextError
from support.commands import Commands, save_model, start

GREEDY = ("--temperature", "0", "--max-tokens", "4")


def turns(cutaway: Commands, folder: Path, typed: str, *options: str) -> list[dict[str, Any]]:
    code, out, _ = cutaway("chat", "-m", folder, *GREEDY, "--json", *options, stdin=typed.encode())
    assert code == 0
    return [json.loads(line) for line in out.splitlines()]


def written(*messages: tuple[str, str]) -> int:
    """How many tokens the template makes of these messages: one a byte, and the begin token."""
    text = "".join(f"{role}: {content}\n" for role, content in messages) + "assistant:"
    return 1 + len(text.encode())


def test_in_a_pipe_each_line_is_a_turn_and_only_answers_are_printed(cutaway: Commands, talker: Path) -> None:
    model = library.load(talker)
    ids = model.tokenizer.chat([{"role": "user", "content": "hi"}])
    first = model.generate(ids, temperature=0, max_tokens=4).text
    code, out, err = cutaway("chat", "-m", talker, *GREEDY, stdin=b"hi\n\n   \n/exit\nnever read\n")
    assert (code, out, err) == (0, first + "\n", "")


def test_a_byte_order_mark_is_no_part_of_the_first_line(cutaway: Commands, talker: Path) -> None:
    """Some shells put one before what they pipe: a command stays a command."""
    found = turns(cutaway, talker, "\ufeff/system Be brief.\nhi\n\ufeffhi\n")
    assert found[0]["n_prompt"] == written(("system", "Be brief."), ("user", "hi"))
    assert [turn["user"] for turn in found] == ["hi", "\ufeffhi"]


def test_every_turn_sees_the_ones_before(cutaway: Commands, talker: Path) -> None:
    first, second = turns(cutaway, talker, "hi\nhow?\n")
    assert [first["turn"], second["turn"]] == [1, 2]
    assert [first["user"], second["user"]] == ["hi", "how?"]
    assert first["n_prompt"] == written(("user", "hi"))
    assert second["n_prompt"] == written(("user", "hi"), ("assistant", first["text"]), ("user", "how?"))
    assert first["model"] == str(talker)
    assert first["passes"] == len(first["tokens"]) == 4
    assert first["seed"] != second["seed"]


def test_commands_change_what_the_model_is_shown(cutaway: Commands, talker: Path) -> None:
    typed = "hi\n/undo\nho\n/reset\n/system Be brief.\nhe\n/system\n/reset\nha\n /reset\n"
    found = turns(cutaway, talker, typed, "--system", "Sing!")
    system = ("system", "Sing!")
    assert [turn["n_prompt"] for turn in found[:4]] == [
        written(system, ("user", "hi")),
        written(system, ("user", "ho")),
        written(("system", "Be brief."), ("user", "he")),
        written(("user", "ha")),
    ]
    assert [turn["turn"] for turn in found] == [1, 1, 1, 1, 2]
    assert found[4]["user"] == " /reset"


@pytest.mark.parametrize(
    ("typed", "said"), [(b"/quit\n", "no command '/quit': /exit"), (b"/undo\n", "no turn to take")]
)
def test_a_wrong_command_is_one_line(typed: bytes, said: str, cutaway: Commands, talker: Path) -> None:
    assert said in cutaway.error("chat", "-m", talker, stdin=typed)


def test_a_model_that_cannot_chat_says_so_before_it_reads(cutaway: Commands, counter: Path, tmp_path: Path) -> None:
    plain = save_model(tmp_path / "plain", template=None)
    assert "no chat template" in cutaway.error("chat", "-m", plain, stdin=b"hi\n")
    assert "no tokenizer" in cutaway.error("chat", "-m", counter, stdin=b"hi\n")


def test_a_template_that_refuses_is_one_line(cutaway: Commands, tmp_path: Path) -> None:
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}x"
    folder = save_model(tmp_path / "refusing", template=refusing)
    assert "no system role" in cutaway.error("chat", "-m", folder, "--system", "Sing!")


def test_a_full_context_says_what_to_do(cutaway: Commands, tmp_path: Path) -> None:
    """G10 in a chat: never a silent cut of what was said."""
    small = save_model(tmp_path / "small", n_ctx=40)
    code, out, err = cutaway("chat", "-m", small, "--temperature", "0", stdin=b"hi\nand now?\n")
    assert code == 1
    assert out.count("\n") >= 1
    note, error = err.splitlines()
    assert note == "note: the context of 40 tokens is full: /undo or /reset to go on"
    assert error.startswith("error: the conversation has ")
    assert "the model's context is 40: say it shorter, /undo the last turn, or /reset" in error
    with pytest.raises(ContextError):
        cutaway("chat", "-m", small, "--debug", stdin=b"x" * 40)


def test_lines_that_are_not_utf8_are_refused(cutaway: Commands, talker: Path) -> None:
    assert "byte 1 is 0xff" in cutaway.error("chat", "-m", talker, stdin=b"a\xff\n")


# --- at a terminal ---


class Terminal:
    """A process at a pseudo-terminal, and what it has shown so far."""

    def __init__(self, *argv: str | Path) -> None:
        self.end, theirs = pty.openpty()
        self.process = start(*argv, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self.end, text.encode())

    def wait_for(self, text: str, after: int = 0) -> int:
        """Where the text ends, once it is there."""
        deadline = time.monotonic() + 60
        while (found := self.shown.find(text, after)) < 0:
            assert time.monotonic() < deadline, self.shown
            self.shown += os.read(self.end, 65536).decode(errors="replace")
        return found + len(text)


def test_ctrl_c_stops_the_answer_and_keeps_the_conversation(talker: Path) -> None:
    terminal = Terminal("chat", "-m", talker, "--max-tokens", "90000")
    ready = terminal.wait_for("> ")
    terminal.type("hi\n")
    started = terminal.wait_for("hi", ready)
    while len(terminal.shown) < started + 20:
        terminal.shown += os.read(terminal.end, 65536).decode(errors="replace")
    terminal.process.send_signal(signal.SIGINT)
    stopped = terminal.wait_for("interrupted", started)
    asked = terminal.wait_for("> ", stopped)
    terminal.type("/undo\n/undo\n")
    told = terminal.wait_for("error: there is no turn to take back", asked)
    terminal.wait_for("> ", told)
    terminal.type("\x04")
    assert terminal.process.wait(timeout=60) == 0
    os.close(terminal.end)
    assert "Traceback" not in terminal.shown
    assert "\x1b[2m" in terminal.shown
