"""The page of claims: what it says, what it is made of, and how it refuses what it cannot read."""

import csv
import dataclasses
import re
from collections import Counter
from pathlib import Path

import pytest

from experiments.cli import main
from experiments.judge.claims import claims_of
from experiments.judge.references import REFERENCES, command, declared_claims
from experiments.judge.verdicts import RULE
from experiments.report import claims_page
from experiments.report.claims_page import read_sections
from experiments.report.report import write_report
from experiments.studies.registry import STUDIES

ROOT = Path(__file__).parents[3]
BASELINE, AFTER = "favor+-none", "favor+-rope-after"


MEANS = [-0.299, -0.301, -0.2995, -0.3005, -0.3]
"""five differences that decide every claim of the loss"""


def test_references_are_of_experiments_that_exist():
    assert {reference.study for reference in REFERENCES.values()} <= set(STUDIES)
    assert all(command(name).startswith("python -m experiments run ") for name in REFERENCES)
    assert command("decay").endswith(" --out results/runs/decay")


@pytest.mark.slow
def test_the_committed_table_and_page_are_what_the_command_writes(tmp_path, capsys, monkeypatch):
    sections = read_sections(STUDIES, ROOT / "results/reference")
    monkeypatch.setattr(claims_page, "read_sections", lambda *_: sections)  # once for both
    for committed in (ROOT / "results/claims.csv", ROOT / "docs/claims.md"):
        written = tmp_path / committed.name
        assert main(["claims", "--results", str(ROOT / "results/reference"), "--out", str(written)]) == 0
        assert written.read_text(encoding="utf-8") == committed.read_text(encoding="utf-8")
        printed = capsys.readouterr().out
        assert printed.endswith(f"{written}\n")
    assert all(f"* {point}" in " ".join(printed.split()) for point in RULE)
    tables = [line for line in printed.splitlines() if "python -m experiments" not in line and str(written) not in line]
    assert max(map(len, tables)) <= 120


def test_the_summary_ends_with_the_counts_and_every_row_is_in_the_table(make_reference, tmp_path, capsys):
    results, out = make_reference(MEANS), tmp_path / "claims.csv"
    assert main(["claims", "--results", str(results), "--summary", "--out", str(out)]) == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    verdicts = Counter(row["verdict"] for row in rows)
    told = ", ".join(f"{verdicts[each]} {each}" for each in ("supported", "not supported", "inconclusive", "not run"))
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 120
    assert len(printed.splitlines()) <= 46, "a line or two for each comparison"
    assert "RoPE changes the test bits per byte by -0.300" in " ".join(printed.split())
    assert f"\n{len(rows)} rows, a claim judged on one comparison each: {told}.\n{out}\n" in printed
    assert printed.startswith(f"the comparisons in {results}\n")
    (row,) = [row for row in rows if (row["comparison"], row["claim"]) == ("convergence", "favor+-rope-after-loss")]
    assert (row["verdict"], row["n"], row["unit"], row["study"]) == ("supported", "5", "seeds", "convergence")
    assert [float(row[name]) for name in ("mean", "low", "high")] == pytest.approx([-0.3, -0.30098, -0.29902], abs=1e-5)
    assert float(row["adjusted_p"]) < 1e-4


def test_every_study_names_the_claims_that_answer_its_question():
    for study in STUDIES.values():
        keys = {claim.key for claim in claims_of(study)}
        assert {*study.primary} <= keys
        assert study.primary or not keys


@pytest.mark.parametrize(
    ("arguments", "other", "said"),
    [
        (["--results", "{there}/absent"], {}, "absent is no directory of comparisons"),
        (["--results", "{there}/convergence"], {}, "convergence is no directory of comparisons"),
        (["--out", "{there}/absent/page.md"], {}, "page.md cannot be written (No such file or directory)"),
        (["--out", "{there}"], {}, "cannot be written"),
        ([], {"experiment": "decay"}, "is of the study decay, and convergence is one of convergence"),
        ([], {"preset": 3}, "comparison.json at $.preset: expected `str`, got `int`"),
    ],
)
def test_wrong_use_and_wrong_files_are_named_in_one_line(make_reference, capsys, arguments, other, said):
    results = make_reference(MEANS, **other)
    given = [argument.format(there=results) for argument in arguments]
    assert main(["claims", "--results", str(results), *given]) == 2
    output, error = capsys.readouterr()
    assert (output, error.count("\n")) == ("", 1)
    assert said in error


def test_a_report_says_in_this_order_what_a_reader_needs(make_reference):
    root = make_reference(MEANS) / "convergence"
    study = dataclasses.replace(STUDIES["convergence"], figures=[])
    html = write_report(root, study).read_text()
    for text, heading in (((root / "report.md").read_text(), "\n## {}\n"), (html, "<h2>{}</h2>")):
        places = [text.index(heading.format(each)) for each in ("Table", "Claims", "Method", "Configuration")]
        assert places == sorted(places)
        answer = "RoPE changes the test bits per byte by -0.300 [-0.301, -0.299] for FAVOR+ (after its feature map)."
        assert 0 < text.index(answer) < places[0]
    lines = [line for line in (root / "report.md").read_text().splitlines() if line.startswith("| RoPE after the map")]
    (loss,) = [line for line in lines if f"test loss, {AFTER} minus {BASELINE}" in line]
    assert loss.endswith("| **supported** |")
    assert "relu" not in "".join(lines)  # nothing that was not asked of this run


def texts_in(value, seen=None):
    """All texts that a function closes over, directly or in functions and tuples of them."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, tuple | list | set | frozenset):
        return set().union(*(texts_in(part, seen) for part in value))
    found, seen = set(), set() if seen is None else seen
    if callable(value) and id(value) not in seen:
        seen.add(id(value))
        for cell in getattr(value, "__closure__", None) or ():
            found |= texts_in(cell.cell_contents, seen)
    return found


@pytest.mark.parametrize("name", STUDIES)
def test_every_variant_of_a_claim_is_trained_by_the_study_or_a_reference(name):
    """A misspelt one would leave its claim not run for ever."""
    options = [reference.options.split() for reference in REFERENCES.values() if reference.study == name]
    named = [words[words.index("--variants") + 1] for words in options if "--variants" in words]
    trained = {*STUDIES[name].variants, *(variant for variants in named for variant in variants.split(","))}
    for claim in claims_of(STUDIES[name]):
        texts = texts_in(claim.sample)
        variants = {text for text in texts if re.fullmatch(r"(softmax|favor|elu|relu|performer)\S*-\S+", text)}
        assert variants <= trained, claim.key


def test_a_family_is_judged_on_the_reference_that_has_its_variants():
    claims = claims_of(STUDIES["recall"])
    families = {name: {c.family for c in declared_claims(claims, name, "recall")} for name in ("recall", "mine")}
    assert families["recall"] == families["mine"] - {"decay"}
    tuned = {c.key for c in declared_claims(claims, "recall-forgetting", "recall") if c.family != "decay"}
    assert tuned == {"elu+1-none-behind", "elu+1-rope-after-behind", "elu+1-rope-after-helps"}
