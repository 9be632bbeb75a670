"""The study of translation: a run from the command line to the report, and verdicts from made-up figures."""

import io
import json
import shutil

import pandas as pd
import pytest

from experiments import load
from experiments.cli import main
from experiments.studies.translation import measure as measured
from tests.made_up import trained_here

GATED = "elu+1-rope-after@decay=gate@local_conv=4"
SMALL = ["--steps", "8", "--checkpoint-every", "2", "--evaluate-every", "4", "--log-every", "2"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two variants of the smoke preset."""
    out = tmp_path_factory.mktemp("translation") / "made"
    words = ["run", "translation", "--preset", "smoke", "--variants", f"softmax-rope,{GATED}", *SMALL]
    with trained_here():
        assert main([*words, "--workers", "1", "--out", str(out)]) == 0
    return out, words


@pytest.mark.slow
def test_a_run_has_bleu_samples_and_a_report(made):
    out, _ = made
    scores, texts = pd.read_csv(out / "bleu.csv"), pd.read_csv(out / "translations.csv", keep_default_na=False)
    assert scores["variant"].tolist() == ["softmax-rope", GATED]
    assert scores["checkpoints"].tolist() == [4, 4]
    assert scores["pairs"].tolist() == [8, 8]
    assert scores["signature"].str.contains("tok:13a").all()
    assert len(texts) == 16
    report = (out / "report.md").read_text(encoding="utf-8")
    assert texts["reference"].iloc[0] in report
    assert "RoFormer (2104.09864)" in report
    assert "tok:13a" in report
    notes = json.loads((out / "comparison.json").read_text())["notes"]
    # Eight steps have four checkpoints, and the preset asks for the average of five.
    assert [note for note in notes if "translates with the average of 4 checkpoints" in note]


@pytest.mark.slow
@pytest.mark.usefixtures("quickly")
def test_what_is_half_measured_is_translated_again_and_nothing_else_not_even_of_weights_that_are_gone(
    made, tmp_path, monkeypatch
):
    out, words, again = shutil.copytree(made[0], tmp_path / "made"), made[1], []
    translate = measured.translate
    monkeypatch.setattr(measured, "translate", lambda *given: again.append(given) or translate(*given))
    before = {name: (out / name).read_bytes() for name in ("bleu.csv", "translations.csv")}
    shutil.rmtree(out / "softmax-rope/seed0/checkpoint")
    (out / "translations.csv").write_text(
        "".join(line for line in before["translations.csv"].decode().splitlines(keepends=True) if GATED not in line)
    )
    assert main([*words, "--out", str(out)]) == 0
    assert {name: (out / name).read_bytes() for name in before} == before
    assert len(again) == 1
    assert main([*words, "--out", str(out)]) == 0
    assert len(again) == 1


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures("quickly")
def test_a_trial_that_becomes_a_run_keeps_the_checkpoints_of_its_average(tmp_path):
    words = ["run", "translation", "--preset", "smoke", "--variants", "softmax-rope", *SMALL, "--seeds", "2"]
    out = tmp_path / "tuned"
    assert main([*words, "--learning-rates", "0.002,0.02", "--workers", "1", "--out", str(out)]) == 0
    assert pd.read_csv(out / "bleu.csv")["checkpoints"].tolist() == [4, 4]


@pytest.mark.slow
def test_a_trained_model_translates_in_python_and_on_the_command_line(made, capsys, monkeypatch):
    out, _ = made
    run = load(out).run(GATED)
    texts = pd.read_csv(out / "translations.csv", keep_default_na=False)
    mine = texts[texts["variant"] == GATED]
    assert run.translate(mine["source"].tolist()) == mine["translation"].tolist()
    (alone,) = run.translate("forty-two", beams=1)
    capsys.readouterr()
    words = ["translate", str(out), "--variant", GATED, "--beams", "1"]
    assert main([*words, "--text", "forty-two"]) == 0
    assert capsys.readouterr().out == f"{alone}\n"  # and nothing else, so that it can go into a file
    # A vertical tab and a carriage return end no line, and what is no UTF-8 is told; of a blank line nothing is made.
    monkeypatch.setattr("sys.stdin", io.StringIO("forty-two\r\n\x0b\r\udcff\n\nforty-two\n"))
    assert main(words) == 0
    told = capsys.readouterr()
    lines = told.out.removesuffix("\n").split("\n")
    assert (lines[0], *lines[2:]) == (alone, "", alone)
    assert told.err.endswith("translate: bytes that are not UTF-8 are read as question marks (1)\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(words) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_what_cannot_be_translated_is_refused_in_one_line(made, capsys):
    out, _ = made
    for words, said in (
        (["--variant", "softmax-none"], "which"),
        (["--variant", GATED, "--beams", "0"], "beams is 0; give a whole number, 1 or more"),
        (["--variant", GATED, "--length-penalty", "-1"], "--length-penalty is -1.0; give 0 to 10"),
        (["--variant", GATED, "--length-penalty", "1000"], "--length-penalty is 1000.0; give 0 to 10"),
        (["--variant", GATED, "--seed", "9"], "seed is 9; choose from 0"),
    ):
        assert main(["translate", str(out), "--text", "one", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
    with pytest.raises(ValueError, match="continues no text"):
        load(out).run(GATED).generate("one")
