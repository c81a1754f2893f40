"""What a token is called on a heat map's edge or in a table."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from cutaway.text.ids import IdTokenizer
from cutaway.text.tokenizer import Tokenizer

SEEN = {code: chr(0x2400 + code) for code in range(32)} | {
    0x20: "·",
    0x09: "⇥",
    0x0A: "↵",
    0x0D: "␍",
    0x7F: "␡",
    0xA0: "⍽",
}


def labels(tokenizer: Tokenizer | IdTokenizer, ids: Sequence[int]) -> list[str]:
    """Each token as it is seen: spaces as ·, unbreakable ones as ⍽, line ends as ↵, its number where there is no text.

    The tokens that share a character are called by what they write together, such as 😸 1/3, 😸 2/3, 😸 3/3.
    """
    if isinstance(tokenizer, IdTokenizer):
        return [str(int(i)) for i in ids]
    found: list[str] = []
    for group in _groups([tokenizer.token_bytes(i) for i in ids]):
        text = b"".join(group).decode("utf-8", "backslashreplace").translate(SEEN)
        n = len(group)
        found += [text or f"[{ids[len(found)]}]"] if n == 1 else [f"{text} {i}/{n}" for i in range(1, n + 1)]
    return found


def label(tokenizer: Tokenizer | IdTokenizer, token: int) -> str:
    """One token by itself."""
    return labels(tokenizer, [token])[0]


def _groups(pieces: Sequence[bytes]) -> list[list[bytes]]:
    """Neighbours that share a character, together; bytes that are no character stay alone."""
    groups: list[list[bytes]] = []
    unfinished: list[bytes] = []
    for piece in pieces:
        state = _state(b"".join([*unfinished, piece]))
        if state == "broken" and unfinished:  # the character never came: this piece may begin another
            groups += [[one] for one in unfinished]
            unfinished, state = [], _state(piece)
        unfinished.append(piece)
        if state != "unfinished":
            groups.append(unfinished)
            unfinished = []
    return groups + [[one] for one in unfinished]


def _state(text: bytes) -> str:
    """Whether the last character of these bytes is whole, unfinished, or no character."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(text)
    except UnicodeDecodeError:
        return "broken"
    return "unfinished" if decoder.getstate()[0] else "whole"
