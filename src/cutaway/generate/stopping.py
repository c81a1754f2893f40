"""When generation ends, and what may be streamed before a stop string is ruled out."""

from __future__ import annotations

import contextlib
from operator import itemgetter
from typing import Any, Literal

from cutaway.checked import short
from cutaway.errors import GenerationError

__all__ = ["MAX_STOPS", "FinishReason", "StopMatcher", "StopStrings"]

FinishReason = Literal["stop", "length"]
"""`stop`: an end token or a stop string; `length`: max_tokens, or the model's context, was reached."""

MAX_STOPS = 16


class StopStrings(tuple[str, ...]):
    """The distinct strings that end a text, in the order given: of one string, or of several.

    Raises:
        GenerationError: what is no text, an empty string, or more than `MAX_STOPS` different ones.
    """

    __slots__ = ()

    def __new__(cls, stops: Any = ()) -> StopStrings:
        given = [stops]
        if not isinstance(stops, str):
            with contextlib.suppress(TypeError):  # of what is no list: told below
                given = list(stops)
        for stop in given:
            if not isinstance(stop, str) or not stop:
                raise GenerationError(f"stop = {short(stop)}: use strings of at least one character")
        distinct = list(dict.fromkeys(given))
        if len(distinct) > MAX_STOPS:
            raise GenerationError(f"stop has {len(distinct)} different strings: use at most {MAX_STOPS}")
        return super().__new__(cls, distinct)


class StopMatcher:
    """Finds the earliest stop in generated text that arrives in pieces.

    The earliest start wins, and at one start the stop that completes first: what is sent, joined, is the text
    before that match, however it was cut up. Held back is only the longest suffix that may grow into a stop.
    Time is linear in the text, whatever it is. The prompt does not count, because it is never pushed.

    Attributes:
        matched: the stop that was hit, once that is certain.
    Source: Knuth, Morris, Pratt, "Fast pattern matching in strings", SIAM J. Comput. 6 (1977).
    """

    def __init__(self, stops: StopStrings) -> None:
        self.matched: str | None = None
        self._stops = stops
        self._borders = [_borders(stop) for stop in stops]
        self._grown = [0] * len(stops)  # per stop, how many of its characters the text ends with
        self._n_seen = 0
        self._found: tuple[int, str] | None = None  # the earliest complete match so far: start, stop

    def push(self, text: str) -> tuple[str, bool]:
        """The text that is now safe to send, and whether a stop was hit; after a stop nothing is sent."""
        if self.matched is not None:
            return "", True
        n_held, held = self._longest()
        start = self._n_seen - n_held
        for character in text:
            self._advance(character)
            # a longer stop that began earlier may still complete and win
            if self._found is not None and self._found[0] <= self._n_seen - self._longest()[0]:
                end, self.matched = self._found
                break
        else:
            end = self._n_seen - self._longest()[0]
        n_sent = end - start
        return held[: min(n_held, n_sent)] + text[: max(0, n_sent - n_held)], self.matched is not None

    def finish(self) -> str:
        """The rest, when no more text will come: all that was held, or what precedes a completed stop."""
        if self.matched is not None:
            return ""
        n_held, held = self._longest()
        self._grown = [0] * len(self._stops)
        if self._found is None:
            return held[:n_held]
        end, self.matched = self._found
        return held[: end - (self._n_seen - n_held)]

    def _longest(self) -> tuple[int, str]:
        """The text held back, as a length and the stop it is the beginning of: nothing is stored twice."""
        return max(zip(self._grown, self._stops, strict=True), default=(0, ""), key=itemgetter(0))

    def _advance(self, character: str) -> None:
        self._n_seen += 1
        for i, (stop, borders) in enumerate(zip(self._stops, self._borders, strict=True)):
            n = _grow(stop, borders, self._grown[i], character)
            if n == len(stop):
                start = self._n_seen - n
                if self._found is None or start < self._found[0]:
                    self._found = start, stop
                n = 0  # its next match would begin later, and lose
            self._grown[i] = n


def _grow(stop: str, borders: list[int], n: int, character: str) -> int:
    """How many of the stop's first characters the text ends with, given n before this character."""
    while n and stop[n] != character:
        n = borders[n - 1]
    return n + (stop[n] == character)


def _borders(stop: str) -> list[int]:
    """For each prefix of the stop, the length of its longest proper prefix that also ends it."""
    borders = [0]
    for character in stop[1:]:
        borders.append(_grow(stop, borders, borders[-1], character))
    return borders
