import io

from rich.console import Console

from experiments.launch.progress import Bars, Lines, counted, make_display
from experiments.launch.worker import Run

RUNS = [Run("softmax-none", 0), Run("elu+1-rope-after", 0)]


def shown(terminal: bool) -> str:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=140)
    with make_display(console, RUNS, done=0, steps=100) as display:
        assert isinstance(display, Bars if terminal else Lines)
        for run in RUNS:
            display.started(run)
        display.advanced(RUNS[0], 50, 2.345, 12345.0)
        if isinstance(display, Bars):
            display._progress.refresh()
        display.ended(RUNS[0], "done", None)
        display.ended(RUNS[1], "failed", "the loss is nan at step 7")
    return output.getvalue()


def test_a_terminal_shows_a_bar_per_run_with_loss_rate_and_time_left():
    text = shown(terminal=True)
    assert "loss 2.345 nats/token, 12,345 tokens/s" in text
    assert "all runs" in text
    assert "left" in text
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


def test_lines_tell_progress_and_time_left_every_quarter_minute(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    output = io.StringIO()
    display = Lines(Console(file=output, width=140), RUNS, done=0, steps=100)
    display.started(RUNS[0])
    display.advanced(RUNS[0], 1, 5.0, 1000.0)
    now[0] = 10.0
    display.advanced(RUNS[0], 11, 4.0, 1000.0)  # too soon
    now[0] = 20.0
    display.advanced(RUNS[0], 21, 3.0, 1000.0)
    # 20 steps in 20 seconds; 179 of 200 are left.
    assert output.getvalue().splitlines()[1:] == [
        "softmax-none seed 0: step 21/100, loss 3.000 nats/token, 1,000 tokens/s; all runs: 3 min left"
    ]


def test_what_is_measured_is_counted_every_quarter_minute(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    seen = []
    for item in counted("abcd", "letters"):
        seen.append(item)
        now[0] += 10.0
    assert seen == ["a", "b", "c", "d"]
    assert capsys.readouterr().out.splitlines() == ["letters: 2 of 4, 20 s left"]
    assert list(counted([], "nothing")) == []
