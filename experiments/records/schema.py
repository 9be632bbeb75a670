"""The format of the record files, as types: what is read is one of these, and what is written was one.

Keys that are not named here are passed over: an older or newer version may not know them, or know more.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from experiments.records.files import visible
from experiments.variants import of_all_layers

Natural = Annotated[int, Meta(ge=0, le=2**62)]
Positive = Annotated[int, Meta(ge=1, le=2**62)]
Number = Annotated[float, Meta(ge=-1e100, le=1e100)]
"""far beyond what float32 can hold, and its square is still finite"""

State = Literal["queued", "running", "done", "failed"]
Split = Literal["train", "validation", "test"]

TRAINING = ("steps", "batch_size", "context", "log_every", "evaluate_every")
"""what a report needs of the configuration of a comparison that trains; positive whole numbers"""
CONTINUED = "continued with another"
"""how notes on what changed between two commands begin"""
OWN_BASELINE = "the same kernel without positions or, for a setting behind @, the variant without it"


class GitRecord(Struct, kw_only=True, omit_defaults=True):
    """The code that ran; ``commit`` is "unknown" outside a git checkout."""

    commit: str
    dirty: bool
    code_sha256: str = ""
    """of the files that can change a number, with their changes"""


class Origin(Struct, kw_only=True):
    """Code from outside the project that took part: an installed package's, or a ``--plugin`` module's."""

    module: str
    package: str
    version: str
    sha256: str


class VariantRecord(Struct, kw_only=True, omit_defaults=True):
    """A variant; ``name`` is also its directory, which may be a path of several parts inside the comparison's."""

    name: Annotated[str, Meta(min_length=1)]
    description: str
    kernel: str
    position: str
    baseline: str
    """its own, whether it was run or not; see ``Comparison.baseline_of``"""
    parameters: Natural
    position_parameters: Natural
    settings: dict[str, Any] = {}
    """values of the configuration in which the variant differs from the comparison's"""
    state: Natural | None = None
    """numbers that its model carries of a sequence from token to token; None: not known, or none, as of an encoder"""
    flops: Natural | None = None
    """additions and multiplications of a token's forward pass, by formula"""
    pattern: list[str] = []
    """of a hybrid the variant of each layer, over and over"""
    not_tuned: Literal["", "lower edge", "upper edge", "diverged"] = ""
    """why its learning rate, searched with others, may not be its best: it is the last one that was tried, or at every
    rate the loss diverged; of a fixed grid this is not recorded"""
    submitted: str = ""
    """the file that its runs came in, if they were trained elsewhere"""

    def __post_init__(self) -> None:
        name = self.name
        if visible(name) != name or set(name) & set("\t\r\n"):
            raise ValueError(f"name is {name!r}, which has control characters")
        if {"", ".", ".."} & set(name.split("/")) or ".." in re.split(r"[/\\]", name):
            raise ValueError(f"name is {name!r}, which is no path inside the comparison's directory")
        if len(name.encode()) > 200:  # it is the name of a directory
            raise ValueError(f"name is {name[:60]!r}..., which is longer than 200 bytes")

    @property
    def of_all_layers(self) -> dict[str, Any]:
        """Those of its settings that the configuration of its runs has."""
        return of_all_layers(self.settings, self.pattern)


class DataRecord(Struct, kw_only=True, omit_defaults=True):
    """A data set; ``bytes`` are those of its text, and ``splits`` count its ``unit``."""

    name: str
    sha256: str
    source: str
    note: str
    bytes: Natural
    splits: dict[str, Natural]
    unit: Literal["bytes", "examples"] = "bytes"
    """of ``splits``; labelled data are counted in examples"""

    @property
    def called(self) -> str:
        """Its name; of a file of one's own, the file's."""
        return self.source if self.name == "text" else self.name


class ObjectiveRecord(Struct, kw_only=True, frozen=True):
    """What is trained, and the metric by which variants are compared, in its unit."""

    name: str
    metric: str
    unit: str
    better: Literal["lower", "higher"]
    vocabulary: Natural
    tokenizer_sha256: str = ""
    """of tokenizer.json, where the tokens were learnt"""
    classes: list[str] = []
    """of labelled texts, in order; none where labels are scores"""
    texts: Natural = 0
    """how many texts a labelled example has"""

    @property
    def quantity(self) -> str:
        """What tables and axes call the metric."""
        words = self.metric.replace("_", " ")
        return self.unit if words in self.unit.lower() else f"{words} ({self.unit})"

    @property
    def where_better(self) -> str:
        """Of a difference to something else."""
        return f"{'below' if self.better == 'lower' else 'above'} 0: better"


NEXT_BYTE = ObjectiveRecord(
    name="next byte", metric="bits_per_byte", unit="bits per byte", better="lower", vocabulary=256
)
ANSWERS = ObjectiveRecord(
    name="answers in sequences", metric="accuracy", unit="share of answers", better="higher", vocabulary=256
)


class Floor(Struct, kw_only=True, frozen=True):
    """What something simple has on the windows that runs are evaluated on; a variant ought to be better."""

    name: str
    metric: str
    value: Number
    split: Split = "test"
    equal: bool = True
    """whether it read what the runs read, and no more; else it is a yardstick that decides nothing"""
    steps: Natural = 0
    """of a run that reads as much; 0: an older record's"""


KNOWS_NOTHING = "to know nothing"
"""the floor of older records: the best answer that does not depend on the input"""
UNIGRAM, ONE_ANSWER, GUESSING = "unigram", "one answer to all", "guessing"
BLIND = (KNOWS_NOTHING, UNIGRAM, ONE_ANSWER, GUESSING)
"""floors of answers that do not depend on the input"""
HIGHER_IS_BETTER = ("accuracy", "bleu", "f1", "matthews", "spearman")
"""of the metrics that floors may have besides the compared one"""


class Comparison(Struct, kw_only=True, omit_defaults=True):
    """comparison.json: what was run, on what and with what.

    A study that trains nothing has no variants, seeds and data. With variants there are seeds and data, and the
    ``config`` has what ``TRAINING`` names. Names of variants and seeds are unique.
    """

    name: str
    study: str = field(name="experiment")
    preset: str
    command: str
    config: dict[str, Any]
    variants: list[VariantRecord]
    seeds: list[Natural]
    git: GitRecord
    versions: dict[str, Any]
    machine: dict[str, Any]
    data: list[DataRecord]
    evaluated_windows: dict[str, Natural]
    created: str
    notes: list[str]
    learning_rates: list[Number] = []
    """the grid from which every variant's best is searched; empty: one rate for all"""
    rate_seeds: Natural = 0
    """how many seeds decide between a variant's best rates, in a grid that extends itself until the best is inside; 0:
    the first seed decides, in the grid as it is, as in records from before there was a choice"""
    nondeterministic: list[str] = []
    """operations of the variants that give other bits when they are run again"""
    plugins: list[Origin] = []
    objective: ObjectiveRecord = NEXT_BYTE
    """of a record from before there were objectives: what its data were trained for"""
    initial_weights: dict[str, str] = {}
    """by run (``<variant>/seed<k>``), the sha256 of the weights that another comparison trained and it begins with"""
    floors: list[Floor] | dict[str, Number] = []
    """see ``Objective.floors``; older records have a value by metric: ``KNOWS_NOTHING``"""
    baseline: str | None = None
    """the variant that all are compared with; empty: each with its own, and with the first one where that was not run;
    None, of a record from before one could be chosen: each with its own alone"""

    def __post_init__(self) -> None:
        if self.objective == NEXT_BYTE and any(data.name.startswith(("recall-", "copying-")) for data in self.data):
            self.objective = ANSWERS
        counts = Counter[str | int](self.seeds)
        counts.update(variant.name for variant in self.variants)
        for each in (each for each, count in counts.items() if count > 1):
            raise ValueError(f"{'variants' if isinstance(each, str) else 'seeds'} holds {each!r} twice")
        if not self.variants:
            return
        for name in TRAINING:
            value = self.config.get(name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**62:
                raise ValueError(f"config.{name} is {value!r}; with variants it is a whole number, 1 or more")
        if not (self.seeds and self.data and "validation" in self.evaluated_windows):
            raise ValueError("with variants there are seeds, data and evaluated_windows.validation")

    def initial_weights_of(self, variant: str, seed: int) -> str:
        """The sha256 of what a run begins with; empty if it begins anew."""
        return self.initial_weights.get(f"{variant}/seed{seed}", "")

    @property
    def every_floor(self) -> list[Floor]:
        """Those of all budgets."""
        if isinstance(self.floors, list):
            return self.floors
        return [Floor(name=KNOWS_NOTHING, metric=metric, value=value) for metric, value in self.floors.items()]

    def floors_of(self, metric: str, split: str = "test", steps: int | None = None) -> list[Floor]:
        """Of runs of so many steps, or of whole ones, from the worst to the best."""
        of_steps = {0, self.config.get("steps") if steps is None else steps}  # a study that trains nothing has none
        found = [each for each in self.every_floor if (each.metric, each.split) == (metric, split)]
        of_runs = (each for each in found if each.steps in of_steps)
        return sorted(of_runs, key=lambda floor: self._sign(metric) * floor.value)

    def beaten(self, metric: str, values: Iterable[float]) -> Floor | None:
        """The best floor on equal ground that all these values are better than."""
        sign = self._sign(metric)
        worst = min(sign * value for value in values)
        return next(
            (each for each in reversed(self.floors_of(metric)) if each.equal and worst > sign * each.value), None
        )

    def _sign(self, metric: str) -> int:
        is_higher = self.objective.better == "higher" if metric == self.objective.metric else metric in HIGHER_IS_BETTER
        return 1 if is_higher else -1

    def best_floor(self, metric: str, split: str = "test", steps: int | None = None) -> Floor | None:
        """On equal ground; None: none is known."""
        return next((floor for floor in reversed(self.floors_of(metric, split, steps)) if floor.equal), None)

    @property
    def floor(self) -> Floor | None:
        """The best that knows nothing of the input, by the metric of the comparison: below it nothing was learnt."""
        return next((floor for floor in reversed(self.floors_of(self.objective.metric)) if floor.name in BLIND), None)

    def baseline_of(self, variant: VariantRecord) -> str:
        """The variant that this one is compared with, maybe itself; of older records it may be one that was not run."""
        if self.baseline:
            return self.baseline
        was_run = any(other.name == variant.baseline for other in self.variants)
        return variant.baseline if was_run or self.baseline is None else self.variants[0].name

    @property
    def baseline_in_words(self) -> str:
        """What the variants are compared with."""
        if self.baseline:
            return self.baseline
        taken = [self.baseline_of(variant) for variant in self.variants]
        if taken == [variant.baseline for variant in self.variants]:
            return OWN_BASELINE
        first = self.variants[0].name
        return first if {*taken} == {first} else f"{OWN_BASELINE}; {first} where that was not run"

    @property
    def tokens_per_step(self) -> int:
        """Of a variant with the comparison's context."""
        return int(self.config["batch_size"]) * int(self.config["context"])

    def context_of(self, variant: VariantRecord) -> int:
        """Tokens of the longest sequence that a variant reads."""
        return int(variant.settings.get("context", self.config["context"]))

    @property
    def contexts(self) -> str:
        """The contexts of the variants: "256", or "256 to 2,048"."""
        found = sorted({self.context_of(variant) for variant in self.variants})
        return " to ".join(f"{each:,}" for each in dict.fromkeys((found[0], found[-1])))

    def read_in(self, steps: int) -> str:
        """What a run reads in so many optimiser steps, in words; of examples their number, as they have any length."""
        if any(data.unit == "examples" for data in self.data):
            return f"{steps * self.config['batch_size']:,} examples of up to {self.contexts} tokens"
        return f"{steps * self.tokens_per_step:,} tokens"

    @property
    def runs(self) -> Iterator[tuple[str, int]]:
        """(variant name, seed) of every run."""
        return ((variant.name, seed) for variant in self.variants for seed in self.seeds)


class RunConfig(Struct, kw_only=True, omit_defaults=True):
    """A run's config.json: what it is trained with, and the sha256 of its data."""

    variant: str
    seed: Natural
    data_sha256: str
    config: dict[str, Any]
    initial_weights_sha256: str = ""
    """of the file of weights that it begins with, where another comparison trained them"""


class Software(Struct, kw_only=True, frozen=True):
    """What a run is trained with, as the process says that trains it."""

    kernel: str
    """of causal linear attention: "C++ for ...", "Triton where proved" or "PyTorch" """
    torch: str
    code_sha256: str
    """as in GitRecord"""

    def unlike(self, other: "Software", which: str) -> str:
        """In what it is not like another, which is called ``which``; empty if it is like it."""
        names = [name for name in ("kernel", "torch") if getattr(self, name) != getattr(other, name)]
        told = [f"{name} {getattr(self, name)} ({which}: {getattr(other, name)})" for name in names]
        # Older records do not tell of the code.
        return ", ".join(told + ["other code"] * (self.code_sha256 != other.code_sha256 != ""))


class Status(Struct, kw_only=True):
    """A run's status.json; ``reason`` says why it failed or stopped, ``time`` is in seconds since 1970."""

    state: State
    reason: str | None = None
    notes: list[str] = []
    time: Number | None = None
    trained_with: list[Software] = []
    """more than one if it went on with another; none in older records"""


class PackedStatus(Status, kw_only=True):
    """What packed results say of a run, besides its rows."""

    tokens_per_second: Number | None = None
    """the median of all its records of training, of which few are packed; None: it has none, or an older pack"""


class MetricsRow(Struct):
    """A line of metrics.jsonl, where the metrics stand beside the other keys: one for each step and split."""

    step: Natural
    """of the optimiser"""
    tokens: Natural
    """that these steps saw; of examples that are shorter than the context, as many as there is room for"""
    split: Split
    metrics: dict[str, Number]
