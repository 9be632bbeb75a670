"""Training steps of the convergence study's variants on a GPU: tokens a second, and how much of the time is kernels."""

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from experiments.data.corpus import corpus_of_text
from experiments.gpu.speeds import in_turn
from experiments.gpu.step import Step
from experiments.gpu.timing import warm_up
from experiments.presets import get_preset
from experiments.studies.registry import STUDIES
from experiments.training.loop import compiled, training_step
from experiments.training.models import LanguageModel, build_model
from experiments.training.objectives import NextByte
from experiments.training.optimizers import make_optimizer
from experiments.variants import get_variant

STUDY = STUDIES["convergence"]
PRESETS = "gpu-small", "gpu"
OURS = "elu+1-rope-after"
PROFILED = 3
"""steps"""


def main(step: Step) -> None:
    for preset in PRESETS:
        case = {"topic": "training", "preset": preset}
        if not step.is_over and not step.is_done(case):
            step.attempt(case, "all", partial(measure, step, case, "smoke" if step.rehearses else preset))


def measure(step: Step, case: dict[str, Any], preset: str) -> None:
    """A step of every variant on one batch of random tokens, which is on the device already."""
    config = get_preset(preset, STUDY).config
    shape = config.batch_size, config.context + 1
    tokens = torch.randint(config.vocabulary_size, shape, device=step.device)
    batch = tokens[:, :-1], tokens[:, 1:]
    corpus = corpus_of_text("random", random.Random(0).randbytes(20 * shape[1]))
    objective = NextByte(corpus, config.context, config.batch_size)
    calls: dict[str, Callable[[], object]] = {}

    def build(name: str) -> int | None:
        variant = get_variant(name)
        own = variant.config(config)
        model = build_model(variant, own, 0, LanguageModel(own.vocabulary_size, own.context)).to(step.device)
        optimizer = make_optimizer(model, own)
        calls[name] = partial(training_step, compiled(model, own), optimizer, objective, batch, own, 0)
        return warm_up(calls[name], step.device)

    memory = {name: step.attempt(case, name, partial(build, name)) for name in STUDY.variants}
    calls = {name: call for name, call in calls.items() if not step.has_failed(case, name)}
    shares = {name: share_in_kernels(call) for name, call in calls.items()} if step.device.type == "cuda" else {}
    in_turn(step, case, calls, OURS, memory=memory, tokens=config.tokens_per_step, share_in_kernels=shares)


def share_in_kernels(call: Callable[[], object]) -> float:
    """Of a few steps' time, while they are recorded."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(PROFILED):
            call()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begun
    return sum(event.self_device_time_total for event in recorded.key_averages()) / 1e6 / seconds


if __name__ == "__main__":
    main(Step.of_command())
