"""Which objective a data set and a configuration ask for."""

from pathlib import Path

from experiments.config import Config
from experiments.data.corpus import Corpus
from experiments.training.masked import MaskedToken, lines
from experiments.training.objectives import GeneratedSequences, NextByte, NextSubword, Objective
from experiments.training.subwords import FILE, SubwordTokenizer
from experiments.training.text_tokens import TextTokenizer


def make_objective(corpus: Corpus, config: Config, directory: Path | None = None) -> Objective:
    """What a corpus is trained and evaluated with; a tokenizer is that of the comparison's directory, or trained.

    Raises ValueError if the configuration does not fit the corpus, or a library is missing.
    """
    if corpus.objective is not None:
        own: Objective = corpus.objective(corpus, config)
        own.corpus = corpus
        return own
    sizes = config.context, config.batch_size
    if corpus.sequences is not None:
        if config.tokenizer != "bytes":
            raise ValueError(
                f"--tokenizer is {config.tokenizer}, but --data {corpus.name} is generated, and its tokens are no "
                "text; leave --tokenizer out"
            )
        return GeneratedSequences(corpus, *sizes)
    if config.tokenizer == "bytes":
        return NextByte(corpus, *sizes)
    kept = None if directory is None or not (directory / FILE).exists() else directory / FILE
    if config.tokenizer == "wordpiece":
        if kept is not None:
            return MaskedToken(corpus, *sizes, TextTokenizer.read(kept))
        return MaskedToken(
            corpus, *sizes, TextTokenizer.train(lines(corpus.train), config.vocabulary_size, "wordpiece")
        )
    if kept is not None:
        return NextSubword(corpus, *sizes, SubwordTokenizer.read(kept))
    return NextSubword(corpus, *sizes, SubwordTokenizer.train(corpus.train, config.vocabulary_size))
