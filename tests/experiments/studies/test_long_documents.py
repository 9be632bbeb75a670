"""The study of long documents: a run from the command line to the report, and verdicts from made-up figures."""

import json
from types import SimpleNamespace

import pandas as pd
import pytest

from experiments.cli import main
from experiments.config import Config
from experiments.data.registry import load_data
from experiments.records.record import read_comparison
from experiments.studies.answers import ANSWERS, judge, samples_of
from experiments.studies.long_documents import measure as measured
from experiments.train.chosen_objective import make_objective
from tests.made_up import make_record, metrics_rows, trained_here

from .conftest import write

VARIANTS = ["softmax-rope@context=64", "softmax-rope@context=512", "elu+1-rope-after@context=512"]
SMALL = ["--preset", "smoke", "--steps", "4", "--evaluate-every", "4", "--log-every", "2", "--context", "512"]
WORDS = ["run", "long-documents", *SMALL, "--test-windows", "40", "--variants", ",".join(VARIANTS), "--workers", "1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("long") / "made"
    with trained_here():
        assert main([*WORDS, "--out", str(out)]) == 0
    return out


@pytest.mark.slow
def test_a_run_has_costs_samples_and_a_report(made):
    costs, answers = pd.read_csv(made / "documents.csv"), pd.read_csv(made / "answers.csv")
    assert costs.groupby("variant").size().to_dict() == dict.fromkeys(VARIANTS, measured.ROUNDS)
    assert costs.groupby("variant")["context"].first().to_dict() == dict(zip(VARIANTS, (64, 512, 512), strict=True))
    assert (costs[["seconds", "bytes"]] > 0).all().all()
    assert {*answers["variant"]} == {*VARIANTS}
    assert answers["said"].isin(["negative", "positive"]).all()
    assert judge(read_comparison(made), {*VARIANTS}) == "softmax-rope@context=512", "the first that reads the most"
    assert answers["tokens"].min() < 300
    assert answers["tokens"].max() > 900
    report = (made / "report.md").read_text(encoding="utf-8")
    assert "RoFormer (2104.09864)" in report
    assert answers["text"].iloc[0][:40] in report
    assert (made / "figures/accuracy.png").exists()
    assert (made / "figures/cost.png").exists()


@pytest.mark.slow
def test_every_run_has_its_own_length_and_equal_texts(made):
    rows = {name: metrics_rows(made / name / "seed0" / "metrics.jsonl") for name in VARIANTS}
    config = {name: json.loads((made / name / "seed0/config.json").read_text())["config"] for name in VARIANTS}
    for name, length in zip(VARIANTS, (64, 512, 512), strict=True):
        assert config[name]["context"] == length
        assert {row["tokens"] for row in rows[name] if row["step"] == 4} == {4 * 8 * length}
    texts = load_data("late-verdicts")
    short, long = (make_objective(texts, Config(**config[name]), made) for name in VARIANTS[:2])
    for step in range(3):
        (few, labels), (many, same) = short.batch(0, step), long.batch(0, step)
        assert labels.tolist() == same.tolist()
        assert few.shape[-1] == 64
        assert few[:, :, :63].tolist() == many[:, :, :63].tolist()
    # What measures them cuts the same way.
    again = long.of({"context": 64}).batch(0, 2)[0]
    assert again.tolist() == few.tolist()


@pytest.mark.slow
def test_a_dry_run_counts_what_each_variant_reads(tmp_path, capsys):
    assert main([*WORDS, "--dry-run", "--out", str(tmp_path / "planned")]) == 0
    said = capsys.readouterr().out
    assert "4 steps of 8 examples of up to 64 to 512 tokens" in said
    assert f"3 runs, {4 * 8 * (64 + 512 + 512):,} tokens" in said
    assert not (tmp_path / "planned").exists()


def test_another_length_needs_labelled_texts(tmp_path, capsys):
    words = ["run", "convergence", "--preset", "smoke", "--variants", "softmax-rope,softmax-rope@context=16"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--variants gives a context of 16" in line
    assert "give --data of labelled texts, such as imdb-sentiment" in line
    assert not (tmp_path / "out").exists()


def test_what_has_a_finished_run_is_timed_and_the_columns_have_their_order(make_comparison, monkeypatch, tmp_path):
    root = make_comparison(
        tmp_path / "made-up", "softmax-rope,elu+1-none", 1, fates={("elu+1-none", 0): ("failed", "")}
    )
    monkeypatch.setattr(measured, "reading", lambda *_: lambda: None)
    monkeypatch.setattr(measured.benchmark, "in_fresh_process", lambda *_: 7)
    monkeypatch.setattr(measured, "SAMPLE_SECONDS", 1e-6)
    objective = SimpleNamespace(vocabulary=300, kind="classification", outputs=2)
    assert measured.measure_costs(root, read_comparison(root), objective) == []
    found = pd.read_csv(root / "documents.csv")
    assert {*found["variant"]} == {"softmax-rope"}
    assert [*found] == ["variant", "round", "context", "seconds", "bytes"]


def test_of_the_samples_that_are_shown_half_are_right(tmp_path):
    objective = {"name": "labels of texts", "metric": "accuracy", "unit": "share of examples", "better": "higher"}
    objective |= {"vocabulary": 300, "classes": ["good", "bad"]}
    record = make_record(variants=["softmax-rope"], objective=objective)
    rows = [
        ("softmax-rope", 0, number, number, "a text", "good", "good" if number < 20 else "bad") for number in range(24)
    ]
    write(ANSWERS, tmp_path, rows)
    shown = samples_of(SimpleNamespace(root=tmp_path, comparison=record), dict)
    remarks = shown[shown["of"] == "label"]["words"].tolist()
    assert remarks == ["good (softmax-rope is right)"] * 4 + ["good (softmax-rope is wrong)"] * 4
