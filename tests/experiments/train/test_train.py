"""A run from its first step to its last: what it records, how it goes on, and what it does not survive."""

import dataclasses
import json
import math

import pytest
import torch

from experiments.data.corpus import corpus_of_text
from experiments.presets import get_preset
from experiments.train import loop
from experiments.train.loop import RunStopped
from experiments.train.models import build_model
from experiments.train.objectives import NextByte
from experiments.train.optimizers import make_optimizer
from experiments.train.steps import RunFailed
from experiments.variants import VARIANTS
from tests.experiments.train.tasks import TEXT
from tests.made_up import metrics_rows, repeated_rows
from tests.training import train_until

FAVOR = "favor+-rope-after"
CONFIG = dataclasses.replace(
    get_preset("smoke").config, steps=12, log_every=2, evaluate_every=4, checkpoint_every=5, warmup_steps=2
)
NOISY = dataclasses.replace(CONFIG, dropout=0.1)
BUDGETS = dataclasses.replace(CONFIG, steps=20, budgets="5,10,15")
MODERN = dataclasses.replace(
    CONFIG, steps=20, optimizer="muon", schedule="trapezoid", initial_spread=0.9, checkpoint_every=3
)
RISING = dataclasses.replace(CONFIG, tested="best", learning_rate=3.0, warmup_steps=8)
"""a learning rate that rises until the loss does"""


CORPUS = corpus_of_text("text", TEXT)


@pytest.fixture(scope="module")
def task():
    return NextByte(CORPUS, CONFIG.context, CONFIG.batch_size)


def rows(directory):
    return repeated_rows(directory / "metrics.jsonl")


def final_weights(directory, steps=CONFIG.steps):
    return (directory / f"checkpoint/step{steps:08d}/model.safetensors").read_bytes()


def train(directory, task, variant=FAVOR, config=CONFIG, stop_at=math.inf, **log):
    train_until(stop_at, directory, variant, 0, config, task, **log)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, task):
    """The directory of a run that nothing happened to; it is trained once, and nobody may write there."""
    made = {}

    def directory(variant=FAVOR, config=CONFIG):
        if (variant, config) not in made:
            made[variant, config] = tmp_path_factory.mktemp("whole")
            train(made[variant, config], task, variant, config)
        return made[variant, config]

    return directory


def test_everything_is_recorded(undisturbed):
    recorded = rows(undisturbed())
    steps = {s: [r["step"] for r in recorded if r["split"] == s] for s in ("train", "validation", "test")}
    assert steps == {"train": [2, 4, 6, 8, 10, 12], "validation": [0, 4, 8, 12], "test": [12]}
    assert recorded[0]["bits_per_byte"] == pytest.approx(8, abs=0.3)  # 256 equally likely bytes


@pytest.mark.parametrize(
    ("variant", "config", "stop_at"),
    [
        *((FAVOR, dataclasses.replace(NOISY, redraw_every=3), step) for step in (1, 5, 7)),
        ("softmax-rope", NOISY, 7),
        *((FAVOR, MODERN, step) for step in (1, 11, 12, 19)),
        *((FAVOR, RISING, step) for step in (3, 11)),
    ],
)
def test_a_stopped_run_ends_with_the_same_metrics_and_weights(tmp_path, task, undisturbed, variant, config, stop_at):
    whole, notes = undisturbed(variant, config), []
    train(tmp_path, task, variant, config, stop_at)
    train(tmp_path, task, variant, config, note=notes.append)
    assert notes[0] == f"resumed at step {stop_at}"
    assert rows(tmp_path) == rows(whole)
    assert final_weights(tmp_path, config.steps) == final_weights(whole, config.steps)


@pytest.mark.parametrize(
    ("config", "stop_at", "kept", "told"),
    [
        # The checkpoints are of steps 10 and 11, and from neither can the missing rows be made.
        (CONFIG, 11, lambda row: row["step"] < 10, "step00000010 was passed over: the records before it are not whole"),
        (CONFIG, 11, lambda row: (row["step"], row["split"]) != (8, "validation"), "step00000010 was passed over"),
        (CONFIG, 11, lambda row: False, "step00000010 was passed over"),
        # The test is made again, of the best weights and of a shorter run.
        (RISING, math.inf, lambda row: row["split"] != "test", "resumed at step 12"),
        (BUDGETS, math.inf, lambda row: (row["step"], row["split"]) != (10, "test"), "step00000015 was passed over"),
    ],
    ids=["the end", "an evaluation", "all", "the test", "a budget"],
)
def test_records_that_are_gone_are_made_again(tmp_path, task, undisturbed, config, stop_at, kept, told):
    train(tmp_path, task, config=config, stop_at=stop_at)
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(row) + "\n" for row in metrics_rows(metrics) if kept(row)))
    notes = []
    train(tmp_path, task, config=config, note=notes.append)
    assert any(told in note for note in notes)
    made, whole = (
        sorted(json.dumps(row, sort_keys=True) for row in rows(run)) for run in (tmp_path, undisturbed(config=config))
    )
    assert made == whole


def test_denormal_numbers_are_zeros_while_a_run_is_trained_and_no_longer(tmp_path, task):
    def smallest() -> float:
        return float(torch.tensor(1e-30) * torch.tensor(1e-10))

    if not torch.set_flush_denormal(False):
        pytest.skip("this processor cannot flush denormal numbers")
    assert smallest() > 0
    seen = []
    train(tmp_path, task, progress=lambda *arguments: seen.append(smallest()))
    assert set(seen) == {0.0}
    assert smallest() > 0


class Poisoned(NextByte):
    """Of a loss that is no number at the fourth step, or in evaluations; ``trained`` is the model that it made."""

    def __init__(self, corpus, in_evaluations):
        super().__init__(corpus, CONFIG.context, CONFIG.batch_size)
        self.in_evaluations, self.weights = in_evaluations, []

    def model(self, config, attention):
        self.trained = super().model(config, attention)
        return self.trained

    def loss(self, model, batch):
        self.weights.append(model.embedding.tokens.weight.detach().clone())
        return super().loss(model, batch) * (float("nan") if len(self.weights) == 4 else 1)

    def metrics(self, sums):
        return super().metrics(sums | {"nats": float("inf")} if self.in_evaluations else sums)


def test_a_loss_that_is_not_finite_stops_the_run_before_the_update(tmp_path):
    poisoned = Poisoned(CORPUS, in_evaluations=False)
    with pytest.raises(RunFailed, match="nan at step 3"):
        train(tmp_path, poisoned)
    assert torch.equal(poisoned.trained.embedding.tokens.weight, poisoned.weights[-1])


def test_an_evaluation_that_is_not_finite_fails_the_run_and_is_not_recorded(tmp_path):
    with pytest.raises(RunFailed, match="bits_per_byte on the validation split is inf after step 0"):
        train(tmp_path, Poisoned(CORPUS, in_evaluations=True))
    assert rows(tmp_path) == []


def figures_by_budget(directory):
    return {row["step"]: row["bits_per_byte"] for row in rows(directory) if row["split"] == "test"}


def test_a_run_with_budgets_is_tested_as_runs_that_end_there_are(tmp_path, task):
    config, shown = dataclasses.replace(BUDGETS, redraw_every=3, dropout=0.1), []
    train(tmp_path / "all", task, config=config, progress=lambda step, loss, rate: shown.append((step, rate)))
    assert len(shown) > 20
    assert all(rate > 0 for _, rate in shown)
    tested = figures_by_budget(tmp_path / "all")
    assert list(tested) == [5, 10, 15, 20]
    for steps, before in ((10, "5"), (15, "5,10")):
        train(tmp_path / str(steps), task, config=dataclasses.replace(config, steps=steps, budgets=before))
        assert figures_by_budget(tmp_path / str(steps))[steps] == tested[steps]
    rates = {row["step"]: row["learning_rate"] for row in rows(tmp_path / "all") if row["split"] == "train"}
    assert rates[4] == rates[16] == config.learning_rate
    assert rates[20] == pytest.approx(config.learning_rate / 4)


def test_a_budget_of_a_trapezoid_is_a_branch_of_the_run(tmp_path, task, undisturbed):
    train(tmp_path / "all", task, config=dataclasses.replace(MODERN, budgets="10"))
    train(tmp_path / "short", task, config=dataclasses.replace(MODERN, steps=10))
    alone = figures_by_budget(tmp_path / "short") | figures_by_budget(undisturbed(config=MODERN))
    assert figures_by_budget(tmp_path / "all") == alone


def test_a_trapezoid_keeps_the_weights_that_a_longer_run_would_have_too(undisturbed):
    there = {path.name for path in (undisturbed(config=MODERN) / "checkpoint").iterdir()}
    assert there == {f"step{step:08d}" for step in (12, 15, 18, 20)}  # 15 and 18 as in any run


@pytest.mark.parametrize("stop_at", [9, 25])
def test_a_run_stopped_while_it_is_tested_for_a_budget_goes_on_to_the_same_metrics(
    tmp_path, task, undisturbed, stop_at
):
    asked = []
    with pytest.raises(RunStopped):
        train(tmp_path / "stopped", task, config=BUDGETS, should_stop=lambda: asked.append(1) or len(asked) > stop_at)
    train(tmp_path / "stopped", task, config=BUDGETS)
    assert rows(tmp_path / "stopped") == rows(undisturbed(config=BUDGETS))


@pytest.mark.parametrize("budgets", ["10,5", "5,5", "4", "20", "5,", "5.5"])
def test_budgets_that_do_not_fit_are_refused(budgets):
    with pytest.raises(ValueError, match=r"budgets is .*give"):
        dataclasses.replace(CONFIG, steps=20, budgets=budgets)


def test_weight_decay_is_on_matrices_only(task):
    model = build_model(VARIANTS["softmax-none"], dataclasses.replace(CONFIG, qk_norm="yes"), 0, task)
    decayed, kept = make_optimizer(model, CONFIG).param_groups
    assert {p.dim() for p in decayed["params"]} == {2}
    assert {p.dim() for p in kept["params"]} == {1}
    assert (decayed["weight_decay"], kept["weight_decay"]) == (CONFIG.weight_decay, 0.0)


def test_a_run_stops_within_an_evaluation_too(tmp_path, task, undisturbed):
    asked = iter([False] * 3)
    with pytest.raises(RunStopped):
        train(tmp_path / "stopped", task, should_stop=lambda: next(asked, True))
    train(tmp_path / "stopped", task)
    assert rows(tmp_path / "stopped") == rows(undisturbed())


def test_the_best_weights_are_tested_and_kept(tmp_path, task, undisturbed):
    losses = {r["step"]: r["bits_per_byte"] for r in rows(undisturbed(config=RISING)) if r["split"] == "validation"}
    best = min((step for step in losses if step), key=losses.get)
    assert best < RISING.steps, "the test is of a run that gets worse"
    train(tmp_path, task, config=dataclasses.replace(RISING, tested="last"), stop_at=best)
    assert final_weights(tmp_path, best) == final_weights(undisturbed(config=RISING))
    assert not (undisturbed(config=RISING) / "checkpoint" / "best").exists()
    notes = []
    train(tmp_path, task, config=RISING, note=notes.append)
    assert notes[-1] == f"tested with the weights of step {best}, the best on the validation split"


def test_a_run_that_was_killed_before_its_last_weights_were_kept_is_tested_with_them(
    tmp_path, task, undisturbed, monkeypatch
):
    falling, save = dataclasses.replace(CONFIG, tested="best"), loop.save_checkpoint

    def killed(directory, step, *more):
        if directory.name == "best" and step == falling.steps:
            raise KeyboardInterrupt
        save(directory, step, *more)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", killed)
        with pytest.raises(KeyboardInterrupt):  # so the last evaluation is the best one
            train(tmp_path, task, config=falling)
    assert not (tmp_path / "checkpoint" / "best" / "step00000012").exists()
    train(tmp_path, task, config=falling)
    assert rows(tmp_path) == rows(undisturbed(config=falling))
    assert final_weights(tmp_path) == final_weights(undisturbed(config=falling))


def test_the_best_weights_cannot_be_lost_in_silence(tmp_path, task):
    train(tmp_path, task, config=RISING, stop_at=11)
    for weights in (tmp_path / "checkpoint" / "best").glob("*/model.safetensors"):
        weights.write_bytes(b"")
    with pytest.raises(RunFailed, match="weights of its best evaluation are gone"):
        train(tmp_path, task, config=RISING)
