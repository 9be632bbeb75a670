"""Triplets of Chinese legal cases, with labels and without."""

import json
import re

import pytest

from experiments.cli import main
from experiments.config import Config
from experiments.data import cail2019_scm
from experiments.training.chosen_objective import make_objective
from experiments.training.text_tokens import PAD_ID, UNKNOWN_ID
from tests.experiments.data.made_up_files import write

COUNTS = {"train": 4, "validation": 2, "test": 2}


def lines(count, labelled=True, of=1):
    rows = [{"A": f"原告{row // of}", "B": f"被告{row}", "C": f"其他{row}"} for row in range(count)]
    rows = [{**row, "label": "BC"[number % 2]} for number, row in enumerate(rows)] if labelled else rows
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def place(directory):
    for split, name in zip(COUNTS, ("train.json", "dev.json.gz", "test.json"), strict=True):
        write(directory / "cail2019_scm" / name, lines(COUNTS[split]))


def test_labels_and_official_splits(tmp_path):
    place(tmp_path)
    examples = cail2019_scm.load(tmp_path, triplets=COUNTS)
    assert examples.classes == ("one", "other")
    rows = {row[0]: row[1:] for row in examples.train.itertuples(index=False, name=None)}
    assert rows["原告2"] == ("被告2", "其他2", "one")
    assert rows["原告3"] == ("被告3", "其他3", "other")
    with pytest.raises(ValueError, match=r"--data cail2019-scm: .*train\.json: it has 4 rows, expected 5,102"):
        cail2019_scm.load(tmp_path)
    (tmp_path / "cail2019_scm/test.json").unlink()
    with pytest.raises(ValueError, match=r"cail2019_scm/test\.json is not there; place it in --data-dir .*-sample"):
        cail2019_scm.load(tmp_path)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "Input data was truncated"),
        ("[" * 100_000, "Expected `object`, got `array`"),
        ('{"A": "a", "B": "b", "C": "c"}', "Object missing required field `label`"),
        ('{"A": "a", "B": 3, "C": "c", "label": "B"}', "Expected `str`, got `int` - at `$.B`"),
        (
            '{"A": "\\ud800", "B": "b", "C": "c", "label": "B"}',
            "JSON is malformed: unexpected end of escaped utf-16",
        ),
        ('{"A": "a", "B": "b", "C": "c", "label": "D"}', "Invalid enum value 'D' - at `$.label`"),
    ],
)
def test_a_wrong_line_is_told(tmp_path, capsys, line, told):
    place(tmp_path)
    path = write(tmp_path / "cail2019_scm/train.json", lines(1) + line + "\n")
    words = ["run", "convergence", "--preset", "smoke", "--data", "cail2019-scm", "--data-dir", str(tmp_path)]
    assert main(words) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: --data cail2019-scm: {path}, row 2: {told}")
    assert message.endswith("; expected A, B, C, label in a JSON object; replace or remove it\n")


def test_the_sample_s_nearer_texts_are_first_in_half_of_them(tmp_path):
    write(tmp_path / "cail2019_scm/input.txt.gz", lines(600, labelled=False, of=3))
    examples = cail2019_scm.load_sample(tmp_path, triplets=600, sha256=None)
    splits = [getattr(examples, split) for split in ("train", "validation", "test")]
    assert sum(map(len, splits)) == 600
    first = sum((split["label"] == "one").sum() for split in splits)
    assert 250 < first < 350
    for split in splits:
        for row in split.itertuples():
            assert re.match("被告", row.one if row.label == "one" else row.other)
            assert re.match("其他", row.other if row.label == "one" else row.one)
    assert sum(split["text"].nunique() for split in splits) == 200
    assert "A sample of CAIL2019-SCM" in examples.note


def test_the_real_sample(real):
    examples = real("cail2019-scm-sample")
    assert tuple(examples.describe().splits.values()) == (391, 58, 51)
    assert sum(split["text"].nunique() for split in (examples.train, examples.validation, examples.test)) == 210
    assert len({*examples.train["text"], *examples.validation["text"], *examples.test["text"]}) == 210
    assert 150 < (examples.train["label"] == "one").sum() < 240
    assert examples.sha256 == "3c959d2e659feb21a4d0160050ca2434d4befbdc2ddd4e437a12f7465b34a691"
    config = Config(context=1024, batch_size=4, tokenizer="wordpiece", vocabulary_size=4096)
    (tokens, labels) = make_objective(examples, config).windows("test", 51)
    assert (*tokens.shape, *labels.shape) == (51, 2, 1024, 51), "a case beside each of two others, cut to what is read"
    assert ((tokens != PAD_ID).sum(-1) > 512).double().mean() > 0.9
    assert (tokens == UNKNOWN_ID).sum() < 0.01 * (tokens != PAD_ID).sum()
