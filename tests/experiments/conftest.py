"""A made-up comparison directory, as the trainer would leave it."""

import json
import os
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from experiments.config import Config, budget_steps
from experiments.data.corpus import corpus_of_text
from experiments.records.files import write_json
from experiments.records.record import run_directory
from experiments.train.objectives import NextByte
from experiments.variants import parse_variants
from tests.made_up import comparison_fields, quick, undrawn

Loss = Callable[[str, int, int], float]


def made_up_loss(variant: str, seed: int, step: int) -> float:
    """Bits per byte that fall from 8 to an end that depends on the variant, shifted by 0.01 per seed."""
    end = 2.0 + len(variant) / 20 + seed / 100
    return end + (8 - end) * 2 ** (-step / 20)


def write_comparison(
    root: Path,
    variants: str = "softmax-none,softmax-rope,elu+1-none",
    seeds: int = 3,
    *,
    steps: int = 100,
    every: int = 20,
    budgets: str = "none",
    loss: Loss = made_up_loss,
    fates: dict[tuple[str, int], tuple[str, str]] | None = None,
    stopped_at: int = 40,
    **other: Any,
) -> Path:
    """Write comparison.json and every run's files. ``fates`` maps a run to a (state, reason) other than done."""
    config = Config(steps=steps, evaluate_every=every, log_every=every, batch_size=2, context=32, budgets=budgets)
    fields = {"config": vars(config), "variants": variants.split(","), "seeds": list(range(seeds))} | other
    root.mkdir(parents=True, exist_ok=True)
    fields = comparison_fields(**fields)
    metric = fields.get("objective", {}).get("metric", "bits_per_byte")
    write_json(root / "comparison.json", fields)
    for variant, seed in product(parse_variants(variants), range(seeds)):
        directory = run_directory(root, variant.name, seed)
        directory.mkdir(parents=True)
        state, reason = (fates or {}).get((variant.name, seed), ("done", None))
        last = steps if state == "done" else stopped_at
        write_json(directory / "status.json", {"state": state, "reason": reason, "step": last})
        made_with = {"variant": variant.name, "seed": seed, "data_sha256": fields["data"][0]["sha256"]}
        write_json(directory / "config.json", made_with | {"config": vars(config) | dict(variant.settings)})
        rows: list[dict[str, Any]] = []
        for step in range(0, last + 1, every):
            place = {"step": step, "tokens": step * config.tokens_per_step}
            value = loss(variant.name, seed, step)
            rows.append(place | {"split": "validation", metric: value})
            if step:
                speed = 1000.0 + 10 * seed + step
                rows.append(place | {"split": "train", metric: value, "tokens_per_second": speed})
        for step in (*budget_steps(budgets), last) if state == "done" else ():
            place = {"step": step, "tokens": step * config.tokens_per_step}
            rows.append(place | {"split": "test", metric: loss(variant.name, seed, step) + 0.5})
        (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return root


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """What tests write has to outlive processes, and no loss of power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def next_byte() -> Callable[[Config], NextByte]:
    """Makes the objective of a configuration on a made-up text."""
    text = bytes((7 * i * i + i // 3) % 251 for i in range(40_000))
    corpus = corpus_of_text("text", text, "made by the test", "")
    return lambda config: NextByte(corpus, config.context, config.batch_size)


@pytest.fixture(scope="session")
def make_comparison() -> Callable[..., Path]:
    return write_comparison


@pytest.fixture
def no_pictures() -> Iterator[None]:
    """For what looks at a report's words and tables alone."""
    with undrawn():
        yield


@pytest.fixture
def quickly() -> Iterator[None]:
    """The same for what does not look at processes either."""
    with quick():
        yield


@pytest.fixture
def make_reference(make_comparison, tmp_path):
    """Makes results/convergence with two variants that differ by given amounts, seed by seed; returns results."""

    def make(differences, **other):
        def loss(name, seed, step):
            return 3 + seed + (differences[seed] if name == "favor+-rope-after" else 0)

        make_comparison(tmp_path / "convergence", "favor+-none,favor+-rope-after", len(differences), loss=loss, **other)
        return tmp_path

    return make
