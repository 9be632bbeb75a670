"""Translating texts with an encoder and a decoder (Vaswani et al. 2017, arXiv 1706.03762)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.config import Config
from experiments.data.examples import Examples
from experiments.records.schema import UNIGRAM, Floor
from experiments.train.counting import word_by_word
from experiments.train.from_examples import FromExamples, Numbers, padded
from experiments.train.objectives import Batch, EachToken, Metric, at_least_single, unigram_loss
from experiments.train.tokens import BEGIN_ID, END_ID, PAD_ID, Ids, TextTokenizer, of_texts
from linear_rope.model import EncoderDecoder

BEAMS, LENGTH_PENALTY = 4, 0.6
"""of the search for a translation (Vaswani et al. 2017, section 6.1)"""
AS_IT_IS = "the text as it is"
TOKENIZERS = {"zh": "zh"} | dict.fromkeys(("ja", "km", "lo", "my", "th"), "char")
"""of sacrebleu, for target languages written without spaces; the others have its default, 13a"""
AT_ONCE = 32
"""texts that are translated at once"""


class Translation(EachToken, FromExamples):
    """Predicting each next token of a translation from those before it and the text.

    A source is its tokens and [SEP], a target [CLS], its tokens and [SEP]; both are cut so that the model reads at most
    ``context`` tokens of each, and what is cut off a target takes its [SEP] with it. A batch is sources (B, K) and
    targets (B, N), int64 with 0 at padding; of the training split it holds pairs of about one length (Vaswani et al.,
    section 5.1), in a random order of batches.
    """

    name = kind = "translation"
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

    def sequences(self, split: str, chosen: Numbers) -> list[tuple[Ids, Ids]]:
        pairs = self.ids_of(split, chosen)
        return [(source_of(source, self.length), target_of(target, self.length)) for source, target in pairs]

    def batch_of(self, split: str, chosen: Numbers) -> Batch:
        sources, targets = zip(*self.sequences(split, chosen), strict=True)
        return torch.from_numpy(padded(sources)), torch.from_numpy(padded(targets))

    def scored(self, batch: Batch) -> int:
        return int((batch[1][:, 1:] != PAD_ID).sum())

    def tokens_in(self, batch: Batch, config: Config) -> int:
        """What is read of the texts and predicted of their translations, without padding."""
        return int((batch[0] != PAD_ID).sum()) + self.scored(batch)

    def predict(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Of all tokens of the targets but the first."""
        source, target = batch
        # A batch of an evaluation is padded to the longest of the split.
        source, target = (x[:, : int((x != PAD_ID).sum(1).max())] for x in (source, target))
        wanted = target[:, 1:]
        there = wanted != PAD_ID
        return at_least_single(model(source, target[:, :-1], source == PAD_ID, there)), wanted[there]

    def floors_on(self, split: str, windows: int, steps: int) -> dict[str, float]:
        known, wanted = self._targets("train", self.read(steps)), self._targets(split, self.chosen(split, windows))
        return {UNIGRAM: unigram_loss(known, wanted, self.vocabulary)}

    def floors(self, config: Config) -> list[Floor]:
        """Besides, the BLEU of texts that are not translated, or word by word."""
        pairs = self.examples.train.iloc[self.read(config.steps)]
        rows = self.examples.test.iloc[self.chosen("test", config.test_windows)]
        texts, wanted = rows["source"].tolist(), rows["target"].tolist()
        said = {AS_IT_IS: texts, "word by word": word_by_word(pairs["source"], pairs["target"], texts)}
        scores = {name: corpus_bleu(each, wanted, self.examples.language)[0] for name, each in said.items()}
        return super().floors(config) + [Floor(name=name, metric="bleu", value=bleu) for name, bleu in scores.items()]

    def _targets(self, split: str, numbers: np.ndarray) -> np.ndarray:
        """The tokens that are to be predicted in these examples."""
        return np.concatenate([target[1:] for _, target in self.sequences(split, numbers)])


def source_of(text: Ids, length: int) -> Ids:
    """The tokens and [SEP], at most ``length`` in all."""
    return np.append(text[: length - 1], np.uint16(END_ID))


def target_of(text: Ids, length: int) -> Ids:
    """[CLS], the tokens and [SEP]; of these ``length`` + 1, as the last is not read but predicted."""
    return np.concatenate([[BEGIN_ID], text, [END_ID]]).astype(np.uint16)[: length + 1]


def translate(
    model: EncoderDecoder, tokenizer: TextTokenizer, context: int, texts: Sequence[str], **search: Any
) -> list[str]:
    """The translation of each text, of a blank one nothing; what is beyond the context is not read.

    ``model`` is in eval mode; ``search`` are the ``beams`` and the ``length_penalty`` of its ``translate``. Raises
    ValueError if it cannot have such beams.
    """
    sources = [source_of(ids, context) for ids in tokenizer.encode(list(texts))]
    device, found = next(model.parameters()).device, [""] * len(texts)
    ends = {"begin": BEGIN_ID, "end": END_ID, "longest": context}
    how = ends | {"beams": BEAMS, "length_penalty": LENGTH_PENALTY} | search
    # Texts of about one length together, so that little is padded.
    order = sorted((n for n, text in enumerate(texts) if text.strip()), key=lambda n: len(sources[n]))
    for start in range(0, len(order), AT_ONCE):
        chosen = order[start : start + AT_ONCE]
        source = torch.from_numpy(padded([sources[n] for n in chosen])).to(device)
        for n, ids in zip(chosen, model.translate(source, source == PAD_ID, **how).tolist(), strict=True):
            found[n] = tokenizer.decode(ids)
    return found


def corpus_bleu(translations: Sequence[str], references: Sequence[str], language: str = "") -> tuple[float, str]:
    """BLEU in percent, and sacrebleu's signature, which names the tokenizer of the references' ``language``.

    Raises ValueError if sacrebleu is not installed.
    """
    metric = _sacrebleu().BLEU(tokenize=TOKENIZERS.get(language))
    score = metric.corpus_score(list(translations), [list(references)])
    return float(score.score), str(metric.get_signature())


def _sacrebleu() -> Any:
    return of_texts("sacrebleu.metrics", "--data is translations, which are judged by sacrebleu")
