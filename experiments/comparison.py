"""A comparison in Python: its tables, its curves, and its trained models.

```python
from experiments import load
load("results/runs/convergence").run("elu+1-rope-after", seed=0).generate("The ", tokens=200)
```
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pandas as pd
import torch
from msgspec import Meta
from msgspec.structs import replace
from torch import nn

from experiments.config import Config, value_of
from experiments.extensions import choices
from experiments.judge.curves import read_curves
from experiments.judge.difference import LOSS_MARGIN, SHARE_MARGIN, SHARES, Difference, paired_test, verdict
from experiments.judge.runs import Runs
from experiments.judge.samples import one_text, paired
from experiments.judge.statistics import summarise
from experiments.records.record import is_packed, read_comparison, run_directory, run_status
from experiments.records.schema import Comparison as Record
from experiments.records.store import check_runs
from experiments.run.job import load_objective, read_job
from experiments.show.axes import mark_floors, shown_floors
from experiments.show.rows import plotted
from experiments.show.style import variant_style
from experiments.train.checkpoint import load_average
from experiments.train.classification import classify
from experiments.train.masked import MaskedToken
from experiments.train.models import Kind, Shape, resolve_device
from experiments.train.objectives import GeneratedSequences, NextByte, NextSubword
from experiments.train.tokens import FILE, SubwordTokenizer, TextTokenizer
from experiments.train.trained_models import packed_model, trained_models
from experiments.train.translation import BEAMS, LENGTH_PENALTY, Translation, translate
from linear_rope.model import CausalLM, EncoderDecoder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_TOKENS = 10**6
PREDICTING = NextByte, NextSubword, GeneratedSequences, MaskedToken, Translation
KINDS: dict[str, Kind] = {objective.name: objective.kind for objective in PREDICTING}
"""of models, by the name of the objective on record"""


def load(directory: str | Path) -> "Comparison":
    """The comparison in a directory. Raises ValueError if there is none, or its records are damaged."""
    root = Path(directory)
    record = read_comparison(root)
    check_runs(root, record)
    return Comparison(root, record)


@dataclass(frozen=True)
class Comparison:
    """Variants × seeds in one directory, as its files have it."""

    directory: Path
    record: Record = field(repr=False)
    """its comparison.json"""

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Every recorded number: variant, seed, step, tokens, split, metric, value."""
        return read_curves(self.directory, self.record)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """A row for each variant and metric: mean and 95 % interval over the seeds, and how many runs ended well."""
        return summarise(self.directory, self.record, self.curves)

    def run(self, variant: str, seed: int = 0) -> "TrainedRun":
        """One run. Raises ValueError if the comparison has none of this variant and seed."""
        self._check_variant("variant", variant)
        if seed not in self.record.seeds:
            raise ValueError(f"seed is {seed}; choose from {', '.join(map(str, self.record.seeds))}")
        return TrainedRun(self, variant, seed)

    def _check_variant(self, argument: str, name: str) -> None:
        names = [one.name for one in self.record.variants]
        if name not in names:
            raise ValueError(f"{argument} is {name!r}, which {self.directory} does not have; {choices(name, names)}")

    def difference(self, a: str, b: str, *, metric: str | None = None, margin: float | None = None) -> Difference:
        """Variant a minus variant b on the test split, paired by the seeds that both have finished, with a verdict.

        Args:
            a: the name of a variant.
            b: that of another.
            metric: one of the test split's in ``curves``; None is the one by which variants are compared here.
            margin: the smallest difference that matters; None is 0.02 of a loss and 0.05 of a share. For what is
                neither, as BLEU, one has to be given.

        Raises:
            ValueError: there is no such variant or metric, a is b, or the margin is not above 0.
        """
        self._check_variant("a", a)
        self._check_variant("b", b)
        if a == b:
            raise ValueError(f"a and b are both {a!r}; give two variants")
        objective, curves = self.record.objective, self.curves
        tested = sorted({objective.metric, *curves.loc[curves["split"] == "test", "metric"]})
        metric = objective.metric if metric is None else metric
        if metric not in tested:
            raise ValueError(f"metric is {metric!r}, which the test split does not have; {choices(metric, tested)}")
        is_loss = metric == "loss" or metric.startswith(("bits_per_", "nats_per_"))
        better = objective.better if metric == objective.metric else "lower" if is_loss else "higher"
        if margin is None:
            margin = LOSS_MARGIN if is_loss else SHARE_MARGIN if metric in SHARES else math.nan
        if not 0 < margin < math.inf:
            raise ValueError(f"margin is {margin}; give a number above 0, the {metric} that matters")
        sample = paired(a, b, f"test_{metric}")(self.directory, self.record, Runs(self.directory, self.record, curves))
        assert sample is not None
        resolution = one_text(self.record) if better == "higher" else 0.0
        test = paired_test([*sample.values.values()], margin, resolution)
        said = verdict(test, a, b, margin, better)
        return Difference(a, b, metric, test[0].n, test[0].mean, test[0].low, test[0].high, margin, said)

    def plot(self, metric: str = "validation", axes: "Axes | None" = None) -> "Axes":
        """Draw a metric against optimiser steps: each seed thin, and thick the mean of those that got to the end.

        Args:
            metric: "validation" or "train" for the loss of that split, or any metric of ``curves``.
            axes: what to draw on; None makes a figure.

        Raises:
            ValueError: there is no such metric.
        """
        from matplotlib import pyplot  # not on import: it may open a display

        curves = self.curves
        splits = curves.loc[curves["metric"] == metric, "split"].unique()
        split = next((one for one in ("validation", "train", "test") if one in splits), metric)
        name = metric if len(splits) else plotted(curves, split, self.record).metric
        shown = curves[(curves["split"] == split) & (curves["metric"] == name)]
        if shown.empty:
            there = [*curves["split"].unique(), *curves["metric"].unique()]
            raise ValueError(f"metric is {metric!r}; {choices(metric, there) if there else 'no run has begun'}")
        if axes is None:
            _, axes = pyplot.subplots()
        styles = [variant_style(variant) for variant in self.record.variants]
        if any(styles.count(one) > 1 for one in styles):
            styles = [{"color": f"C{index}"} for index in range(len(styles))]
        for variant, looks in zip(self.record.variants, styles, strict=True):
            seeds = shown[shown["variant"] == variant.name].pivot(index="step", columns="seed", values="value")
            if seeds.empty:
                continue
            axes.plot(seeds.index, seeds, color=looks["color"], linewidth=0.6, alpha=0.5)
            done = [n for n in self.record.seeds if run_status(self.directory, variant.name, n).state == "done"]
            whole = seeds.loc[:, seeds.columns.isin(done)]
            axes.plot(whole.index, whole.mean(axis=1), **(looks | {"linewidth": 2}), label=variant.name)
        mark_floors(axes, shown_floors(self.record, name, split, axes.get_ylim()))
        axes.set(xlabel="optimiser step", ylabel=f"{name.replace('_', ' ')}, {split} split")
        axes.legend()
        return axes


@dataclass(frozen=True)
class TrainedRun:
    """One variant with one seed."""

    comparison: Comparison = field(repr=False)
    variant: str
    seed: int

    def __str__(self) -> str:
        return f"{self.variant} seed {self.seed}"

    def model(self, device: str | torch.device = "cpu") -> nn.Module:
        """The trained model, in eval mode. Raises ValueError if the run is not done, or there is no such device."""
        root, record = self.comparison.directory, self.comparison.record
        try:
            place = resolve_device(device) if device in ("auto", "cuda") else torch.device(device)
        except RuntimeError:
            raise ValueError(f"device is {device!r}; give auto, cpu, cuda, or another that PyTorch knows") from None
        if is_packed(root, self.variant, self.seed):
            return packed_model(root, record, self.variant, self.seed, self._shape()).to(place)
        notes: list[str] = []
        if (state := run_status(root, self.variant, self.seed).state) == "done":
            variants = [variant for variant in record.variants if variant.name == self.variant]
            of_this = replace(record, variants=variants, seeds=[self.seed])
            for _, _, model in trained_models(root, of_this, self._shape(), "the model", notes):
                return model.to(place)
        problem = notes[0] if notes else f"it is {state}"
        raise ValueError(f"{self} in {root} has no trained model ({problem}); run the comparison again")

    def _shape(self) -> Shape:
        """What made the model, which the record tells of all that the project has; others have their data set."""
        root, record = self.comparison.directory, self.comparison.record
        objective = record.objective
        kind = "labels" if objective.texts else KINDS.get(objective.name)
        if kind is None:
            return load_objective(*read_job(run_directory(root, self.variant, self.seed)))
        outputs = 1 if objective.texts == 3 else max(1, len(objective.classes))
        return Shape(objective.vocabulary, record.config["context"], kind, outputs)

    def generate(
        self,
        prompt: str,
        tokens: int = 200,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
        device: str | torch.device = "cpu",
        generator: torch.Generator | None = None,
    ) -> str:
        """What the model continues a prompt with, as text; bytes that are no text become replacement characters.

        Args:
            prompt: at least one character. A surrogate escape (as the command line has them) is the byte it stands for.
            tokens: how many to add.
            temperature: of the distribution that tokens are drawn from, 1e-6 or more; 0 takes the likeliest.
            top_k: draw from this many of the likeliest tokens; None from all.
            top_p: draw from the fewest tokens, the likeliest first, whose probabilities reach this sum.
            seed: of the draws: equal seeds draw the same.
            device: where to generate.
            generator: of the draws, on that device, in place of the seed.

        Raises:
            ValueError: an empty prompt, a number out of its range, or more tokens than the model has positions for.
        """
        if not prompt:
            raise ValueError("prompt is empty; give at least one character")
        value_of("tokens", Annotated[int, Meta(ge=1, le=MOST_TOKENS)], tokens)
        model = self.model(device)
        if not isinstance(model, CausalLM):
            name = self.comparison.record.objective.name
            raise ValueError(f"{self} was trained for {name!r} and continues no text; give a run of a language model")
        place = next(model.parameters()).device
        tokenizer = self.tokenizer()
        assert not isinstance(tokenizer, TextTokenizer)
        given = np.frombuffer(prompt.encode(errors="surrogateescape"), dtype=np.uint8)
        ids = given if tokenizer is None else tokenizer.encode(given)
        read = torch.tensor(ids.astype(np.int64)[None], device=place)
        written = model.generate(
            read,
            tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed if generator is None else None,
            generator=generator,
        )
        added = written[0, read.shape[1] :].tolist()
        said = bytes(added) if tokenizer is None else tokenizer.decode(np.array(added, dtype=np.uint16))
        return said.decode(errors="replace")

    def translate(
        self,
        texts: str | Sequence[str],
        *,
        beams: int = BEAMS,
        length_penalty: float = LENGTH_PENALTY,
        device: str | torch.device = "cpu",
    ) -> list[str]:
        """What the model translates texts to, with the average of the weights of its last checkpoints.

        Args:
            texts: one or more; what is beyond the model's context is not read.
            beams: how many translations are searched at a time; 1 takes the likeliest token each time.
            length_penalty: α of ((5 + length) / 6)^α (Wu et al. 2016), which log-probabilities are divided by.
            device: where to translate.

        Raises:
            ValueError: a run that is no translation, or is not done, or beams or a length penalty out of their range.
        """
        record = self.comparison.record
        value_of("beams", Annotated[int, Meta(ge=1, le=record.objective.vocabulary // 2)], beams)
        if record.objective.name != Translation.name:
            raise ValueError(
                f"{self} was trained for {record.objective.name!r} and translates nothing; give a run of translations"
            )
        tokenizer = self._text_tokenizer()
        if is_packed(self.comparison.directory, self.variant, self.seed):
            raise ValueError(
                f"{self} is packed in {self.comparison.directory}, without the checkpoints whose average translates; "
                "train it again"
            )
        config = Config.of(record.config)
        model = self.model(device)
        load_average(run_directory(self.comparison.directory, self.variant, self.seed), model, config)
        assert isinstance(model, EncoderDecoder)
        given = [texts] if isinstance(texts, str) else texts
        return translate(model, tokenizer, config.context, given, beams=beams, length_penalty=length_penalty)

    def classify(
        self, examples: str | Sequence[str] | Sequence[Sequence[str]], *, device: str | torch.device = "cpu"
    ) -> list[str] | list[float]:
        """What the model says of texts, of pairs of texts, or of triples: which of the last two is nearer to the first.

        Args:
            examples: one text, or any number of texts or, where the model reads more of them, tuples; what is beyond
                its context is not read.
            device: where to classify.

        Returns:
            The name of a class for each, or a score.

        Raises:
            ValueError: a run of something else, or not done, or another number of texts than it was trained on.
        """
        record = self.comparison.record
        if not record.objective.texts:
            raise ValueError(
                f"{self} was trained for {record.objective.name!r} and classifies nothing; give a run of labelled texts"
            )
        tokenizer = self._text_tokenizer()
        (context,) = (record.context_of(each) for each in record.variants if each.name == self.variant)
        given = [examples] if isinstance(examples, str) else examples
        listed = [[each] if isinstance(each, str) else each for each in given]
        return classify(self.model(device), tokenizer, context, record.objective, listed)

    def _text_tokenizer(self) -> TextTokenizer:
        tokenizer = self.tokenizer()
        if not isinstance(tokenizer, TextTokenizer):
            raise ValueError(f"the record of {self.comparison.directory} names no tokenizer; run the comparison again")
        return tokenizer

    def tokenizer(self) -> SubwordTokenizer | TextTokenizer | None:
        """What makes tokens of a text for the model, as the comparison keeps it; None where a token is a byte.

        Raises ValueError if it is not the one of the record.
        """
        objective, path = self.comparison.record.objective, self.comparison.directory / FILE
        if not objective.tokenizer_sha256:
            return None
        kind = SubwordTokenizer if objective.name == NextSubword.name else TextTokenizer
        tokenizer = kind.read(path)
        if tokenizer.sha256 != objective.tokenizer_sha256:
            raise ValueError(f"{path} is not the tokenizer that the record names; put that one back")
        return tokenizer
