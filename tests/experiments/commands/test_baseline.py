"""What variants are compared with: their own baseline, the first variant where that was not run, or a chosen one."""

import json
import shutil

import pandas as pd
import pytest

from experiments.cli import main
from experiments.records.files import write_json
from tests.made_up import comparison_fields, quick

QUICK = ["--preset", "smoke", "--steps", "4", "--evaluate-every", "2", "--log-every", "1", "--checkpoint-every", "2"]
TWO = "elu+1-rope-after,softmax-rope"
NO_VARIANT = "--baseline is 'softmax-none', which is no variant of the comparison; did you mean 'softmax-rope'? choose"
ENDS = {"softmax-none": 4.0, "softmax-rope": 3.0, "elu+1-none": 3.5, "elu+1-rope-after": 3.4, "softmax-learned": 3.7}


def run(out, variants, *more):
    return main(["run", "convergence", *QUICK, "--seeds", "1", "--out", str(out), "--variants", variants, *more])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("baseline") / "two"
    with quick():
        assert run(root, TWO) == 0
    return root


def rows(root):
    """By variant, the difference of the summary."""
    summary = pd.read_csv(root / "summary.csv")
    found = summary[summary["metric"] == "test_bits_per_byte_minus_baseline"]
    return dict(zip(found["variant"], found["mean"], strict=True))


def recorded(root):
    return json.loads((root / "comparison.json").read_text()).get("baseline")


OWN = "the same kernel without positions or, for a setting behind @, the variant without it"
FOUR = "softmax-rope,elu+1-none,elu+1-rope-after,softmax-learned"


@pytest.mark.parametrize(
    ("variants", "baseline", "words", "differences", "said"),
    [
        (TWO, "", (), {"softmax-rope": -0.4}, "from the baseline: elu+1-rope-after."),
        (TWO, "", ("--baseline=softmax-rope",), {"elu+1-rope-after": 0.4}, "from the baseline: softmax-rope."),
        (TWO, None, (), {}, OWN),  # as before a baseline could be chosen
        (FOUR, "", (), {"elu+1-rope-after": -0.1, "softmax-learned": 0.7}, f"{OWN}; softmax-rope where that was not"),
        (
            "softmax-none,softmax-rope,elu+1-none,elu+1-rope-after",
            "softmax-rope",
            (),
            {"softmax-none": 1.0, "elu+1-none": 0.5, "elu+1-rope-after": 0.4},
            # What RoPE changes is told of differences to the same kernel without it, whatever the baseline.
            "**RoPE changes the test bits per byte by -1.000",
        ),
    ],
)
@pytest.mark.usefixtures("quickly")
def test_each_takes_its_own_where_that_was_run_else_the_first_or_the_chosen_one(
    make_comparison, tmp_path, variants, baseline, words, differences, said
):
    other = {} if baseline is None else {"baseline": baseline}
    root = make_comparison(tmp_path / "made", variants, 3, loss=lambda name, seed, step: ENDS[name], **other)
    assert main(["report", str(root), *words]) == 0
    assert rows(root) == pytest.approx(differences)
    assert said in (root / "report.md").read_text()
    assert recorded(root) == baseline, "that of a report is not recorded"


@pytest.mark.slow
@pytest.mark.usefixtures("quickly")
def test_a_chosen_baseline_is_recorded_and_kept_when_the_comparison_goes_on(made, tmp_path):
    root = shutil.copytree(made, tmp_path / "two")
    (before,) = rows(root).values()
    assert run(root, "softmax-rope", "--baseline", "softmax-rope") == 0
    assert rows(root) == {"elu+1-rope-after": -before}
    # Also when its own comes to be there, and by a command that does not name the chosen one.
    assert run(root, "elu+1-none") == 0
    assert recorded(root) == "softmax-rope"
    assert rows(root).keys() == {"elu+1-rope-after", "elu+1-none"}
    # One that is only in the directory can be chosen.
    assert run(root, "softmax-rope", "--baseline", "elu+1-none") == 0
    assert rows(root).keys() == {"elu+1-rope-after", "softmax-rope"}
    again = tmp_path / "again"
    assert main(["run", "--config", str(root / "comparison.json"), "--steps", "2", "--out", str(again)]) == 0
    assert recorded(again) == "elu+1-none"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "convergence", *QUICK, "--out", "new", "--variants", TWO], NO_VARIANT),
        (["run", "convergence", *QUICK, "--out", "two", "--variants", TWO, "--dry-run"], NO_VARIANT),
        (["report", "two"], NO_VARIANT),
        (["report", "two", "--format", "latex"], NO_VARIANT),
        (["report", "."], "--baseline is for one comparison, and "),
        (["report", "speed"], "speed trains nothing to compare; leave it out"),
    ],
)
def test_a_name_that_is_not_in_the_comparison_is_refused(made, capsys, monkeypatch, words, said):
    monkeypatch.chdir(made.parent)
    (made.parent / "speed").mkdir(exist_ok=True)
    write_json(made.parent / "speed/comparison.json", comparison_fields(experiment="speed"))
    before = {path: path.read_bytes() for path in made.parent.rglob("*") if path.is_file()}
    assert main([*words, "--baseline", "softmax-none"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert {path: path.read_bytes() for path in made.parent.rglob("*") if path.is_file()} == before
