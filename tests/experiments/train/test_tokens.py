"""WordPiece as transformers' own tokenizer, byte pairs that bring everything back, and how both are kept."""

import hashlib
import json
import math
import unicodedata
from itertools import chain, permutations

import numpy as np
import pytest
import torch.nn.functional as F

from experiments.cli import main
from experiments.config import Config
from experiments.data.corpus import corpus_of_text
from experiments.data.files import read_content
from experiments.records.record import read_comparison
from experiments.train.chosen_objective import make_objective
from experiments.train.evaluate import evaluate
from experiments.train.models import build_model
from experiments.train.tokens import END_ID, MASK_ID, PAD_ID, SPECIAL, SubwordTokenizer, TextTokenizer
from experiments.variants import get_variant
from tests.experiments.train.tasks import TEXT, config_of, task_of
from tests.made_up import metrics_rows


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path):
    monkeypatch.setenv("LINEAR_ROPE_CACHE", str(tmp_path / "cache"))


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


def test_words_are_those_of_transformers_in_both_directions(tmp_path) -> None:
    transformers = pytest.importorskip("transformers")
    # It lacks some of the letters that it is asked to read.
    tokenizer = TextTokenizer.train([text for text in TEXTS if "ꙮ" not in text] * 2, 4000, "wordpiece")
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


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_equal_texts_give_equal_tokenizers(kind):
    # All pairs of different letters are equally frequent: which of them are merged is for their order to say.
    texts = [f"{first}{second}" for first, second in permutations("abcdefghijklmnopqrstuvwxyz", 2)]
    first, *others = (TextTokenizer.train(texts, 320, kind) for _ in range(4))
    assert first.size == 320
    assert all(other.json == first.json for other in others)


def test_of_equally_frequent_pairs_the_one_that_begins_the_word_is_merged():
    tokenizer = TextTokenizer.train(["abc", "abc"], 11, "wordpiece")
    assert tokenizer.pieces(range(11)) == [*SPECIAL, "a", "b", "c", "##b", "##c", "ab"]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_the_names_of_special_tokens_are_letters_in_a_text(kind):
    tokenizer = TextTokenizer.train(["one two [SEP] [PAD]"], 400, kind)
    (ids,) = tokenizer.encode(["one [SEP] two [PAD] [MASK]"])
    assert not {PAD_ID, END_ID, MASK_ID} & {*ids.tolist()}
    if kind == "bpe":
        assert tokenizer.decode(ids) == "one [SEP] two [PAD] [MASK]"


def test_tokens_are_learnt_from_the_training_split_alone():
    content = b"aaa bbb\n" * 900 + b"ccc ddd\n" * 100  # the last tenth is validation and test
    corpus = corpus_of_text("text", content)
    assert b"c" not in corpus.train.tobytes()
    for objective, tokenizer in (("masked", "wordpiece"), ("next", "bpe")):
        config = Config(objective=objective, tokenizer=tokenizer, vocabulary_size=300, context=8, batch_size=2)
        learnt = make_objective(corpus, config).tokenizer.json
        assert "aaa" in learnt
        assert "ccc" not in learnt


def test_a_text_that_is_not_utf_8_is_refused_by_its_row_and_may_be_cut_between_its_splits():
    settings = Config(context=34, objective="masked", tokenizer="wordpiece", vocabulary_size=300)
    with pytest.raises(ValueError, match="--data text: made by its own code, row 901 is not UTF-8"):
        make_objective(corpus_of_text("text", TEXT + "thé".encode("latin-1") + b"\n" + TEXT), settings)
    letters = "é ".encode() * (len(TEXT) // 2)
    for shift in (b"", b"x", b"xx"):  # with one of them a split ends in the middle of a letter
        assert make_objective(corpus_of_text("text", TEXT + shift + letters), settings).vocabulary <= 300


SUBWORDS = np.frombuffer(("the linear attention rotates — " * 400).encode() + bytes(range(256)), dtype=np.uint8)


def test_equal_texts_give_equal_subwords_and_any_bytes_come_back(tmp_path):
    first, second = (SubwordTokenizer.train(SUBWORDS, 300) for _ in range(2))
    assert first.json == second.json
    # A text that begins and ends inside a character of UTF-8.
    for content in (SUBWORDS, SUBWORDS[29:200], SUBWORDS[:0]):
        tokens = first.encode(content)
        assert first.decode(tokens) == content.tobytes()
        (kept,) = [path for path in tmp_path.rglob("*.npy") if len(np.load(path)) == len(tokens)]
        kept.write_bytes(b"damaged")
        assert np.array_equal(first.encode(content), tokens)
    assert len(first.encode(SUBWORDS)) < len(SUBWORDS) / 3
    for foreign in (np.array([-1]), np.array([first.size], np.uint16), np.zeros((1, 1), np.uint16)):
        with pytest.raises(ValueError, match="give one row of its ids in uint16"):
            first.decode(foreign)


def test_bits_per_byte_are_the_nats_of_all_targets_over_their_bytes():
    config, objective = config_of("subwords"), task_of("subwords")
    model = build_model(get_variant("softmax-rope"), config, 0, objective).eval()
    inputs, targets = objective.windows("test", 5)
    nats = F.cross_entropy(model(inputs).mT, targets, reduction="sum").item()
    size = sum(len(objective.tokenizer.pieces[token]) for token in targets.flatten().tolist())
    assert evaluate(model, objective, "test", 5, config) == pytest.approx({
        "bits_per_byte": nats / math.log(2) / size,
        "nats_per_token": nats / targets.numel(),
        "tokens_per_byte": targets.numel() / size,
    }, rel=1e-5)  # fmt: skip
    bits = 2 / math.log(2) * targets.numel() / size
    assert objective.training_metrics(2.0, (inputs, targets))["bits_per_byte"] == pytest.approx(bits)


MASKED = [*"--objective masked --tokenizer wordpiece --vocabulary-size 300 --context 34".split()]
BPE = [*"--tokenizer bpe --vocabulary-size 300 --context 16".split()]


@pytest.mark.usefixtures("quickly")
@pytest.mark.slow
@pytest.mark.parametrize("settings", [pytest.param(MASKED, marks=pytest.mark.full), BPE], ids=["wordpiece", "bpe"])
def test_a_comparison_trains_one_tokenizer_and_keeps_it(tmp_path, settings, capsys):
    out, text = tmp_path / "out", tmp_path / "text.txt"
    text.write_bytes(TEXT)
    words = ["run", "convergence", *"--preset smoke --data text --steps 2 --seeds 2".split(), *settings]
    words += [f"--data-file={text}", f"--out={out}", "--variants"]
    assert main([*words, "softmax-none"]) == 0
    kept, record = (out / "tokenizer.json").read_bytes(), read_comparison(out).objective
    assert (record.vocabulary <= 300, record.tokenizer_sha256) == (True, hashlib.sha256(kept).hexdigest())
    if settings == BPE:
        row = metrics_rows(out / "softmax-none/seed1/metrics.jsonl")[-1]
        assert row["bits_per_byte"] == pytest.approx(row["nats_per_token"] / math.log(2) * row["tokens_per_byte"])
    assert main([*words, "softmax-none,relu-none"]) == 0
    assert (out / "tokenizer.json").read_bytes() == kept
    # Another tokenizer in its place is another thing that is trained, and a damaged one is named.
    (out / "tokenizer.json").write_text(json.dumps(json.loads(kept)))
    assert main([*words, "softmax-none"]) == 2
    assert "differs in the objective's tokenizer_sha256 (" in capsys.readouterr().err
    (out / "tokenizer.json").write_text("{}")
    assert main([*words, "softmax-none"]) == 2
    assert "tokenizer.json is no tokenizer" in capsys.readouterr().err
