"""Tokens as they are seen: the bytes of one character stand together."""

from __future__ import annotations

import pytest

from cutaway.data.vocabulary import Sample, train_tokenizer
from cutaway.inside.labels import label, labels
from cutaway.text.ids import IdTokenizer
from cutaway.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def by_bytes() -> Tokenizer:
    return train_tokenizer("bytes", Sample())[0]


def test_spaces_and_line_ends_are_seen(by_bytes: Tokenizer) -> None:
    assert labels(by_bytes, by_bytes.encode("a b\n\t\x1b", bos=False)) == ["a", "·", "b", "↵", "⇥", "␛"]
    assert labels(by_bytes, by_bytes.encode("\u00a0", bos=False)) == ["⍽ 1/2", "⍽ 2/2"]


def test_a_character_of_several_tokens_is_one_group(by_bytes: Tokenizer) -> None:
    ids = by_bytes.encode("x😸é", bos=False)
    assert labels(by_bytes, ids) == ["x", "😸 1/4", "😸 2/4", "😸 3/4", "😸 4/4", "é 1/2", "é 2/2"]


def test_bytes_of_no_character_stand_alone(by_bytes: Tokenizer) -> None:
    smiling = by_bytes.encode("😸", bos=False)
    assert labels(by_bytes, smiling[:2]) == [r"\xf0", r"\x9f"]  # cut short by the end
    assert labels(by_bytes, [*smiling[:2], *by_bytes.encode("ab", bos=False)]) == [r"\xf0", r"\x9f", "a", "b"]
    assert labels(by_bytes, [smiling[0], *smiling]) == [r"\xf0", "😸 1/4", "😸 2/4", "😸 3/4", "😸 4/4"]
    assert labels(by_bytes, [smiling[1], *smiling]) == [r"\x9f", "😸 1/4", "😸 2/4", "😸 3/4", "😸 4/4"]


def test_what_has_no_text_is_its_number(by_bytes: Tokenizer) -> None:
    assert label(by_bytes, 9999) == "[9999]"
    assert labels(IdTokenizer(10), [3, 7]) == ["3", "7"]
