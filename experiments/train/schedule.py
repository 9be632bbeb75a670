"""The learning rate of every optimiser step."""

import math

from experiments.config import Config


def learning_rate_at(step: int, config: Config, end: int) -> float:
    """The rate of a step, counted from 0, of a run that ends at step ``end``: first a linear warm-up to the peak.

    "cosine" then falls to a tenth of the peak at the last step. "inverse-sqrt" is the peak times √(warm-up steps /
    number of the step), the number counted from 1 (Vaswani et al. 2017, arXiv 1706.03762, section 5.3, where the peak
    is (dim · warm-up steps)^(-1/2)). "trapezoid", and "cosine" with budgets, stay at the peak and fall linearly to zero
    at ``end`` (Hägele et al. 2024, arXiv 2405.18392): what is trained before the fall is the same for every end.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule == "trapezoid" or config.budgets != "none":
        return config.learning_rate * min(1.0, (end - step) / max(1, end - fall_begins(end, config)))
    if config.schedule == "inverse-sqrt":
        return config.learning_rate * math.sqrt(max(1, config.warmup_steps) / (step + 1))
    progress = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return config.learning_rate * (0.55 + 0.45 * math.cos(math.pi * progress))


def fall_begins(end: int, config: Config) -> int:
    """The step from which the rate falls to zero, in a run that ends at step ``end`` and whose rate does that."""
    return end - (2 * end // 5 if config.schedule == "trapezoid" else end // 5)


def last_constant_step(config: Config) -> int | None:
    """The last step before which the rate is that of a longer run too, from where a run can be extended; or None."""
    return fall_begins(config.steps, config) if config.schedule == "trapezoid" else None
