"""Training steps of the convergence study's variants on a GPU: tokens a second."""

import dataclasses
import random
from functools import partial
from typing import Any

import torch

from experiments.data.corpus import corpus_of_text
from experiments.gpu.step import COMPILED_TOGETHER, Step
from experiments.presets import get_preset
from experiments.studies.registry import STUDIES
from experiments.studies.speed.benchmark import Call
from experiments.train.models import Shape, build_model
from experiments.train.objectives import NextByte
from experiments.train.optimizers import make_optimizer
from experiments.train.steps import Steps
from experiments.variants import get_variant
from linear_rope import kernels

STUDY = STUDIES["convergence"]
PRESETS = "gpu-small", "gpu"
OURS = "elu+1-rope-after"


def main(step: Step) -> None:
    variants = tuple(STUDY.variants)
    if step.only_compiles:
        variants = variants[int(step.name.rpartition("-")[2]) :: COMPILED_TOGETHER]
    for preset in PRESETS[:1] if step.rehearses else PRESETS:
        case = {"topic": "training", "preset": preset}
        if not step.is_over and not step.is_done(case):
            step.attempt(case, "all", partial(measure, step, case, "smoke" if step.rehearses else preset, variants))


def measure(step: Step, case: dict[str, Any], preset: str, variants: tuple[str, ...]) -> None:
    """A step of each variant on one batch of random tokens, which is on the device already."""
    torch.compiler.reset()  # of another preset; PyTorch compiles a function for some models only
    config = get_preset(preset, STUDY).config
    shape = config.batch_size, config.context + 1
    tokens = torch.randint(config.vocabulary_size, shape, device=step.device)
    batch = tokens[:, :-1], tokens[:, 1:]
    corpus = corpus_of_text("random", random.Random(0).randbytes(20 * shape[1]))
    objective = NextByte(corpus, config.context, config.batch_size)

    def build(name: str, **changes: Any) -> Call:
        variant = get_variant(name)
        own = dataclasses.replace(variant.config(config), **changes)
        model = build_model(variant, own, 0, Shape(own.vocabulary_size, own.context)).to(step.device)
        steps = Steps(model, make_optimizer(model, own), objective, own, is_queued=not step.rehearses)
        return partial(steps.make, 0, batch)

    def step_of(name: str, **changes: Any) -> None:
        build(name, **changes)()

    # What "auto" takes is decided before anything is compiled: compiled code depends on it.
    for name in variants:
        step.attempt(case, f"{name}, not compiled", partial(step_of, name, compile="no"))
    builders = {name: partial(build, name) for name in variants}
    step.compare(case, builders, OURS, tokens=config.tokens_per_step, kernels=kernels())


if __name__ == "__main__":
    main(Step.of_command())
