"""cutaway chat: talk to an instruct model."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli.answer import Answer
from cutaway.cli.common import as_text, dtype_name, model_name, open_model, print_json, reported, tell, without_mark
from cutaway.cli.options import (
    Debug,
    Device,
    Dtype,
    Json,
    MaxTokens,
    MinP,
    Model,
    NoCache,
    RepetitionPenalty,
    Seed,
    Stop,
    Temperature,
    TopK,
    TopP,
)
from cutaway.errors import ContextError, CutawayError, GenerationError
from cutaway.show.terminal import Screen

if TYPE_CHECKING:
    from cutaway.language_model import LanguageModel

COMMANDS = "/exit, /reset, /undo, /system TEXT"


@reported
def chat(
    model: Model = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system message.")] = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = 1.0,
    stop: Stop = None,
    seed: Seed = None,
    no_cache: NoCache = False,
    dtype: Dtype = None,
    device: Device = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Talk to a model through its chat template.

    \b
    /exit         leave; Ctrl-D does too
    /reset        forget the conversation, but not the system message
    /system TEXT  set the system message; without TEXT there is none
    /undo         take back the last turn

    Ctrl-C stops an answer and keeps what there is of it. In a pipe every line is a turn, and only the answers are
    printed.
    """
    name = model_name(model)
    loaded = open_model(name, dtype, device)
    talk = Conversation(loaded, system)
    talk.ids("?")  # a model that cannot chat says so before anything is typed
    options = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "stop": stop or (),
        "seed": seed,
        "cache": not no_cache,
    }
    screen = Screen()
    interactive = screen.is_terminal and sys.stdin.isatty() and not json
    if interactive:
        screen.dim(f"{name}. {COMMANDS}; Ctrl-C stops an answer.")
    for line in _typed_lines() if interactive else _piped_lines():
        if line.strip() == "/exit":
            break
        try:
            if line.startswith("/"):
                talk.obey(line)
            elif line.strip():
                answer = Answer(loaded, talk.ids(line), **options)
                _stream(answer, None if json else screen, interactive)
                talk.turns.append((line, answer.text))
                if json:
                    turn = {"turn": len(talk.turns), "user": line, **answer.to_dict()}
                    print_json(turn | {"model": name, "dtype": dtype_name(loaded)}, indent=None)
                else:
                    screen.dim(answer.summary())
                if answer.filled_context:
                    tell("note", f"the context of {loaded.config.n_ctx} tokens is full: /undo or /reset to go on")
        except CutawayError as error:
            if debug or not interactive:
                raise
            tell("error", str(error))


class Conversation:
    """What has been said so far, as turns of a user's line and the model's answer."""

    def __init__(self, model: LanguageModel, system: str | None) -> None:
        self.model = model
        self.system = system
        self.turns: list[tuple[str, str]] = []

    def ids(self, line: str) -> list[int]:
        """The conversation and a new line of the user's, as the model's template writes it.

        Raises:
            TemplateError, TokenizerError: the model cannot chat, or its template refuses this conversation.
            ContextError: it has become too long.
        """
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for user, assistant in self.turns:
            messages += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
        ids = self.model.tokenizer.chat([*messages, {"role": "user", "content": line}])
        if len(ids) > self.model.config.n_ctx:
            raise ContextError(
                f"the conversation has {len(ids)} tokens with this line, the model's context is "
                f"{self.model.config.n_ctx}: say it shorter, /undo the last turn, or /reset"
            )
        return ids

    def obey(self, line: str) -> None:
        """Carry out a command.

        Raises:
            GenerationError: there is no such command, or nothing to undo.
        """
        command, _, text = line.strip().partition(" ")
        match command:
            case "/reset":
                self.turns.clear()
            case "/system":
                self.system = text.strip() or None
            case "/undo" if self.turns:
                self.turns.pop()
            case "/undo":
                raise GenerationError("there is no turn to take back")
            case _:
                raise GenerationError(f"no command {command!r}: {COMMANDS}; a space before the / makes it text")


def _stream(answer: Answer, screen: Screen | None, interactive: bool) -> None:
    """Show an answer as it comes; in a terminal, Ctrl-C ends it and no more."""
    try:
        for piece in answer:
            if screen is not None:
                screen.write(piece)
    except KeyboardInterrupt:
        if not interactive:
            raise
    finally:
        if screen is not None:
            screen.write("\n")


def _typed_lines() -> Iterator[str]:
    """Lines from a terminal, until Ctrl-D."""
    with contextlib.suppress(ImportError):  # not everywhere; where it is, it makes the line editable
        importlib.import_module("readline")
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()  # the line is dropped
        except UnicodeDecodeError:
            tell("error", "that line is not UTF-8: check the terminal's encoding")


def _piped_lines() -> Iterator[str]:
    """Lines from a pipe or a file."""
    for number, line in enumerate(sys.stdin.buffer):
        text = as_text(line)
        yield text if number else without_mark(text)
