"""A text in pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cutaway.data.pieces import SPACE, even_pieces


def test_cuts_between_lines_else_before_a_word_else_anywhere():
    assert list(even_pieces(["one two\nthree four five"], 12)) == ["one two\n", "three four", " five"]
    assert list(even_pieces(["abcdefgh"], 3)) == ["abc", "def", "gh"]
    assert list(even_pieces(["one two\nthree"], 10, seams=(SPACE,))) == ["one two\nth", "ree"]


def test_blank_lines_stay_together():
    """X26: a paragraph's end is one token, also where a piece ends."""
    assert list(even_pieces(["abcd\n\n\nefgh"], 9)) == ["abcd\n\n\n", "efgh"]


@given(st.lists(st.text(alphabet="ab \n", max_size=30)), st.integers(1, 20))
def test_the_pieces_are_the_text(texts: list[str], size: int):
    pieces = list(even_pieces(texts, size))
    assert "".join(pieces) == "".join(texts)
    assert all(0 < len(piece) <= size for piece in pieces)
