"""One token by its text or id: exactly what it writes, and an error with the pieces where it is not one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cutaway.checkpoint.load import LoadReport
from cutaway.errors import InsideError, TokenizerError
from cutaway.inside.targets import count_of, position_of, token_of, wide
from cutaway.language_model import LanguageModel
from cutaway.network import Transformer
from cutaway.text.ids import IdTokenizer
from cutaway.text.tokenizer import Tokenizer
from support.tiny import OURS, random_network
from support.vocabularies import SPM, sentencepiece


def model_of(tokenizer: Tokenizer | IdTokenizer, d_vocab: int) -> LanguageModel:
    network: Transformer = random_network(replace(OURS["grouped"], d_vocab=d_vocab))
    report = LoadReport(family="llama", source="test", stored="float32")
    return LanguageModel(network, tokenizer, report, frozenset())


@pytest.fixture(scope="module")
def pieces() -> LanguageModel:
    """SentencePiece puts a space before a text's first word, and has a second way to write every byte."""
    tokenizer = Tokenizer(sentencepiece(), bos_id=1, eos_ids=frozenset({2}), add_bos=True)
    return model_of(tokenizer, tokenizer.d_vocab + 4)


def test_the_token_that_writes_exactly_this(pieces: LanguageModel) -> None:
    names = [*SPM, "he", "▁he", "▁▁"]
    assert token_of(pieces, "he", "target") == names.index("he")  # although a text "he" is read as "▁he"
    assert token_of(pieces, " he", "target") == names.index("▁he")
    assert token_of(pieces, "</s>", "target") == 2


def test_a_text_of_several_tokens_names_them(pieces: LanguageModel) -> None:
    with pytest.raises(InsideError, match=r"target = 'she' is no token, it is written · \(259\) s \(\d+\) he \(\d+\)"):
        token_of(pieces, "she", "target")
    with pytest.raises(InsideError, match="target = '' has no token"):
        token_of(pieces, "", "target")


def test_a_text_that_two_tokens_write_is_ambiguous(pieces: LanguageModel) -> None:
    both = [SPM.index("<0x68>"), SPM.index("h")]
    with pytest.raises(InsideError, match=f"versus = 'h' is what tokens {both[0]}, {both[1]} write: give one as an id"):
        token_of(pieces, "h", "versus")
    assert token_of(pieces, both[1], "versus") == both[1]


def test_ids_of_any_kind_within_the_vocabulary(pieces: LanguageModel) -> None:
    last = pieces.config.d_vocab - 1  # the model may have more than the tokenizer
    for token in (last, np.int64(last), torch.tensor(last)):
        assert token_of(pieces, token, "target") == last
        assert type(token_of(pieces, token, "target")) is int
    for token in (-1, last + 1):
        with pytest.raises(InsideError, match=f"target = {token} is outside the vocabulary: 0 to {last}"):
            token_of(pieces, token, "target")
    for wrong in (2.0, None, [1, 2], torch.tensor([1, 2])):
        with pytest.raises(InsideError, match="give the text of one token, or its id"):
            token_of(pieces, wrong, "target")


def test_without_a_tokenizer_text_is_an_id() -> None:
    model = model_of(IdTokenizer(67), 67)
    assert token_of(model, "12", "target") == 12
    for text, n in (("1 2", 2), ("", 0)):
        with pytest.raises(InsideError, match=f"target = '{text}' is {n} ids: give one"):
            token_of(model, text, "target")
    with pytest.raises(InsideError, match="target = 99 is outside the vocabulary: 0 to 66"):
        token_of(model, "99", "target")
    with pytest.raises(TokenizerError, match="no tokenizer"):
        token_of(model, "he", "target")


def test_positions_count_from_either_end() -> None:
    assert [position_of(i, 5) for i in (0, 4, -1, -5)] == [0, 4, 4, 0]
    for wrong in (5, -6):
        with pytest.raises(InsideError, match=f"position = {wrong}: the prompt has positions -5 to 4"):
            position_of(wrong, 5)
    with pytest.raises(InsideError, match="position = 'x': give a whole number"):
        position_of("x", 5)


def test_counts_have_a_range() -> None:
    assert count_of(3, 3, "k") == 3
    for wrong in (0, 4):
        with pytest.raises(InsideError, match=f"k = {wrong}: it must be from 1 to 3"):
            count_of(wrong, 3, "k")


def test_short_types_are_widened() -> None:
    one = torch.ones(1)
    found = [wide(one.to(dtype)).dtype for dtype in (torch.bfloat16, torch.float32, torch.float64)]
    assert found == [torch.float32, torch.float32, torch.float64]
