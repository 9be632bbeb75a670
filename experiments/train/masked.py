"""Predicting hidden tokens of a text from those on both sides (BERT: Devlin et al. 2018, arXiv 1810.04805)."""

import numpy as np
import torch
from torch import Tensor, nn

from experiments.data.corpus import NOT_SCORED, Bytes, Corpus, Tokens
from experiments.data.generated import split_generator
from experiments.records.schema import UNIGRAM
from experiments.train.objectives import (
    Batch,
    EachToken,
    Metric,
    NextToken,
    at_least_single,
    evenly_spaced,
    unigram_loss,
)
from experiments.train.tokens import BEGIN_ID, END_ID, MASK_ID, SPECIAL, TextTokenizer

HIDDEN = 0.15
"""share of the tokens that are to be predicted; of these 80 % are masked, 10 % become another, 10 % stay"""


class MaskedToken(EachToken, NextToken):
    """Predicting 15 % of the tokens of a text, in both directions.

    A window is [CLS], context − 2 tokens of the text, [SEP]. A batch is inputs and targets, int64 (B, context); the
    targets are NOT_SCORED where nothing was hidden.
    """

    name, kind = "masked token", "masked"
    primary = Metric("nats_per_masked_token", "nats per masked token", "lower")
    tokenizer: TextTokenizer

    def tokens(self, content: Bytes) -> Tokens:
        return self.tokenizer.encode_once(lines(content))

    def batch(self, seed: int, step: int) -> Batch:
        """Windows that start anywhere in the training split, and what is hidden in them, drawn anew for every step."""
        train, generator = self.splits["train"], np.random.default_rng([seed, step])
        starts = generator.integers(0, len(train) - (self.length - 2), size=self.batch_size, endpoint=True)
        return self._hide(train[starts[:, None] + np.arange(self.length - 2)], generator)

    def windows(self, split: str, count: int) -> Batch:
        """Evenly spaced windows of the split, in which always the same tokens are hidden."""
        found = evenly_spaced(self.splits[split], self.length - 2, count)[:, :-1]
        return self._hide(found.numpy(), split_generator(split, 0, 0))

    def _hide(self, tokens: Tokens, generator: np.random.Generator) -> Batch:
        whole = tokens.astype(np.int64)
        hidden = generator.random(whole.shape) < HIDDEN
        hidden[:, 0] |= ~hidden.any(1)  # a window in which nothing is asked has no loss
        how = generator.random(whole.shape)
        others = generator.integers(len(SPECIAL), self.vocabulary, size=whole.shape)
        inputs = np.where(hidden & (how < 0.8), MASK_ID, np.where(hidden & (how >= 0.9), others, whole))
        targets = np.where(hidden, whole, NOT_SCORED)
        ends = ((0, 0), (1, 1))
        inputs = np.pad(inputs, ends, constant_values=((0, 0), (BEGIN_ID, END_ID)))
        return torch.from_numpy(inputs), torch.from_numpy(np.pad(targets, ends, constant_values=NOT_SCORED))

    def predict(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        inputs, targets = batch
        at = targets != NOT_SCORED
        return at_least_single(model(inputs, at)), targets[at]

    def floors_on(self, split: str, windows: int, steps: int) -> dict[str, float]:
        targets = self.windows(split, windows)[1].numpy()
        return {UNIGRAM: unigram_loss(self.splits["train"], targets[targets != NOT_SCORED], self.vocabulary)}


def lines(content: Bytes) -> list[str]:
    """The lines of a text in UTF-8; bytes that are none become replacement characters."""
    return content.tobytes().decode(errors="replace").split("\n")


def lines_of(corpus: Corpus) -> list[str]:
    """The lines to train on.

    Raises ValueError if a corpus is not UTF-8, whose letters would be lost; between its splits it may be cut.
    """
    content = b"".join(split.tobytes() for split in (corpus.train, corpus.validation, corpus.test))
    try:
        content.decode()
    except UnicodeDecodeError as error:
        row = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"--data {corpus.name}: {corpus.source}, row {row} is not UTF-8 ({error.reason}), and WordPiece reads "
            "letters; convert the text to UTF-8"
        ) from None
    return lines(corpus.train)
