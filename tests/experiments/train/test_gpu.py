"""Training on a GPU, and what of it a CPU can show: autocast, compiled steps, and batches that are drawn ahead."""

import dataclasses
import threading

import pytest
import torch

from experiments.config import Config
from experiments.records.record import read_metrics
from experiments.train import steps
from experiments.train.devices import Batches
from experiments.train.models import build_model
from experiments.train.optimizers import make_optimizer
from experiments.variants import get_variant
from tests.training import train_run

CONFIG = Config(
    layers=1, dim=16, heads=2, num_features=8, context=32, batch_size=2, steps=6, warmup_steps=2, log_every=1,
    evaluate_every=3, evaluation_windows=2, test_windows=2, checkpoint_every=3, dropout=0.1,
)  # fmt: skip
CUDA = torch.device("cuda")
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU on this machine")
VARIANTS = ["softmax-rope", "elu+1-rope-after", "favor+-rope-after"]


def losses(directory, next_byte, config=CONFIG, variant="elu+1-rope-after", device="cpu"):
    """The training losses, step by step."""
    directory.mkdir()
    train_run(directory, get_variant(variant), 0, config, next_byte(config), torch.device(device))
    return [row.metrics["loss"] for row in read_metrics(directory / "metrics.jsonl") if row.split == "train"]


def test_bfloat16_trains_with_weights_and_moments_in_float32(tmp_path, next_byte):
    config, variant = dataclasses.replace(CONFIG, precision="bfloat16"), "favor+-rope-after"
    # Eight bits of a significand, and sums of a few dozen products.
    assert losses(tmp_path / "low", next_byte, config, variant) == pytest.approx(
        losses(tmp_path / "full", next_byte, variant=variant), rel=2**-7
    )
    model, objective = build_model(get_variant(variant), config, 0, next_byte(config)), next_byte(config)
    optimizer = make_optimizer(model, config)
    steps.Steps(model, optimizer, objective, config).make(0, objective.batch(0, 0))
    moments = [value for state in optimizer.state.values() for value in state.values()]
    assert {tensor.dtype for tensor in (*model.parameters(), *moments)} == {torch.float32}


def test_batches_that_are_drawn_ahead_are_those_of_their_steps(next_byte):
    objective, threads = next_byte(CONFIG), []

    def draw(step):
        threads.append(threading.current_thread() is threading.main_thread())
        return objective.batch(0, step)

    steps = [0, 1, 2, 7, 3, 4]  # a run that is tested in between goes ahead and comes back
    with Batches(draw, torch.device("meta")) as batches:
        found = [batches.at(step) for step in steps]
    for step, batch in zip(steps, found, strict=True):
        assert all(map(torch.equal, batch, objective.batch(0, step)))
    assert threads.count(False) >= len(steps) - 1
    threads.clear()
    with Batches(draw, torch.device("cpu")) as batches:
        batches.at(0)
    assert threads == [True]


@NEEDS_CUDA
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "settings", [{}, {"precision": "bfloat16"}, {"compile": "yes"}, {"compile": "graphs"}], ids=str
)
def test_a_gpu_gives_the_losses_of_a_cpu(tmp_path, next_byte, variant, settings):
    config = dataclasses.replace(CONFIG, dropout=0.0, **settings)
    on_cpu = losses(tmp_path / "cpu", next_byte, dataclasses.replace(CONFIG, dropout=0.0), variant)
    rel = 2**-6 if "precision" in settings else 1e-3
    assert losses(tmp_path / "cuda", next_byte, config, variant, "cuda") == pytest.approx(on_cpu, rel=rel)


@NEEDS_CUDA
def test_on_a_gpu_adamw_is_fused_and_batches_are_pinned(next_byte):
    model = build_model(get_variant("elu+1-none"), CONFIG, 0, next_byte(CONFIG)).to(CUDA)
    assert make_optimizer(model, CONFIG).defaults["fused"]
    with Batches(lambda step: next_byte(CONFIG).batch(0, step), CUDA) as batches:
        assert all(tensor.is_pinned() for step in range(2) for tensor in batches.at(step))


@NEEDS_CUDA
def test_a_run_on_a_gpu_records_the_share_of_its_kernels(tmp_path, next_byte):
    config = dataclasses.replace(CONFIG, steps=50)
    train_run(tmp_path, get_variant("softmax-rope"), 0, config, next_byte(config), CUDA)
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if row.split == "train"]
    assert 0 < rows[-1].metrics["kernel_share"] <= 1
    assert all("kernel_share" not in row.metrics for row in rows[:-1])


@NEEDS_CUDA
def test_a_step_on_a_gpu_waits_for_nothing(next_byte):
    objective, config = next_byte(CONFIG), dataclasses.replace(CONFIG, optimizer="muon")
    model = build_model(get_variant("elu+1-rope-after"), config, 0, objective).to(CUDA)
    queued = steps.Steps(model, make_optimizer(model, config), objective, config, is_queued=True)
    draw, finish = objective.source(0, CUDA)
    with Batches(draw, CUDA, finish) as batches:
        queued.make(0, batches.at(0))
        queued.read()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for step in range(1, 4):
                queued.make(step, batches.at(step))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert [step.number for step in queued.read()] == [1, 2, 3]
