"""Predicting the next byte: what every comparison trains and how it is measured.

Of a text every byte counts; of generated sequences (recall, copying) those that can be known.
"""

import math

import numpy as np
import torch

from experiments.data.corpus import Bytes, Corpus
from experiments.data.synthetic import split_generator


def bits_per_byte(nats_per_token: float) -> float:
    """A mean cross-entropy in nats per token as bits per byte. Every token is one byte."""
    return nats_per_token / math.log(2)


class ByteLanguageModel:
    """Batches and evaluation windows of a corpus. Tokens are bytes; nothing here has a state.

    A window has ``context + 1`` tokens: the first ``context`` are the inputs, the last ``context`` their targets.

    Raises ValueError if a split of the corpus is shorter than one window.
    """

    measures_accuracy = False
    """whether evaluations tell the share of scored targets that were predicted right"""

    def __init__(self, corpus: Corpus, context: int, batch_size: int) -> None:
        for split, length in corpus.describe().splits.items():
            if length < context + 1:
                raise ValueError(
                    f"--data {corpus.name} ({corpus.source}): the {split} split has {length:,} bytes, fewer than the "
                    f"{context + 1:,} that a context of {context:,} needs; give a smaller --context or a longer file"
                )
        self.corpus = corpus
        self.context = context
        self.batch_size = batch_size

    def batch(self, seed: int, step: int) -> torch.Tensor:
        """The training batch of an optimiser step, int64 of shape (batch_size, context + 1).

        A pure function of ``seed`` and ``step`` (both at least 0): every variant of a seed sees the same batches, and
        a resumed run needs no loader state. Windows start anywhere in the training split, with equal probability.
        """
        last_start = len(self.corpus.train) - (self.context + 1)
        starts = np.random.default_rng([seed, step]).integers(0, last_start, size=self.batch_size, endpoint=True)
        return _windows_at(self.corpus.train, starts, self.context)

    def windows(self, split: str, count: int) -> torch.Tensor:
        """At most ``count`` evenly spaced windows of a split, int64 of shape (count or fewer, context + 1).

        Always the same ones, from the first byte to the last, and so many at most that no byte is predicted twice
        (the last target of a window may be the first input of the next). ``split``: train, validation or test.
        """
        return evenly_spaced(getattr(self.corpus, split), self.context, count)

    def targets(self, tokens: torch.Tensor) -> torch.Tensor:
        """What is to be predicted at each position, int64 of shape (B, N), NOT_SCORED where nothing is asked.

        ``tokens`` (B, N + 1) are those of ``batch`` or ``windows``. Of a text every next byte counts.
        """
        return tokens[:, 1:]


def evenly_spaced(content: Bytes, length: int, count: int) -> torch.Tensor:
    """At most ``count`` windows of ``length`` + 1 bytes, as ``ByteLanguageModel.windows`` says; int64."""
    count = min(count, (len(content) - 1) // length)
    last_start = len(content) - (length + 1)
    return _windows_at(content, np.arange(count) * last_start // max(count - 1, 1), length)


def _windows_at(content: Bytes, starts: np.ndarray, length: int) -> torch.Tensor:
    return torch.from_numpy(content[starts[:, None] + np.arange(length + 1)].astype(np.int64))


class SequenceModel(ByteLanguageModel):
    """Batches and evaluation windows of generated sequences, of which only some targets are scored.

    Raises ValueError if ``context`` is not the length of the sequences.
    """

    measures_accuracy = True

    def __init__(self, corpus: Corpus, context: int, batch_size: int) -> None:
        assert corpus.sequences is not None
        self.sequences = corpus.sequences
        if context != self.sequences.length:
            raise ValueError(
                f"--context is {context}, but the sequences of --data {corpus.name} have {self.sequences.length} "
                f"tokens, none of which can be left out; give --context {self.sequences.length}"
            )
        self.corpus = corpus
        self.context = context
        self.batch_size = batch_size

    def batch(self, seed: int, step: int) -> torch.Tensor:
        """New sequences, int64 of shape (batch_size, context + 1); a pure function of ``seed`` and ``step``."""
        return self._tokens(self.sequences.draw_training(split_generator("train", seed, step), self.batch_size))

    def windows(self, split: str, count: int) -> torch.Tensor:
        """The first ``count`` sequences of a split (validation or test), or all if it has fewer; always the same."""
        content: Bytes = getattr(self.corpus, split)
        return self._tokens(content.reshape(-1, self.context + 1)[:count])

    def targets(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self.sequences.targets(tokens.numpy()))

    def _tokens(self, content: Bytes) -> torch.Tensor:
        return torch.from_numpy(content.astype(np.int64))


def make_task(corpus: Corpus, context: int, batch_size: int) -> ByteLanguageModel:
    """What a corpus is trained and evaluated with. Raises ValueError if the context does not fit it."""
    kind = ByteLanguageModel if corpus.sequences is None else SequenceModel
    return kind(corpus, context, batch_size)
