"""What variants are compared with: their own baseline, the first variant where that was not run, or a chosen one."""

import json
import shutil

import pandas as pd
import pytest

from experiments.cli import main
from experiments.records.files import write_json
from tests.made_up import comparison_fields, undrawn

QUICK = ["--preset", "smoke", "--steps", "4", "--evaluate-every", "2", "--log-every", "1", "--checkpoint-every", "2"]
TWO = ["elu+1-rope-after", "softmax-rope"]
NO_VARIANT = (
    "--baseline is 'softmax-none', which is no variant of the comparison; choose from elu+1-rope-after, softmax"
)
ENDS = {"softmax-none": 4.0, "softmax-rope": 3.0, "elu+1-none": 3.5, "elu+1-rope-after": 3.4}


def run(out, variants, *more):
    return main(["run", "convergence", *QUICK, "--seeds", "1", "--out", str(out), "--variants", variants, *more])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("baseline") / "two"
    with undrawn():
        assert run(root, ",".join(TWO)) == 0
    return root


@pytest.fixture
def copy(made, tmp_path):
    return shutil.copytree(made, tmp_path / "two")


def ends(name, seed, step):
    return ENDS[name] + 0.001 * seed * len(name)


def rows(root):
    """By variant, the difference of the summary."""
    summary = pd.read_csv(root / "summary.csv")
    found = summary[summary["metric"] == "test_bits_per_byte_minus_baseline"]
    return dict(zip(found["variant"], found["mean"], strict=True))


def printed(capsys, *words):
    status = main([str(word) for word in words])
    return (status, *capsys.readouterr())


def recorded(root):
    return json.loads((root / "comparison.json").read_text())["baseline"]


@pytest.mark.slow
def test_without_the_studys_baselines_the_first_variant_is_taken(made, capsys):
    for name in ("report.md", "report.html", "summary.csv", "comparison.json"):
        assert "was not run" not in (made / name).read_text()
    page = (made / "report.md").read_text()
    assert "A difference is taken seed by seed from the baseline: elu+1-rope-after." in page
    assert page.count("Baseline: elu+1-rope-after.") == 2
    assert {*rows(made)} == {"softmax-rope"}
    assert "softmax-rope,test_bits_per_byte_minus_baseline" in printed(capsys, "report", made, "--format", "csv")[1]


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_a_report_can_compare_with_another_variant_than_is_on_record(copy, capsys):
    (before,) = rows(copy).values()
    assert printed(capsys, "report", copy, "--baseline", "softmax-rope")[0] == 0
    assert rows(copy) == {"elu+1-rope-after": -before}
    assert "from the baseline: softmax-rope." in (copy / "report.md").read_text()
    table = printed(capsys, "report", copy, "--format", "latex", "--baseline", "softmax-rope")[1]
    assert [line.split(" & ")[3].strip(" \\") for line in table.splitlines() if "softmax-rope &" in line] == [
        "baseline"
    ]
    assert printed(capsys, "report", copy)[0] == 0  # it is not recorded
    assert rows(copy) == {"softmax-rope": before}


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_a_chosen_baseline_is_recorded_and_kept_when_the_comparison_goes_on(copy, capsys):
    (before,) = rows(copy).values()
    assert run(copy, "softmax-rope", "--baseline", "softmax-rope") == 0
    assert recorded(copy) == "softmax-rope"
    assert rows(copy) == {"elu+1-rope-after": -before}
    # Also when its own comes to be there, and by a command that does not name the chosen one.
    assert run(copy, "elu+1-none") == 0
    assert recorded(copy) == "softmax-rope"
    assert rows(copy).keys() == {"elu+1-rope-after", "elu+1-none"}
    # One that is only in the directory can be chosen.
    assert run(copy, "softmax-rope", "--baseline", "elu+1-none") == 0
    assert rows(copy).keys() == {"elu+1-rope-after", "softmax-rope"}
    capsys.readouterr()
    again = copy.with_name("again")
    assert main(["run", "--config", str(copy / "comparison.json"), "--steps", "2", "--out", str(again)]) == 0
    assert recorded(again) == "elu+1-none"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "convergence", *QUICK, "--out", "new", "--variants", ",".join(TWO)], NO_VARIANT),
        (["run", "convergence", *QUICK, "--out", "two", "--variants", ",".join(TWO), "--dry-run"], NO_VARIANT),
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
    status, _, error = printed(capsys, *words, "--baseline", "softmax-none")
    assert (status, error.count("\n")) == (2, 1)
    assert said in error
    assert {path: path.read_bytes() for path in made.parent.rglob("*") if path.is_file()} == before


@pytest.mark.usefixtures("no_pictures")
def test_each_takes_its_own_where_that_was_run_and_only_the_others_the_first(make_comparison, tmp_path):
    names = "softmax-rope,elu+1-none,elu+1-rope-after,softmax-learned"
    loss = lambda name, seed, step: ENDS.get(name, 3.7)  # noqa: E731
    root = make_comparison(tmp_path / "made", names, 3, loss=loss, baseline="")
    assert main(["report", str(root)]) == 0
    assert rows(root) == pytest.approx({"elu+1-rope-after": -0.1, "softmax-learned": 0.7})
    page = (root / "report.md").read_text()
    assert "was not run |" not in page
    own = "the same kernel without positions or, for a setting behind @, the variant without it"
    assert page.count(f"{own}; softmax-rope where that was not run") == 3  # below the table and two figures


@pytest.mark.slow
def test_all_tables_and_figures_take_the_chosen_one_and_the_answer_says_nothing_else(make_comparison, tmp_path):
    root = make_comparison(tmp_path / "made", ",".join(ENDS), 3, loss=ends, baseline="softmax-rope")
    assert main(["report", str(root)]) == 0
    assert rows(root) == pytest.approx({"softmax-none": 1.0, "elu+1-none": 0.498, "elu+1-rope-after": 0.404})
    page = (root / "report.md").read_text()
    assert page.count("the baseline: softmax-rope.") == 1
    assert page.count("baseline (softmax-rope), ") == 2
    assert {path.stem for path in (root / "figures").glob("*.png")} >= {"final", "validation-gain", "steps-to-baseline"}
    # What RoPE changes is told of differences to the same kernel without it, whatever the baseline.
    assert "**RoPE changes the test bits per byte by -1.000" in page
