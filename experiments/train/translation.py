"""Translating texts with an encoder and a decoder (Vaswani et al. 2017, arXiv 1706.03762)."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.config import Config
from experiments.console import install_command
from experiments.data.examples import SPLITS, Examples
from experiments.records.schema import UNIGRAM, Floor
from experiments.train.checkpoint import averaged_weights
from experiments.train.dictionary import word_by_word
from experiments.train.from_examples import FromExamples, padded
from experiments.train.models import Trained, refuse_another_library
from experiments.train.objectives import Batch, Metric, at_least_single, evaluated, unigram_loss
from experiments.train.text_tokens import BEGIN_ID, END_ID, PAD_ID, Ids, TextTokenizer
from linear_rope.blocks import MakeAttention
from linear_rope.model import EncoderDecoder
from linear_rope.model_config import ModelConfig

BEAMS, LENGTH_PENALTY = 4, 0.6
"""of the search for a translation (Vaswani et al. 2017, section 6.1)"""
AS_IT_IS = "the text as it is"
TOKENIZERS = {"zh": "zh"} | dict.fromkeys(("ja", "km", "lo", "my", "th"), "char")
"""of sacrebleu, for target languages written without spaces; the others have its default, 13a"""
AT_ONCE = 32
"""texts that are translated at once"""


@dataclass
class TranslationModel(Trained):
    """What a translator is built from, where its data need not be at hand."""

    vocabulary: int
    length: int

    def model(self, config: ModelConfig, attention: MakeAttention | None) -> nn.Module:
        refuse_another_library(attention, "decoder")
        return EncoderDecoder(config)


class Translation(FromExamples):
    """Predicting each next token of a translation from those before it and the text.

    A source is its tokens and [SEP], a target [CLS], its tokens and [SEP]; both are cut so that the model reads at most
    ``context`` tokens of each, and what is cut off a target takes its [SEP] with it. A batch is sources (B, K) and
    targets (B, N), int64 with 0 at padding; of the training split it holds pairs of about one length (Vaswani et al.,
    section 5.1), in a random order of batches.
    """

    name = "translation"
    primary = Metric("nats_per_token", "nats per token", "lower")
    loss_unit = "nats/token"

    def __init__(
        self,
        examples: Examples,
        context: int,
        batch_size: int,
        tokenizer: TextTokenizer,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(examples, context, batch_size, tokenizer)
        _sacrebleu()  # what is missing is to be said before anything is trained
        self.label_smoothing = label_smoothing
        self._tokens = {split: self._encode(split) for split in SPLITS}

    def model(self, config: ModelConfig, attention: MakeAttention | None) -> nn.Module:
        return TranslationModel(self.vocabulary, self.length).model(config, attention)

    def _encode(self, split: str) -> list[tuple[Ids, Ids]]:
        texts = self.examples.texts(split)
        sources, targets = (self.tokenizer.encode(texts[name].tolist()) for name in ("source", "target"))
        return [
            (source_of(source, self.length), target_of(target, self.length))
            for source, target in zip(sources, targets, strict=True)
        ]

    @cached_property
    def _sizes(self) -> np.ndarray:
        return np.array(self._lengths("train", range(len(self.examples.train))))

    def _lengths(self, split: str, chosen: Sequence[int] | np.ndarray) -> list[int]:
        return [max(map(len, self._tokens[split][index])) for index in chosen]

    def _batch(self, split: str, chosen: Sequence[int] | np.ndarray) -> Batch:
        sources, targets = zip(*(self._tokens[split][index] for index in chosen), strict=True)
        return torch.from_numpy(padded(sources)), torch.from_numpy(padded(targets))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits, wanted = self._predict(model, batch)
        return F.cross_entropy(logits, wanted, label_smoothing=self.label_smoothing)

    def scored(self, batch: Batch) -> int:
        return int((batch[1][:, 1:] != PAD_ID).sum())

    def tokens_in(self, batch: Batch, config: Config) -> int:
        """What is read of the texts and predicted of their translations, without padding."""
        return int((batch[0] != PAD_ID).sum()) + self.scored(batch)

    def _predict(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits (tokens, vocabulary) of all tokens of the targets but the first, and those tokens."""
        source, target = batch
        # A batch of an evaluation is padded to the longest of the split.
        source, target = (x[:, : int((x != PAD_ID).sum(1).max())] for x in (source, target))
        wanted = target[:, 1:]
        there = wanted != PAD_ID
        return at_least_single(model(source, target[:, :-1], source == PAD_ID, there)), wanted[there]

    def training_metrics(self, loss: float, batch: Batch) -> dict[str, float]:
        return {} if self.label_smoothing else {"nats_per_token": loss}

    def tally(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        logits, wanted = self._predict(model, batch)
        nats = F.cross_entropy(logits, wanted, reduction="sum").item()
        return {"nats": nats, "tokens": len(wanted), "right": int((logits.argmax(-1) == wanted).sum())}

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """Without smoothing. ``accuracy``: the share of tokens that have the largest logit, each behind the right
        ones.
        """
        return {"nats_per_token": sums["nats"] / sums["tokens"], "accuracy": sums["right"] / sums["tokens"]}

    def floors(self, config: Config) -> list[Floor]:
        """Of the unigram model; and the BLEU of texts that are not translated, or word by word."""
        read, found = self.read(config.steps), list[Floor]()
        known, pairs = self._targets("train", read), self.examples.train.iloc[read]
        for split, most in evaluated(config).items():
            chosen = self.chosen(split, most)
            nats = unigram_loss(known, self._targets(split, chosen), self.vocabulary)
            found.append(Floor(name=UNIGRAM, metric=self.primary.name, value=nats, split=split))
        rows = self.examples.test.iloc[self.chosen("test", config.test_windows)]
        texts, wanted = rows["source"].tolist(), rows["target"].tolist()
        said = {AS_IT_IS: texts, "word by word": word_by_word(pairs["source"], pairs["target"], texts)}
        scores = {name: corpus_bleu(each, wanted, self.examples.language)[0] for name, each in said.items()}
        return found + [Floor(name=name, metric="bleu", value=value) for name, value in scores.items()]

    def _targets(self, split: str, numbers: np.ndarray) -> np.ndarray:
        """The tokens that are to be predicted in these examples."""
        return np.concatenate([self._tokens[split][index][1][1:] for index in numbers])


def source_of(text: Ids, length: int) -> Ids:
    """The tokens and [SEP], at most ``length`` in all."""
    return np.append(text[: length - 1], np.uint16(END_ID))


def target_of(text: Ids, length: int) -> Ids:
    """[CLS], the tokens and [SEP]; of these ``length`` + 1, as the last is not read but predicted."""
    return np.concatenate([[BEGIN_ID], text, [END_ID]]).astype(np.uint16)[: length + 1]


class Translator:
    """A trained model and its tokenizer.

    Args:
        model: in eval mode.
        tokenizer: that of its comparison.
        context: tokens of the longest text that it reads and writes.
    """

    def __init__(self, model: EncoderDecoder, tokenizer: TextTokenizer, context: int) -> None:
        self.model, self.tokenizer, self.context = model, tokenizer, context

    def translate(
        self, texts: Sequence[str], *, beams: int = BEAMS, length_penalty: float = LENGTH_PENALTY
    ) -> list[str]:
        """The translation of each text, of a blank one nothing; what is beyond the context is not read.

        Raises ValueError if the search cannot have such ``beams``.
        """
        sources = [source_of(ids, self.context) for ids in self.tokenizer.encode(list(texts))]
        device = next(self.model.parameters()).device
        found = [""] * len(texts)
        # Texts of about one length together, so that little is padded.
        written_out = [index for index, text in enumerate(texts) if text.strip()]
        order = sorted(written_out, key=lambda index: len(sources[index]))
        for start in range(0, len(order), AT_ONCE):
            chosen = order[start : start + AT_ONCE]
            source = torch.from_numpy(padded([sources[index] for index in chosen])).to(device)
            written = self.model.translate(
                source,
                source == PAD_ID,
                begin=BEGIN_ID,
                end=END_ID,
                beams=beams,
                length_penalty=length_penalty,
                longest=self.context,
            )
            for index, ids in zip(chosen, written.tolist(), strict=True):
                found[index] = self.tokenizer.decode(ids)
        return found


def load_average(directory: Path, model: nn.Module, config: Config) -> int:
    """Give ``model`` the mean of the weights of a run's last checkpoints; returns how many there were.

    ``directory`` is the run's. Raises ValueError or OSError if its final checkpoint is not whole.
    """
    weights, count = averaged_weights(
        directory / "checkpoint",
        model,
        steps=config.steps,
        every=config.checkpoint_every,
        count=config.kept_checkpoints,
    )
    model.load_state_dict(weights)
    return count


def corpus_bleu(translations: Sequence[str], references: Sequence[str], language: str = "") -> tuple[float, str]:
    """BLEU in percent, and sacrebleu's signature, which names the tokenizer of the references' ``language``.

    Raises ValueError if sacrebleu is not installed.
    """
    metric = _sacrebleu().BLEU(tokenize=TOKENIZERS.get(language))
    score = metric.corpus_score(list(translations), [list(references)])
    return float(score.score), str(metric.get_signature())


def _sacrebleu() -> Any:
    try:
        return importlib.import_module("sacrebleu.metrics")
    except ImportError:
        raise ValueError(
            "--data is translations, which sacrebleu judges, and it is not installed; give " + install_command("texts")
        ) from None
