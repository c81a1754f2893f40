"""Scoring texts: every token once, sliding past the context, equal to the loss taken by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LanguageModel
from cutaway.checkpoint.load import LoadReport
from cutaway.data.vocabulary import Sample, train_tokenizer
from cutaway.errors import ConfigError, DataError
from cutaway.train.config import TrainConfig
from cutaway.train.evaluate import batches, evaluate, windows
from cutaway.train.loss import IGNORE
from support.tiny import random_network


@given(st.integers(0, 60), st.integers(1, 12), st.data())
def test_every_token_but_the_first_is_a_target_once(n: int, n_ctx: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, n_ctx))
    tokens = list(range(n))
    scored = []
    for i, (read, targets) in enumerate(windows(tokens, n_ctx, stride)):
        assert 1 <= len(read) == len(targets) <= n_ctx
        for position, target in enumerate(targets):
            if target != IGNORE:
                scored.append(target)
                assert read[position] == target - 1  # it is predicted from the one before it
                assert i == 0 or position >= n_ctx - stride or len(read) < n_ctx
    assert scored == tokens[1:]
    assert [w for b in batches(tokens, n_ctx, stride) for w in b] == list(windows(tokens, n_ctx, stride))


def test_the_loss_is_the_one_taken_by_hand(tmp_path: Path) -> None:
    model = model_of_bytes(n_ctx=16)
    (tmp_path / "a.txt").write_text("to be or not to be, that is the question")
    (tmp_path / "b.txt").write_text("short")
    whole = evaluate(model, tmp_path, stride=1)
    loss = 0.0
    for text in ("to be or not to be, that is the question", "short"):
        ids = model.encode(text)
        for i in range(1, len(ids)):
            logits = model.logits(ids[max(0, i - 16) : i])[-1]
            loss += float(F.cross_entropy(logits, torch.tensor(ids[i])))
    n = 40 + 5 - 2
    assert (whole.n_tokens, whole.n_bytes, whole.n_documents) == (n, n, 2)
    assert whole.loss == pytest.approx(loss / n, rel=1e-5)
    assert whole.perplexity == pytest.approx(math.exp(whole.loss))
    assert whole.bits_per_byte == pytest.approx(whole.loss / math.log(2))  # an id is a byte here


def test_a_first_token_that_is_a_part_of_a_character_is_one_byte(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("é")
    score = evaluate(model_of_bytes(n_ctx=16), tmp_path)
    assert (score.n_tokens, score.n_bytes) == (1, 1)
    assert score.bits_per_byte == pytest.approx(score.loss / math.log(2))


def test_what_is_no_number_is_none_in_plain_data(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc")
    model = model_of_bytes(n_ctx=16)
    torch.nn.init.constant_(model.network.embed.weight, math.nan)
    found = evaluate(model, tmp_path).to_dict()
    assert (found["loss"], found["perplexity"], found["n_tokens"]) == (None, None, 2)


def test_what_cannot_be_scored_is_refused(tmp_path: Path) -> None:
    model = model_of_bytes(n_ctx=16)
    (tmp_path / "one.txt").write_text("a")
    with pytest.raises(DataError, match=r"^\S+one\.txt: nothing to score"):
        evaluate(model, [tmp_path / "one.txt"])
    with pytest.raises(ConfigError, match="n_ctx = 17"):
        evaluate(model, tmp_path / "one.txt", n_ctx=17)
    with pytest.raises(ConfigError, match="stride = 9"):
        evaluate(model, tmp_path / "one.txt", n_ctx=8, stride=9)


def model_of_bytes(n_ctx: int) -> LanguageModel:
    tokenizer, _ = train_tokenizer("bytes", Sample())
    network = random_network(TrainConfig(size="nano", d_model=16, n_heads=2, n_ctx=n_ctx).model(tokenizer.d_vocab))
    return LanguageModel(network, tokenizer, LoadReport(family="gpt2", source="", stored=""), frozenset())
