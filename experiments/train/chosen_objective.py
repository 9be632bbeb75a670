"""Which objective data and a configuration ask for."""

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from experiments.config import Config
from experiments.data.corpus import Corpus, Data, text_of
from experiments.data.examples import Examples
from experiments.train.classification import Classification
from experiments.train.masked import MaskedToken, check_text, lines
from experiments.train.objectives import GeneratedSequences, NextByte, NextByteOfDocuments, NextSubword, Objective
from experiments.train.pretrained import Pretrained
from experiments.train.subwords import FILE, SubwordTokenizer
from experiments.train.text_tokens import TextTokenizer
from experiments.train.translation import Translation

TextsOrExamples = TypeVar("TextsOrExamples", Corpus, Examples)


def make_objective(data: Data, config: Config, directory: Path | None = None) -> Objective:
    """What data are trained and evaluated with; a tokenizer is that of the comparison's directory, or trained.

    Raises ValueError if the configuration does not fit the data, or a library is missing.
    """
    if config.examples:
        if not isinstance(data, Examples):
            raise ValueError(
                f"--examples is {config.examples}, which is for labelled texts and translations, and --data "
                f"{data.name} is neither; give --examples 0, or other --data"
            )
        data = data.first(config.examples)
    if config.packing == "documents" and (isinstance(data, Examples) or data.documents is None):
        raise ValueError(
            f"--packing is documents, but --data {data.name} is no text of documents; give --data imdb, "
            "newsgroups-text or stdlib, or --packing none"
        )
    if data.objective is not None:
        own: Objective = data.objective(data, config)
        own.corpus = data
        return own
    is_translation = isinstance(data, Examples) and data.kind == "translation"
    if config.label_smoothing and not is_translation:
        raise ValueError(
            f"--label-smoothing is {config.label_smoothing}, which is for translations, and --data {data.name} is "
            "none; leave it out"
        )
    kept = None if directory is None or not (directory / FILE).exists() else directory / FILE
    if isinstance(data, Examples):
        return _of_examples(data, config, kept)
    corpus, sizes = text_of(data), (config.context, config.batch_size)
    if config.initial_weights != "none":
        raise ValueError(
            f"--initial-weights is {config.initial_weights}, which is for labelled texts, and --data {corpus.name} is "
            "not; leave it out"
        )
    if corpus.sequences is not None:
        if config.tokenizer != "bytes":
            raise ValueError(
                f"--tokenizer is {config.tokenizer}, but --data {corpus.name} is generated, and its tokens are no "
                "text; leave --tokenizer out"
            )
        return GeneratedSequences(corpus, *sizes)
    if config.tokenizer == "bytes":
        return (NextByte if config.packing == "none" else NextByteOfDocuments)(corpus, *sizes)
    if config.tokenizer == "wordpiece":
        if config.objective != "masked":
            raise ValueError("--tokenizer is wordpiece, but --objective is next; give --objective masked, or bpe")
        if kept is not None:
            pieces = TextTokenizer.read(kept)
        else:
            check_text(corpus)
            pieces = TextTokenizer.train(lines(corpus.train), config.vocabulary_size, "wordpiece")
        return MaskedToken(_noted(corpus, pieces), *sizes, pieces)
    if kept is not None:
        return NextSubword(corpus, *sizes, SubwordTokenizer.read(kept))
    return NextSubword(corpus, *sizes, SubwordTokenizer.train(corpus.train, config.vocabulary_size))


def _of_examples(examples: Examples, config: Config, kept: Path | None) -> Objective:
    is_translation = examples.kind == "translation"
    what, fitting = ("translations", "bpe") if is_translation else ("labelled texts", "wordpiece (or bpe)")
    if config.objective != "next" or config.diagnose_windows:
        raise ValueError(
            f"--objective is {config.objective} and --diagnose-windows is {config.diagnose_windows}, which are for "
            f"texts, and --data {examples.name} is {what}; leave both out"
        )
    if config.tokenizer == "bytes":
        raise ValueError(
            f"--tokenizer is bytes, but --data {examples.name} is {what}; give --tokenizer {fitting} and "
            "--vocabulary-size, or run a study of such texts"
        )
    if is_translation and (config.tokenizer != "bpe" or config.initial_weights != "none"):
        raise ValueError(
            f"--tokenizer is {config.tokenizer} and --initial-weights is {config.initial_weights}, but --data "
            f"{examples.name} is translations, which are written out from the start; give bpe and none"
        )
    if is_translation and config.tested == "best":
        raise ValueError(
            f"--tested is best, but --data {examples.name} is translations, which are made by the average of the last "
            "checkpoints; give last"
        )
    pretrained = None if config.initial_weights == "none" else Pretrained.read(Path(config.initial_weights), config)
    if pretrained is not None:
        tokenizer = pretrained.tokenizer
    elif kept is not None:
        tokenizer = TextTokenizer.read(kept)
    else:
        texts = [text for _, column in examples.texts("train").items() for text in column]
        tokenizer = TextTokenizer.train(texts, config.vocabulary_size, config.tokenizer)
    if tokenizer.size > config.vocabulary_size:
        raise ValueError(
            f"--vocabulary-size is {config.vocabulary_size}, but the tokenizer of {examples.name} has {tokenizer.size} "
            "tokens; give that"
        )
    examples = _noted(examples, tokenizer)
    if is_translation:
        return Translation(examples, config.context, config.batch_size, tokenizer, config.label_smoothing)
    return Classification(examples, config.context, config.batch_size, tokenizer, pretrained)


def _noted(data: TextsOrExamples, tokenizer: TextTokenizer) -> TextsOrExamples:
    """The same, with what the tokenizer does not read as it is in the note of the run."""
    return replace(data, note=f"{data.note} {tokenizer.note}".strip())
