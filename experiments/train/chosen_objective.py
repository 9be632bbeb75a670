"""Which objective data and a configuration ask for."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from experiments.config import Config
from experiments.data.corpus import Data
from experiments.data.examples import Examples
from experiments.train.classification import Classification
from experiments.train.masked import MaskedToken, lines_of
from experiments.train.objectives import GeneratedSequences, NextByte, NextByteOfDocuments, NextSubword, Objective
from experiments.train.pretrained import Pretrained
from experiments.train.tokens import FILE, SubwordTokenizer, TextTokenizer
from experiments.train.translation import Translation

KINDS = ("a text", "a text of documents", "generated sequences", "labelled texts", "translations")
TEXT, DOCUMENTS, GENERATED, LABELLED, TRANSLATIONS = KINDS
TAKEN_BY = {
    "examples": (LABELLED, TRANSLATIONS),
    "packing": (DOCUMENTS,),
    "label_smoothing": (TRANSLATIONS,),
    "initial_weights": (LABELLED,),
    "objective": (TEXT, DOCUMENTS),
    "diagnose_windows": (TEXT, DOCUMENTS, GENERATED),
    "tested": (TEXT, DOCUMENTS, GENERATED, LABELLED),
}
"""by setting, the kinds of data that take another value than the default one"""
TOKENIZERS = {
    TEXT: ("bytes", "bpe"),
    DOCUMENTS: ("bytes", "bpe"),
    GENERATED: ("bytes",),
    LABELLED: ("wordpiece", "bpe"),
    TRANSLATIONS: ("bpe",),
}


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
    sizes = config.context, config.batch_size
    if isinstance(data, Examples):
        return _of_examples(data, config, kept)
    if data.sequences is not None:
        return GeneratedSequences(data, *sizes)
    if config.tokenizer == "bytes":
        return (NextByte if config.packing == "none" else NextByteOfDocuments)(data, *sizes)
    if config.tokenizer == "bpe":
        train, size = SubwordTokenizer.train, config.vocabulary_size
        return NextSubword(data, *sizes, SubwordTokenizer.read(kept) if kept else train(data.train, size))
    tokenizer = _text_tokenizer(kept, lambda: lines_of(data), config)
    return MaskedToken(replace(data, note=_with_note(data, tokenizer)), *sizes, tokenizer)


def misfits(data: Data, config: Config) -> Iterator[str]:
    """What of a configuration does not fit the data, each with what would do."""
    kind = kind_of(data)
    for option, kinds in TAKEN_BY.items():
        value = getattr(config, option)
        if value == getattr(Config, option) or kind in kinds:
            continue
        if data.objective is None or option in ("examples", "packing"):
            what = f"--{option.replace('_', '-')} is {value}, which is for {' and '.join(kinds)}"
            yield f"{what}, and --data {data.name} is {kind}; leave it out"
    if data.objective is not None:
        return
    is_masked = config.objective == "masked"
    fitting = ("wordpiece",) if is_masked else TOKENIZERS[kind]
    if config.tokenizer not in fitting:
        sized = " and --vocabulary-size" if config.tokenizer == "bytes" else ""
        yield (
            f"--tokenizer is {config.tokenizer}, but --data {data.name} is {kind} and --objective {config.objective}; "
            f"give --tokenizer {' or '.join(fitting)}{sized}"
        )
    if is_masked and config.context < 3:
        yield f"--context is {config.context}; give 3 or more, as a window of masked tokens has two at its ends"


def kind_of(data: Data) -> str:
    """What the data are, as ``TAKEN_BY`` and ``TOKENIZERS`` name it."""
    if isinstance(data, Examples):
        return TRANSLATIONS if data.kind == "translation" else LABELLED
    if data.sequences is not None:
        return GENERATED
    return TEXT if data.documents is None else DOCUMENTS


def _of_examples(examples: Examples, config: Config, kept: Path | None) -> Objective:
    pretrained = None if config.initial_weights == "none" else Pretrained.read(Path(config.initial_weights), config)
    columns = examples.texts("train")
    tokenizer = (
        pretrained.tokenizer
        if pretrained is not None
        else _text_tokenizer(kept, lambda: [text for name in columns for text in columns[name]], config)
    )
    if tokenizer.size > config.vocabulary_size:
        raise ValueError(
            f"--vocabulary-size is {config.vocabulary_size}, but the tokenizer of {examples.name} has {tokenizer.size} "
            "tokens; give that"
        )
    noted = replace(examples, note=_with_note(examples, tokenizer))
    make = (
        partial(Translation, label_smoothing=config.label_smoothing)
        if examples.kind == "translation"
        else partial(Classification, pretrained=pretrained)
    )
    return make(noted, config.context, config.batch_size, tokenizer)


def _text_tokenizer(kept: Path | None, texts: Callable[[], list[str]], config: Config) -> TextTokenizer:
    if kept is not None:
        return TextTokenizer.read(kept)
    return TextTokenizer.train(texts(), config.vocabulary_size, "bpe" if config.tokenizer == "bpe" else "wordpiece")


def _with_note(data: Data, tokenizer: TextTokenizer) -> str:
    """The note of the run, with what the tokenizer does not read as it is."""
    return f"{data.note} {tokenizer.note}".strip()
