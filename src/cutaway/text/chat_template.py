"""Messages to the text a chat model was trained on, by the jinja template that came with the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Template
from jinja2 import TemplateError as JinjaError

from cutaway.errors import TemplateError
from cutaway.text.marked import mark_all
from cutaway.text.sandbox import SECONDS, VALUE_LIMIT, TemplateSandbox, time_limit

__all__ = ["SIZE_LIMIT", "SOURCE_LIMIT", "ChatTemplate"]

SIZE_LIMIT = 2**20  # characters of the output
DEPTH_LIMIT = 64  # lists and dicts in each other
SOURCE_LIMIT = 2**16  # characters; the longest in use have about half of that


class ChatTemplate:
    """A compiled chat template.

    It runs in jinja2's immutable sandbox, for at most `SECONDS`, and writes at most `SIZE_LIMIT` characters.

    Args:
        source: jinja2, as in `tokenizer_config.json` or `tokenizer.chat_template`.
        bos_token: what the template knows under this name; undefined there if None. `eos_token` likewise.
    Raises:
        TemplateError: a source that is too long or no template.
    """

    def __init__(self, source: str, bos_token: str | None = None, eos_token: str | None = None) -> None:
        if len(source) > SOURCE_LIMIT:
            raise TemplateError(
                f"the chat template has {len(source)} characters; the limit is {SOURCE_LIMIT}, use a shorter one"
            )
        known = {"bos_token": bos_token, "eos_token": eos_token}
        self._tokens = {name: token for name, token in known.items() if token is not None}
        self._template = _compile(source)

    def render(
        self, messages: Sequence[Mapping[str, Any]], /, *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The conversation as text, ending where the assistant is to speak.

        Args:
            messages: each with a `role` and a `content`; the template may know more fields.
            variables: what else the template knows, such as `tools`.
        Raises:
            TemplateError: messages that are not JSON-like, or a template that fails, takes too long or writes too much.
        """
        return self._render(_checked(messages, variables), add_generation_prompt, variables, SIZE_LIMIT)

    def render_marked(
        self,
        messages: Sequence[Mapping[str, Any]],
        mark: str,
        /,
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The same text with `mark` around every character that comes from the messages or the variables.

        Roles that are plain words stay bare: templates build control tokens from them, as in `'<|' + role + '|>'`.

        Raises: as `render`.
        """
        marked = [mark_all(message, mark) | _bare_role(message) for message in _checked(messages, variables)]
        # The marks may triple the text.
        return self._render(marked, add_generation_prompt, mark_all(variables, mark), VALUE_LIMIT)

    def _render(self, messages: list[Any], add_generation_prompt: bool, variables: dict[str, Any], limit: int) -> str:
        names = {**self._tokens, "tools": None, "documents": None, **variables}
        names |= {"messages": messages, "add_generation_prompt": add_generation_prompt}
        parts: list[str] = []
        length = 0
        try:
            with time_limit(SECONDS):
                for part in self._template.generate(names):
                    parts.append(part)
                    length += len(part)
                    if length > limit:
                        raise TemplateError(
                            f"the chat template wrote more than {limit} characters; shorten the messages"
                        )
        except Exception as error:  # the template is code: anything can come out of it
            raise _named(error) from error
        return "".join(parts)


def _checked(messages: Sequence[Mapping[str, Any]], variables: dict[str, Any]) -> list[dict[str, Any]]:
    for message in messages:
        if not isinstance(message, Mapping):
            raise TemplateError(
                f"a message is a {type(message).__name__}; give objects such as {{'role': 'user', 'content': 'Hello'}}"
            )
    plain = [dict(message) for message in messages]
    _check_json([plain, variables])
    return plain


def _bare_role(message: dict[str, Any]) -> dict[str, str]:
    role = message.get("role")
    return {"role": role} if isinstance(role, str) and role.isidentifier() else {}


def _compile(source: str) -> Template:
    sandbox = TemplateSandbox()
    try:
        with time_limit(SECONDS):
            return sandbox.compile_bounded(source)
    except Exception as error:
        raise _named(error) from error


def _named(error: Exception) -> TemplateError:
    if isinstance(error, TemplateError):
        return error
    message = (error.message if isinstance(error, JinjaError) else str(error)) or "no reason given"
    line = f" in line {error.lineno}" if hasattr(error, "lineno") else ""
    text = " ".join(message.split())[:200]
    return TemplateError(f"the chat template failed{line}: {type(error).__name__}: {text}")


def _check_json(value: Any, depth: int = 0) -> None:
    if depth > DEPTH_LIMIT:
        raise TemplateError(f"a message is nested deeper than {DEPTH_LIMIT} levels; flatten it")
    if isinstance(value, dict):
        _check_json([*value.keys(), *value.values()], depth + 1)
    elif isinstance(value, list | tuple):
        for entry in value:
            _check_json(entry, depth + 1)
    elif not isinstance(value, str | int | float | None):
        raise TemplateError(f"a message holds a {type(value).__name__}; give strings, numbers, lists and dicts of them")
