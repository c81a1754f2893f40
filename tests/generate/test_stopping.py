from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.errors import GenerationError
from cutaway.generate.stopping import MAX_STOPS, StopMatcher, StopStrings

anytime = settings(deadline=None)
letters = st.text("ab", max_size=30)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=6), max_size=4)


def stream(stops: str | list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    """What is sent after each piece and at the end, and the stop that was hit."""
    matcher = StopMatcher(StopStrings(stops))
    sent = [matcher.push(piece)[0] for piece in pieces]
    return [*sent, matcher.finish()], matcher.matched


def chunked(text: str, cuts: list[int]) -> list[str]:
    at = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(at)]


def matches(text: str, stops: list[str]) -> list[tuple[int, int, str]]:
    """Every occurrence as (start, end, stop), found by trying each place."""
    return [(i, i + len(s), s) for i in range(len(text)) for s in stops if text.startswith(s, i)]


def n_to_hold(text: str, stops: list[str]) -> int:
    """The longest suffix that is a proper prefix of a stop, found by trying each length."""
    return max((n for s in stops for n in range(len(s)) if text.endswith(s[:n])), default=0)


@pytest.mark.parametrize(
    ("stops", "pieces", "sent", "matched"),
    [
        ("DEFGHIJ", ["DEF", "G", "HI", "J"], ["", "", "", "", ""], "DEFGHIJ"),
        ("\nUser:", ["Hello", "\nUser", ":"], ["Hello", "", "", ""], "\nUser:"),
        ("DEFGHIJ", ["DEF", "X"], ["", "DEFX", ""], None),
        ("DEFGHIJ", ["DEF"], ["", "DEF"], None),
        (["END", "NDX"], ["aEN", "DX"], ["a", "", ""], "END"),
    ],
)
def test_a_stop_over_several_pieces(
    stops: str | list[str], pieces: list[str], sent: list[str], matched: str | None
) -> None:
    """G6: a stop spread over tokens is never sent, in part or whole; text that was held for nothing is."""
    assert stream(stops, pieces) == (sent, matched)


def test_only_what_may_become_a_stop_is_held() -> None:
    """G6: `aab` after `aaa` needs two characters, so the first is free; not the length of the stop."""
    matcher = StopMatcher(StopStrings("aab"))
    assert [matcher.push(piece) for piece in ("aaa", "a", "c")] == [
        ("a", False),
        ("a", False),
        ("aac", False),
    ]


def test_push_says_when_and_sends_nothing_after() -> None:
    matcher = StopMatcher(StopStrings("STOP"))
    assert matcher.push("one ST") == ("one ", False)
    assert matcher.push("OP two") == ("", True)
    assert matcher.push(" three") == ("", True)
    assert matcher.finish() == ""


def test_no_stops_holds_nothing() -> None:
    assert stream([], ["a", "", "b"]) == (["a", "", "b", ""], None)


def test_a_longer_stop_that_began_earlier_wins() -> None:
    """G6, two overlapping stops. Chosen: earliest start, so `bc` waits while `abcd` may still complete."""
    matcher = StopMatcher(StopStrings(["bc", "abcd"]))
    assert matcher.push("xabc") == ("x", False)
    assert matcher.push("d") == ("", True)
    assert matcher.matched == "abcd"


def test_a_complete_stop_that_waited_is_hit_when_the_other_fails_or_the_text_ends() -> None:
    assert stream(["bc", "abcd"], ["xabc", "e"]) == (["x", "a", ""], "bc")
    assert stream(["bc", "abcd"], ["xabc"]) == (["x", "a"], "bc")


def test_at_one_start_the_stop_that_completes_first_wins() -> None:
    assert stream(["abc", "ab"], ["xab", "c"]) == (["x", "", ""], "ab")


def test_finish_releases_once() -> None:
    matcher = StopMatcher(StopStrings("ab"))
    matcher.push("a")
    assert (matcher.finish(), matcher.finish()) == ("a", "")


@anytime
@given(letters, stop_lists, st.lists(st.integers(0, 99), max_size=8))
def test_any_chunking_gives_the_text_before_the_earliest_match(text: str, stops: list[str], cuts: list[int]) -> None:
    sent, matched = stream(stops, chunked(text, cuts))
    start, _, stop = min(matches(text, stops), default=(len(text), 0, None))
    assert ("".join(sent), matched) == (text[:start], stop)


@anytime
@given(letters, stop_lists, st.lists(st.integers(0, 99), max_size=8))
def test_held_is_minimal_and_a_hit_is_told_as_soon_as_it_is_certain(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    matcher = StopMatcher(StopStrings(stops))
    pushed = sent = ""
    for piece in chunked(text, cuts):
        pushed += piece
        out, hit = matcher.push(piece)
        sent += out
        # certain: at some point of the text a match was complete and no earlier start could still win
        certain = any(
            end <= n and start <= n - n_to_hold(pushed[:n], stops)
            for n in range(len(pushed) + 1)
            for start, end, _ in matches(pushed[:n], stops)
        )
        assert hit == certain
        if hit:
            return
        assert len(pushed) - len(sent) == n_to_hold(pushed, stops)


class CountedStr(str):
    """Counts the characters read from it; comparing it, which reads them uncounted, fails."""

    n_read = 0
    __lt__ = __gt__ = None  # type: ignore[assignment]

    def __getitem__(self, index: object) -> str:
        read = super().__getitem__(index)  # type: ignore[index]
        CountedStr.n_read += len(read)
        return read


@pytest.mark.parametrize("size", [1, 50])
def test_time_is_linear_whatever_the_text(size: int) -> None:
    """Stops `aa…ab`, `aa…ac` against `aa…a`: a few reads per character, not one per character of a stop."""
    CountedStr.n_read = 0
    matcher = StopMatcher(StopStrings([CountedStr("a" * 500 + last) for last in "bc"]))
    sent = "".join(matcher.push("a" * size)[0] for _ in range(5000 // size))
    assert sent + matcher.finish() == "a" * 5000
    assert CountedStr.n_read < 12 * 5500


def test_characters_outside_the_basic_plane() -> None:
    assert stream("🛑", ["go 😸", "🛑 x"]) == (["go 😸", "", ""], "🛑")


def test_one_string_several_and_doubles() -> None:
    assert StopStrings("ab") == ("ab",)
    assert StopStrings(["b", "a", "b"]) == ("b", "a")
    assert StopStrings(()) == StopStrings() == ()
    assert len(StopStrings(["x"] * 99)) == 1


@pytest.mark.parametrize(
    ("stops", "says"),
    [
        ("", "stop = ''"),
        (["a", ""], "stop = ''"),
        (5, "stop = 5"),
        ([5], "stop = 5"),
        (np.array(5), "stop = array(5)"),  # iterable by its type, but not in fact
        ([["a"]], "stop = ['a']"),
        ([str(i) for i in range(MAX_STOPS + 1)], f"17 different strings: use at most {MAX_STOPS}"),
    ],
)
def test_stops_that_cannot_be_served(stops: object, says: str) -> None:
    with pytest.raises(GenerationError) as error:
        StopStrings(stops)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_stopping_needs_no_torch() -> None:
    code = "import sys, cutaway.generate.stopping; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
