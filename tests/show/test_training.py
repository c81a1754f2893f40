"""A training run in a terminal and out of one, read as text."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from cutaway.show.training import Smooth, TrainingDisplay, duration, flops, plan_table, print_trained
from cutaway.train.plan import Plan
from cutaway.train.run import TrainResult

PLAN = Plan(
    n_tokens=1_003_854,
    n_val_tokens=111_540,
    n_documents=9,
    n_steps=2000,
    n_made=0,
    tokens_per_step=768,
    epochs=1.53,
    n_parameters=809_856,
    flops_per_token=5_200_000,
    n_flops=7_987_200_000_000,
    memory={"weights": 3_239_424, "activations": 20_000_000},
    peak=195e9,
    share=0.35,
    seconds=117.0,
)


def made(step: int, *, loss: float = 2.0, pace: float = 0.1) -> dict[str, Any]:
    record = {"step": step, "loss": loss, "lr": 1e-3, "tokens": 768 * step, "tokens_per_s": 21_000.0}
    return record | {"share_of_peak": 0.412, "seconds": step * pace}


def console(*, terminal: bool = False) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    options: dict[str, Any] = {"width": 80, "force_terminal": True} if terminal else {"width": 1000}
    return Console(file=file, markup=False, emoji=False, highlight=False, _environ={}, **options), file


def lines(file: io.StringIO) -> list[str]:
    """What is to be read: of a line that was written over, the last state."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    return [line.rpartition("\r")[2].rstrip() for line in text.split("\n")]


def test_plain_lines_are_a_twentieth_of_the_run_apart() -> None:
    screen, file = console()
    with TrainingDisplay(2000, screen) as display:
        for step in range(1, 2001):
            display.step(made(step, pace=0.01))
    steps = [int(line.split("/")[0].removeprefix("step ").replace(",", "")) for line in lines(file) if line]
    assert steps == [1, *range(101, 2000, 100), 2000]


def test_plain_lines_of_a_slow_run_are_ten_seconds_apart() -> None:
    screen, file = console()
    with TrainingDisplay(100_000, screen, first_step=500) as display:
        for step in range(501, 521):
            display.step(made(step, pace=2.5))
    told = [line.split("/")[0] for line in lines(file) if line]
    assert told == ["step 501", "step 505", "step 509", "step 513", "step 517"]


def test_a_plain_line_says_everything() -> None:
    screen, file = console()
    with TrainingDisplay(101, screen) as display:
        display.step(made(1, loss=3.0))
        display.evaluation({"step": 1, "val_loss": 2.5, "val_bpb": 1.8, "seconds": 0.1})
        display.step(made(41, loss=2.0))
    first, second, third, _ = lines(file)
    assert first == "step 1/101  loss 3.000  21 K tokens/s  41 % of peak"
    assert second == "step 1  validation loss 2.5000  1.800 bits per byte"
    assert third == "step 41/101  loss 2.487  1.800 bits per byte  21 K tokens/s  41 % of peak  6 s left"


def test_the_time_left_does_not_count_the_first_step_which_may_compile() -> None:
    screen, file = console()
    with TrainingDisplay(100, screen) as display:
        display.step(made(1) | {"seconds": 60.0})
        display.step(made(11) | {"seconds": 70.0})
    assert lines(file)[1].endswith("1 min 29 s left")


def test_a_terminal_has_a_bar_below_everything_else() -> None:
    screen, file = console(terminal=True)
    with TrainingDisplay(100, screen) as display:
        display.reading(500, 1000)
        display.planned(PLAN, [])
        display.step(made(1))
        display.evaluation({"step": 1, "val_loss": 2.5, "val_bpb": 1.8, "seconds": 0.1})
        display.step(made(1000))
    shown = lines(file)
    assert any("500 B of 1 kB of text read" in line for line in shown)
    assert "step 1  validation loss 2.5000  1.800 bits per byte" in shown
    *_, above, below, _ = shown
    assert re.fullmatch(r"━+╸?━* 1,000/2,000  1 min 40 s left", above)
    assert below == "loss 2.000 · 1.800 bits per byte · 21 K tokens/s · 41 % of peak"
    assert len(above) == 80
    assert not any(line.startswith("step 1/") for line in shown)


def test_a_run_that_ends_before_its_first_step_leaves_no_bar() -> None:
    screen, file = console(terminal=True)
    with pytest.raises(ZeroDivisionError), TrainingDisplay(100, screen) as display:
        display.reading(1, 0)
        raise ZeroDivisionError
    assert file.getvalue().endswith("\x1b[1A\x1b[2K")  # what was drawn is wiped away


@pytest.mark.parametrize("terminal", [True, False])
def test_model_text_does_nothing_to_the_terminal(terminal: bool) -> None:
    screen, file = console(terminal=terminal)
    with TrainingDisplay(100, screen) as display:
        display.sample("ROMEO:\n\x1b[2Jso\x07ft [bold]light\r\x9b\n")
        display.note("name\x1b]0;x")
    assert lines(file)[:3] == ["│ ROMEO:", "│ ␛[2Jso␇ft [bold]light␍\ufffd", "note: name␛]0;x"]
    assert "\x1b[2J" not in file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_is_quiet(terminal: bool) -> None:
    screen, file = console(terminal=terminal)
    with TrainingDisplay(100, screen, quiet=True) as display:
        display.reading(1, 2)
        display.planned(PLAN, ["note"])
        display.step(made(1))
        display.evaluation({"step": 1, "val_loss": 2.5, "val_bpb": 1.8})
        display.sample("text")
        display.note("note")
    assert file.getvalue() == ""


def test_the_plan_in_words() -> None:
    screen, file = console()
    screen.print(plan_table(PLAN, ["2 empty files left out", "odd \x1b[31mname"]))
    assert [re.split(r"  +", line) for line in lines(file) if line] == [
        ["text", "1 M tokens in 9 documents, 111.5 K more to validate with"],
        ["steps", "2,000 steps of 768 tokens: 1.5 epochs"],
        ["model", "809.9 K parameters"],
        ["work", "8 TFLOP, 5.2 MFLOP a token (a multiply-add is 2, the causal half not cut)"],
        ["memory", "23.2 MB: activations 20 MB, weights 3.2 MB"],
        ["time", "about 1 min 57 s, at 35 % of the 195 GFLOP/s measured here for a matrix product"],
        ["note", "2 empty files left out"],
        ["note", "odd ␛[31mname"],
    ]


def test_the_end_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    result = TrainResult(
        folder="runs/mine", end="stopped", step=2000, loss=1.8, best_step=1900, best_loss=1.917, seconds=117.0
    )
    print_trained(result)
    told = capsys.readouterr().out
    assert told.startswith("stopped, and saved after 2,000 steps, 1 min 57 s, best at step 1,900: 1.9170 nats a token")
    assert "cutaway train --resume runs/mine" in told
    print_trained(replace(result, end="finished", best_loss=None))
    told = capsys.readouterr().out
    assert "best" not in told and "--resume" not in told and "cutaway run -m runs/mine" in told


def test_the_loss_shown_is_smooth_from_its_first_value() -> None:
    smooth = Smooth()
    smooth.add(4.0)
    assert smooth.value == 4.0
    smooth.add(2.0)
    assert smooth.value == pytest.approx((0.95 * 4 + 2) / 1.95)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (3_725, "1 h 02 min"), (200_000, "2 days 7 h")],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("n", "words"), [(7, "7 FLOP"), (1_500, "1.5 kFLOP"), (999_960, "1 MFLOP"), (3.1e23, "310000 EFLOP")]
)
def test_flops(n: float, words: str) -> None:
    assert flops(n) == words


def test_a_resumed_run_says_how_much_is_made() -> None:
    screen, file = console()
    screen.print(plan_table(replace(PLAN, n_made=1500), []))
    assert "1.5 epochs, 1,500 made before" in file.getvalue()
    assert "about 1 min 57 s for the rest, at" in file.getvalue()


def test_a_run_outlives_the_room_for_its_output() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    shown = TrainingDisplay(10, Console(file=Full(), width=80, _environ={}))
    shown.planned(PLAN, [])
    shown.step(made(1))
    shown.note("a note")
