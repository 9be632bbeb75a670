"""WordPiece as BERT's: by its definition in plain Python, and as transformers' own tokenizer where it is installed."""

import unicodedata
from itertools import chain

import pytest

from experiments.config import Config
from experiments.data.corpus import corpus_of_text
from experiments.data.files import read_content
from experiments.train.chosen_objective import make_objective
from experiments.train.text_tokens import SPECIAL, UNKNOWN, TextTokenizer

# Letters, signs and controls of all kinds. What a library takes later characters for is a matter of its age.
CHARACTERS = [chr(code) for code in chain(range(0x600), range(0x2000, 0x2100), range(0x3000, 0x3020))]
CHARACTERS += [*"\u070f\u180e\ufeff\ufffd\ue000\uf8ff\U000e0001\U0010fffd中\U00020000\uf900가ꙮ𝒳"]
LETTERS = ["a", "é", "e\u0301", "ß", "ø", "İ", "中", ".", "\u200b", "𝒳", "ꙮ", "a\0", "a\u00ad"]
LONG = [letter * count for letter in LETTERS for count in (1, 50, 51, 99, 100, 101, 150, 1000)]
LONG += [
    f"x{'a' * 99} {'b' * 101}",
    f"{'a' * 100}-{'b' * 101}",
    f"{'a' * 60}\x07{'a' * 60}",
    f"{'a' * 60}\x0c{'a' * 60}",
]
TEXTS = [f"a{character}b" for character in CHARACTERS if unicodedata.category(character) != "Cn"] + LONG


def controls(character: str) -> bool:
    return character not in "\t\n\r" and unicodedata.category(character).startswith("C")


def is_sign(character: str) -> bool:
    return (character.isascii() and character.isprintable() and not character.isalnum() and character != " ") or (
        unicodedata.category(character).startswith("P")
    )


def is_chinese(character: str) -> bool:
    code = ord(character)
    blocks = [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)]
    return any(first <= code <= last for first, last in blocks)


def by_definition(text: str, vocabulary: set[str]) -> list[str]:
    """BERT's BasicTokenizer and WordpieceTokenizer (Devlin et al. 2018), lower case."""
    text = "".join(c for c in text if c not in "\0\ufffd" and not controls(c))
    text = "".join(f" {c} " if is_chinese(c) else c for c in text)
    text = unicodedata.normalize("NFD", text.lower())
    text = "".join(c for c in text if unicodedata.category(c) != "Mn")
    text = "".join(f" {c} " if is_sign(c) else c for c in text)
    return list(chain.from_iterable(pieces_of(word, vocabulary) for word in text.split()))


def pieces_of(word: str, vocabulary: set[str]) -> list[str]:
    found, start = list[str](), 0
    while start < len(word):
        ends = (end for end in range(len(word), start, -1) if "##"[: 2 * (start > 0)] + word[start:end] in vocabulary)
        end = next(ends, None)
        if end is None or len(word) > 100:
            return [UNKNOWN]
        found.append("##"[: 2 * (start > 0)] + word[start:end])
        start = end
    return found


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    """Of texts with long words among them; it lacks some of the letters that it is asked to read."""
    return TextTokenizer.train([text for text in TEXTS if "ꙮ" not in text] * 2, 4000, "wordpiece")


def test_words_are_those_of_bert_s_definition(tokenizer: TextTokenizer) -> None:
    vocabulary = {*tokenizer.pieces(range(tokenizer.size))}
    found = [tokenizer.pieces(ids) for ids in tokenizer.encode(TEXTS)]
    wrong = {
        text: pieces for text, pieces in zip(TEXTS, found, strict=True) if pieces != by_definition(text, vocabulary)
    }
    assert not wrong
    assert tokenizer.pieces(tokenizer.encode(["a" * 101])[0]) == [UNKNOWN]
    assert UNKNOWN not in tokenizer.pieces(tokenizer.encode(["a" * 100])[0])


def test_words_are_those_of_transformers_in_both_directions(tokenizer: TextTokenizer, tmp_path) -> None:
    transformers = pytest.importorskip("transformers")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours/tokenizer.json").write_text(tokenizer.json)
    vocabulary = {piece: number for number, piece in enumerate(tokenizer.pieces(range(tokenizer.size)))}
    theirs = transformers.BertTokenizer(vocab=vocabulary)
    theirs(["a b"], truncation=True, max_length=3, padding="max_length")  # and its file says so from then on
    theirs.save_pretrained(tmp_path / "theirs")
    again = TextTokenizer.read(tmp_path / "theirs/tokenizer.json")
    ours = [ids.tolist() for ids in tokenizer.encode(TEXTS)]
    assert [ids.tolist() for ids in again.encode(TEXTS)] == ours
    for reader in (theirs, transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "ours/tokenizer.json"))):
        assert reader(TEXTS, add_special_tokens=False)["input_ids"] == ours


def test_byte_pairs_of_texts_bring_every_character_back() -> None:
    tokenizer = TextTokenizer.train(["a b"] * 2, 300, "bpe")
    for text, ids in zip(TEXTS, tokenizer.encode(TEXTS), strict=True):
        assert tokenizer.decode(ids) == text
        assert not {*range(len(SPECIAL))} & {*ids.tolist()}


def test_what_word_pieces_do_not_read_is_in_the_note_of_the_run(tmp_path) -> None:
    corpus = corpus_of_text("text", b"an oak \x01 grows\n" * 400)
    settings = {"context": 8, "batch_size": 2, "tokenizer": "wordpiece", "vocabulary_size": 300, "objective": "masked"}
    objective = make_objective(corpus, Config(**settings))
    said = "no control characters, and as [UNK] every word of more than 100 characters or with one that"
    assert said in objective.corpus.describe().note
    objective.save(tmp_path)
    assert read_content(tmp_path / "tokenizer.json")
    assert said in make_objective(corpus, Config(**settings), tmp_path).corpus.describe().note
    settings |= {"tokenizer": "bpe", "objective": "next"}
    assert make_objective(corpus, Config(**settings)).corpus.note == corpus.note
