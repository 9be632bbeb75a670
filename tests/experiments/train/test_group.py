"""A run that several processes train: the loss curve of one, and files from the first alone.

Sums over the batch are made in another order, which in float64 changes the 16th digit; training multiplies that.
"""

import dataclasses
from pathlib import Path

import pytest
import torch

from experiments.data.corpus import NOT_SCORED, corpus_of_text
from experiments.presets import get_preset
from experiments.train.group import check_can_shard, connect
from experiments.train.loop import RunStopped
from experiments.train.objectives import NextByte
from experiments.train.steps import RunFailed
from tests.experiments.train.tasks import TEXT
from tests.made_up import repeated_rows
from tests.training import CPU, train_run

too_old = not hasattr(torch.cpu.Stream, "record_event")
sharded = pytest.mark.skipif(too_old, reason="PyTorch before 2.7 shards on GPUs only")
SHARD = [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.full, sharded])]
CONFIG = dataclasses.replace(
    get_preset("smoke").config,
    precision="float64",
    batch_size=4,
    steps=20,
    log_every=1,
    evaluate_every=8,
    checkpoint_every=8,
    redraw_every=3,
)


class Uneven(NextByte):
    """Of every batch the first sequences have fewer targets than the last; it keeps what random features it sees."""

    def __init__(self):
        super().__init__(corpus_of_text("text", TEXT), CONFIG.context, 4)
        self.features = []

    def batch(self, seed, step):
        inputs, targets = (x.clone() for x in super().batch(seed, step))
        for row in range(len(targets)):
            targets[row, : 20 - 5 * row] = NOT_SCORED
        return inputs, targets

    def tally(self, model, batch):
        self.features.append(torch.cat([x.double().flatten() for x in model.buffers()]))
        return super().tally(model, batch)


def train(directory, config, group=None, stop_after=None):
    """How it ended, and the random features of its evaluations."""
    steps, objective, ended = [], Uneven(), "done"
    told = {"progress": lambda step, *_: steps.append(step), "should_stop": lambda: len(steps) == stop_after}
    try:
        train_run(directory, "favor+-rope-after", 0, config, objective, group=group, **told)
    except (RunFailed, RunStopped) as error:
        ended = f"{type(error).__name__}: {error}"
    return ended, objective.features


def train_share(_, directories, config, stop_after=None, shard=False):
    """As one of four processes. Only the first is asked to stop."""
    group = connect(CPU, 1, shard)
    return train(Path(directories[group.rank]), config, group, stop_after if group.is_first else None)


def together(processes, directory, config, stop_after=None, *, apart=False, shard=False):
    """Train in four processes, which have a directory each if ``apart``."""
    directories = [str(directory / f"of process {rank}" if apart else directory) for rank in range(4)]
    directory.mkdir(exist_ok=True)
    return processes.run(4, train_share, directories, config, stop_after, shard)


def assert_same_curve(one, other):
    rows = [repeated_rows(directory / "metrics.jsonl") for directory in (one, other)]
    assert len(rows[0]) == len(rows[1])
    for row, expected in zip(*rows, strict=True):
        assert row.pop("split") == expected.pop("split")
        assert row == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("shard", SHARD)
def test_four_processes_give_the_loss_curve_of_one(processes, tmp_path, shard):
    config = dataclasses.replace(CONFIG, steps=50, evaluation_windows=16, test_windows=16)  # a batch for each
    _, drawn = train(tmp_path / "alone", config)
    everyones = together(processes, tmp_path / "four", config, apart=True, shard=shard)
    assert_same_curve(tmp_path / "four/of process 0", tmp_path / "alone")
    assert not torch.equal(drawn[0], drawn[-1])
    for ended, features in everyones:
        assert ended == "done"
        assert any(torch.equal(features[0], each) for each in drawn)
        assert torch.equal(features[-1], drawn[-1])
    assert (tmp_path / "four/of process 0/checkpoint").is_dir()
    for rank in (1, 2, 3):
        assert not [*(tmp_path / f"four/of process {rank}").iterdir()]


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("shard", SHARD)
def test_with_muon_four_processes_differ_from_one_by_rounding(processes, tmp_path, shard):
    # In float32, as Muon takes no float64: they were 1.4e-6 bits apart at most, and the golden losses allow 4e-5.
    config = dataclasses.replace(
        CONFIG, precision="float32", optimizer="muon", schedule="trapezoid", initial_spread=0.9, redraw_every=0
    )
    train(tmp_path / "alone", config)
    together(processes, tmp_path / "four", config, shard=shard)
    runs = [repeated_rows(tmp_path / each / "metrics.jsonl") for each in ("alone", "four")]
    losses = [[row["bits_per_byte"] for row in rows] for rows in runs]
    assert len(losses[0]) > 20
    assert losses[1] == pytest.approx(losses[0], abs=4e-5)


# At this rate the last weights are not the best.
@pytest.mark.parametrize("shard", SHARD)
@pytest.mark.parametrize("changed", [{"tested": "best", "learning_rate": 0.01}, {"budgets": "10,15"}])
def test_the_best_weights_and_budgets_too(processes, tmp_path, changed, shard):
    config = dataclasses.replace(CONFIG, **changed)
    train(tmp_path / "alone", config)
    together(processes, tmp_path / "four", config, shard=shard)
    assert_same_curve(tmp_path / "four", tmp_path / "alone")


@pytest.mark.parametrize("shard", SHARD)
def test_checkpoints_move_between_one_and_four_processes(processes, tmp_path, shard):
    train(tmp_path / "whole", CONFIG)
    assert {ended for ended, _ in together(processes, tmp_path / "moved", CONFIG, 5, shard=shard)} == {
        "RunStopped: stopped at step 5"
    }
    assert train(tmp_path / "moved", CONFIG, stop_after=6)[0] == "RunStopped: stopped at step 11"
    assert {ended for ended, _ in together(processes, tmp_path / "moved", CONFIG, shard=shard)} == {"done"}
    assert_same_curve(tmp_path / "moved", tmp_path / "whole")


def test_a_loss_that_is_not_finite_fails_in_every_process_at_the_same_step(processes, tmp_path):
    config = dataclasses.replace(CONFIG, learning_rate=1e30, precision="float32")
    (reason,) = {ended for ended, _ in together(processes, tmp_path, config)}
    assert reason.startswith("RunFailed: diverged")


def test_a_pytorch_that_cannot_shard_on_a_cpu_is_named(monkeypatch):
    if not too_old:
        check_can_shard(CPU)
        monkeypatch.delattr(torch.cpu.Stream, "record_event")
    check_can_shard(torch.device("cuda"))
    with pytest.raises(ValueError, match=r"--shard on a CPU needs PyTorch 2\.7 or later, and this is 2\."):
        check_can_shard(CPU)
