"""Classifying and comparing texts: one text, two, or which of two is nearer to a third.

Fine-tuning begins with the encoder of a comparison of masked tokens (``--initial-weights``), or from nothing.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn

from experiments.config import Config
from experiments.data.examples import NEARER, SPLITS, Examples
from experiments.records.schema import ONE_ANSWER, ObjectiveRecord
from experiments.train.counting import naive_bayes, overlap, repeated
from experiments.train.from_examples import FromExamples, Numbers, padded
from experiments.train.objectives import Batch, Metric, at_least_single
from experiments.train.pretrained import Pretrained
from experiments.train.tokens import BEGIN_ID, END_ID, PAD_ID, Ids, TextTokenizer, of_texts
from experiments.variants import Variant
from linear_rope.heads import Classifier

ACCURACY = Metric("accuracy", "share of examples", "higher")
SPEARMAN = Metric("spearman", "Spearman's rank correlation", "higher")
F1 = Metric("f1", "F1 of the second class", "higher")
METRICS = {
    "mrpc": F1,
    "qqp": F1,
    "qqp-part": F1,
    "cola": Metric("matthews", "Matthews correlation", "higher"),
}
"""what GLUE judges classes by, where that is not accuracy; scores are judged by Spearman's correlation"""

LABELS = "labels of"
"""how the name of the objective begins"""


def classify(
    model: nn.Module, tokenizer: TextTokenizer, context: int, record: ObjectiveRecord, examples: Sequence[Sequence[str]]
) -> list[str] | list[float]:
    """The class or the score of each example; what is beyond the context is not read.

    ``model`` is in eval mode. Raises ValueError if an example has another number of texts than those of ``record``.
    """
    said: list[Any] = []
    for texts in examples:
        if len(texts) != record.texts:
            raise ValueError(f"examples has one of {len(texts)} texts; give {record.texts} in each")
        tokens = torch.from_numpy(padded(sequences_of(tokenizer.encode(list(texts)), context)))
        with torch.no_grad():
            tokens = tokens.to(next(model.parameters()).device)
            found = model(tokens, tokens == PAD_ID).float().flatten()
        said.append(record.classes[int(found.argmax())] if record.classes else found.item())
    return said


class Classification(FromExamples):
    """Predicting the class of one text or two, a score of two, or which of two texts is nearer to a third.

    A text is [CLS] tokens [SEP]; two are [CLS] first [SEP] second [SEP], of which the longer one is cut. A batch is
    the tokens, int64 (B, choices, N) with 0 at padding, where choices is 1, or 2 texts to choose from; and the labels
    (B,), int64 or, of scores, float32. Which texts are in it, and their order, do not depend on the context.
    """

    kind, loss_unit = "labels", "nats/example"

    def __init__(
        self,
        examples: Examples,
        context: int,
        batch_size: int,
        tokenizer: TextTokenizer,
        pretrained: Pretrained | None = None,
    ) -> None:
        super().__init__(examples, context, batch_size, tokenizer)
        self.pretrained = pretrained
        self.primary = METRICS.get(examples.name, ACCURACY if examples.classes else SPEARMAN)
        self.name = f"{LABELS} {examples.name}"
        if self.primary.name in ("f1", "matthews"):
            _sklearn()  # what is missing is to be said before anything is trained
        self.is_score = not examples.classes
        self.outputs = 1 if examples.kind == "triplet" else max(1, len(examples.classes))
        self._labels = {split: examples.labels(split) for split in SPLITS}

    def prepare(self, model: nn.Module, variant: Variant, seed: int) -> None:
        if self.pretrained is not None:
            assert isinstance(model, Classifier)
            self.pretrained.load_into(model.encoder, variant, seed)

    def initial_weights(self, variant: Variant, seed: int) -> str:
        return "" if self.pretrained is None else self.pretrained.sha256(variant, seed)

    def describe(self) -> ObjectiveRecord:
        texts = len(self.examples.texts("train").columns)
        return msgspec.structs.replace(super().describe(), classes=list(self.examples.classes), texts=texts)

    def whole_lengths(self, split: str, chosen: Numbers) -> np.ndarray:
        """Tokens of all texts of each of these examples, however many of them are read."""
        return np.array([sum(map(len, texts)) for texts in self.ids_of(split, chosen)])

    def sequences(self, split: str, chosen: Numbers) -> list[list[Ids]]:
        """Examples as they are read, begun, ended and cut: one sequence each, or of a triplet one for each choice."""
        return [sequences_of(texts, self.length) for texts in self.ids_of(split, chosen)]

    def batch_of(self, split: str, chosen: Numbers) -> Batch:
        texts = self.sequences(split, chosen)
        tokens = padded([one for text in texts for one in text])
        labels = torch.from_numpy(self._labels[split][np.asarray(chosen)])
        tokens = tokens.reshape(len(texts), len(texts[0]), -1)
        return torch.from_numpy(tokens), labels.float() if self.is_score else labels

    def predict(self, model: nn.Module, tokens: Tensor) -> Tensor:
        """(B, choices, N) → logits (B, classes), or scores (B,)."""
        flat = tokens.flatten(0, 1)
        flat = flat[:, : int((flat != PAD_ID).sum(1).max())]
        found = at_least_single(model(flat, flat == PAD_ID))
        if self.is_score:
            return found.squeeze(-1)
        return found.view(len(tokens), -1)

    def tokens_in(self, batch: Batch, config: Config) -> int:
        return int((batch[0] != PAD_ID).sum())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._loss(self.predict(model, batch[0]), batch[1])

    def _loss(self, found: Tensor, labels: Tensor) -> Tensor:
        return F.mse_loss(found, labels) if self.is_score else F.cross_entropy(found, labels)

    def tally(self, model: nn.Module, batch: Batch) -> dict[str, Any]:
        found, labels = self.predict(model, batch[0]), batch[1]
        said = found if self.is_score else found.argmax(-1)
        loss = self._loss(found, labels).item() * len(labels)
        return {"loss": loss, "said": said.tolist(), "labels": labels.tolist()}

    def floors_on(self, split: str, windows: int, steps: int) -> dict[str, float]:
        """Of the best constant answer; of one text naive Bayes, of several the words that they have in common.

        What is learnt is learnt from those of the training split that are read.
        """
        chosen, read = self.chosen(split, windows), self.read(steps)
        labels, seen = self._labels[split][chosen], self._labels["train"][read]
        tested, known = getattr(self.examples, split).iloc[chosen], self.examples.train.iloc[read]
        constants = [0] if self.is_score else range(len(self.examples.classes))
        found = {ONE_ANSWER: max(self._score(np.full(len(labels), each), labels) for each in constants)}
        if self.examples.kind == "text":
            for name, bigrams in {"unigram naive Bayes": False, "bigram naive Bayes": True}.items():
                texts = known["text"].tolist(), seen, tested["text"].tolist()
                found[name] = self._score(naive_bayes(*texts, len(self.examples.classes), bigrams), labels)
        for name, measure in {"word overlap": overlap, "words repeated": repeated}.items():
            if self.examples.kind == "triplet":
                near = [measure(tested["text"], tested[each]) for each in NEARER]
                found[name] = self._score(np.argmax(near, axis=0), labels)
            elif self.examples.kind == "pair" and len(self.examples.classes) <= 2:
                train, test = (measure(rows["first"], rows["second"]) for rows in (known, tested))
                found[name] = self._score(test if self.is_score else self._by_threshold(train, seen, test), labels)
        return found

    def _score(self, said: np.ndarray, labels: np.ndarray) -> float:
        """The primary metric of these answers."""
        return self.metrics({"loss": 0.0, "said": said, "labels": labels})[self.primary.name]

    def _by_threshold(self, train: np.ndarray, labels: np.ndarray, test: np.ndarray) -> np.ndarray:
        """The second class from a value on, or up to it, whichever is best for the training pairs."""
        values = [(sign, value) for value in np.unique(np.quantile(train, np.linspace(0, 1, 101))) for sign in (1, -1)]
        sign, value = max(values, key=lambda each: self._score(_reaches(train, *each), labels))
        return _reaches(test, sign, value)

    def metrics(self, sums: dict[str, Any]) -> dict[str, float]:
        said, labels = np.array(sums["said"]), np.array(sums["labels"])
        found = {"nats_per_example": sums["loss"] / len(labels)}
        if self.is_score:
            constant = np.ptp(said) == 0 or np.ptp(labels) == 0  # no correlation is defined; nothing was learnt
            return found | {"spearman": 0.0 if constant else float(stats.spearmanr(said, labels).statistic)}
        found["accuracy"] = float((said == labels).mean())
        if self.primary.name in ("f1", "matthews"):
            judge = _sklearn().matthews_corrcoef if self.primary.name == "matthews" else _sklearn().f1_score
            found[self.primary.name] = float(judge(labels, said))
        return found


def _reaches(values: np.ndarray, sign: int, threshold: float) -> np.ndarray:
    return (sign * values >= sign * threshold).astype(np.int64)


def sequences_of(texts: Sequence[Ids], length: int) -> list[Ids]:
    """What is read of an example: one sequence, or of three texts the first with each of the others."""
    if len(texts) == 3:
        first, *others = texts
        return [sequence_of([first, each], length) for each in others]
    return [sequence_of(texts, length)]


def sequence_of(texts: Sequence[Ids], length: int) -> Ids:
    """[CLS] first [SEP] second [SEP], at most ``length`` tokens; of two texts the longer one is cut, at its end.

    Raises ValueError if that leaves no token of a text.
    """
    room = length - 1 - len(texts)
    if room < len(texts):
        raise ValueError(f"context is {length}; give {1 + 2 * len(texts)} or more for {len(texts)} texts in a sequence")
    kept = [room] * len(texts)
    if len(texts) == 2 and sum(map(len, texts)) > room:
        short = min(*map(len, texts), room // 2)
        kept = [short, room - short] if len(texts[0]) <= len(texts[1]) else [room - short, short]
    end = np.array([END_ID], dtype=np.uint16)
    parts = [part for text, most in zip(texts, kept, strict=True) for part in (text[:most], end)]
    return np.concatenate([np.array([BEGIN_ID], dtype=np.uint16), *parts])


def _sklearn() -> Any:
    return of_texts("sklearn.metrics", "--data is judged by scikit-learn")
