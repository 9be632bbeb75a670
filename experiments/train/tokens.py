"""Tokens that the library ``tokenizers`` learns from the training split, kept with the run.

A language model reads bytes, or byte pairs that are merged of them (:class:`SubwordTokenizer`); labelled texts, masked
ones and translations are read as UTF-8 with special tokens (:class:`TextTokenizer`).
"""

import hashlib
import importlib
import itertools
import json
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from experiments.console import install_command
from experiments.data.corpus import Bytes, Tokens
from experiments.data.files import kept
from experiments.records.files import read_file, wrong_file

Ids = npt.NDArray[np.uint16]

FILE = "tokenizer.json"
WORDS = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""GPT-2's: no token goes over the end of a word, a number or a row of signs"""
PIECE, PIECES_AT_ONCE, TEXTS_AT_ONCE = 2**16, 32, 4096
"""bytes that are encoded as one text, and how many of these, or of texts, at once: the library takes a hundred times
as much memory"""
PAD, UNKNOWN, BEGIN, END, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""BERT's names; their ids are 0 to 4"""
PAD_ID, UNKNOWN_ID, BEGIN_ID, END_ID, MASK_ID = range(5)


def of_texts(module: str, needs: str) -> Any:
    """A module of the extra ``texts``. Raises ValueError, which ``needs`` begins, if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ValueError(f"{needs}, which is not installed; give {install_command('texts')}") from None


def library() -> Any:
    """The package tokenizers. Raises ValueError if it is not installed."""
    return of_texts("tokenizers", "--tokenizer needs the library tokenizers")


class Tokenizer:
    """A trained tokenizer; ``json`` is the content of its file."""

    remedy: str
    """for a file that is none of its kind"""

    def __init__(self, json: str) -> None:
        self.json = json
        self._tokenizer = library().Tokenizer.from_str(json)

    @classmethod
    def read(cls, path: Path) -> Self:
        """The tokenizer of a file. Raises ValueError that names it if it is none."""
        content, _ = read_file(path, cls.remedy), library()
        try:
            return cls(content.decode())
        except Exception as error:  # the library raises nothing narrower for what is not one of its files
            raise wrong_file(str(path), f"is no tokenizer ({type(error).__name__})", cls.remedy) from None

    @property
    def size(self) -> int:
        """Number of ids."""
        return int(self._tokenizer.get_vocab_size())

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.json.encode()).hexdigest()


class SubwordTokenizer(Tokenizer):
    """Byte-level byte-pair encoding of any bytes; ``pieces`` are the bytes of each token, by its id.

    The library reads characters, so every byte is shown to it as the character of its number (Latin-1), also where
    UTF-8 is cut in two, and a token is as many bytes as it has characters.
    """

    remedy = "remove the comparison's directory and run again"

    def __init__(self, json: str) -> None:
        super().__init__(json)
        ids = self._tokenizer.get_vocab()
        self.pieces = [name.encode("latin-1") for name in sorted(ids, key=ids.__getitem__)]

    @classmethod
    def train(cls, content: Bytes, vocabulary_size: int) -> Self:
        """The tokenizer of a text: all 256 bytes, and what is merged of them. Equal texts give equal ones."""
        tokenizers, every_byte = library(), [chr(byte) for byte in range(256)]
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(WORDS), "isolated")
        options = {"vocab_size": vocabulary_size, "initial_alphabet": every_byte, "show_progress": False}
        tokenizer.train_from_iterator(_characters(content), tokenizers.trainers.BpeTrainer(**options))
        return cls(tokenizer.to_str(pretty=True))

    def encode(self, content: Bytes) -> Tokens:
        """The tokens of a text, uint16; see ``files.kept``."""

        def made() -> Ids:
            found, parts = [np.empty(0, np.uint16)], _characters(content)
            while some := [*itertools.islice(parts, PIECES_AT_ONCE)]:  # which the library shares among its threads
                found += [np.array(part.ids, np.uint16) for part in self._tokenizer.encode_batch(some)]
            return np.concatenate(found)

        return kept(self.sha256.encode() + content.tobytes(), made)

    def decode(self, tokens: Tokens) -> bytes:
        """The text of tokens. Raises ValueError if they are none of this tokenizer's."""
        if tokens.dtype != np.uint16 or tokens.ndim != 1 or (len(tokens) and tokens.max() >= len(self.pieces)):
            raise ValueError(f"tokens are {tokens.dtype} of shape {tokens.shape}; give one row of its ids in uint16")
        return b"".join([self.pieces[token] for token in tokens.tolist()])


def _characters(content: Bytes) -> Iterator[str]:
    return (content[start : start + PIECE].tobytes().decode("latin-1") for start in range(0, len(content), PIECE))


class TextTokenizer(Tokenizer):
    """Tokens of characters, and the special ones."""

    remedy = "put back the one that the comparison was trained with"

    def __init__(self, json: str) -> None:
        super().__init__(json)
        self._tokenizer.encode_special_tokens = True  # "[SEP]" in a text is five letters
        # A file of another library may say that texts are to be cut or filled up.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    @classmethod
    def train(cls, texts: Sequence[str], vocabulary_size: int, kind: Literal["wordpiece", "bpe"]) -> Self:
        """The tokenizer of texts. Equal texts give an equal one.

        "wordpiece" is BERT's: lower case without accents, words and signs apart, every Chinese character a word; see
        ``note`` for what it reads otherwise.
        "bpe" merges bytes as GPT-2's, so that every text comes back as it was.
        """
        learn = _wordpiece if kind == "wordpiece" else _bpe
        return cls(learn(texts, vocabulary_size).to_str(pretty=True))

    @classmethod
    def read(cls, path: Path) -> Self:
        found = super().read(path)
        if tuple(found.pieces(range(len(SPECIAL)))) != SPECIAL:
            raise wrong_file(str(path), "is a tokenizer without the special tokens of texts", cls.remedy)
        return found

    @property
    def note(self) -> str:
        """What of a text it does not read as it is, as a sentence; empty if it reads all of it."""
        if not isinstance(self._tokenizer.model, library().models.WordPiece):
            return ""
        return (
            "WordPiece reads lower case without accents and no control characters, and as [UNK] every word of more "
            f"than {self._tokenizer.model.max_input_chars_per_word} characters or with one that its vocabulary lacks."
        )

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text, without those that begin and end it; halves of surrogate pairs, as what is no UTF-8
        has on the command line, become question marks.
        """
        texts = [text.encode(errors="replace").decode() for text in texts]
        parts = (texts[start : start + TEXTS_AT_ONCE] for start in range(0, len(texts), TEXTS_AT_ONCE))
        encode = partial(self._tokenizer.encode_batch_fast, add_special_tokens=False)
        return [np.array(each.ids, dtype=np.uint16) for part in parts for each in encode(list(part))]

    def encode_once(self, texts: Sequence[str]) -> Ids:
        """All ids in one row; see ``files.kept``."""
        key = json.dumps([self.sha256, *texts]).encode()
        return kept(key, lambda: np.concatenate([np.empty(0, np.uint16), *self.encode(texts)]))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without the special ones."""
        text: str = self._tokenizer.decode(list(map(int, ids)), skip_special_tokens=True)
        return text

    def pieces(self, ids: Sequence[int]) -> list[Any]:
        """What each id stands for."""
        return [self._tokenizer.id_to_token(int(each)) for each in ids]


def _wordpiece(texts: Sequence[str], vocabulary_size: int) -> Any:
    tokenizers = library()

    def tokenizer(vocabulary: dict[str, int]) -> Any:
        found = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token=UNKNOWN))
        found.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
        found.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        found.decoder = tokenizers.decoders.WordPiece()
        return found

    def pieces(first: list[str], size: int) -> dict[str, int]:
        options = {"vocab_size": size, "special_tokens": first, "show_progress": False}
        learnt = tokenizer({})
        learnt.train_from_iterator(texts, tokenizers.trainers.WordPieceTrainer(**options))
        found: dict[str, int] = learnt.get_vocab()
        return found

    # The trainer numbers the letters that begin words in order and then those within words ("##a") in any order, and
    # merges equally frequent pairs in the order of their numbers. What is special it numbers as given: so the letters
    # are learnt first, and given in order.
    letters = sorted(pieces(list(SPECIAL), 0).keys() - set(SPECIAL), key=lambda piece: (len(piece), piece))
    trained = tokenizer(pieces([*SPECIAL, *letters], vocabulary_size))
    trained.add_special_tokens(list(SPECIAL))
    return trained


def _bpe(texts: Sequence[str], vocabulary_size: int) -> Any:
    tokenizers = library()
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    trained.train_from_iterator(texts, trainer)
    return trained
