"""Ready configurations, by the size of machine they are for."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from experiments.config import Config


@dataclass(frozen=True)
class Preset:
    """A configuration and how many seeds it is run with unless told otherwise."""

    description: str
    config: Config
    seeds: int


def smoke() -> Preset:
    config = Config(
        layers=1,
        dim=32,
        heads=2,
        num_features=16,
        context=64,
        batch_size=4,
        steps=20,
        warmup_steps=2,
        log_every=5,
        evaluate_every=10,
        evaluation_windows=8,
        test_windows=8,
        checkpoint_every=10,
    )
    return Preset("seconds: does everything run?", config, seeds=1)


def cpu() -> Preset:
    return Preset("minutes on two cores: the default", Config(), seeds=3)


def gpu() -> Preset:
    config = Config(
        data="imdb",
        layers=6,
        dim=512,
        heads=8,
        num_features=256,
        context=1024,
        batch_size=32,
        steps=10_000,
        learning_rate=6e-4,
        warmup_steps=500,
        evaluate_every=250,
        evaluation_windows=256,
        test_windows=4096,
        checkpoint_every=500,
        precision="bfloat16",
    )
    return Preset("hours on one GPU: 6 layers, width 512, length 1024", config, seeds=3)


def paper() -> Preset:
    config = Config(
        data="enwik8",
        layers=12,
        dim=768,
        heads=12,
        num_features=266,
        context=1024,
        batch_size=128,
        steps=100_000,
        learning_rate=1e-4,
        warmup_steps=2_000,
        evaluate_every=1_000,
        evaluation_windows=256,
        test_windows=4_882,
        checkpoint_every=1_000,
        precision="bfloat16",
    )
    return Preset("days on GPUs: RoFormer's Performer on enwik8, 12 layers, width 768, batch 128", config, seeds=3)


def _own(name: str, description: str, **changes: Any) -> Callable[[], Preset]:
    """A preset that differs from the general one of that name in some settings, and maybe in its ``seeds``."""

    def make() -> Preset:
        general = PRESETS[name]()
        seeds = changes.get("seeds", general.seeds)
        settings = {key: value for key, value in changes.items() if key != "seeds"}
        return Preset(description, replace(general.config, **settings), seeds)

    return make


_SYNTHETIC: dict[str, Any] = {
    "dim": 64,
    "heads": 1,
    "context": 64,
    "batch_size": 32,
    "steps": 3000,
    "learning_rate": 3e-3,
    "warmup_steps": 100,
    "weight_decay": 0.01,
    "initial_std": 0.08,
    "evaluate_every": 150,
    "evaluation_windows": 250,
    "test_windows": 1000,
    "checkpoint_every": 1000,
}
"""Weights begin four times as large as elsewhere: from 0.02, softmax attention did not begin to recall in trials."""
_SYNTHETIC_GPU: dict[str, Any] = _SYNTHETIC | {
    "layers": 2,
    "dim": 128,
    "context": 256,
    "batch_size": 256,
    "steps": 10_000,
    "learning_rate": 2e-3,
    "warmup_steps": 500,
    "evaluate_every": 500,
    "evaluation_windows": 1000,
    "test_windows": 3000,
    "checkpoint_every": 1000,
    "precision": "float32",
}

PRESETS: dict[str, Callable[[], Preset]] = {"smoke": smoke, "cpu": cpu, "gpu": gpu, "paper": paper}
"""of the experiments that have none of their own"""
OWN: dict[str, dict[str, Callable[[], Preset]]] = {
    "denominator": {
        "smoke": _own("smoke", "seconds: does everything run?", diagnose_windows=2),
        "cpu": _own(
            "cpu",
            "a minute a run",
            steps=400,
            log_every=5,
            evaluate_every=25,
            evaluation_windows=24,
            diagnose_windows=4,
            seeds=5,
        ),
        "gpu": _own("gpu", "hours on one GPU", diagnose_windows=2),
    },
    "length": {
        "smoke": smoke,
        "cpu": _own("cpu", "two minutes a run", steps=800, warmup_steps=80, seeds=5),
        "gpu": gpu,
    },
    "mask": {
        "smoke": smoke,
        "cpu": _own("cpu", "three minutes a run", steps=1250, warmup_steps=100, evaluate_every=70, seeds=5),
        "gpu": gpu,
    },
    "pairing": {
        "smoke": smoke,
        "cpu": _own("cpu", "two minutes a run", steps=800, warmup_steps=80, seeds=5),
        "gpu": gpu,
    },
    "copying": {
        "smoke": _own("smoke", "seconds: does everything run?", data="copying-32"),
        "cpu": _own("cpu", "three minutes a run: up to 32 symbols", **_SYNTHETIC, data="copying-32"),
        "gpu": _own("gpu", "hours on one GPU: up to 128 symbols", **_SYNTHETIC_GPU, data="copying-128"),
    },
    "recall": {
        "smoke": _own("smoke", "seconds: does everything run?", data="recall-64"),
        "cpu": _own(
            "cpu", "six minutes a run: four pairs in 64 tokens", **(_SYNTHETIC | {"steps": 6000}), data="recall-64"
        ),
        "gpu": _own("gpu", "hours on one GPU: sixteen pairs in 256 tokens", **_SYNTHETIC_GPU, data="recall-256"),
    },
}
"""of the experiments that train something else, or for longer"""


def get_preset(name: str, experiment: str) -> Preset:
    """The preset of an experiment. Raises ValueError that lists those there are."""
    presets = OWN.get(experiment, PRESETS)
    if name not in presets:
        raise ValueError(f"--preset is {name}, which {experiment} does not have; choose from {', '.join(presets)}")
    return presets[name]()
