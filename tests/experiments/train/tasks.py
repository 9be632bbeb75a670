"""Made-up data of every kind, and the objectives of them."""

import numpy as np
import pandas as pd

from experiments.config import Config
from experiments.data.corpus import begins, corpus_of_text
from experiments.data.examples import NEARER, examples_of
from experiments.data.registry import load_data
from experiments.train.chosen_objective import make_objective

CONFIG = Config(
    **{"layers": 1, "dim": 32, "heads": 2, "num_features": 16, "context": 24, "batch_size": 8, "steps": 60},
    **{"warmup_steps": 5, "log_every": 20, "evaluate_every": 30, "evaluation_windows": 40, "test_windows": 40},
    **{"learning_rate": 1e-2, "initial_std": 0.08},
)
OF_TEXTS = {"tokenizer": "wordpiece", "vocabulary_size": 300}
OF_PAIRS = {"tokenizer": "bpe", "vocabulary_size": 300, "checkpoint_every": 10}

WORDS = "the quick brown fox jumps over a lazy dog and then sleeps under an old oak tree near the river".split()
LINES = [" ".join(np.random.default_rng(n).choice(WORDS, 12)).encode() + b"\n" for n in range(900)]
TEXT = b"".join(LINES)

GOOD, BAD = "fine film with a good plot".split(), "dull film with a bad plot".split()
CLASSES = {"text": ("negative", "positive"), "pair": ("other", "same"), "score": (), "triplet": NEARER}
GERMAN = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs"}


def sentence(rng, words):
    return " ".join(rng.choice(words, rng.integers(3, 9)))


def example(rng, kind, right):
    """Texts of good words and of bad ones, and whether they are alike."""
    good, bad, same = sentence(rng, GOOD), sentence(rng, BAD), sentence(rng, GOOD)
    if kind == "text":
        return {"text": (bad, good)[right], "label": CLASSES["text"][right]}
    if kind == "triplet":
        one, other = (same, bad) if right else (bad, same)
        return {"text": good, "one": one, "other": other, "label": NEARER[1 - right]}
    label = CLASSES["pair"][right] if kind == "pair" else 5.0 * right
    return {"first": good, "second": (bad, same)[right], "label": label}


def examples(kind, name="texts", sizes=(64, 20, 30)):
    rng = np.random.default_rng(0)
    frames = [pd.DataFrame([example(rng, kind, number % 2) for number in range(size)]) for size in sizes]
    return examples_of(name, frames, "made by the test", "Made up.", CLASSES[kind])


def pairs(sizes=(300, 40, 40)):
    rng, found = np.random.default_rng(0), []
    for size in sizes:
        texts = [" ".join(rng.choice([*GERMAN], rng.integers(1, 5))) for _ in range(size)]
        in_german = [" ".join(GERMAN[word] for word in text.split()) for text in texts]
        found.append(pd.DataFrame({"source": texts, "target": in_german}))
    return examples_of("pairs", found, "made by the test", "Made up.")


DATA = {
    "bytes": (lambda: corpus_of_text("text", TEXT), {}),
    "subwords": (lambda: corpus_of_text("text", TEXT), {"tokenizer": "bpe", "vocabulary_size": 300}),
    "documents": (
        lambda: corpus_of_text("lines", TEXT, documents=begins(map(len, LINES))),
        {"packing": "documents"},
    ),
    "masked": (lambda: corpus_of_text("text", TEXT), OF_TEXTS | {"objective": "masked"}),
    "answers": (lambda: load_data("recall-64"), {"context": 64}),
    **{kind: (lambda kind=kind: examples(kind), OF_TEXTS) for kind in CLASSES},
    "translation": (pairs, OF_PAIRS),
}
"""what there is to train on, and the settings that it needs"""


def config_of(kind, **settings):
    return Config(**vars(CONFIG) | DATA[kind][1] | settings)


def task_of(kind, **settings):
    return make_objective(DATA[kind][0](), config_of(kind, **settings))
