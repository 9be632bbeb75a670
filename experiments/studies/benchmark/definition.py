"""A version of the benchmark as its files have it (benchmark/v1/*.toml)."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from experiments.config import Config, read_toml
from experiments.extensions import choices
from experiments.presets import GENERAL, NOT_CONFIG

FOLDER = Path(__file__).parents[2] / "benchmark"
NAME = "v1"
STUDY = "benchmark"
SMOKE_FACTORS = 2
"""of the lengths that models are tested at, how many a smoke run has"""

T = TypeVar("T")


class Text(Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str
    what: str


class Task(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A comparison of the benchmark; or a study that trains nothing, when that is all it has."""

    question: int
    asks: str
    study: str = STUDY
    data: str = ""
    size: str = ""
    recipe: str = ""
    settings: dict[str, Any] = {}
    """of a run, before those of its size and recipe"""
    learning_rates: str = ""
    """a grid: each variant's is searched from it, on the first seed"""
    rates: str = ""
    """another task, whose search finds the learning rates of its variants"""
    neighbours_of: str = ""
    """another task: each variant is trained with the rates beside the one that was found there"""
    weights: bool = False
    """whether the final weights of the first seed are packed"""
    variants: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    seeds: int = 5
    tested: tuple[int, ...] = (1,)
    """factors of the training length at which models are tested"""
    pairs: tuple[int, ...] = ()
    """of recall: with how many pairs"""
    smoke: dict[str, Any] = {}
    """what a smoke run's settings are, besides those of the preset; and its grid of learning rates, if it has one"""


class Stage(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Some tasks, one after the other."""

    name: str
    tasks: tuple[str, ...]
    seeds: int
    """or as many as the task has, if that is less"""
    first: int | None = None
    """so many of the variants of each task; all, if it does not say"""
    more: bool = False
    """whether the tasks' further variants belong to it"""


@dataclass(frozen=True)
class Comparison:
    """A task as a stage has it."""

    stage: str
    task: str
    study: str
    variants: tuple[str, ...]
    seeds: int


@dataclass(frozen=True)
class Benchmark:
    """A version of it."""

    texts: dict[str, Text]
    sizes: dict[str, dict[str, Any]]
    recipe: dict[str, dict[str, Any]]
    tasks: dict[str, Task]
    stages: list[Stage]

    def config(self, task: str, preset: str) -> Config:
        """What a task's runs are trained with. Raises ValueError if that is no configuration."""
        wanted = self.tasks[task]
        if preset == "smoke":
            small = GENERAL["smoke"] | {"data": wanted.data} | wanted.smoke
            settings = {name: value for name, value in small.items() if name not in (*NOT_CONFIG, "learning_rates")}
        else:
            settings = self.recipe[wanted.recipe] | self.sizes[wanted.size] | {"data": wanted.data} | wanted.settings
        try:
            return Config(**settings)
        except (TypeError, ValueError) as error:
            raise ValueError(f"benchmark {NAME}, task {task}: {error}") from None

    def grid(self, task: str, preset: str) -> str:
        """From which the learning rates of its variants are searched; empty: they are not."""
        wanted = self.tasks[task]
        return wanted.smoke.get("learning_rates", "") if preset == "smoke" else wanted.learning_rates

    def comparisons(self, preset: str = "cpu", tasks: tuple[str, ...] = ()) -> list[Comparison]:
        """What is trained, in order; of some ``tasks`` all of it. Raises ValueError if there is no such task.

        A smoke run has the variants of all tasks in the first one that searches no rates, and two in each other; those
        that need a GPU too.
        """
        for name in tasks:
            if name not in self.tasks:
                raise ValueError(f"--task: there is no task {name!r}; {choices(name, list(self.tasks))}")
        if preset == "smoke":
            return self._smoke(tasks)
        found = [
            self._comparison(stage, name) for stage in self.stages for name in stage.tasks if not tasks or name in tasks
        ]
        ordered = {each.task for each in found}
        asked = Stage(name="on demand", tasks=tasks, seeds=10**3, more=True)
        return found + [self._comparison(asked, name) for name in self.tasks if name in {*tasks} - ordered]

    def _comparison(self, stage: Stage, name: str) -> Comparison:
        task = self.tasks[name]
        variants = task.variants + (task.more if stage.more else ())
        return Comparison(stage.name, name, task.study, variants[: stage.first], min(stage.seeds, task.seeds))

    def _smoke(self, tasks: tuple[str, ...]) -> list[Comparison]:
        every = tuple(dict.fromkeys(name for task in self.tasks.values() for name in task.variants + task.more))
        of_all = next(name for name, task in self.tasks.items() if not task.learning_rates)
        return [
            Comparison("smoke", name, task.study, every if name == of_all else task.variants[:2], 1)
            for name, task in self.tasks.items()
            if not tasks or name in tasks
        ]


@cache
def read_benchmark(folder: Path = FOLDER / NAME) -> Benchmark:
    """The version in a folder, but for its claims. Raises ValueError that names the file, and what is wrong in it."""
    settings = dict[str, dict[str, Any]]
    return Benchmark(
        texts=_read(folder / "texts.toml", dict[str, Text]),
        sizes=_read(folder / "sizes.toml", settings),
        recipe=_read(folder / "recipe.toml", settings),
        tasks=_read(folder / "tasks.toml", dict[str, Task]),
        stages=_read(folder / "order.toml", dict[Literal["stages"], list[Stage]])["stages"],
    )


def asked(comparison: Any) -> str:
    """What a task asks, of the record of its comparison; empty of what has no task's name."""
    task = read_benchmark().tasks.get(comparison.name)
    return task.asks if task else ""


def _read(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.convert(read_toml(path), kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{path}: {error}") from None
