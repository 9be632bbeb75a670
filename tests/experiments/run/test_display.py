import io

import pytest
from rich.console import Console

from experiments.console import counted
from experiments.objects import Run
from experiments.run.display import Display
from experiments.run.loop import Advanced, Ended, Started

RUNS = [Run("softmax-none", 0), Run("elu+1-rope-after", 0)]


@pytest.fixture
def clock(monkeypatch):
    """The time that is now; a list of one."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_bars_and_what_is_none_lines(terminal):
    """Of a run, and of one whose start the launcher forgot to tell."""
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=140)
    with Display(console, RUNS, 0, 100, "nats/token") as display:
        display.show(Started(RUNS[0]))
        display.show(Advanced(RUNS[0], 50, 2.345, 12345.0))
        if terminal:
            display._progress.refresh()
        display.show(Ended(RUNS[0], "done"))
        display.show(Ended(RUNS[1], "failed", "the loss is nan at step 7"))
    text = output.getvalue()
    lines = ["softmax-none seed 0: done", "elu+1-rope-after seed 0: failed (the loss is nan at step 7)"]
    if terminal:
        bars = ["loss 2.345 nats/token, 12,345 tokens/s", "0 of 2 ended, unknown time left", "2 of 2 ended", *lines]
        assert all(each in text for each in bars)
    else:
        assert text.splitlines() == ["softmax-none seed 0: started", *lines]


def advanced(seconds, step, run=RUNS[0]):
    return seconds, Advanced(run, step, 3.0, 1000.0)


SLOW_THEN_FAST = [advanced(10 * step, step) for step in range(1, 11)]
SLOW_THEN_FAST += [advanced(100 + step, 10 + step) for step in range(1, 61)]
FAILED = [advanced(0, 90), (1, Ended(RUNS[0], "failed", "why")), (1, Started(RUNS[1]))]


@pytest.mark.parametrize(
    ("events", "left"),
    [
        ([advanced(0, 1), advanced(10, 11), advanced(20, 21)], "3 min left"),  # 20 steps in 20 s, 179 of 200 are left
        ([advanced(100, 1)], "unknown time left"),
        (SLOW_THEN_FAST, "2 min left"),  # the last minute counts: 130 at one a second
        # A run that goes on at step 90 or fails makes no steps that count: 20 in 30 s, 79 are left.
        ([*FAILED, advanced(10, 1, RUNS[1]), advanced(30, 21, RUNS[1])], "2 min left"),
    ],
)
def test_lines_tell_progress_and_time_left_every_quarter_minute(clock, events, left):
    output = io.StringIO()
    display = Display(Console(file=output, width=140), RUNS, 0, 100)
    for clock[0], event in [(0, Started(RUNS[0])), *events]:
        display.show(event)
    *_, line = [line for line in output.getvalue().splitlines() if "all runs: " in line]
    step, run = events[-1][1].step, events[-1][1].run
    assert line == f"{run}: step {step}/100, loss 3.000 nats, 1,000 tokens/s; all runs: {left}"


def test_what_is_measured_is_counted_every_quarter_minute(clock, capsys):
    seen = []
    for item in counted("abcd", "letters"):
        seen.append(item)
        clock[0] += 10.0
    assert seen == ["a", "b", "c", "d"]
    assert capsys.readouterr().out.splitlines() == ["letters: 2 of 4, 20 s left"]
    assert list(counted([], "nothing")) == []
