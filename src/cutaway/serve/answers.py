"""Generated texts in the two shapes that clients of this API know, whole and in pieces."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from cutaway.generate.sampling import Choice
from cutaway.generate.stopping import FinishReason
from cutaway.text.ids import IdStream, IdTokenizer
from cutaway.text.stream import TextStream
from cutaway.text.tokenizer import Tokenizer

Json = dict[str, Any]
Scored = tuple[int, float | None, tuple[tuple[int, float], ...]]  # a token, its log-probability, the best ones


def scored(choice: Choice) -> Scored:
    """What a generated token is reported with."""
    return choice.token, choice.logprob, choice.top_logprobs


@dataclass(kw_only=True)
class Draft:
    """One text as it comes: all of it, and what is reported of its tokens; `echoes` if it begins with its prompt."""

    text: str = ""
    finish_reason: FinishReason | None = None
    entries: list[Scored] = field(default_factory=list)
    echoes: bool = False
    n_offset: int = 0  # whole characters of the text before the next token, for completions
    stream: TextStream | IdStream | None = None  # which counts them


class Shape(ABC):
    """An answer's envelope. Everything of one answer has the same id."""

    kind: ClassVar[str]
    piece_kind: ClassVar[str]
    prefix: ClassVar[str]

    def __init__(
        self, model: str, tokenizer: Tokenizer | IdTokenizer, n_logprobs: int | None, usage_comes: bool = False
    ) -> None:
        self.id = f"{self.prefix}-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.model = model
        self.tokenizer = tokenizer
        self.n_logprobs = n_logprobs
        self.usage_comes = usage_comes  # a stream's last chunk will count: until then its count is null

    def whole(self, drafts: Sequence[Draft], usage: Json) -> Json:
        """The answer in one piece."""
        choices = [
            self.choice(i, draft.text, self.logprobs(draft, draft.entries), draft.finish_reason)
            for i, draft in enumerate(drafts)
        ]
        return self._envelope(self.kind, choices) | {"usage": usage}

    def chunk(self, i: int, draft: Draft, text: str, entries: Sequence[Scored]) -> Json:
        """A piece of text i."""
        return self._piece([self.piece(i, text, self.logprobs(draft, entries), None)])

    def last(self, i: int, finish_reason: FinishReason | None) -> Json:
        """The end of text i."""
        return self._piece([self.piece(i, "", None, finish_reason)])

    def count(self, usage: Json) -> Json:
        """The count of tokens that ends a stream."""
        return self._envelope(self.piece_kind, []) | {"usage": usage}

    def _piece(self, choices: list[Json]) -> Json:
        return self._envelope(self.piece_kind, choices) | ({"usage": None} if self.usage_comes else {})

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def opening(self, i: int) -> list[Json]:
        """What comes before the first piece of text i."""
        return []

    def logprobs(self, draft: Draft, entries: Sequence[Scored]) -> Json | None:
        """Log-probabilities of tokens, where they were asked for."""
        return None if self.n_logprobs is None else self.reported(draft, entries)

    @abstractmethod
    def reported(self, draft: Draft, entries: Sequence[Scored]) -> Json:
        """The same, in the shape's own words."""

    @abstractmethod
    def choice(self, i: int, text: str, logprobs: Json | None, finish_reason: FinishReason | None) -> Json:
        """Text i, whole."""

    @abstractmethod
    def piece(self, i: int, text: str, logprobs: Json | None, finish_reason: FinishReason | None) -> Json:
        """A piece of text i."""

    def written(self, token: int) -> str:
        r"""A token's text; one that is no whole character is written `bytes:\xe2\x80`."""
        piece = self.piece_of(token)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)

    def piece_of(self, token: int) -> bytes:
        """The bytes that a token writes."""
        if isinstance(self.tokenizer, IdTokenizer):
            return self.tokenizer.decode([token]).encode()
        return self.tokenizer.token_bytes(token)


class CompletionShape(Shape):
    """`/v1/completions`."""

    kind = piece_kind = "text_completion"
    prefix = "cmpl"

    def choice(self, i: int, text: str, logprobs: Json | None, finish_reason: FinishReason | None) -> Json:
        return {"index": i, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}

    piece = choice

    def reported(self, draft: Draft, entries: Sequence[Scored]) -> Json:
        if draft.stream is None:
            draft.stream = self.tokenizer.stream(skip_special=True, continues=not draft.echoes)
        offsets = []
        for token, _, _ in entries:
            offsets.append(draft.n_offset)
            draft.n_offset += len(draft.stream.push(token))
        best = [None if p is None else {self.written(t): q for t, q in top} for _, p, top in entries]
        return {
            "tokens": [self.written(token) for token, _, _ in entries],
            "token_logprobs": [p for _, p, _ in entries],
            "top_logprobs": best if self.n_logprobs else None,
            "text_offset": offsets,
        }


class ChatShape(Shape):
    """`/v1/chat/completions`."""

    kind = "chat.completion"
    piece_kind = "chat.completion.chunk"
    prefix = "chatcmpl"

    def opening(self, i: int) -> list[Json]:
        return [self._piece([self._delta(i, {"role": "assistant", "content": ""}, None, None)])]

    def choice(self, i: int, text: str, logprobs: Json | None, finish_reason: FinishReason | None) -> Json:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": i, "message": message, "logprobs": logprobs, "finish_reason": finish_reason}

    def piece(self, i: int, text: str, logprobs: Json | None, finish_reason: FinishReason | None) -> Json:
        return self._delta(i, {} if finish_reason else {"content": text}, logprobs, finish_reason)

    def _delta(self, i: int, delta: Json, logprobs: Json | None, finish_reason: FinishReason | None) -> Json:
        return {"index": i, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}

    def reported(self, draft: Draft, entries: Sequence[Scored]) -> Json:
        content = [
            self._token(token, p or 0.0) | {"top_logprobs": [self._token(t, q) for t, q in top[: self.n_logprobs]]}
            for token, p, top in entries
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> Json:
        piece = self.piece_of(token)
        return {"token": self.written(token), "logprob": max(logprob, -9999.0), "bytes": list(piece)}


def usage_of(n_prompt: int, n_new: int, n_known: int) -> Json:
    """The count of tokens: of the prompts, of what was picked, end tokens included, and of both."""
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_new,
        "total_tokens": n_prompt + n_new,
        "prompt_tokens_details": {"cached_tokens": n_known},
    }
