import dataclasses

import pytest

from experiments.config import Config
from experiments.train.schedule import learning_rate_at

TRAPEZOID = Config(schedule="trapezoid", steps=100, warmup_steps=10, learning_rate=1.0)


def test_a_trapezoid_rises_stays_and_falls_to_zero_over_the_last_two_fifths():
    rates = [learning_rate_at(step, TRAPEZOID, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert set(rates[10:61]) == {1.0}
    assert rates[60:] == pytest.approx([(100 - step) / 40 for step in range(60, 100)])


def test_a_cosine_falls_from_the_peak_to_a_tenth_of_it():
    cosine = dataclasses.replace(TRAPEZOID, schedule="cosine", steps=110)
    assert [learning_rate_at(step, cosine, 110) for step in (9, 10, 60, 110)] == pytest.approx([1, 1, 0.55, 0.1])


def test_before_the_fall_a_longer_trapezoid_has_the_same_rates():
    longer = dataclasses.replace(TRAPEZOID, steps=1000)
    assert all(learning_rate_at(step, TRAPEZOID, 100) == learning_rate_at(step, longer, 1000) for step in range(61))


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_shortest_trapezoids_have_a_rate_for_every_step(steps):
    config = dataclasses.replace(TRAPEZOID, steps=steps, warmup_steps=0)
    assert all(0 < learning_rate_at(step, config, steps) <= 1 for step in range(steps))


def test_budgets_fall_with_the_schedule_that_is_named():
    with_budgets = dataclasses.replace(TRAPEZOID, budgets="50")
    assert [learning_rate_at(step, with_budgets, 50) for step in (30, 40, 49)] == pytest.approx([1, 0.5, 0.05])
    cosine = dataclasses.replace(with_budgets, schedule="cosine")
    assert [learning_rate_at(step, cosine, 50) for step in (30, 40, 45)] == pytest.approx([1, 1, 0.5])
    with pytest.raises(ValueError, match=r"inverse-sqrt with budgets.*give trapezoid"):
        dataclasses.replace(with_budgets, schedule="inverse-sqrt")


@pytest.mark.parametrize("step", [0, 7, 19, 20, 79, 159])
def test_the_inverse_square_root_is_the_published_one(step):
    # Section 5.3 of Vaswani et al., whose peak is (dim · warm-up)^(-1/2), at the step "warm-up" counted from 1.
    config = Config(schedule="inverse-sqrt", steps=160, warmup_steps=20)
    dim, warmup = 512, config.warmup_steps
    published = dim**-0.5 * min((step + 1) ** -0.5, (step + 1) * warmup**-1.5)
    peak = (dim * warmup) ** -0.5
    assert learning_rate_at(step, config, config.steps) == pytest.approx(config.learning_rate * published / peak)
