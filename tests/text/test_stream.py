"""Text that appears token by token."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from cutaway.text.ids import IdTokenizer
from cutaway.text.stream import TextStream
from cutaway.text.tokenizer import Tokenizer
from support.vocabularies import BYTES, byte_level, llama3, sentencepiece


def metaspace() -> Backend:
    backend = sentencepiece("none")
    backend.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    return backend


def words() -> Backend:
    backend = Backend(models.WordLevel({"a": 0, "b": 1, "é": 5}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return backend


TOKENIZERS = {
    "byte-level": Tokenizer(byte_level({}, special=("<s>",)), bos_id=256, eos_ids=frozenset(), add_bos=False),
    "llama3": Tokenizer(llama3(), bos_id=128000, eos_ids=frozenset(), add_bos=True),
    "byte fallback": Tokenizer(sentencepiece("legacy"), bos_id=1, eos_ids=frozenset({2}), add_bos=True),
    "no prefix": Tokenizer(sentencepiece("none"), bos_id=1, eos_ids=frozenset({2}), add_bos=True),
    "metaspace": Tokenizer(metaspace(), bos_id=1, eos_ids=frozenset({2}), add_bos=True),
    "words": Tokenizer(words(), bos_id=None, eos_ids=frozenset(), add_bos=False),
}
BYTE_LEVEL, SPM = TOKENIZERS["byte-level"], TOKENIZERS["byte fallback"]


def id_of(byte: int, tokenizer: Tokenizer) -> int:
    return next(i for i in range(tokenizer.d_vocab) if tokenizer.token_bytes(i) == bytes([byte]))


def pushed(tokenizer: Tokenizer, data: bytes) -> list[str]:
    stream = tokenizer.stream()
    return [*(stream.push(id_of(byte, tokenizer)) for byte in data), stream.finish()]


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SPM], ids=["byte-level", "byte fallback"])
def test_characters_come_whole(tokenizer: Tokenizer):
    """G7: nothing until the fourth byte, then the character."""
    cat = "😸".encode()
    assert pushed(tokenizer, cat) == ["", "", "", "😸", ""]
    assert pushed(tokenizer, cat[:2]) == ["", "", "\ufffd"], "cut short: one U+FFFD at the end"
    assert pushed(tokenizer, b"\x80a") == ["\ufffd", "a", ""], "a lone bad byte is handed out, not held"
    assert pushed(tokenizer, cat + cat) == ["", "", "", "😸", "", "", "", "😸", ""]
    assert pushed(tokenizer, cat[:3] + b"a") == ["", "", "", "\ufffda", ""]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_streamed_is_buffered(name: str):
    """Contract 9, for any ids, known or not."""
    tokenizer = TOKENIZERS[name]
    ids = st.lists(st.one_of(st.integers(0, 262), st.integers(0, tokenizer.d_vocab + 3)), max_size=40)

    @settings(max_examples=150, deadline=None)
    @given(ids, st.booleans(), st.booleans())
    def check(ids: list[int], skip_special: bool, continues: bool) -> None:
        stream = TextStream(tokenizer, skip_special=skip_special, continues=continues)
        pieces = [*map(stream.push, ids), stream.finish()]
        assert "".join(pieces) == tokenizer.decode(ids, skip_special=skip_special, continues=continues)

    check()


@pytest.mark.parametrize("name", [name for name in TOKENIZERS if name != "metaspace"])
@settings(max_examples=50)
@given(st.text(st.characters(max_codepoint=0x1F9FF, exclude_categories=("Cs",)), max_size=20))
def test_decoding_agrees_with_the_library(name: str, text: str):
    """On ids that make whole characters, the text is what the tokenizers library decodes.

    It is not where that library is lossy: Metaspace drops every leading space, not only the prefix.
    """
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, bos=False)
    assert tokenizer.decode(ids) == tokenizer.backend.decode(ids, skip_special_tokens=False)


def test_a_leading_space_is_dropped_once():
    he, space = SPM.backend.token_to_id("▁he"), SPM.backend.token_to_id("▁")
    stream = SPM.stream()
    assert [stream.push(i) for i in (space, he, he)] == ["", " he", " he"]
    stream = SPM.stream(continues=True)
    assert [stream.push(i) for i in (he, he)] == [" he", " he"]
    stream = SPM.stream()
    assert [stream.push(i) for i in (1, he, 2)] == ["", "he", ""], "special tokens are left out"


def test_ids_may_be_tensors():
    """One that names a special token is left out like the number."""
    he = SPM.backend.token_to_id("▁he")
    stream = SPM.stream()
    assert [stream.push(i) for i in torch.tensor([1, he, 2])] == ["", "he", ""]
    assert [IdTokenizer(9).stream().push(i) for i in torch.tensor([5, 6])] == ["5 ", "6 "]
    assert IdTokenizer(9).decode(torch.tensor([5, 6])) == "5 6 "


def test_a_token_costs_the_same_at_the_end():
    """No token decodes the text before it again: the second half takes no longer than the first, give or take."""
    stream, token = BYTE_LEVEL.stream(), BYTES["a"]
    times = []
    for _ in range(2):
        start = time.perf_counter()
        for _ in range(20_000):
            stream.push(token)
        times.append(time.perf_counter() - start)
    assert times[1] < 5 * times[0]
