"""What a token is called on a heat map's edge or in a table."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from cutaway.text.ids import IdTokenizer
from cutaway.text.tokenizer import Tokenizer

SEEN = {code: chr(0x2400 + code) for code in range(32)} | {0x20: "·", 0x09: "⇥", 0x0A: "↵", 0x0D: "␍", 0x7F: "␡"}


def labels(tokenizer: Tokenizer | IdTokenizer, ids: Sequence[int]) -> list[str]:
    """Each token as it is seen: spaces as ·, line ends as ↵, and its number where there is no text.

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
    decoder = codecs.getincrementaldecoder("utf-8")()
    open_group: list[bytes] = []
    for piece in pieces:
        try:
            decoder.decode(piece)
        except UnicodeDecodeError:
            decoder.reset()
            groups += [[one] for one in [*open_group, piece]]
            open_group = []
            continue
        open_group.append(piece)
        if not decoder.getstate()[0]:
            groups.append(open_group)
            open_group = []
    return groups + [[one] for one in open_group]
