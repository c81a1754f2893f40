"""Senses: shares that add up, a confirmation that is a pass with those edits, and words found where they stand."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from cutaway.checkpoint.sources import known_models
from cutaway.errors import InsideError
from cutaway.figures import Bars, HeatMap, Lines, Table
from cutaway.inside.altered import altered
from cutaway.inside.edits import Replace
from cutaway.inside.senses import place_of, senses
from cutaway.language_model import LanguageModel, load
from cutaway.show.heatmap import in_words
from support.tiny import FAMILIES, OURS

Build = Callable[..., LanguageModel]
ONE, TWO, THREE = [3, 14, 7, 9, 26, 5], [5, 7, 8, 9, 3, 2, 26], [40, 41, 26, 8]
WORD, PLACES = 26, (4, 6, 2)


@pytest.mark.parametrize("name", [*OURS, *FAMILIES])
def test_vectors_shares_and_what_is_left_without(name: str, build: Build) -> None:
    """Against traces read by hand; all shares, with positions and biases, add up to 1."""
    model = build(name)
    found = senses(model, WORD, [ONE, TWO], n=1)
    assert [one.position for one in found.sentences] == [4, 6]
    traces = [model.trace(text, keep="*") for text in (ONE, TWO)]
    n_layers, pre = model.config.n_layers, model.config.norm_placement == "pre"
    states = ["embed", *(f"blocks.{layer}.resid_post" for layer in range(n_layers))]
    a, b = ([trace[state][0, at] for state in states] for trace, at in zip(traces, PLACES, strict=False))
    expected = [float(torch.cosine_similarity(x, y, dim=0)) for x, y in zip(a, b, strict=True)]
    assert found.similarity[:, 0, 1] == pytest.approx(expected, abs=1e-5)
    assert found.static_difference == 0
    assert found.similarity[0, 0, 1] == pytest.approx(1)
    assert found.end == pytest.approx(expected[-1], abs=1e-5)

    difference = a[-1] - b[-1]
    shares = {part.name: part.share for part in found.parts}
    ff = traces[0]["blocks.1.ff.out"][0, 4] - traces[1]["blocks.1.ff.out"][0, 6]
    assert shares["ff 1"] == pytest.approx(float(ff @ difference / (difference @ difference)), abs=1e-5)
    if pre:
        heads = [trace["blocks.2.attn.head_out"][0, 3, at] for trace, at in zip(traces, PLACES, strict=False)]
        share = float((heads[0] - heads[1]) @ difference / (difference @ difference))
        assert shares["head 2.3"] == pytest.approx(share, abs=1e-5)
    assert len(shares) == n_layers * (1 + (model.config.n_heads if pre else 1))
    positions = 0.0
    if "pos_embed" in traces[0]:
        moved = traces[0]["pos_embed"][0, 4] - traces[1]["pos_embed"][0, 6]
        positions = float(moved @ difference / (difference @ difference))
    assert sum(shares.values()) + positions == pytest.approx(1, abs=1e-4)
    assert [part.share for part in found.parts] == sorted(shares.values(), reverse=True)

    assert len(found.taken) == 2
    ends = []
    for text, at in ((ONE, 4), (TWO, 6)):
        edits = []
        for part in found.taken:
            where = [f"{part.at.rstrip(']')}{',' if '[' in part.at else '['} position {i}]" for i in (4, 6)]
            both = [trace[place].flatten() for trace, place in zip(traces, where, strict=True)]
            edits.append(Replace(where[at == 6], (both[0] + both[1]) / 2))
        edited = model.trace(text, keep=states[-1], edits=edits)
        ends.append(edited[states[-1]][0, at])  # type: ignore[call-overload]  # one prompt, one trace
    assert found.without == pytest.approx(float(torch.cosine_similarity(*ends, dim=0)), abs=1e-5)


def test_groups_compare_across_senses_alone(build: Build) -> None:
    model = build("grouped")
    found = senses(model, WORD, [ONE, TWO, THREE], groups=["a", "b", "a"], n=1)
    assert found.across == [(0, 1), (1, 2)]
    assert found.within == [(0, 2)]
    assert found.end == pytest.approx((found.similarity[-1, 0, 1] + found.similarity[-1, 1, 2]) / 2)
    pairs = [senses(model, WORD, [ONE, TWO], n=1), senses(model, WORD, [TWO, THREE], n=1)]
    shares = [{part.name: part.share for part in one.parts} for one in (*pairs, found)]
    for name, share in shares[2].items():
        assert share == pytest.approx((shares[0][name] + shares[1][name]) / 2, abs=1e-6)
    assert len(found.controls) == 10
    assert len(set(found.controls)) > 1
    assert senses(model, WORD, [ONE, TWO, THREE], groups=["a", "b", "a"], n=1).controls == found.controls


def test_figures_and_plain_data(build: Build) -> None:
    found = senses(build("grouped"), WORD, [ONE, TWO, THREE], groups=["a", "b", "a"])
    sentences, lines, matrix, parts, bars, prose = found.figures()
    assert isinstance(sentences, Table)
    assert [row[1] for row in sentences.rows] == ["a", "b", "a"]
    assert isinstance(lines, Lines)
    assert [series.name for series in lines.series] == [
        "different senses",
        "same sense",
        "1 and 2",
        "1 and 3",
        "2 and 3",
    ]
    assert lines.series[1].y == pytest.approx(found.similarity[:, 0, 2])
    assert isinstance(matrix, HeatMap)
    assert np.diagonal(matrix.values) == pytest.approx(1)
    assert in_words(matrix, 0, 0) == "sentences 1 a and 1 a: cosine 1.00"
    assert isinstance(parts, Table)
    assert len(parts.rows) == 2
    assert isinstance(bars, Bars)
    assert bars.values == [found.end, found.without, pytest.approx(np.mean(found.controls))]
    assert f"{found.without:.3f}" in prose.lines[-1]  # type: ignore[attr-defined]
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["sentences"][1]["position"] == 6
    assert data["parts"][0]["name"] == found.parts[0].name
    two = senses(build("grouped"), WORD, [ONE, TWO], n=3)
    assert [series.name for series in two.figures()[1].series] == ["1 and 2"]  # type: ignore[attr-defined]
    assert two.controls == ()  # all feed-forwards were taken, so there are no others
    assert json.dumps([figure.to_dict() for figure in two.figures()], allow_nan=False)


def test_a_word_is_found_as_a_word_the_last_time_it_stands() -> None:
    """Not within another word; its last token where it is several."""
    model = load("bard")
    for text, before in (
        ("the bank of the embankment, my bank", "the bank of the embankment, my bank"),
        ("a bank, banks and bankers", "a bank"),
        ("bank", "bank"),
        ("Ünter bank!", "Ünter bank"),
    ):
        ids = model.ids(text)
        at = place_of(model.tokenizer, "bank", ids, 1)
        bytes_before = b"".join(model.tokenizer.token_bytes(i) for i in ids[: at + 1])  # type: ignore[union-attr]
        assert bytes_before.decode().endswith(before)
        assert b"".join(model.tokenizer.token_bytes(i) for i in ids[:at]).decode(errors="replace") != text  # type: ignore[union-attr]
    found = senses(model, "love", ["For I am sick with love", "The war has killed my love"], n=2)
    assert found.static_difference == 0
    assert found.similarity[-1, 0, 1] < 0.999
    assert found.sentences[0].shown.endswith("For I am sick with love")


@pytest.mark.parametrize(
    ("word", "sentences", "options", "message"),
    [
        (WORD, [ONE], {}, "give two or more"),
        (WORD, [ONE, TWO], {"groups": ["a"]}, "groups has 1 entries, there are 2 sentences"),
        (WORD, [ONE, TWO], {"groups": ["a", "a"]}, "all sentences are of sense 'a'"),
        (WORD, [ONE, [3, 4]], {}, "sentence 2 ('3 4') has no word 26"),
        (WORD, [ONE, [*ONE[:5], 9, 9]], {}, "sentences 1 and 2 are the same up to the word"),
        (None, [ONE, TWO], {}, "word = None: give text, an id, or several ids"),
        (1.5, [ONE, TWO], {}, "word = 1.5: give text, an id, or several ids"),
        ([3, 14], [ONE, TWO], {}, "sentence 2 ('5 7 8 9 3 2 26') has no word [3, 14]"),
        (WORD, [ONE, TWO], {"n": 4}, "n = 4: it must be from 1 to 3"),
        (WORD, [ONE, TWO], {"limit": 10}, "the limit is 10"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_line(
    word: Any, sentences: list[list[int]], options: dict[str, Any], message: str, build: Build
) -> None:
    with pytest.raises(InsideError) as caught:
        senses(build("grouped"), word, sentences, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ids_of_a_word_come_in_any_wrapping(build: Build) -> None:
    model, texts = build("grouped"), [[3, 14, 7, 26, 5], [7, 26, 8]]
    for plain, *wrapped in ((26, torch.tensor(26), np.int64(26)), ([7, 26], torch.tensor([7, 26]), np.array([7, 26]))):
        found = [senses(model, word, texts, n=1) for word in (plain, *wrapped)]
        assert [one.word for one in found] == [found[0].word] * 3
        assert all(np.array_equal(one.similarity, found[0].similarity) for one in found)


def test_a_model_without_a_mask_is_refused(build: Build) -> None:
    with pytest.raises(InsideError, match="without a mask"):
        senses(altered(build("grouped"), ["mask"]), WORD, [ONE, TWO])


def test_a_word_that_is_other_tokens_elsewhere() -> None:
    model = load("bard")
    with pytest.raises(InsideError, match=r"sentence 2 .* has no word 'love'"):
        senses(model, "love", ["my love", "my lover"])
    with pytest.raises(InsideError, match="has no word ' '"):
        senses(model, " ", ["my love", "his love"])


# --- a real model ------------------------------------------------------------------------------------------

CACHED = any(entry.name == "smollm2" and entry.where == "cached" for entry in known_models())


@pytest.mark.skipif(not CACHED, reason="SmolLM2 is not in the cache: run `cutaway run -m smollm2` once")
def test_the_banks_of_smollm2_part_and_meet_again() -> None:
    model = load("smollm2", progress=False)
    sentences = [
        "They walked along the river and sat down on the grassy bank",
        "The boat drifted to the muddy bank",
        "She took her savings and put them in the bank",
        "He borrowed money from the bank",
    ]
    found = senses(model, "bank", sentences, groups=["river", "river", "money", "money"])
    assert found.static_difference == 0
    same = np.mean([found.similarity[-1][pair] for pair in found.within])
    assert found.end < same - 0.1
    assert found.without > found.end + 0.1
    assert found.without > max(found.controls) + 0.05
