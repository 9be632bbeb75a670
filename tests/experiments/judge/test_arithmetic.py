"""What a training run records, against numbers worked out by hand; the arithmetic over seeds is in test_stats.py."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from experiments.config import Config
from experiments.data.corpus import Corpus
from experiments.presets import get_preset
from experiments.train import loop as train
from experiments.train.evaluate import evaluate
from experiments.train.objectives import NextByte
from experiments.train.steps import Step, Steps
from experiments.variants import VARIANTS
from tests.made_up import metrics_rows
from tests.training import train_run


def language_model(text: bytes, context: int, batch_size: int) -> NextByte:
    """A task whose three splits are all this text."""
    content = np.frombuffer(text, dtype=np.uint8)
    return NextByte(Corpus("text", content, content, content, "", "", ""), context, batch_size)


class KnownModel(nn.Module):
    """Gives every next byte a probability, the same at all positions; bytes that are not named share the rest."""

    def __init__(self, probabilities: dict[str, float]) -> None:
        super().__init__()
        rest = (1 - sum(probabilities.values())) / (256 - len(probabilities))
        table = torch.full((256,), rest)
        for letter, probability in probabilities.items():
            table[ord(letter)] = probability
        self.logits = nn.Parameter(table.log())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(*tokens.shape, 256)


@pytest.mark.parametrize(
    ("text", "batch_size", "windows", "probabilities", "bits"),
    [
        (b"any text of some length", 2, 5, {}, 8),
        # 1, 2 and 3 bits: 2 over the windows. The means of the batches, the last of which is smaller, have 2.25.
        (b"aaaaabbbbbccccc", 2, 3, {"a": 1 / 2, "b": 1 / 4, "c": 1 / 8}, 2),
        # Every byte of a window but the first is predicted: a, then three bytes of 1 bit and one of 3 bits.
        (b"abbbc", 1, 1, {"a": 1 / 16, "b": 1 / 2, "c": 1 / 8}, 1.5),
    ],
)
def test_bits_per_byte_are_the_mean_over_all_that_is_predicted(text, batch_size, windows, probabilities, bits):
    task, config = language_model(text, 4, batch_size), Config(context=4, batch_size=batch_size)
    model = KnownModel(probabilities)
    assert evaluate(model, task, "test", windows, config) == {"bits_per_byte": pytest.approx(bits)}


class Clock:
    """Stands still unless something is done that takes time."""

    now = 5000.0

    def perf_counter(self) -> float:
        return self.now

    def takes(self, seconds, value=None):
        """A function that does nothing for so long."""

        def act(*arguments, **options):
            self.now += seconds
            return value

        return act


STEP_SECONDS = [1, 3, 2, 6, 8]
STEP_BITS = [7, 6, 5, 4, 3]


def test_records_have_the_times_tokens_losses_and_rates_of_their_steps(tmp_path, monkeypatch):
    # Five steps that take known times, with records every 2; an evaluation takes 100 s, a checkpoint 1000 s.
    clock, rates, progress = Clock(), [], []
    config = replace(
        get_preset("smoke").config, steps=5, log_every=2, evaluate_every=2, checkpoint_every=3,
        batch_size=4, context=8, learning_rate=1.0, warmup_steps=2,
    )  # fmt: skip

    def make(self, number, batch):
        clock.now += STEP_SECONDS[number]
        rates.extend(group["lr"] for group in self._optimizer.param_groups)
        self._made.append(Step(number, STEP_BITS[number] * math.log(2), 0.5))

    monkeypatch.setattr(train, "time", clock)
    monkeypatch.setattr(Steps, "make", make)
    monkeypatch.setattr(train, "evaluate", clock.takes(100, {"bits_per_byte": 4.0}))
    monkeypatch.setattr(train, "save_checkpoint", clock.takes(1000))
    task = language_model(b"any text of some length", config.context, config.batch_size)
    train_run(
        tmp_path, VARIANTS["softmax-none"], 0, config, task, progress=lambda *arguments: progress.append(arguments)
    )
    rows = [row for row in metrics_rows(tmp_path / "metrics.jsonl") if row["split"] == "train"]
    expected = {
        "step": [2, 4, 5],
        "tokens": [64, 128, 160],  # 4 sequences of 8 tokens a step
        # Of the steps since the last record, without evaluations and checkpoints: 64 in 4 s, 64 in 8 s, 32 in 8 s.
        "tokens_per_second": [16, 8, 4],
        # All that passed since the run began: evaluation, 1, 3; evaluation, 2, checkpoint, 6; evaluation, 8.
        "seconds": [104, 104 + 1108, 104 + 1108 + 108],
        "bits_per_byte": [6, 4, 3],
        "loss": [4.1588831, 2.7725887, 2.0794415],  # times ln 2
        "learning_rate": [1, 0.775, 0.325],
    }
    assert {name: [row[name] for row in rows] for name in expected} == {
        name: pytest.approx(values) for name, values in expected.items()
    }
    # 1/2 and 2/2 of the peak, then 0.55 + 0.45 cos(0°, 60°, 120°); both groups of parameters have it
    assert rates[::2] == rates[1::2] == pytest.approx([0.5, 1, 1, 0.775, 0.325])
    # while it runs: 32 in 1 s, 64 in 4 s, and from the beginning again after each record
    steps, losses, speeds = zip(*progress, strict=True)
    assert (steps, speeds) == ((1, 2, 3, 4, 5), pytest.approx((32, 16, 16, 8, 4)))
    assert losses == pytest.approx([bits * math.log(2) for bits in STEP_BITS])


def test_the_gradient_norm_on_record_is_that_before_clipping_and_the_update_is_clipped():
    # All targets are the byte of probability 1/2: its logit's gradient is 1/2 - 1, and 1/2 is shared by the 255 others.
    task = language_model(b"aaaaa", 4, 1)
    config = Config(context=4, batch_size=1, gradient_clip=0.25)
    model = KnownModel({"a": 1 / 2})
    before = model.logits.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    trial = Steps(model, optimizer, task, config)
    trial.make(0, task.batch(0, 0))
    ((_, loss, norm),) = trial.read()
    assert loss == pytest.approx(math.log(2))
    assert norm == pytest.approx(math.sqrt(0.25 + 255 * (0.5 / 255) ** 2))
    assert (model.logits.detach() - before).norm().item() == pytest.approx(0.25, rel=1e-4)
