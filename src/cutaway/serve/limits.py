"""What a server takes at most: everything a client can make larger has its bound here."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The bounds of one server.

    Args:
        n_running: texts that share a pass.
        n_waiting: texts that wait for their turn; past it a request is told to come back.
        n_looks: looks inside that wait for their turn, and long questions besides.
        n_questions: long questions that are at work, in turns, each holding what it keeps of its passes.
        cache_bytes: keys and values of all texts, running, being read and remembered [B].
        stall_seconds: for so long running texts may wait while a piece of a new prompt is read [s].
        piece, long_piece: prompt tokens in such a piece, at least and at most: how many fit that time is found out.
        head_bytes: of a request, its address included [B].
        body_bytes: of a request [B].
        body_seconds: until a request's body has come [s].
        stop_seconds: running texts have this long to end once the server is to stop [s].
        n_numbers: of one answer about the inside.
    """

    n_running: int = 16
    n_waiting: int = 64
    n_looks: int = 8
    n_questions: int = 2
    cache_bytes: int = 2 * GIB
    stall_seconds: float = 0.1
    piece: int = 32
    long_piece: int = 512
    head_bytes: int = 16 * 2**10
    body_bytes: int = 4 * 2**20
    body_seconds: float = 30.0
    stop_seconds: float = 5.0
    n_numbers: int = 1_000_000

    @property
    def prefix_bytes(self) -> int:
        """The share for what is remembered of earlier texts [B]."""
        return self.cache_bytes // 4

    @property
    def text_bytes(self) -> int:
        """The share for texts that run and are being read [B]."""
        return self.cache_bytes - self.prefix_bytes
