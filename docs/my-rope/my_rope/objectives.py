"""A kind of training: is a stretch of text the right way round?"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.train.objectives import Batch, Metric, Objective
from linear_rope import Encoder
from linear_rope.blocks import initialise


class Classifier(nn.Module):
    """Two scores for each sequence: the mean of an encoder's representations, and a matrix."""

    def __init__(self, config) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(config), nn.Linear(config.dim, 2)
        initialise(self, config)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(tokens).mean(dim=1))


class ReadBackwards(Objective):
    """Windows of the text, half of them reversed; a batch is (B, context) tokens and (B,) classes."""

    name, vocabulary = "read backwards", 256
    primary = Metric("accuracy", "share of stretches", "higher")

    def __init__(self, corpus, config) -> None:
        self.corpus, self.length, self.batch_size = corpus, config.context, config.batch_size

    def batch(self, seed: int, step: int) -> Batch:
        return self._drawn(self.corpus.train, np.random.default_rng([seed, step]), self.batch_size)

    def windows(self, split: str, count: int) -> Batch:
        return self._drawn(getattr(self.corpus, split), np.random.default_rng(0), count)

    def _drawn(self, content: np.ndarray, generator: np.random.Generator, count: int) -> Batch:
        starts = generator.integers(0, len(content) - self.length, size=(count, 1))
        tokens = content[starts + np.arange(self.length)].astype(np.int64)
        is_reversed = generator.integers(0, 2, size=count)
        tokens = np.where(is_reversed[:, None] == 1, tokens[:, ::-1], tokens)
        return torch.from_numpy(tokens.copy()), torch.from_numpy(is_reversed)

    def model(self, config, attention) -> nn.Module:
        return Classifier(config)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch[0]).float(), batch[1])

    def tally(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        scores = model(batch[0]).float()
        right = (scores.argmax(-1) == batch[1]).sum().item()
        return {"right": right, "nats": F.cross_entropy(scores, batch[1], reduction="sum").item(), "n": len(scores)}

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        return {"accuracy": sums["right"] / sums["n"], "loss": sums["nats"] / sums["n"]}
