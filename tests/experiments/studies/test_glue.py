"""The study of GLUE: a run from the command line to the report, verdicts, and the table over all tasks."""

import json
import shutil

import pytest

from experiments import load
from experiments.cli import main
from experiments.data.registry import load_data
from experiments.show.entries import tables_over
from experiments.studies.answers import ANSWERS
from experiments.studies.registry import STUDIES
from linear_rope.heads import Classifier, MaskedLM
from tests.made_up import trained_here, undrawn

STUDY = STUDIES["glue"]
GATED = "elu+1-rope-after@decay=gate@local_conv=4"
F1 = {"name": "labels of mrpc", "metric": "f1", "unit": "F1 of the second class", "better": "higher", "vocabulary": 300}


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory):
    """An encoder of hidden tokens, and what it became."""
    root = tmp_path_factory.mktemp("glue")
    small = ["--preset", "smoke", "--steps", "6", "--evaluate-every", "2", "--checkpoint-every", "3", "--workers", "1"]
    only = [*small, "--variants", f"softmax-rope,{GATED}"]
    words = ["run", "glue", *only, "--initial-weights", str(root / "mlm")]
    with trained_here():
        assert main(["run", "mlm", *only, "--out", str(root / "mlm")]) == 0
        assert main([*words, "--out", str(root / "tasks" / "made-up")]) == 0
    return root


@pytest.mark.slow
def test_a_run_begins_with_the_encoder_and_has_a_report(fine_tuned):
    out = fine_tuned / "tasks" / "made-up"
    record = json.loads((out / "comparison.json").read_text())
    assert "RoFormer's figure 3" in (fine_tuned / "mlm" / "report.md").read_text(encoding="utf-8")
    assert record["config"]["initial_weights"] == str(fine_tuned / "mlm")
    assert record["objective"]["tokenizer_sha256"] == load(fine_tuned / "mlm").record.objective.tokenizer_sha256
    report = (out / "report.md").read_text(encoding="utf-8")
    assert "tested with the weights of step" in report
    assert isinstance(load(fine_tuned / "mlm").run("softmax-rope").model(), MaskedLM)
    for name in ("softmax-rope", GATED):
        assert isinstance(load(out).run(name).model(), Classifier)
        assert record["initial_weights"][f"{name}/seed0"]


@pytest.mark.slow
def test_the_classifier_says_in_python_what_it_said_in_training(fine_tuned):
    out = fine_tuned / "tasks" / "made-up"
    run = load(out).run("softmax-rope")
    answers = ANSWERS.read(out)
    assert answers is not None
    texts = load_data("late-verdicts").texts("test").iloc[:, 0].iloc[answers["number"]]
    assert run.classify(texts.tolist()) == answers["said"].tolist()
    assert run.classify(texts.iloc[0]) == answers["said"].tolist()[:1]
    assert {*answers["said"]} <= {*load(out).record.objective.classes}
    with pytest.raises(ValueError, match="examples has one of 2 texts; give 1 in each"):
        run.classify([("a text", "another")])
    with pytest.raises(ValueError, match="'masked token' and classifies nothing"):
        load(fine_tuned / "mlm").run("softmax-rope").classify(["a text"])


@pytest.fixture
def task(make_comparison, tmp_path):
    """A comparison of a task: softmax attention with RoPE has 0.81 of its test split right."""

    def make(name="mrpc", seeds=3):
        data = {"name": name, "sha256": "ab" * 32, "source": "", "note": "", "bytes": 9, "unit": "examples"}
        data |= {"splits": {"train": 9, "validation": 9, "test": 9}}
        made = {"objective": F1, "data": [data], "experiment": "glue", "floors": {"f1": 0.795}}
        score = (0.31, 0.312, 0.308).__getitem__  # what is made up for the test split is 0.5 higher
        root = tmp_path / "tasks" / name
        return make_comparison(root, "softmax-rope", seeds, loss=lambda variant, seed, step: score(seed), **made)

    return make


def test_the_table_has_all_tasks_and_names_what_is_missing_or_a_part(task):
    roots = [task("mrpc"), task("qqp-part", seeds=1)]
    (entry,) = tables_over(STUDY, roots)
    rows = entry.table.set_index("encoder")
    assert list(rows.columns) == ["MRPC", "SST-2", "QNLI", "STS-B", "QQP (part)", "MNLI"]
    assert rows.loc["BERT, as published"].tolist() == ["88.9", "93.5", "90.5", "85.8", "71.2", "84.6/83.4"]
    assert rows.loc["RoFormer, as published"].tolist() == ["89.5", "90.7", "88.0", "87.0", "86.4", "80.2/79.8"]
    assert rows.loc["softmax-rope"].tolist() == ["81.0 ± 0.5", "-", "-", "-", "81.0", "-"]
    copied = shutil.copytree(roots[0], roots[0].with_name("mrpc-again"))
    assert "another comparison is of the same task: mrpc-again." in tables_over(STUDY, [*roots, copied])[0].caption
    assert "MNLI (curl" in entry.caption.partition("Run in part")[0]
    assert "QQP (curl" in entry.caption.partition("Run in part")[2]
    assert "arXiv 2104.09864" in entry.caption
    assert "one seed or 3 seeds" in entry.caption
    assert "MRPC (" not in entry.caption
    record = load(roots[0]).record
    assert f"encoders of {record.variants[0].parameters:,} parameters" in entry.caption
    assert f"at most {record.config['test_windows']:,} examples of it" in entry.caption


def test_the_page_over_all_tasks_has_the_table(task):
    root = task()
    with undrawn():
        assert main(["report", str(root.parent)]) == 0
    page = (root.parent / "index.html").read_text(encoding="utf-8")
    assert "GLUE beside RoFormer" in page
    assert "81.0 ± 0.5" in page
    assert page.index("GLUE beside RoFormer") < page.index("<article>")
    page = (root.parent / "glue.md").read_text(encoding="utf-8")
    assert "| softmax-rope | 81.0 ± 0.5 |" in page
    assert "| RoFormer, as published | 89.5 |" in page
    assert "| floor: one answer to all | 79.5 |" in page
    assert "* [mrpc](mrpc): Softmax attention with RoPE ends highest" in page


def test_without_a_finished_run_there_is_no_table(make_comparison, tmp_path):
    root = make_comparison(tmp_path / "mrpc", "softmax-rope", 1, fates={("softmax-rope", 0): ("running", "")})
    assert tables_over(STUDY, [root]) == []
