"""Texts and numbers as cells: by eye."""

from __future__ import annotations

import pytest

from cutaway.show.cells import aligned, clean, fit, number

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0"),
        (0.31, "0.310"),
        (9.996, "10.0"),
        (12.34, "12.3"),
        (-0.5, "−0.500"),
        (999.6, "1,000"),
        (123456.7, "123,457"),
        (1.5e7, "1.50e+07"),
        (1e-4, "0.000100"),
        (-1.234e-7, "−1.23e−07"),
        (NAN, "–"),
        (-INF, "−∞"),
    ],
)
def test_a_number_has_three_digits(value: float, said: str) -> None:
    assert number(value) == said


def test_cells() -> None:
    assert aligned(["1.25", "−30", "–", "1.00e−05"]) == ["  1.25    ", "−30       ", "  –       ", "  1.00e−05"]
    assert fit("日本語", 4) == "日… " and fit("日本語", 6) == "日本語" and fit("ab", 4, right=True) == "  ab"
    assert clean("\u0301x\x00\n\t\u202e") == "◌\u0301x␀↵⇥\ufffd"
