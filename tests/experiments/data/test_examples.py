"""Labelled examples: their kinds, their record, how they are cut, and where a text is needed."""

import hashlib
import json

import msgspec
import numpy as np
import pandas as pd
import pytest

from experiments.cli import main
from experiments.config import Config
from experiments.data.corpus import DataSet
from experiments.data.examples import COLUMNS, cut, examples_of, mixed
from experiments.data.registry import DATA_SETS, load_data
from experiments.records.schema import DataRecord
from experiments.train.chosen_objective import make_objective


def table(columns, *rows):
    return pd.DataFrame(rows, columns=list(columns))


def texts(*rows):
    return table(COLUMNS["text"], *rows)


SPLITS = texts(("good", "yes"), ("bad", "no")), texts(("fine", "yes")), texts(("awful", "no"), ("großartig", "yes"))


def made(splits=SPLITS, classes=("no", "yes")):
    return examples_of("mine", splits, "a test", "Only a test.", classes)


def test_kind_classes_labels_and_record():
    examples = made()
    assert examples.kind == "text"
    assert examples.labels("test").tolist() == [0, 1]
    rows = [["good", "yes"], ["bad", "no"], ["fine", "yes"], ["awful", "no"], ["großartig", "yes"]]
    content = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
    told = {"name": "mine", "source": "a test", "note": "Only a test.", "unit": "examples"}
    told |= {"bytes": 4 + 3 + 4 + 5 + 10, "splits": {"train": 2, "validation": 1, "test": 2}}
    assert msgspec.to_builtins(examples.describe()) == told | {"sha256": hashlib.sha256(content.encode()).hexdigest()}


def test_the_record_of_older_comparisons_counts_bytes():
    old = b'{"name":"stdlib","sha256":"","source":"s","note":"","bytes":3,"splits":{"train":3}}'
    record = msgspec.json.decode(old, type=DataRecord)
    assert record.unit == "bytes"
    assert msgspec.json.encode(record) == old


def test_other_kinds():
    rows = {"pair": ("a", "b", 2.5), "triplet": ("a", "b", "c", "other"), "translation": ("one", "eins")}
    for kind, row in rows.items():
        frame = table(COLUMNS[kind], row)
        examples = examples_of("mine", (frame, frame, frame), "", "", ("one", "other") if kind == "triplet" else ())
        assert examples.kind == kind
        assert list(examples.texts("test").columns) == [name for name in COLUMNS[kind] if name != "label"]
        if kind == "pair":
            assert examples.labels("train").dtype == np.float64
            assert examples.labels("train").tolist() == [2.5]


def test_what_does_not_fit_together_is_refused():
    train, validation, test = SPLITS
    with pytest.raises(ValueError, match=r"--data mine \(a test\): the validation split has no examples"):
        made((train, validation[:0], test))
    with pytest.raises(ValueError, match="label 'yes' is no class; give no or maybe"):
        made(classes=("no", "maybe"))
    with pytest.raises(ValueError, match="test has other columns than train; give text, label"):
        made((train, validation, test.rename(columns={"text": "first"})))
    with pytest.raises(ValueError, match=r"the columns are \['words'\]; give those of a kind"):
        made((table(["words"], ("a",)),) * 3)


def test_cut_shares_no_text_and_does_not_depend_on_the_order_of_the_file():
    generator = np.random.default_rng(0)
    pairs = generator.integers(0, 2000, (1500, 2)).astype(str).tolist()
    frame = table(["first", "second"], *map(tuple, pairs)).assign(label=range(1500))
    # Three chains that pairs of neighbours join.
    chains = [(f"{name}{i}", f"{name}{i + 1}", -1) for name in "xyz" for i in range(20)]
    frame = pd.concat([frame, table(COLUMNS["pair"], *chains)])
    parts = cut(frame, ["first", "second"], (0.6, 0.3, 0.1))
    assert sum(map(len, parts)) == len(frame)
    seen = [text for part in parts for text in {*part["first"], *part["second"]}]
    assert len(seen) == len({*seen}) == len({*frame["first"], *frame["second"]})
    again = cut(frame.sample(frac=1, random_state=1), ["first", "second"], (0.6, 0.3, 0.1))
    assert all(one.equals(other) for one, other in zip(parts, again, strict=True))
    frame = texts(*((f"text {i}", "early" if i < 1000 else "late") for i in range(2000)))
    training, validation = cut(frame, ["text"], (0.9, 0.1))
    assert 1740 < len(training) < 1860
    assert 60 < (validation["label"] == "late").sum() < 140


def test_fewer_examples_are_a_fair_sample_of_the_training_split_alone():
    frame = pd.DataFrame({"text": [f"text {n}" for n in range(400)], "label": ["no"] * 200 + ["maybe"] * 200})
    examples = examples_of("mine", (frame, frame[:5], frame[:7]), "", "Made up.", ("no", "maybe"))
    few = examples.first(100)
    assert len(few.train) == 100
    assert 30 < (few.train["label"] == "no").sum() < 70
    assert few.train["text"].tolist() == mixed(frame)["text"].tolist()[:100]
    assert few.note == "Made up. Trained on 100 of the 400 examples of the training split."
    assert few.describe().splits == {"train": 100, "validation": 5, "test": 7}
    # What a whole data set is recognised by stays.
    assert few.sha256 == examples.sha256
    assert examples.first(400) is examples


def test_where_a_text_is_needed_one_line_says_what_would_do(monkeypatch, capsys):
    own = DataSet("mine", "Mine.", lambda *places: made())
    monkeypatch.setattr(DATA_SETS, "_items", {**DATA_SETS._items, "mine": own})
    assert load_data("mine").name == "mine"
    with pytest.raises(ValueError, match=r"--data mine is labelled texts and .*; give --tokenizer wordpiece"):
        make_objective(made(), Config())
    assert main(["run", "convergence", "--preset", "smoke", "--data", "mine", "--dry-run"]) == 2
    assert "--data mine is labelled texts and --objective next; give --tokenizer" in capsys.readouterr().err
