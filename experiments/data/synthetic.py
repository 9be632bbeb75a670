"""What the generated data sets share: how they are drawn, split and told about."""

import hashlib

import numpy as np

from experiments.data.corpus import Corpus, DataSet, Sequences

SPLITS = ("train", "validation", "test")
VALIDATION_SEQUENCES, TEST_SEQUENCES = 1000, 3000
"""as many test examples as in Zoology"""


def split_generator(split: str, seed: int = 0, step: int = 0) -> np.random.Generator:
    """The random numbers of a split; those of the training split differ from seed to seed and step to step."""
    return np.random.default_rng([SPLITS.index(split), seed, step])


def sequences_data_set(name: str, description: str, sequences: Sequences, note: str) -> DataSet:
    """A data set whose validation and test splits are always the same sequences; its sha256 is that of the two."""

    def load(*places: object) -> Corpus:
        validation = sequences.draw(split_generator("validation"), VALIDATION_SEQUENCES).ravel()
        test = sequences.draw(split_generator("test"), TEST_SEQUENCES).ravel()
        return Corpus(
            name,
            train=np.empty(0, dtype=np.uint8),
            validation=validation,
            test=test,
            sha256=hashlib.sha256(validation.tobytes() + test.tobytes()).hexdigest(),
            source="generated: 1,000 validation and 3,000 test sequences from fixed seeds",
            note=f"{note} Training sequences are drawn anew for every step, apart from those it is evaluated on; "
            "losses and accuracies are of the scored tokens alone.",
            sequences=sequences,
        )

    found = "generated when it is used, from fixed seeds"
    return DataSet(name, f"{description} Takes --context {sequences.length}.", load, find=lambda data_dir: found)
