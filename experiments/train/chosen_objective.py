"""Which objective data and a configuration ask for."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar

from experiments.config import Config
from experiments.data.corpus import Corpus, Data
from experiments.data.examples import Examples
from experiments.train.classification import Classification
from experiments.train.masked import MaskedToken, check_text, lines
from experiments.train.objectives import GeneratedSequences, NextByte, NextByteOfDocuments, NextSubword, Objective
from experiments.train.pretrained import Pretrained
from experiments.train.tokens import FILE, SubwordTokenizer, TextTokenizer
from experiments.train.translation import Translation

TextsOrExamples = TypeVar("TextsOrExamples", Corpus, Examples)


def make_objective(data: Data, config: Config, directory: Path | None = None) -> Objective:
    """What data are trained and evaluated with; a tokenizer is that of the comparison's directory, or trained.

    Raises ValueError if the configuration does not fit the data, or a library is missing.
    """
    for problem in misfits(data, config):
        raise ValueError(problem)
    if config.examples and isinstance(data, Examples):
        data = data.first(config.examples)
    if data.objective is not None:
        own: Objective = data.objective(data, config)
        own.corpus = data
        return own
    kept = None if directory is None or not (directory / FILE).exists() else directory / FILE
    return _of_examples(data, config, kept) if isinstance(data, Examples) else _of_text(data, config, kept)


def misfits(data: Data, config: Config) -> Iterator[str]:
    """What of a configuration does not fit the data, each with what would do."""
    name, examples = f"--data {data.name}", isinstance(data, Examples)
    if config.examples and not examples:
        yield (
            f"--examples is {config.examples}, which is for labelled texts and translations, and {name} is neither; "
            "give --examples 0, or other --data"
        )
    if config.packing == "documents" and getattr(data, "documents", None) is None:
        yield (
            f"--packing is documents, but {name} is no text of documents; give --data imdb, newsgroups-text or stdlib, "
            "or --packing none"
        )
    if data.objective is not None:
        return
    is_translation = isinstance(data, Examples) and data.kind == "translation"
    what, fitting = ("translations", "bpe") if is_translation else ("labelled texts", "wordpiece (or bpe)")
    initial = f"--initial-weights is {config.initial_weights}"
    if config.label_smoothing and not is_translation:
        yield (
            f"--label-smoothing is {config.label_smoothing}, which is for translations, and {name} is none; leave it "
            "out"
        )
    if config.initial_weights != "none" and not examples:
        yield f"{initial}, which is for labelled texts, and {name} is not; leave it out"
    if config.tokenizer != "bytes" and getattr(data, "sequences", None) is not None:
        yield (
            f"--tokenizer is {config.tokenizer}, but {name} is generated, and its tokens are no text; leave "
            "--tokenizer out"
        )
    if config.tokenizer == "wordpiece" and config.objective != "masked" and not examples:
        yield "--tokenizer is wordpiece, but --objective is next; give --objective masked, or bpe"
    if config.objective == "masked" and config.context < 3:
        yield f"--context is {config.context}; give 3 or more, as a window of masked tokens has two at its ends"
    if examples and (config.objective != "next" or config.diagnose_windows):
        yield (
            f"--objective is {config.objective} and --diagnose-windows is {config.diagnose_windows}, which are for "
            f"texts, and {name} is {what}; leave both out"
        )
    if examples and config.tokenizer == "bytes":
        yield (
            f"--tokenizer is bytes, but {name} is {what}; give --tokenizer {fitting} and --vocabulary-size, or run a "
            "study of such texts"
        )
    if is_translation and (config.tokenizer != "bpe" or config.initial_weights != "none"):
        yield (
            f"--tokenizer is {config.tokenizer} and {initial}, but {name} is translations, which are written out from "
            "the start; give bpe and none"
        )
    if is_translation and config.tested == "best":
        yield (
            f"--tested is best, but {name} is translations, which are made by the average of the last checkpoints; "
            "give last"
        )


def _of_text(corpus: Corpus, config: Config, kept: Path | None) -> Objective:
    sizes = config.context, config.batch_size
    if corpus.sequences is not None:
        return GeneratedSequences(corpus, *sizes)
    if config.tokenizer == "bytes":
        return (NextByte if config.packing == "none" else NextByteOfDocuments)(corpus, *sizes)
    if config.tokenizer == "bpe":
        train = SubwordTokenizer.train
        subwords = SubwordTokenizer.read(kept) if kept else train(corpus.train, config.vocabulary_size)
        return NextSubword(corpus, *sizes, subwords)
    if kept is None:
        check_text(corpus)
        tokenizer = TextTokenizer.train(lines(corpus.train), config.vocabulary_size, "wordpiece")
    else:
        tokenizer = TextTokenizer.read(kept)
    return MaskedToken(_noted(corpus, tokenizer), *sizes, tokenizer)


def _of_examples(examples: Examples, config: Config, kept: Path | None) -> Objective:
    pretrained = None if config.initial_weights == "none" else Pretrained.read(Path(config.initial_weights), config)
    if pretrained is not None:
        tokenizer = pretrained.tokenizer
    elif kept is not None:
        tokenizer = TextTokenizer.read(kept)
    else:
        texts = [text for _, column in examples.texts("train").items() for text in column]
        kind: Literal["wordpiece", "bpe"] = "wordpiece" if config.tokenizer == "wordpiece" else "bpe"
        tokenizer = TextTokenizer.train(texts, config.vocabulary_size, kind)
    if tokenizer.size > config.vocabulary_size:
        raise ValueError(
            f"--vocabulary-size is {config.vocabulary_size}, but the tokenizer of {examples.name} has {tokenizer.size} "
            "tokens; give that"
        )
    noted, sizes = _noted(examples, tokenizer), (config.context, config.batch_size)
    if examples.kind == "translation":
        return Translation(noted, *sizes, tokenizer, config.label_smoothing)
    return Classification(noted, *sizes, tokenizer, pretrained)


def _noted(data: TextsOrExamples, tokenizer: TextTokenizer) -> TextsOrExamples:
    """The same, with what the tokenizer does not read as it is in the note of the run."""
    return replace(data, note=f"{data.note} {tokenizer.note}".strip())
