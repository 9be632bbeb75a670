"""Predicting hidden tokens: what is hidden, what counts, and how it is kept on record."""

import hashlib
import math
from itertools import permutations

import numpy as np
import pytest
import torch

from experiments.cli import main
from experiments.config import Config
from experiments.data.corpus import NOT_SCORED, corpus_of_text
from experiments.records.record import read_comparison
from experiments.train.chosen_objective import make_objective
from experiments.train.masked import MaskedToken, lines
from experiments.train.text_tokens import BEGIN_ID, END_ID, MASK_ID, SPECIAL, TextTokenizer
from linear_rope.heads import MaskedLM
from linear_rope.model_config import ModelConfig
from tests.experiments.train.stopped_runs import check_goes_on
from tests.made_up import loss_in_shares

WORDS = "the quick brown fox jumps over a lazy dog and then sleeps under an old oak tree near the river".split()
TEXT = "\n".join(" ".join(np.random.default_rng(n).choice(WORDS, 12)) for n in range(900)).encode()
CONTEXT = 34


@pytest.fixture(scope="module")
def task():
    corpus = corpus_of_text("text", TEXT)
    tokenizer = TextTokenizer.train(lines(corpus.train), 300, "wordpiece")
    return MaskedToken(corpus, CONTEXT, 16, tokenizer)


def test_fifteen_percent_are_hidden_four_fifths_of_them_masked(task):
    inputs, targets = (torch.cat(parts) for parts in zip(*(task.batch(0, step) for step in range(400)), strict=True))
    inside, wanted = inputs[:, 1:-1], targets[:, 1:-1]
    hidden = wanted != NOT_SCORED
    # Of n draws a share is within 4 standard deviations of its probability.
    for share, probability, n in (
        (hidden, 0.15, hidden.numel()),
        (inside[hidden] == MASK_ID, 0.8, int(hidden.sum())),
        (inside[hidden] == wanted[hidden], 0.1 + 0.1 / (task.vocabulary - len(SPECIAL)), int(hidden.sum())),
    ):
        assert abs(share.double().mean() - probability) < 4 * math.sqrt(probability * (1 - probability) / n)
    assert (inputs[:, 0] == BEGIN_ID).all()
    assert (inputs[:, -1] == END_ID).all()
    assert (targets[:, [0, -1]] == NOT_SCORED).all()
    assert hidden.any(1).all()
    # A tenth of them is another token, any but those with a meaning of their own.
    others = inside[hidden & (inside != MASK_ID) & (inside != wanted)]
    assert {*others.tolist()} == {*range(len(SPECIAL), task.vocabulary)}


def test_what_is_hidden_is_the_text_s(task):
    for inputs, targets in (task.batch(3, 5), task.windows("test", 8)):
        whole = torch.where(targets == NOT_SCORED, inputs, targets)[:, 1:-1].numpy()
        split = task.splits["test" if len(inputs) == 8 else "train"]
        rows = np.lib.stride_tricks.sliding_window_view(split, CONTEXT - 2)
        assert all((rows == row).all(1).any() for row in whole)


def test_batches_depend_on_seed_and_step_alone(task):
    again = MaskedToken(task.corpus, CONTEXT, 16, task.tokenizer)
    assert all(map(torch.equal, task.batch(1, 2), again.batch(1, 2)))
    assert not torch.equal(task.batch(1, 2)[0], task.batch(1, 3)[0])
    assert not torch.equal(task.batch(1, 2)[0], task.batch(2, 2)[0])
    assert all(map(torch.equal, task.windows("validation", 5), again.windows("validation", 5)))


def test_a_stopped_run_goes_on_to_the_same_numbers(task, tmp_path):
    config = Config(
        **{"layers": 1, "dim": 16, "heads": 2, "context": CONTEXT, "batch_size": 4, "steps": 8, "warmup_steps": 2},
        **{"log_every": 1, "evaluate_every": 3, "evaluation_windows": 4, "test_windows": 4, "checkpoint_every": 3},
        **{"objective": "masked", "tokenizer": "wordpiece", "vocabulary_size": 300, "dropout": 0.1},
    )
    check_goes_on(
        tmp_path, lambda: MaskedToken(task.corpus, CONTEXT, 4, task.tokenizer), "elu+1-rope-after@decay=gate", config
    )


def test_tokens_are_learnt_from_the_training_split_alone():
    content = b"aaa bbb\n" * 900 + b"ccc ddd\n" * 100  # the last tenth is validation and test
    corpus = corpus_of_text("text", content)
    assert b"c" not in corpus.train.tobytes()
    for objective, tokenizer in (("masked", "wordpiece"), ("next", "bpe")):
        config = Config(objective=objective, tokenizer=tokenizer, vocabulary_size=300, context=8, batch_size=2)
        learnt = make_objective(corpus, config).tokenizer.json
        assert "aaa" in learnt
        assert "ccc" not in learnt


def test_the_loss_and_the_metrics_are_of_hidden_tokens_alone(task):
    model = MaskedLM(ModelConfig(vocab_size=task.vocabulary, dim=16, layers=1, heads=2, feature_map="elu+1"))
    inputs, targets = batch = task.windows("test", 6)
    logits = model(inputs).log_softmax(-1)
    at = targets != NOT_SCORED
    expected = -logits[at].gather(1, targets[at][:, None]).mean()
    torch.testing.assert_close(task.loss(model, batch), expected)
    torch.testing.assert_close(loss_in_shares(task, model, batch), expected)
    metrics = task.metrics(task.tally(model, batch))
    assert metrics["nats_per_masked_token"] == pytest.approx(expected.item(), rel=1e-5)
    assert metrics["accuracy"] == (logits.argmax(-1)[at] == targets[at]).double().mean().item()


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.slow
def test_a_run_keeps_its_tokenizer_and_goes_on_with_it(tmp_path):
    text = tmp_path / "words.txt"
    text.write_bytes(TEXT)
    root = tmp_path / "run"
    words = ["run", "convergence", "--preset", "smoke", "--data", "text", "--data-file", str(text), "--objective"]
    words += ["masked", "--tokenizer", "wordpiece", "--vocabulary-size", "300", "--context", "34", "--seeds", "1"]
    assert main([*words, "--variants", "softmax-learned,elu+1-rope-after", "--out", str(root)]) == 0
    kept = (root / "tokenizer.json").read_bytes()
    assert read_comparison(root).objective.tokenizer_sha256 == hashlib.sha256(kept).hexdigest()
    assert main([*words, "--variants", "softmax-learned,elu+1-rope-after,relu-none", "--out", str(root)]) == 0
    assert (root / "tokenizer.json").read_bytes() == kept


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"objective": "masked"}, "objective is masked with the tokenizer bytes; give wordpiece"),
        ({"tokenizer": "wordpiece", "vocabulary_size": 300}, "give --objective masked, or bpe"),
        (
            {"objective": "masked", "tokenizer": "wordpiece", "vocabulary_size": 300, "context": 2},
            "context is 2; give 3 or more",
        ),
        ({"initial_weights": "there"}, "--initial-weights is there, which is for labelled texts"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        make_objective(corpus_of_text("text", TEXT), Config(**{"context": 34, **settings}))


def test_a_text_that_is_not_utf_8_is_refused_by_its_row_and_may_be_cut_between_its_splits():
    settings = Config(context=34, objective="masked", tokenizer="wordpiece", vocabulary_size=300)
    with pytest.raises(ValueError, match="--data text: made by its own code, row 901 is not UTF-8"):
        make_objective(corpus_of_text("text", TEXT + b"\n" + "thé".encode("latin-1") + b"\n" + TEXT), settings)
    letters = "é ".encode() * (len(TEXT) // 2)
    for shift in (b"", b"x", b"xx"):  # with one of them a split ends in the middle of a letter
        assert make_objective(corpus_of_text("text", TEXT + shift + letters), settings).vocabulary <= 300


def test_tokens_of_a_text_come_back():
    text = "An Oak-tree’s leaves: 12,5 m²\n\t“naïve” 你好"
    bpe, wordpiece = (TextTokenizer.train([text] * 2, 400, kind) for kind in ("bpe", "wordpiece"))
    assert bpe.decode(bpe.encode([text])[0]) == text
    assert wordpiece.decode(wordpiece.encode(["an oak"])[0]) == "an oak"
    assert bpe.special == wordpiece.special == SPECIAL
    assert wordpiece.encode(["OAK"])[0].tolist() == wordpiece.encode(["oak"])[0].tolist()
    assert [len(ids) for ids in wordpiece.encode(["你好"])] == [2]


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


def test_a_kept_row_of_tokens_that_was_changed_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("LINEAR_ROPE_CACHE", str(tmp_path))
    tokenizer = TextTokenizer.train(WORDS, 100, "wordpiece")
    ids = tokenizer.encode_once(["the old oak", "river"])
    (path,) = tmp_path.rglob("*.npy")
    content = path.read_bytes()
    path.write_bytes(content[:-2] + b"\0\0")
    assert tokenizer.encode_once(["the old oak", "river"]).tolist() == ids.tolist()
    assert path.read_bytes() == content
