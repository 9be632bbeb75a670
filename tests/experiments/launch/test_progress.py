import io

import pytest
from rich.console import Console

from experiments.console import counted
from experiments.launch.launcher import Advanced, Ended, Run, Started
from experiments.launch.progress import make_display

RUNS = [Run("softmax-none", 0), Run("elu+1-rope-after", 0)]


@pytest.fixture
def clock(monkeypatch):
    """The time that is now; a list of one."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def shown(terminal: bool) -> str:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=140)
    with make_display(console, RUNS, done=0, steps=100) as display:
        for run in RUNS:
            display.show(Started(run))
        display.show(Advanced(RUNS[0], 50, 2.345, 12345.0))
        if terminal:
            display._progress.refresh()
        display.show(Ended(RUNS[0], "done"))
        display.show(Ended(RUNS[1], "failed", "the loss is nan at step 7"))
    return output.getvalue()


def test_a_terminal_shows_a_bar_per_run_with_loss_rate_and_time_left():
    text = shown(terminal=True)
    assert "loss 2.345 nats/token, 12,345 tokens/s" in text
    assert "all runs" in text
    assert "0 of 2 ended, unknown time left" in text
    assert "2 of 2 ended" in text
    assert "elu+1-rope-after seed 0: failed (the loss is nan at step 7)" in text


def test_elsewhere_there_are_plain_lines():
    text = shown(terminal=False)
    assert "\x1b" not in text
    assert text.splitlines() == [
        "softmax-none seed 0: started",
        "elu+1-rope-after seed 0: started",
        "softmax-none seed 0: done",
        "elu+1-rope-after seed 0: failed (the loss is nan at step 7)",
    ]


def lines(clock, events):
    """The plain lines on progress; events are (seconds, event)."""
    output = io.StringIO()
    display = make_display(Console(file=output, width=140), RUNS, done=0, steps=100)
    for clock[0], event in events:
        display.show(event)
    return [line for line in output.getvalue().splitlines() if "all runs: " in line]


def times_left(clock, events):
    return [line.partition("all runs: ")[2] for line in lines(clock, events)]


def advanced(seconds, step, run=RUNS[0]):
    return seconds, Advanced(run, step, 3.0, 1000.0)


def test_lines_tell_progress_and_time_left_every_quarter_minute(clock):
    events = [(0, Started(RUNS[0])), advanced(0, 1), advanced(10, 11), advanced(20, 21)]
    # 20 steps in 20 seconds; 179 of 200 are left. After 10 seconds it was too soon.
    told = "softmax-none seed 0: step 21/100, loss 3.000 nats/token, 1,000 tokens/s; all runs: 3 min left"
    assert lines(clock, events) == [told]


def test_the_time_left_is_unknown_until_there_is_enough_to_go_on(clock):
    """A run takes a while to start and to evaluate, which says nothing of the steps to come."""
    events = [(0, Started(RUNS[0])), advanced(100, 1), advanced(109, 2), advanced(116, 33)]
    assert times_left(clock, events) == ["unknown time left", "84 s left"]  # 32 steps in 16 s, 167 are left


def test_the_time_left_goes_by_the_steps_of_the_last_minute(clock):
    slow = [advanced(10 * step, step) for step in range(1, 11)]
    fast = [advanced(100 + step, 10 + step) for step in range(1, 70)]
    assert times_left(clock, [(0, Started(RUNS[0])), *slow, *fast])[-1] == "2 min left"  # 127 at one a second


def test_a_run_that_goes_on_or_fails_makes_no_steps_that_count(clock):
    first = [(0, Started(RUNS[0])), advanced(0, 90), (1, Ended(RUNS[0], "failed", "why"))]
    second = [(1, Started(RUNS[1])), advanced(10, 1, RUNS[1]), advanced(30, 21, RUNS[1])]
    assert times_left(clock, first + second) == ["2 min left"]  # 20 steps in 30 s, 79 are left


def test_a_clock_that_goes_back_breaks_nothing(clock):
    events = [(100, Started(RUNS[0])), advanced(100, 1), advanced(20, 2), advanced(10, 40), advanced(130, 50)]
    assert all("-" not in line for line in times_left(clock, events))


def test_what_is_measured_is_counted_every_quarter_minute(clock, capsys):
    seen = []
    for item in counted("abcd", "letters"):
        seen.append(item)
        clock[0] += 10.0
    assert seen == ["a", "b", "c", "d"]
    assert capsys.readouterr().out.splitlines() == ["letters: 2 of 4, 20 s left"]
    assert list(counted([], "nothing")) == []
