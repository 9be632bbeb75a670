"""report as a table for a paper and over several comparisons, and claims in short."""

import re

import pytest

from experiments import load
from experiments.cli import main
from experiments.records.files import write_json
from tests.made_up import comparison_fields

ENDS = {"elu+1-none": [3.0, 4.0, 5.0], "elu+1-rope-after": [2.9, 3.8, 4.7]}
VARIANTS = ",".join(ENDS)


def ends(name, seed, step):
    return ENDS[name][seed]


@pytest.fixture
def root(make_comparison, tmp_path):
    return make_comparison(tmp_path / "made", VARIANTS, loss=ends)


def printed(capsys, *arguments):
    """What a command prints, and its exit status."""
    status = main([*map(str, arguments)])
    return (status, *capsys.readouterr())


# test figures are the ends + 0.5: means 4.5 and 4.3, standard deviations 1 and 0.9; differences -0.1, -0.2, -0.3
@pytest.mark.parametrize(
    ("form", "lines"),
    [
        (
            "markdown",
            [
                "| variant | n | test bits per byte | minus baseline |",
                "| --- | ---: | ---: | ---: |",
                "| elu+1-none | 3 | 4.500 [2.016, 6.984] | baseline |",
                "| elu+1-rope-after | 3 | 4.300 [2.064, 6.536] | -0.2000 [-0.4484, +0.0484] |",
            ],
        ),
        (
            "latex",
            [
                *(r"\begin{tabular}{lrrr}", r"\toprule", r"variant & n & test bits per byte & minus baseline \\"),
                *(r"\midrule", r"elu+1-none & 3 & 4.500 [2.016, 6.984] & baseline \\"),
                r"elu+1-rope-after & 3 & 4.300 [2.064, 6.536] & $-$0.2000 [$-$0.4484, +0.0484] \\",
                *(r"\bottomrule", r"\end{tabular}"),
            ],
        ),
    ],
)
def test_a_table_for_a_paper_has_the_hand_worked_numbers(root, capsys, form, lines):
    before = sorted(root.rglob("*"))
    assert printed(capsys, "report", root, "--format", form) == (0, "\n".join(lines) + "\n", "")
    assert sorted(root.rglob("*")) == before


def test_a_table_of_numbers_has_a_column_for_each(root, capsys):
    status, output, _ = printed(capsys, "report", root, "--format", "csv")
    header, *rows = [line.split(",") for line in output.splitlines()]
    assert (status, header) == (0, ["variant", "metric", "unit", "n", "mean", "low", "high"])
    found = {(row[0], row[1]): row[3:] for row in rows}
    assert [float(cell) for cell in found["elu+1-none", "test_bits_per_byte"]] == pytest.approx(
        [3, 4.5, 2.0159, 6.9841], abs=1e-3
    )
    difference = found["elu+1-rope-after", "test_bits_per_byte_minus_baseline"]
    assert [float(cell) for cell in difference] == pytest.approx([3, -0.2, -0.4484, 0.0484], abs=1e-3)


def test_a_study_without_a_table_has_none_for_a_paper(tmp_path, capsys):
    write_json(tmp_path / "comparison.json", comparison_fields(experiment="speed"))
    status, output, error = printed(capsys, "report", tmp_path, "--format", "latex")
    assert (status, output, error.count("\n")) == (2, "", 1)
    assert "trains nothing, so it has no main table; its tables are the CSV files of its report" in error


@pytest.mark.slow
def test_an_overview_is_over_all_comparisons_of_a_directory(make_comparison, tmp_path, capsys):
    for name in ("one", "two"):
        make_comparison(tmp_path / name, "elu+1-none", 1, name=name, steps=40)
    status, output, _ = printed(capsys, "report", tmp_path)
    made = [tmp_path / "one/report.html", tmp_path / "two/report.html", tmp_path / "index.html"]
    assert (status, output.split()) == (0, [*map(str, made)])
    page = made[-1].read_text()
    assert re.findall(r'<h2>.*?<a href="([^"]*)"', page) == ["one/report.html", "two/report.html"]
    assert page.count("<img class") == 2
    assert "<script" not in page


FLOORS = [
    {"name": "unigram", "metric": "bits_per_byte", "value": 7.0, "steps": 100},
    {"name": "bigram", "metric": "bits_per_byte", "value": 6.6, "steps": 100},
    {"name": "trigram", "metric": "bits_per_byte", "value": 4.4, "steps": 100},
    {"name": "bigram", "metric": "bits_per_byte", "value": 1.0, "steps": 20},
    {"name": "6-gram", "metric": "bits_per_byte", "value": 1.0, "steps": 100, "split": "validation"},
    {"name": "xz", "metric": "bits_per_byte", "value": 6.0, "steps": 100, "equal": False},
]


def test_a_table_has_the_floors_and_what_each_variant_is_clearly_better_than(make_comparison, tmp_path, capsys):
    root = make_comparison(tmp_path / "made", VARIANTS, loss=ends, floors=FLOORS)
    # The intervals end at 6.98 and 6.54; 6-grams are of another split, 1.0 of a budget, and xz decides nothing.
    assert load(root).summary.set_index(["variant", "metric"])["beats"].loc[:, "test_bits_per_byte"].tolist() == [
        *("unigram", "bigram")
    ]
    _, output, _ = printed(capsys, "report", root, "--format", "markdown")
    assert output.splitlines()[2:] == [
        "| elu+1-none | 3 | 4.500 [2.016, 6.984] | baseline | unigram |",
        "| elu+1-rope-after | 3 | 4.300 [2.064, 6.536] | -0.2000 [-0.4484, +0.0484] | bigram |",
        "| floor: unigram | - | 7.000 | - | - |",
        "| floor: bigram | - | 6.600 | - | - |",
        "| floor: xz (not on equal ground) | - | 6.000 | - | - |",
        "| floor: trigram | - | 4.400 | - | - |",
    ]
    _, output, _ = printed(capsys, "report", root, "--format", "latex")
    assert r"floor: trigram & - & 4.400 & - & - \\" in output
    _, output, _ = printed(capsys, "report", root, "--format", "csv")
    assert "floor: trigram,test_bits_per_byte,bits per byte,,4.4,,," in output.splitlines()


def test_below_three_seeds_the_mean_is_compared_with_floors(make_comparison, tmp_path):
    root = make_comparison(tmp_path / "made", VARIANTS, 1, loss=lambda *run: 3.9, floors=FLOORS)
    assert set(load(root).summary["beats"]) == {"", "bigram"}, "4.4 is not better than 4.4"


def test_what_beats_none_says_so_and_an_older_record_has_one(make_comparison, tmp_path):
    for floor, beats in ((3.0, "nothing"), (7.0, "to know nothing")):
        root = make_comparison(tmp_path / beats, VARIANTS, loss=ends, floors={"bits_per_byte": floor})
        assert set(load(root).summary["beats"]) == {"", beats}
