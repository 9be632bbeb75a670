"""Steps that are begun without waiting for their losses: on a CPU they show everything but the speed."""

import dataclasses
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from experiments.data.corpus import corpus_of_text
from experiments.presets import get_preset
from experiments.records.record import WALL_CLOCK
from experiments.train import loop
from experiments.train.devices import BEGINS_AFTER, STEPS, KernelShare, busy_seconds
from experiments.train.models import build_model
from experiments.train.objectives import NextByte, NextSubword, TextOnDevice
from experiments.train.optimizers import make_optimizer
from experiments.train.steps import RunFailed, Steps
from experiments.train.tokens import SubwordTokenizer
from experiments.variants import VARIANTS
from tests.experiments.train.tasks import TEXT
from tests.made_up import repeated_rows
from tests.training import CPU, train_run

VARIANT = VARIANTS["elu+1-rope-after"]
CONFIG = dataclasses.replace(
    get_preset("smoke").config, steps=12, log_every=5, evaluate_every=4, checkpoint_every=7, warmup_steps=2
)
MUON = dataclasses.replace(CONFIG, optimizer="muon", schedule="trapezoid", initial_spread=0.9, learning_rate=0.01)
CORPUS = corpus_of_text("text", TEXT)
QueuedSteps = partial(Steps, is_queued=True)


def next_byte():
    return NextByte(CORPUS, CONFIG.context, CONFIG.batch_size)


class Poisoned(NextByte):
    """Of a loss that is no number at the third step."""

    asked = 0

    def loss(self, model, batch):
        self.asked += 1
        return super().loss(model, batch) * (float("nan") if self.asked == 3 else 1)


def poisoned():
    return Poisoned(CORPUS, CONFIG.context, CONFIG.batch_size)


def trained(kind, objective, config, numbers):
    model = build_model(VARIANT, config, 0, objective)
    steps = kind(model, make_optimizer(model, config), objective, config)
    for number in numbers:
        steps.make(number, objective.batch(0, number))
    return model, steps


def test_queued_steps_are_those_that_are_waited_for_to_the_last_bit():
    objective = next_byte()
    (model, queued), (expected, waited) = (trained(kind, objective, MUON, range(6)) for kind in (QueuedSteps, Steps))
    assert queued.read() == waited.read() != []
    assert queued.read() == waited.read() == []
    for weight, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(weight, other)


@pytest.mark.parametrize("config", [CONFIG, MUON], ids=["adamw", "muon"])
def test_a_loss_that_is_not_finite_changes_no_weight_and_its_step_is_named_when_it_is_read(config):
    (model, steps), (before, _) = (trained(QueuedSteps, poisoned(), config, range(count)) for count in (3, 2))
    assert all(map(torch.equal, model.parameters(), before.parameters()))
    steps.make(3, next_byte().batch(0, 3))
    assert all(map(torch.equal, model.parameters(), before.parameters()))  # though the optimiser's moments are none
    with pytest.raises(RunFailed, match=r"diverged: the loss is nan at step 2$"):
        steps.read()


def test_a_gradient_that_is_not_finite_changes_no_weight_either():
    objective = next_byte()
    model, steps = trained(QueuedSteps, objective, CONFIG, range(1))
    before = [weight.detach().clone() for weight in model.parameters()]
    model.embedding.tokens.weight.register_hook(lambda gradient: gradient * float("inf"))
    steps.make(1, objective.batch(0, 1))
    assert all(map(torch.equal, before, model.parameters()))
    with pytest.raises(RunFailed, match=r"the gradient norm is (nan|inf) at step 1 \(loss [0-9.]+\)"):
        steps.read()


@pytest.mark.parametrize("changed", [{}, {"tested": "best"}, {"budgets": "5,10", "dropout": 0.1}], ids=str)
def test_a_run_of_queued_steps_has_the_records_and_weights_of_one_that_waits(tmp_path, monkeypatch, changed):
    config = dataclasses.replace(MUON, **changed)
    told = {}
    for queued in (False, True):
        monkeypatch.setattr(loop, "are_queued", lambda group, queued=queued: queued)
        arguments, progress = (VARIANT, 0, config, next_byte()), []
        train_run(tmp_path / str(queued), *arguments, progress=lambda *done, to=progress: to.append(done[:2]))
        told[queued] = sorted(progress)
    assert told[True] == told[False]
    assert repeated_rows(tmp_path / "True/metrics.jsonl") == repeated_rows(tmp_path / "False/metrics.jsonl")
    weights = "checkpoint/step00000012/model.safetensors"
    assert (tmp_path / "True" / weights).read_bytes() == (tmp_path / "False" / weights).read_bytes()


def test_nothing_is_kept_of_a_queued_step_that_was_not_well(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "are_queued", lambda group: True)
    with pytest.raises(RunFailed, match=r"nan at step 2$"):
        train_run(tmp_path, VARIANT, 0, CONFIG, poisoned())
    # It was found out before the evaluation at step 4.
    assert [row["step"] for row in repeated_rows(tmp_path / "metrics.jsonl")] == [0]
    assert not [*tmp_path.glob("checkpoint/step*")]


def test_batches_cut_from_a_text_on_the_device_are_those_of_the_cpu():
    tokenizer = SubwordTokenizer.train(CORPUS.train, 300)
    for objective in (NextByte(CORPUS, 32, 4), NextSubword(CORPUS, 32, 4, tokenizer)):
        draw, finish = objective.source(1, torch.device("cuda")) if torch.cuda.is_available() else (None, None)
        on_device = TextOnDevice(objective.splits["train"], 32, CPU)
        for step in range(3):
            expected = objective.batch(1, step)
            made = [on_device((torch.from_numpy(objective.starts(1, step)),))]
            made += [tuple(x.cpu() for x in finish(draw(step)))] if finish else []
            for batch in made:
                assert [x.dtype for x in batch] == [torch.int64] * 2
                assert all(map(torch.equal, batch, expected))
        draw, finish = objective.source(1, CPU)
        assert all(map(torch.equal, finish(draw(2)), expected))


def event(start, end, name="a kernel", device=DeviceType.CUDA, **more):
    span = SimpleNamespace(start=start, end=end)
    return SimpleNamespace(name=name, device_type=device, time_range=span, **more)


def test_time_in_which_two_kernels_run_counts_once_and_copies_and_marks_do_not():
    kernels = [event(30, 40), event(0, 10), event(5, 20), event(6, 7)]
    others = [event(0, 90, "Memcpy HtoD"), event(50, 60, device=DeviceType.CPU), event(0, 99, is_user_annotation=True)]
    assert busy_seconds(kernels + others, DeviceType.CUDA) == pytest.approx(30e-6)


def test_a_profile_of_pytorch_is_read():
    x = torch.ones(400, 400)
    with profile(activities=[ProfilerActivity.CPU]) as made:
        for _ in range(5):
            x @ x
    products = [each for each in made.events() if each.name == "aten::mm"]
    assert len(products) == 5
    took = sum(each.time_range.elapsed_us() for each in products) / 1e6
    assert busy_seconds(products, DeviceType.CPU) == pytest.approx(took)
    assert busy_seconds(made.events(), DeviceType.CPU) >= took


def test_the_share_is_of_some_steps_after_the_start(monkeypatch):
    made = SimpleNamespace(start=lambda: None, stop=lambda: None, events=lambda: [event(0, 3_000_000)])
    clock = iter([10.0, 14.0])
    monkeypatch.setattr("experiments.train.devices.profile", lambda activities: made)
    monkeypatch.setattr("experiments.train.devices.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    kernels = KernelShare(first_step=100)
    for step in range(100, 100 + BEGINS_AFTER + STEPS):
        kernels.look(step)
        assert kernels.metrics() == {}
    kernels.look(100 + BEGINS_AFTER + STEPS)
    assert kernels.metrics() == {"kernel_share": 0.75}
    assert set(kernels.metrics()) < set(WALL_CLOCK)


@pytest.mark.parametrize(("kind", "setting"), [(QueuedSteps, "graphs"), (Steps, "yes")])
def test_steps_are_compiled_those_that_are_queued_with_their_loss(monkeypatch, kind, setting):
    really_compile, given = torch.compile, []

    def compile_quickly(part, **options):
        given.append((part, options))
        return really_compile(part, backend="eager", fullgraph=True)

    monkeypatch.setattr(torch, "compile", compile_quickly)
    objective = next_byte()
    _, expected = trained(kind, objective, CONFIG, range(3))
    model, steps = trained(kind, objective, dataclasses.replace(CONFIG, compile=setting), range(3))
    part = objective.loss if kind is QueuedSteps else model
    assert given == [(part, {"mode": "reduce-overhead"} if setting == "graphs" else {})]
    for step, other in zip(steps.read(), expected.read(), strict=True):
        assert step == pytest.approx(other, rel=1e-5)
