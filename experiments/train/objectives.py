"""Objectives: what a model is trained for, and how it is measured (batch → loss and metrics).

The loop knows an ``Objective`` and nothing of bytes. Another kind of training (masked tokens, classification, pairs of
texts) is another subclass, with the model it trains if that is not a language model; a data set brings its own.
"""

import dataclasses
import lzma
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from msgspec import structs
from torch import Tensor, nn

from experiments.config import Config, budget_steps
from experiments.data.corpus import NOT_SCORED, Bytes, Corpus, Data, Tokens
from experiments.data.examples import SPLITS
from experiments.data.files import kept
from experiments.data.generated import split_generator
from experiments.records.files import write_atomically
from experiments.records.schema import GUESSING, Floor, ObjectiveRecord, Split
from experiments.train.counting import NAMES, WittenBell
from experiments.train.models import Shape
from experiments.train.tokens import FILE, SubwordTokenizer, Tokenizer
from experiments.variants import Variant

PIECE = 2**22
"""tokens that are counted at once"""
MOST_COUNTED = 2**25
"""tokens of windows that n-grams are counted in"""
GUESSED_FROM = 512
"""generated sequences that tell which answers there are"""

Batch = tuple[Tensor, ...]
"""tensors whose first dimension counts the examples"""


class Metric(NamedTuple):
    """A number that evaluations record, and which way it gets better."""

    name: str
    unit: str
    better: Literal["lower", "higher"]


class Objective(Shape, ABC):
    """A kind of training on some data. It has no state: what it gives depends on its arguments alone."""

    name: str
    primary: Metric
    """what variants are compared by, and what the learning rate is chosen by on the validation split"""
    corpus: Data
    """what it is made of; its ``describe`` is what the record keeps"""
    tokenizer: Tokenizer | None = None
    """of tokens that are learnt from the data"""
    loss_unit = "nats"
    """what progress calls the unit of ``loss``"""

    def __init__(self, data: Data, context: int, batch_size: int, tokenizer: Tokenizer | None = None) -> None:
        self.corpus, self.length, self.batch_size = data, context, batch_size
        if tokenizer is not None:
            self.tokenizer, self.vocabulary = tokenizer, tokenizer.size

    def prepare(self, model: nn.Module, variant: Variant, seed: int) -> None:
        """Give a new model what it begins with besides its first weights; such as those of another run."""

    def initial_weights(self, variant: Variant, seed: int) -> str:
        """The sha256 of the weights of another run that ``prepare`` gives; empty if there are none.

        Raises ValueError if they ought to be there and are not.
        """
        return ""

    @abstractmethod
    def batch(self, seed: int, step: int) -> Batch:
        """The training batch of an optimiser step: a pure function of ``seed`` and ``step``, both at least 0.

        So every variant of a seed sees the same batches, and a resumed run needs no loader state.
        """

    def source(self, seed: int, device: torch.device) -> tuple[Callable[[int], Batch], Callable[[Batch], Batch]]:
        """What draws the batch of a step on the CPU, and what makes it on a device of what was drawn."""
        return partial(self.batch, seed), lambda drawn: drawn

    @abstractmethod
    def windows(self, split: str, count: int) -> Batch:
        """At most ``count`` examples of a split (validation or test) to evaluate on, always the same."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """What training lowers: a scalar in nats. All is on the model's device."""

    def scored(self, batch: Batch) -> int:
        """How many targets ``loss`` is the mean over, for processes that share a batch."""
        return int((batch[-1] != NOT_SCORED).sum())

    def training_metrics(self, loss: float, batch: Batch) -> dict[str, float]:
        """The metrics of a training record, besides the loss of the batch."""
        return {}

    def tokens_in(self, batch: Batch, config: Config) -> int:
        """Tokens that a training step on a batch reads, for the throughput."""
        return config.tokens_per_step

    @abstractmethod
    def tally(self, model: nn.Module, batch: Batch) -> dict[str, Any]:
        """Numbers or lists over the examples of an evaluation's batch, from whose sums ``metrics`` are made."""

    @abstractmethod
    def metrics(self, sums: dict[str, Any]) -> dict[str, float]:
        """The metrics of an evaluation, the primary one among them, from the added sums of all its batches."""

    def diagnosed(self, split: str, count: int) -> Tensor | None:
        """What a model reads when its attention is measured: (count or fewer, N) int64; None: it is not measured."""
        return None

    def floors(self, config: Config) -> list[Floor]:
        """What something simple has on the windows of each split that has read what runs of ``config.steps`` read.

        ``floors_of`` adds their ``steps``.
        """
        return [
            Floor(name=name, metric=self.primary.name, value=value, split=split)
            for split, most in evaluated(config).items()
            for name, value in self.floors_on(split, most, config.steps).items()
        ]

    def floors_on(self, split: str, windows: int, steps: int) -> dict[str, float]:
        """The primary metric of each, on at most so many windows of a split; none where nothing such is known."""
        return {}

    def describe(self) -> ObjectiveRecord:
        """What the record of a comparison keeps of it."""
        metric, unit, better = self.primary
        sha = "" if self.tokenizer is None else self.tokenizer.sha256
        return ObjectiveRecord(
            name=self.name, metric=metric, unit=unit, better=better, vocabulary=self.vocabulary, tokenizer_sha256=sha
        )

    def save(self, directory: Path) -> None:
        """Write the tokenizer, which another version of its library might learn otherwise, unless it is there."""
        if self.tokenizer is not None and not (directory / FILE).exists():
            write_atomically(directory / FILE, self.tokenizer.json)


def bits_per_byte(nats_per_byte: float) -> float:
    return nats_per_byte / math.log(2)


def at_least_single(logits: Tensor) -> Tensor:
    """Logits in float32, or in float64 if they are that."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats per scored target; logits (B, N, vocabulary), targets (B, N)."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=NOT_SCORED)


def unigram_loss(train: np.ndarray, targets: np.ndarray, vocabulary: int) -> float:
    """Mean loss in nats of targets that are each given their frequency in ``train``; counts are one more than seen."""
    counts = np.ones(vocabulary)
    for start in range(0, len(train), PIECE):  # because each piece is counted as int64
        counts += np.bincount(train[start : start + PIECE], minlength=vocabulary)
    return float(-np.log(counts / counts.sum())[targets].mean())


def bits_after_xz(text: bytes) -> float:
    """Bits per byte of the whole of a text; a megabyte takes a second, so its size is kept as tokens are."""
    size = kept(b"xz, level 9: " + text, lambda: np.array(len(lzma.compress(text, preset=9))))
    return 8 * int(size) / len(text)


class EachToken(Objective):
    """Predicting tokens of which each counts equally; the primary metric is their mean loss, in nats."""

    label_smoothing = 0.0
    """of the training loss alone"""

    @abstractmethod
    def predict(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits (tokens, vocabulary) of all that is to be predicted in a batch, and those tokens (tokens,)."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(*self.predict(model, batch), label_smoothing=self.label_smoothing)

    def training_metrics(self, loss: float, batch: Batch) -> dict[str, float]:
        return {} if self.label_smoothing else {self.primary.name: loss}

    def tally(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        logits, wanted = self.predict(model, batch)
        nats = F.cross_entropy(logits, wanted, reduction="sum").item()
        return {"nats": nats, "tokens": len(wanted), "right": int((logits.argmax(-1) == wanted).sum())}

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """``accuracy``: the share of tokens that have the largest logit."""
        return {self.primary.name: sums["nats"] / sums["tokens"], "accuracy": sums["right"] / sums["tokens"]}


class NextToken(Objective):
    """Predicting each next token of a text from those before it in its window.

    A batch is inputs and targets, int64 of shape (B, context) each: a target is the token behind its input.

    Raises ValueError if a split of the corpus is shorter than one window.
    """

    primary = Metric("bits_per_byte", "bits per byte", "lower")
    vocabulary = 256
    loss_unit = "nats/token"
    corpus: Corpus

    def __init__(self, corpus: Corpus, context: int, batch_size: int, tokenizer: Tokenizer | None = None) -> None:
        super().__init__(corpus, context, batch_size, tokenizer)
        self.splits: dict[str, Tokens] = {split: self.tokens(getattr(corpus, split)) for split in SPLITS}
        for split, tokens in self.splits.items():
            if len(tokens) < context + 1:
                raise ValueError(
                    f"--data {corpus.name} ({corpus.source}): the {split} split has {len(tokens):,} tokens, fewer "
                    f"than the {context + 1:,} that a context of {context:,} needs; give a smaller --context"
                )

    def tokens(self, content: Bytes) -> Tokens:
        return content

    def batch(self, seed: int, step: int) -> Batch:
        """Windows that start anywhere in the training split, with equal probability."""
        return self.windows_at("train", self.starts(seed, step))

    def starts(self, seed: int, step: int) -> npt.NDArray[np.int64]:
        """Where the windows of a training batch begin."""
        last_start = len(self.splits["train"]) - (self.length + 1)
        return np.random.default_rng([seed, step]).integers(0, last_start, size=self.batch_size, endpoint=True)

    def windows(self, split: str, count: int) -> Batch:
        """Evenly spaced windows of the split, see ``evenly_spaced``."""
        return self.windows_at(split, evenly_spaced_starts(self.splits[split], self.length, count))

    def windows_at(self, split: str, starts: npt.NDArray[np.int64]) -> Batch:
        """The windows of a split that begin at ``starts``."""
        return inputs_and_targets(cut(self.splits[split], starts, self.length))

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """What the model predicts of a batch's targets, which are the last of it."""
        return at_least_single(model(batch[0]))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return mean_loss(self.logits(model, batch), batch[-1])

    def training_metrics(self, loss: float, batch: Batch) -> dict[str, float]:
        return {"bits_per_byte": bits_per_byte(loss)}

    def tally(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        logits, targets = self.logits(model, batch), batch[-1]
        # In windows: where all targets count, the weight is the number of windows, without rounding.
        windows = (targets != NOT_SCORED).sum().item() / targets.shape[1]
        return {"nats": mean_loss(logits, targets).item() * windows, "windows": windows} | self._count(logits, targets)

    def _count(self, logits: Tensor, targets: Tensor) -> dict[str, float]:
        return {}

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        return {"bits_per_byte": bits_per_byte(sums["nats"] / sums["windows"])}

    def diagnosed(self, split: str, count: int) -> Tensor | None:
        return self.windows(split, count)[0]


class TextOnDevice:
    """A split that lies on a device, where batches are cut from it: of a batch only the starts come from the CPU."""

    def __init__(self, tokens: Tokens, length: int, device: torch.device) -> None:
        # PyTorch has few operations for uint16.
        whole = torch.from_numpy(np.array(tokens, tokens.dtype if tokens.dtype == np.uint8 else np.int32))
        self._tokens, self._places = whole.to(device), torch.arange(length + 1, device=device)

    def __call__(self, drawn: Batch) -> Batch:
        starts = drawn[0].to(self._tokens.device, non_blocking=True)
        return inputs_and_targets(self._tokens[starts[:, None] + self._places].long())


class NextOfText(NextToken):
    """Predicting every next token of a text as it stands."""

    def source(self, seed: int, device: torch.device) -> tuple[Callable[[int], Batch], Callable[[Batch], Batch]]:
        if device.type == "cpu":
            return super().source(seed, device)
        return (
            lambda step: (torch.from_numpy(self.starts(seed, step)),),
            TextOnDevice(self.splits["train"], self.length, device),
        )

    def floors(self, config: Config) -> list[Floor]:
        """N-grams of what seed 0 reads: up to the third order, and the one that is best on the validation windows.

        As a yardstick, what xz makes of the split: it adapts to that, and sees more of it than a window.
        """
        metric, counted = self.primary.name, WittenBell(self._read(config.steps), self.vocabulary)
        most = evaluated(config)
        windows = {split: evenly_spaced(self.splits[split], self.length, most[split]) for split in most}
        losses = {split: counted.losses(each.numpy()) for split, each in windows.items()}
        best, found = int(np.argmin(losses["validation"])), list[Floor]()
        for split, each in windows.items():
            sums = {"windows": len(each)} | self._count(torch.empty(0), each[:, 1:])
            for order, (name, nats) in enumerate(zip(NAMES, losses[split], strict=False)):
                if order < 3 or order == best:
                    value = self.metrics(sums | {"nats": nats * len(each)})[metric]
                    found.append(Floor(name=name, metric=metric, value=value, split=split))
            bits = bits_after_xz(getattr(self.corpus, split).tobytes())
            found.append(Floor(name="xz, level 9", metric=metric, value=bits, split=split, equal=False))
        return found

    def _read(self, steps: int) -> Tokens:
        """The windows that seed 0 reads in so many steps; or, if that is more than can be counted, the split, once.

        Of a split that is itself more than that, its beginning.
        """
        train = self.splits["train"]
        if steps * self.batch_size * self.length > max(MOST_COUNTED, len(train)):
            return train[None, :MOST_COUNTED]
        batches = (cut(train, self.starts(0, step), self.length) for step in range(steps))
        return np.concatenate([batch.numpy().astype(train.dtype) for batch in batches])


class NextByte(NextOfText):
    """Predicting the next byte of a text; a token is a byte."""

    name = "next byte"


class NextByteOfDocuments(NextToken):
    """Predicting the next byte where no byte of a window sees another document's; the first of each is not scored.

    A batch is inputs, the segment of each and targets. The floors are of the text as it is, and so not on equal ground:
    n-grams see the end of the document before, and first bytes count. What attention is like is not measured.
    """

    name = "next byte of documents"

    def __init__(self, corpus: Corpus, context: int, batch_size: int) -> None:
        super().__init__(corpus, context, batch_size)
        assert corpus.documents is not None
        begins, end = corpus.documents, np.cumsum([len(getattr(corpus, split)) for split in SPLITS])
        self._begins = {split: begins - (end[at] - len(self.splits[split])) for at, split in enumerate(SPLITS)}

    def windows_at(self, split: str, starts: npt.NDArray[np.int64]) -> Batch:
        inputs, targets = super().windows_at(split, starts)
        places = starts[:, None] + np.arange(self.length + 1)
        number = torch.from_numpy(np.searchsorted(self._begins[split], places, side="right"))
        return inputs, number[:, :-1], targets.masked_fill(number[:, 1:] != number[:, :-1], NOT_SCORED)

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        return at_least_single(model(batch[0], segment_ids=batch[1]))

    def floors(self, config: Config) -> list[Floor]:
        found = NextByte(self.corpus, self.length, self.batch_size).floors(config)
        return [structs.replace(floor, equal=False) for floor in found]

    def diagnosed(self, split: str, count: int) -> None:
        return None


class NextSubword(NextOfText):
    """Predicting the next subword of a text; bits per byte are of the bytes that the targets stand for."""

    name = "next subword"
    tokenizer: SubwordTokenizer

    @cached_property
    def _lengths(self) -> Tensor:
        return torch.tensor([len(piece) for piece in self.tokenizer.pieces])

    def tokens(self, content: Bytes) -> Tokens:
        return self.tokenizer.encode(content)

    def training_metrics(self, loss: float, batch: Batch) -> dict[str, float]:
        return {"bits_per_byte": bits_per_byte(loss * batch[1].numel() / self._bytes_of(batch[1]))}

    def _count(self, logits: Tensor, targets: Tensor) -> dict[str, float]:
        return {"bytes": self._bytes_of(targets)}

    def _bytes_of(self, targets: Tensor) -> float:
        return float(self._lengths[targets.cpu()].sum())

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        nats, tokens = sums["nats"] / sums["windows"], sums["windows"] * self.length / sums["bytes"]
        return {"bits_per_byte": bits_per_byte(nats * tokens), "nats_per_token": nats, "tokens_per_byte": tokens}


class GeneratedSequences(NextToken):
    """Predicting those tokens of generated sequences that can be known (recall, copying); a token is kept in a byte.

    Raises ValueError if ``context`` is not the length of the sequences.
    """

    name = "answers in sequences"
    primary = Metric("accuracy", "share of answers", "higher")
    loss_unit = "nats/answer"

    def __init__(self, corpus: Corpus, context: int, batch_size: int) -> None:
        assert corpus.sequences is not None
        self.sequences = corpus.sequences
        if context != self.sequences.length:
            raise ValueError(
                f"--context is {context}, but the sequences of --data {corpus.name} have {self.sequences.length} "
                f"tokens, none of which can be left out; give --context {self.sequences.length}"
            )
        Objective.__init__(self, corpus, context, batch_size)

    def batch(self, seed: int, step: int) -> Batch:
        """New sequences, and what is to be predicted, NOT_SCORED where nothing is asked."""
        return self._scored(self.sequences.draw_training(split_generator("train", seed, step), self.batch_size))

    def windows(self, split: str, count: int) -> Batch:
        """The first ``count`` sequences of a split, or all if it has fewer."""
        return self._scored(getattr(self.corpus, split).reshape(-1, self.length + 1)[:count])

    def _scored(self, content: Bytes) -> Batch:
        tokens = content.astype(np.int64)
        return torch.from_numpy(tokens)[:, :-1], torch.from_numpy(self.sequences.targets(tokens))

    def _count(self, logits: Tensor, targets: Tensor) -> dict[str, float]:
        return {"right": int((logits.argmax(-1) == targets).sum())}

    def floors_on(self, split: str, windows: int, steps: int) -> dict[str, float]:
        """Of guessing among all that is ever an answer."""
        answers = self._scored(self.sequences.draw_training(split_generator("train", 0, 0), GUESSED_FROM))[1]
        return {GUESSING: 1 / len(np.unique(answers[answers != NOT_SCORED]))}

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """``accuracy``: the share of scored targets that have the largest logit."""
        return super().metrics(sums) | {"accuracy": sums["right"] / (sums["windows"] * self.length)}


def evaluated(config: Config) -> dict[Split, int]:
    """The splits that runs are evaluated on, and the most windows of each."""
    return {"validation": config.evaluation_windows, "test": config.test_windows}


def floors_of(objective: Objective, config: Config, known: Sequence[Floor]) -> list[Floor]:
    """The floors of runs of ``config`` and of each of its budgets; those that are ``known`` are not computed again."""
    found = list[Floor]()
    for steps in (*budget_steps(config.budgets), config.steps):
        there = [floor for floor in known if floor.steps == steps]
        run = dataclasses.replace(config, steps=steps, budgets="none")
        found += there or [structs.replace(floor, steps=steps) for floor in objective.floors(run)]
    return found


def inputs_and_targets(windows: Tensor) -> Batch:
    """Of windows (B, N + 1): the first N tokens, and the last N."""
    return windows[:, :-1], windows[:, 1:]


def evenly_spaced(content: Tokens, length: int, count: int) -> Tensor:
    """At most ``count`` evenly spaced windows of ``length`` + 1 tokens, from the first token to the last; int64.

    There are so many at most that no token is predicted twice (the last target of a window may be the first input of
    the next).
    """
    return cut(content, evenly_spaced_starts(content, length, count), length)


def evenly_spaced_starts(content: Tokens, length: int, count: int) -> npt.NDArray[np.int64]:
    """Where those windows begin."""
    count = min(count, (len(content) - 1) // length)
    last_start = len(content) - (length + 1)
    return np.arange(count) * last_start // max(count - 1, 1)


def cut(content: Tokens, starts: np.ndarray, length: int) -> Tensor:
    """The windows of ``length`` + 1 tokens that begin there, int64."""
    return torch.from_numpy(content[starts[:, None] + np.arange(length + 1)].astype(np.int64))
