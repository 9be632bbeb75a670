"""Translations: sequences, loss, the average of checkpoints, and a model that learns and translates."""

import dataclasses
import importlib
import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from experiments.config import Config
from experiments.data.examples import examples_of
from experiments.train import translation
from experiments.train.checkpoint import averaged_weights, checkpoint_path, read_checkpoint
from experiments.train.chosen_objective import make_objective
from experiments.train.loop import RunStopped, train_run
from experiments.train.models import build_model
from experiments.train.schedule import learning_rate_at
from experiments.train.text_tokens import BEGIN_ID, END_ID, MASK_ID, PAD_ID, TextTokenizer
from experiments.train.translation import Translator, corpus_bleu, load_average, source_of, target_of
from experiments.variants import get_variant
from tests.experiments.train.stopped_runs import check_goes_on
from tests.made_up import loss_in_shares

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs"}
CONFIG = Config(
    **{"layers": 1, "dim": 32, "heads": 2, "context": 12, "batch_size": 16, "steps": 160, "warmup_steps": 20},
    **{"log_every": 50, "evaluate_every": 80, "evaluation_windows": 40, "test_windows": 40, "learning_rate": 1e-2},
    **{"tokenizer": "bpe", "vocabulary_size": 300, "schedule": "inverse-sqrt", "label_smoothing": 0.1},
    **{"checkpoint_every": 10, "kept_checkpoints": 5, "initial_std": 0.08},
)


def in_german(english):
    return " ".join(WORDS[word] for word in english.split())


def pairs(sizes=(300, 40, 40)):
    rng, found = np.random.default_rng(0), []
    for size in sizes:
        texts = [" ".join(rng.choice([*WORDS], rng.integers(1, 5))) for _ in range(size)]
        found.append(pd.DataFrame({"source": texts, "target": [in_german(text) for text in texts]}))
    return examples_of("pairs", found, "made by the test", "Made up.")


@pytest.fixture(scope="module")
def task():
    return make_objective(pairs(), CONFIG)


@pytest.fixture(scope="module")
def trained(task, tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    train_run(directory, get_variant("elu+1-rope-after"), 0, CONFIG, task, torch.device("cpu"))
    return directory


@pytest.mark.parametrize(("length", "kept"), [(2, 2), (11, 11), (12, 11), (30, 11)])
def test_texts_are_ended_and_cut(length, kept):
    text = np.arange(100, 100 + length, dtype=np.uint16)
    assert source_of(text, 12).tolist() == [*text[:kept].tolist(), END_ID]
    # Twelve tokens are read, and the one behind them is predicted.
    assert target_of(text, 12).tolist() == [BEGIN_ID, *text.tolist(), END_ID][:13]


def test_both_languages_have_one_tokenizer_and_come_back_as_they_were(task):
    tokens, targets = task.windows("test", 40)
    of_split = {*pairs().test["source"]}, {*pairs().test["target"]}
    for rows, texts in zip((tokens, targets), of_split, strict=True):
        assert {task.tokenizer.decode(row.tolist()) for row in rows} == texts
    assert (targets[:, 0] == BEGIN_ID).all()
    assert ((tokens == END_ID).sum(1) == 1).all()


def test_an_epoch_has_every_pair_once(task):
    steps = math.ceil(300 / 16)
    rows = [tuple(row[row != PAD_ID].tolist()) for step in range(steps) for row in task.batch(0, step)[0]]
    expected = [tuple(source.tolist()) for source, _ in task._tokens["train"]]
    assert sorted(rows[:300]) == sorted(expected)
    assert not all(map(torch.equal, task.batch(0, 0), task.batch(1, 0)))
    # Later epochs begin within a batch.
    for epoch in range(1, 4):
        assert sorted(task._epoch(0, epoch)) == [*range(300)]


def test_smoothing_is_of_the_training_loss_alone_and_padding_counts_nowhere(task):
    model = build_model(get_variant("softmax-rope"), CONFIG, 0, task).double().eval()
    source, target = batch = task.windows("validation", 20)
    logits = model(source, target[:, :-1], source == PAD_ID).log_softmax(-1)
    there = target[:, 1:] != PAD_ID
    right = -logits.gather(-1, target[:, 1:, None]).squeeze(-1)[there]
    uniform = -logits.mean(-1)[there]
    # Szegedy et al. 2015, section 7: (1 - ε) of the right token and ε of the uniform distribution.
    expected = 0.9 * right.mean() + 0.1 * uniform.mean()
    torch.testing.assert_close(task.loss(model, batch), expected)
    found = task.metrics(task.tally(model, batch))
    assert found["nats_per_token"] == pytest.approx(right.mean().item(), rel=1e-5)
    wider = F.pad(source, (0, 3)), F.pad(target, (0, 3))
    torch.testing.assert_close(task.loss(model, wider), task.loss(model, batch))
    assert task.training_metrics(2.0, batch) == {}, "it is no loss in nats per token"
    texts = task.examples.texts("validation").iloc[task.chosen("validation", 20)]
    read, written = (sum(map(len, task.tokenizer.encode(texts[name].tolist()))) for name in ("source", "target"))
    assert task.tokens_in(wider, CONFIG) == read + written + 2 * len(texts)  # and the ends
    torch.testing.assert_close(loss_in_shares(task, model, batch), task.loss(model, batch))


@pytest.mark.parametrize("step", [0, 7, 19, 20, 79, 159])
def test_the_inverse_square_root_schedule_is_the_published_one(step):
    # Section 5.3 of Vaswani et al., whose peak is (dim · warm-up)^(-1/2), at the step "warm-up" counted from 1.
    dim, warmup = 512, CONFIG.warmup_steps
    published = dim**-0.5 * min((step + 1) ** -0.5, (step + 1) * warmup**-1.5)
    peak = (dim * warmup) ** -0.5
    assert learning_rate_at(step, CONFIG, CONFIG.steps) == pytest.approx(CONFIG.learning_rate * published / peak)


def test_it_learns_to_translate(task, trained):
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    (tested,) = [row for row in rows if row["split"] == "test"]
    assert tested["nats_per_token"] < 1
    model = build_model(get_variant("elu+1-rope-after"), CONFIG, 0, task).eval()
    assert load_average(trained, model, CONFIG) == 5
    translator = Translator(model, task.tokenizer, CONFIG.context)
    test = pairs().test
    said = translator.translate(test["source"].tolist())
    bleu, signature = corpus_bleu(said, test["target"].tolist())
    assert bleu > 40
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert translator.translate([]) == []
    # The order of the texts, and those beside them, change nothing.
    assert translator.translate(test["source"].tolist()[::-1]) == said[::-1]
    assert translator.translate(["one two"]) == translator.translate(["six", "one two", "four five three"])[1:2]


def test_the_average_is_of_the_last_regular_checkpoints(task, trained):
    steps = (120, 130, 140, 150, 160)
    assert [path.name for path in sorted((trained / "checkpoint").iterdir())] == [f"step{n:08d}" for n in steps]
    model = build_model(get_variant("elu+1-rope-after"), CONFIG, 0, task)
    how = {"steps": 160, "every": 10, "count": 5}
    found, count = averaged_weights(trained / "checkpoint", model, **how)
    parts = [read_checkpoint(checkpoint_path(trained / "checkpoint", step)).model for step in steps]
    assert count == 5
    for name, value in found.items():
        torch.testing.assert_close(value, torch.stack([part[name] for part in parts]).mean(0))


def average_of(directory, task, stop_at):
    """The averaged weights of a short run that is stopped after that step and goes on."""
    config = dataclasses.replace(CONFIG, steps=12, checkpoint_every=2)
    run = (directory, get_variant("elu+1-rope-after"), 0, config, task, torch.device("cpu"))
    directory.mkdir()
    done = []
    if stop_at:
        with pytest.raises(RunStopped, match=f"stopped at step {stop_at}"):
            train_run(*run, progress=lambda *step: done.append(step), should_stop=lambda: len(done) == stop_at)
    train_run(*run)
    model = build_model(get_variant("elu+1-rope-after"), config, 0, task)
    assert load_average(directory, model, config) == 5
    return model.state_dict()


def test_a_stopped_run_goes_on_to_the_same_numbers(tmp_path):
    config = dataclasses.replace(CONFIG, steps=8, log_every=1, evaluate_every=3, checkpoint_every=3, dropout=0.1)
    check_goes_on(tmp_path, lambda: make_objective(pairs(), config), "elu+1-rope-after", config)


def test_a_stop_between_two_checkpoints_changes_no_average(task, tmp_path):
    undisturbed = average_of(tmp_path / "undisturbed", task, 0)
    for stop_at in (7, 11):
        stopped = average_of(tmp_path / str(stop_at), task, stop_at)
        assert all(map(torch.equal, stopped.values(), undisturbed.values()))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tokenizer": "bytes", "vocabulary_size": 256}, "--data pairs is translations; give --tokenizer bpe and"),
        ({"tokenizer": "wordpiece"}, "is translations, which are written out from the start; give bpe and none"),
        ({"initial_weights": "there"}, "written out from the start"),
        ({"tested": "best", "kept_checkpoints": 2}, "--tested is best, but --data pairs is translations"),
    ],
)
def test_what_does_not_fit_is_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        make_objective(pairs(), Config(**vars(CONFIG) | settings))


def test_label_smoothing_is_for_translations(next_byte):
    text = next_byte(Config(context=32)).corpus
    with pytest.raises(ValueError, match=r"--label-smoothing is 0\.1, which is for translations, and --data text is"):
        make_objective(text, Config(context=32, label_smoothing=0.1))


@pytest.mark.parametrize(
    ("language", "tokenizer", "said", "wanted"),
    [
        ("zh", "zh", "我今天喜欢吃红色的苹果和梨。", "我今天喜欢吃绿色的苹果和梨。"),
        ("ja", "char", "私は今日赤いりんごを食べます。", "私は今日青いりんごを食べます。"),
        ("de", "13a", "Ich esse heute gern rote Äpfel und Birnen.", "Ich esse heute gern grüne Äpfel und Birnen."),
        ("", "13a", "I like to eat a red apple and a pear.", "I like to eat a green apple and a pear."),
    ],
)
def test_bleu_counts_characters_where_words_are_not_separated(language, tokenizer, said, wanted):
    bleu, signature = corpus_bleu([said], [wanted], language)
    assert 40 < bleu < 90
    assert f"|tok:{tokenizer}|" in signature


@pytest.mark.parametrize("language", ["", "zh", "ja"])
def test_bleu_of_empty_lines(language):
    line = "One more line of text. 我今天吃苹果。"
    assert corpus_bleu(["", line], ["", line], language)[0] == pytest.approx(100)
    assert 0 < corpus_bleu(["Too much is said.", line], ["", line], language)[0] < 100
    assert corpus_bleu(["", ""], ["", line], language)[0] == 0


def test_the_floors_are_told_the_language(monkeypatch):
    examples = dataclasses.replace(pairs(), language="zh")
    seen = []
    monkeypatch.setattr(
        translation, "corpus_bleu", lambda said, wanted, language: (seen.append(language), (0.0, ""))[1]
    )
    make_objective(examples, CONFIG).floors(CONFIG)
    assert set(seen) == {"zh"}


def test_without_sacrebleu_it_is_refused_at_the_beginning(monkeypatch):
    there = importlib.import_module

    def missing(name):
        if name == "sacrebleu.metrics":
            raise ImportError
        return there(name)

    monkeypatch.setattr(translation.importlib, "import_module", missing)
    with pytest.raises(ValueError, match=r"pip install .*\[texts\]"):
        make_objective(pairs(), CONFIG)


def test_the_pairs_of_a_batch_are_of_about_one_length_in_every_epoch(task):
    apart = [len({*(row != PAD_ID).sum(1).tolist()}) for step in range(60) for row in [task.batch(0, step)[0]]]
    # Words are one to four, a token or two each; a batch that two epochs share has all lengths.
    assert sorted(apart)[len(apart) // 2] <= 2
    assert len({task.batch(0, step)[0].shape[1] for step in range(6)}) > 1, "short ones do not come first"


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_the_names_of_special_tokens_are_letters_in_a_text(kind):
    tokenizer = TextTokenizer.train(["one two [SEP] [PAD]"], 400, kind)
    (ids,) = tokenizer.encode(["one [SEP] two [PAD] [MASK]"])
    assert not {PAD_ID, END_ID, MASK_ID} & {*ids.tolist()}
    if kind == "bpe":
        assert tokenizer.decode(ids) == "one [SEP] two [PAD] [MASK]"


def test_bleu_takes_off_what_a_translation_lacks_of_its_reference():
    score, _ = corpus_bleu(["a b c d e"], ["a b c d e f g h"])
    assert score == pytest.approx(100 * math.exp(1 - 8 / 5))
