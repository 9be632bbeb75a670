"""Tokens of labelled texts and of masked ones: WordPiece or byte-pair encoding with special tokens.

Learnt from the training split by the library ``tokenizers``, and kept with the run. Unlike
:mod:`experiments.train.subwords` these are tokens of characters: a text is read as UTF-8.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from experiments.data.files import cache_directory
from experiments.records.files import read_file, write_atomically, wrong_file
from experiments.train.subwords import library

Ids = npt.NDArray[np.uint16]

PAD, UNKNOWN, BEGIN, END, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""BERT's names; their ids are 0 to 4"""
PAD_ID, UNKNOWN_ID, BEGIN_ID, END_ID, MASK_ID = range(5)

AT_ONCE = 4096
"""texts that are encoded at once: the library takes much more memory for them than their ids do"""


class TextTokenizer:
    """A trained tokenizer; ``json`` is the content of its file."""

    def __init__(self, json: str) -> None:
        self.json = json
        self._tokenizer = library().Tokenizer.from_str(json)
        self._tokenizer.encode_special_tokens = True  # "[SEP]" in a text is five letters
        # A file of another library may say that texts are to be cut or filled up.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    @classmethod
    def train(cls, texts: Sequence[str], vocabulary_size: int, kind: Literal["wordpiece", "bpe"]) -> "TextTokenizer":
        """The tokenizer of texts. Equal texts give an equal one.

        "wordpiece" is BERT's: lower case without accents, words and signs apart, every Chinese character a word; see
        ``note`` for what it reads otherwise.
        "bpe" merges bytes as GPT-2's, so that every text comes back as it was.
        """
        learn = _wordpiece if kind == "wordpiece" else _bpe
        return cls(learn(texts, vocabulary_size).to_str(pretty=True))

    @classmethod
    def read(cls, path: Path) -> "TextTokenizer":
        """The tokenizer of a file. Raises ValueError that names it if it is none of ours."""
        remedy = "put back the one that the comparison was trained with"
        content, _ = read_file(path, remedy), library()
        try:
            found = cls(content.decode())
        except Exception as error:  # the library raises nothing narrower for what is not one of its files
            raise wrong_file(str(path), f"is no tokenizer ({type(error).__name__})", remedy) from None
        if found.special != SPECIAL:
            raise wrong_file(str(path), "is a tokenizer without the special tokens of texts", remedy)
        return found

    @property
    def special(self) -> tuple[str | None, ...]:
        return tuple(self._tokenizer.id_to_token(each) for each in range(len(SPECIAL)))

    @property
    def size(self) -> int:
        """Number of ids."""
        return int(self._tokenizer.get_vocab_size())

    @property
    def note(self) -> str:
        """What of a text it does not read as it is, as a sentence; empty if it reads all of it."""
        if not isinstance(self._tokenizer.model, library().models.WordPiece):
            return ""
        return (
            "WordPiece reads lower case without accents and no control characters, and as [UNK] every word of more "
            f"than {self._tokenizer.model.max_input_chars_per_word} characters or with one that its vocabulary lacks."
        )

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.json.encode()).hexdigest()

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text, without those that begin and end it; halves of surrogate pairs, as what is no UTF-8
        has on the command line, become question marks.
        """
        texts = [text.encode(errors="replace").decode() for text in texts]
        parts = (texts[start : start + AT_ONCE] for start in range(0, len(texts), AT_ONCE))
        encode = partial(self._tokenizer.encode_batch_fast, add_special_tokens=False)
        return [np.array(each.ids, dtype=np.uint16) for part in parts for each in encode(list(part))]

    def encode_once(self, texts: Sequence[str]) -> Ids:
        """All ids in one row; they are kept in the cache directory, if it can be written."""
        key = hashlib.sha256(json.dumps([self.sha256, *texts]).encode()).hexdigest()
        path = cache_directory() / "tokens" / f"{key}.npy"
        checksum = path.with_suffix(".sha256")
        with suppress(OSError, ValueError, EOFError):
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest().encode() == checksum.read_bytes():
                kept: Ids = np.load(BytesIO(content), allow_pickle=False)
                return kept
        ids = np.concatenate([np.zeros(0, dtype=np.uint16), *self.encode(texts)])
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(buffer := BytesIO(), ids)
            write_atomically(path, buffer.getvalue())
            write_atomically(checksum, hashlib.sha256(buffer.getvalue()).hexdigest())
        return ids

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
