"""Byte-level byte-pair encoding, trained on a text.

The library reads characters, so every byte is shown to it as the character of its number (Latin-1). Any bytes are a
text then, also where UTF-8 is cut in two, and a token is as many bytes as it has characters.
"""

import hashlib
import importlib
import io
import itertools
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.console import install_command
from experiments.data.corpus import Bytes, Tokens
from experiments.data.files import cache_directory
from experiments.records.files import read_file, write_atomically, wrong_file

FILE = "tokenizer.json"
WORDS = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""GPT-2's: no token goes over the end of a word, a number or a row of signs"""
PIECE, AT_ONCE = 2**16, 32
"""bytes that are encoded as one text, and texts at once: the library takes a hundred times as much memory"""


class SubwordTokenizer:
    """A trained tokenizer: ``json`` is the content of its file, ``pieces`` the bytes of each token, by its id."""

    def __init__(self, json: str) -> None:
        self.json = json
        self._tokenizer = library().Tokenizer.from_str(json)
        ids = self._tokenizer.get_vocab()
        self.pieces = [name.encode("latin-1") for name in sorted(ids, key=ids.__getitem__)]

    @classmethod
    def train(cls, content: Bytes, vocabulary_size: int) -> "SubwordTokenizer":
        """The tokenizer of a text: all 256 bytes, and what is merged of them. Equal texts give equal ones."""
        tokenizers, every_byte = library(), [chr(byte) for byte in range(256)]
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(WORDS), "isolated")
        options = {"vocab_size": vocabulary_size, "initial_alphabet": every_byte, "show_progress": False}
        tokenizer.train_from_iterator(_characters(content), tokenizers.trainers.BpeTrainer(**options))
        return cls(tokenizer.to_str(pretty=True))

    @classmethod
    def read(cls, path: Path) -> "SubwordTokenizer":
        """The tokenizer of a file. Raises ValueError that names it if it is none."""
        remedy = "remove the comparison's directory and run again"
        content, _ = read_file(path, remedy), library()
        try:
            return cls(content.decode())
        except Exception as error:  # the library raises nothing narrower for what is not one of its files
            raise wrong_file(str(path), f"is no tokenizer ({type(error).__name__})", remedy) from None

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.json.encode()).hexdigest()

    def encode(self, content: Bytes) -> Tokens:
        """The tokens of a text, uint16. They are kept in the cache directory, if it can be written."""
        key = hashlib.sha256(self.sha256.encode() + content.tobytes()).hexdigest()
        path = cache_directory() / "tokens" / f"{key}.npy"
        with suppress(OSError, ValueError, EOFError):
            kept = np.load(path, allow_pickle=False)
            if self.decode(kept) == content.tobytes():
                return kept
        found, parts = list[npt.NDArray[np.uint16]](), _characters(content)
        while some := [*itertools.islice(parts, AT_ONCE)]:  # which the library shares among its threads
            found += [np.array(part.ids, np.uint16) for part in self._tokenizer.encode_batch(some)]
        tokens = np.concatenate([np.empty(0, np.uint16), *found])
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(buffer := io.BytesIO(), tokens)
            write_atomically(path, buffer.getvalue())
        return tokens

    def decode(self, tokens: Tokens) -> bytes:
        """The text of tokens. Raises ValueError if they are none of this tokenizer's."""
        if tokens.dtype != np.uint16 or tokens.ndim != 1 or (len(tokens) and tokens.max() >= len(self.pieces)):
            raise ValueError(f"tokens are {tokens.dtype} of shape {tokens.shape}; give one row of its ids in uint16")
        return b"".join([self.pieces[token] for token in tokens.tolist()])


def _characters(content: Bytes) -> Iterator[str]:
    return (content[start : start + PIECE].tobytes().decode("latin-1") for start in range(0, len(content), PIECE))


def library() -> Any:
    """The package tokenizers. Raises ValueError if it is not installed."""
    try:
        return importlib.import_module("tokenizers")
    except ImportError:
        raise ValueError(
            f"--tokenizer needs the library tokenizers, which is not installed; give {install_command('texts')}"
        ) from None
