"""The committed results are what their records say."""

import re
from pathlib import Path

import pytest
from pyarrow import parquet

from experiments.cli import main
from experiments.data.registry import DATA_SETS
from experiments.judge.references import REFERENCES
from experiments.presets import get_preset
from experiments.records.record import read_comparison, run_status
from experiments.report.overview import comparisons_in
from experiments.show.entries import tables_over
from experiments.studies.registry import STUDIES

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
COMPARISONS = sorted(path.parent.name for path in REFERENCE.glob("*/comparison.json"))


def files_of(root):
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def content_of(path):
    """What a file of packed results says, whatever version of pyarrow wrote it."""
    if path.suffix != ".parquet":
        return path.read_bytes()
    return parquet.read_table(path).to_pydict(), (parquet.read_metadata(path).metadata or {}).get(b"statuses")


OF_EACH_KIND = ("denominator", "glue-mrpc", "mlm", "speed", "translation")
"""all records are kept of the first, the others have learning rates, a tokenizer, no runs, and examples"""


def marks(name):
    """One of each kind is enough but for the whole suite, and one is quick."""
    return [] if name == "mask" else [pytest.mark.slow, *([pytest.mark.full] if name not in OF_EACH_KIND else [])]


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in COMPARISONS])
def test_the_reference_is_packed_and_packed_again_it_says_the_same(tmp_path, name):
    assert main(["pack", str(REFERENCE / name), "--out", str(tmp_path)]) == 0
    assert files_of(tmp_path) <= files_of(REFERENCE / name)
    assert not any(path.endswith("status.json") for path in files_of(REFERENCE / name))
    for path in files_of(tmp_path):
        assert content_of(tmp_path / path) == content_of(REFERENCE / name / path), path


@pytest.mark.parametrize("name", COMPARISONS)
def test_the_reference_says_how_it_was_made(name):
    comparison = read_comparison(REFERENCE / name)
    assert comparison.command.startswith(f"python -m experiments run {comparison.study}")
    assert comparison.git.commit != "unknown"
    assert not comparison.git.dirty
    reference = REFERENCES[name]
    given = re.search(r"--data (\S+)", reference.options)
    data = given[1] if given else get_preset("cpu", STUDIES[reference.study]).config.data
    assert [each.name for each in comparison.data] == [data] * bool(comparison.variants)
    assert all(DATA_SETS[each.name].known_sha256 in ("", each.sha256) for each in comparison.data)


def test_the_references_of_the_readme_are_there_and_that_of_convergence_has_three_seeds_of_the_default_variants():
    assert {"convergence", "decay", "speed"} <= set(COMPARISONS)
    comparison = read_comparison(REFERENCE / "convergence")
    assert len(comparison.seeds) >= 3
    there = {variant.name for variant in comparison.variants}
    assert {*STUDIES["convergence"].variants} - there == {"elu+1-rope-after@decay=fixed"}, "in no record of its recipe"
    assert all(run_status(REFERENCE / "convergence", *run).state == "done" for run in comparison.runs)


@pytest.mark.parametrize(("folder", "study"), [("recipe", "recipe"), ("benchmark/v1", "benchmark")])
def test_the_tables_over_comparisons_are_those_of_their_records(folder, study):
    directory = REFERENCE.parent / folder
    written = (directory / f"{study}.md").read_text(encoding="utf-8")
    for table in (each.table for each in tables_over(STUDIES[study], comparisons_in(directory))):
        for row in [[*table.columns], *table.itertuples(index=False)]:
            assert f"| {' | '.join(map(str, row))} |" in written
