"""Tuning: the fastest of what is proved is kept, and is what kernels are launched with. Times are made up."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from linear_rope import tune
from linear_rope.ops.linear.triton_form import kept, proof, settings, trial
from linear_rope.ops.linear.triton_form.settings import Launch
from tests.linear_rope.ops.linear.test_triton import everything

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or torch.cuda.is_available(),
    reason="Triton is not installed, or kernels are not interpreted",
)

CPU = torch.device("cpu")
ROW = "other 16-16 bfloat16 causal"


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINEAR_ROPE_CACHE", str(tmp_path))
    monkeypatch.setattr(settings, "tuned", settings.cache(settings.tuned.__wrapped__))
    monkeypatch.setattr(trial, "ODD", (1, 5))
    monkeypatch.setattr(trial, "ALIGNED", (1, 0))
    monkeypatch.setattr(settings, "CHUNKS_OF_PIECE", 1)
    monkeypatch.setattr(tune, "ROWS", {"small": ("elu+1", 16, 16)})
    monkeypatch.setitem(settings.LAUNCHES, 16, Launch(16, (4, 4, 8, 4, 8), 2))
    monkeypatch.setattr(tune, "candidates", lambda now: (now._replace(chunk=chunk) for chunk in (16, 32)))


def timer(times: dict[int, float]) -> tune.Timer:
    """By the chunk, of what is run once."""

    def measured(run: Any) -> float:
        run()
        return times[settings.tuned(CPU)[ROW].chunk]

    return measured


def test_the_fastest_is_kept_and_taken() -> None:
    tuned = tune.tune("small", CPU, timer({16: 2.0, 32: 1.0}), (1, 1, 9))
    assert (tuned.row, tuned.was.chunk, tuned.before, tuned.best.chunk, tuned.after) == (ROW, 16, 2.0, 32, 1.0)
    assert str(tuned).startswith("before 2.000 ms (chunk 16, ")
    assert str(tuned).endswith(", 2.00 times as fast")
    kept.add(kept.directory() / settings.TUNED, settings.card(CPU), {tuned.row: tuned.best._asdict()})
    settings.tuned.cache_clear()  # as in another process
    assert settings.launch_of(tune.kind_of_row("small").size, CPU) == tuned.best
    assert settings.launch_of(settings.size_of(everything()), CPU).chunk == settings.FAVOR_LAUNCHES[16].chunk
    assert len(json.loads((kept.directory() / proof.FILE).read_text())[proof.environment(CPU)]) == 2


def test_what_is_not_proved_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def outcome(kind: trial.Kind, device: torch.device, *, may_prove: bool) -> trial.Outcome:
        return trial.Outcome(settings.tuned(CPU)[ROW].chunk in right, {})

    monkeypatch.setattr(proof, "outcome_of", outcome)
    right = [32]
    tuned = tune.tune("small", CPU, timer({32: 3.0}), (1, 1, 9))
    assert (tuned.before, tuned.best.chunk) == (None, 32)
    assert str(tuned).startswith("before not proved (chunk 16, ")
    right.clear()
    assert str(tune.tune("small", CPU, timer({}), (1, 1, 9))) == "nothing is proved"


def test_a_table_of_another_version_is_passed_over(tmp_path: Path) -> None:
    kept.add(tmp_path / settings.TUNED, settings.card(CPU), {ROW: {"chunk": 64}})
    assert settings.launch_of(tune.kind_of_row("small").size, CPU) == settings.LAUNCHES[16]


def test_the_candidates_begin_with_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    now = Launch(64, (4, 4, 8, 4, 8), 2)
    first, *others = tune.candidates(now)
    assert first == now
    assert {launch.chunk for launch in others} == {16, 32, 64, 128}


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert tune.main(["small"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("tune needs a CUDA GPU and Triton; the kernels are ")
    assert told.err.count("\n") == 1
    with pytest.raises(SystemExit, match="2"):
        tune.main(["nothing"])
    assert "no row nothing; choose from small" in capsys.readouterr().err
