"""The files of a release, made of the committed results: each number in them is one of the records."""

import csv
import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from experiments import load
from experiments.cli import main
from experiments.commands import release as command
from experiments.commands.release import COLUMNS, packed_comparisons, runs_table
from experiments.commands.release_report import TEMPLATES, TOLD
from experiments.show.words import in_words
from linear_rope import CausalLM
from linear_rope.interop.settings import shape_of

parquet = pytest.importorskip("pyarrow.parquet", reason='pyarrow is not installed: pip install -e ".[packed]"')
RESULTS = Path(__file__).parents[3] / "results"
REPORT = (TEMPLATES / "report.typ").read_text(encoding="utf-8")
LANGUAGE = "benchmark/v1/language"
CFF = {*"cff-version message title type license authors version commit date-released references".split()}
"""keys that a citation has here; all are of its format, version 1.2.0"""
SAID = {
    ("tokens", "below-softmax-1"): "supported",
    ("recall-forgetting", "fixed-costs"): "supported",
}
"""of claims that the report's prose states"""


def rows(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def check_rows(table, names):
    for name in names:
        packed = parquet.read_table(RESULTS / name / "runs.parquet").to_pandas()
        found = table[table["comparison"] == name].reset_index(drop=True)
        keys = ["variant", "seed", "step", "split", "metric"]
        order = [each.sort_values(keys).reset_index(drop=True)[packed.columns] for each in (found, packed)]
        pd.testing.assert_frame_equal(*order, check_exact=True)


def test_the_table_has_every_number_that_is_packed_and_what_its_run_was():
    wanted = {"convergence", "recipe/recipe-adamw-0.9", "recipe/recipe-adamw-0.9/tuning", "reference/tokens-30"}
    chosen = [each for each in packed_comparisons(RESULTS) if str(each.directory.relative_to(RESULTS)) in wanted]
    made = runs_table(RESULTS, chosen)
    assert {field.name: str(field.type) for field in made.schema} == {name: kind for name, (kind, _) in COLUMNS.items()}
    table = made.to_pandas()
    assert {*table["comparison"]} == wanted
    check_rows(table, wanted)
    first = table[table["comparison"] == "convergence"].iloc[0]
    record = json.loads((RESULTS / "convergence/comparison.json").read_text())
    assert first["commit"] == record["git"]["commit"]
    assert first["recipe"] == "muon, trapezoid, spread 0.9"
    assert (table.query("comparison == 'reference/tokens-30'")["recipe"] == "adamw, cosine, std 0.02 (version 0)").all()
    best = next(each for each in chosen if each.directory.name == "recipe-adamw-0.9").record.variants[0]
    trained = table.query("comparison == 'recipe/recipe-adamw-0.9' and variant == @best.name")
    assert {*trained["learning_rate"]} == {best.settings["learning_rate"]}


def test_no_number_of_the_report_is_typed():
    prose = re.sub(r"^//.*$", "", REPORT, flags=re.MULTILINE)
    prose = re.sub(r"\$.*?\$", "", prose, flags=re.DOTALL)  # mathematics
    prose = re.sub(r'"[^"\n]*"', "", prose)  # names of comparisons, claims and settings
    prose = re.sub(r"eq\. 19|elu\+1|sha256|enwik8|\b\d+(\.\d+)?(em|cm|%)", "", prose)  # the last: sizes on a page
    assert not re.findall(r".*\d.*", prose)
    words = "three four five six seven eight nine ten eleven twelve twenty hundred thousand million half third twice"
    assert not re.findall(rf"\b(?:{words.replace(' ', '|')})\b", prose, flags=re.IGNORECASE)


def test_what_is_published_is_cited_and_what_is_told_is_measured():
    works = (TEMPLATES / "works.bib").read_text(encoding="utf-8")
    published, statements = rows(TEMPLATES / "published.csv"), rows(TEMPLATES / "statements.csv")
    cited = {each["key"] for each in published} | {*re.findall(r"@([\w-]+)", REPORT)}
    assert not {key for key in cited - {*re.findall(r"<([\w-]+)>", REPORT)} if f"{{{key}," not in works}
    judged = {(row["comparison"], row["claim"]) for row in rows(RESULTS / "claims.csv")}
    assert {(row["comparison"], row["claim"]) for row in statements} <= judged
    verdicts = {(row["comparison"], row["claim"]): row["verdict"] for row in rows(RESULTS / "claims.csv")}
    for key, verdict in SAID.items():
        assert verdicts[key] == verdict, key
    for name in {*TOLD.findall(REPORT), *(each["comparison"] for each in published)}:
        assert (RESULTS / name / "comparison.json").exists(), name


def test_what_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "find_spec", lambda module: None if module == "typst" else module)
    assert main(["release", "--results", str(RESULTS), "--out", str(tmp_path / "new")]) == 2
    assert re.search(r"report\.pdf needs typst: pip install .*\[release\]", capsys.readouterr().err)
    monkeypatch.setattr(command, "find_spec", lambda module: module)
    assert main(["release", "--results", str(RESULTS), "--out", str(tmp_path)]) == 2
    assert f"--out {tmp_path} is there already; give a directory that is new" in capsys.readouterr().err
    assert main(["release", "--results", str(tmp_path), "--out", str(tmp_path / "new")]) == 2
    assert "holds no packed comparison; give the folder results of a checkout" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def make(out):
    assert main(["release", "--results", str(RESULTS), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    for module in ("typst", "yaml"):
        pytest.importorskip(module, reason=f'{module} is not installed: pip install -e ".[release]"')
    return make(tmp_path_factory.mktemp("release") / "made")


@pytest.mark.slow
def test_the_release_is_what_the_records_give(made):
    import yaml

    table = parquet.read_table(made / "runs.parquet")
    check_rows(table.to_pandas(), {*table.column("comparison").to_pylist()})
    packed = {path.parent for path in RESULTS.rglob("runs.parquet")} - {*(RESULTS / "runs").rglob("*")}
    assert {*table.column("comparison").to_pylist()} == {path.relative_to(RESULTS).as_posix() for path in packed}
    datasheet = (made / "DATASHEET.md").read_text(encoding="utf-8")
    assert f"{table.num_rows:,} numbers of {len(packed)} comparisons" in datasheet
    for field in table.schema:
        assert f"| `{field.name}` | {field.type} | {field.metadata[b'description'].decode()} |" in datasheet

    citation = yaml.safe_load((made / "CITATION.cff").read_text(encoding="utf-8"))
    ours = yaml.safe_load((RESULTS.parent / "CITATION.cff").read_text(encoding="utf-8"))
    assert {*citation} <= CFF
    assert (citation["cff-version"], citation["version"], citation["authors"]) == ("1.2.0", "v1", ours["authors"])
    assert citation["references"][1:] == ours["references"]

    comparison = load(RESULTS / LANGUAGE)
    models = {path.parent.relative_to(made / "models") for path in made.rglob("model.safetensors")}
    weights = {path.relative_to(RESULTS) for path in RESULTS.rglob("weights/*.safetensors")}
    assert models == {path.parent.parent / path.stem for path in weights}
    for name in models:
        check_model(made / "models" / name, load(RESULTS / name.parent))
    check_report(made / "report.pdf", comparison)


def check_model(directory, comparison):
    """It loads as its card says, and the card's losses are those on record."""
    import yaml

    config = json.loads((directory / "config.json").read_text())
    model = CausalLM(shape_of(config["model"])).eval()
    model.load_state_dict(load_file(directory / "model.safetensors"))
    tokens = torch.tensor([list(b"The film ")])
    assert torch.equal(model(tokens), comparison.run(directory.name).model()(tokens))
    _, front, card = (directory / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    assert yaml.safe_load(front)["datasets"] == [each.name for each in comparison.record.data]
    own = "variant == @directory.name and seed == 0 and split == 'test' and metric == 'bits_per_byte'"
    losses = re.findall(r"^\| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \(", card, flags=re.MULTILINE)
    assert [(tokens, loss) for tokens, loss, _ in losses] == [
        (f"{row.tokens:,}", f"{row.value:.3f}") for row in comparison.curves.query(own).sort_values("step").itertuples()
    ]
    floors = {f"{floor.value:.3f}" for floor in comparison.record.every_floor}
    assert {floor for _, _, floor in losses} <= floors


def check_report(path, comparison):
    """At most eight pages, with a row of its own numbers for each of the benchmark's language models."""
    pages = pytest.importorskip("pypdf", reason="pypdf is not installed").PdfReader(path).pages
    assert len(pages) <= 8
    text = " ".join(" ".join(page.extract_text() for page in pages).split())
    tested = comparison.curves.query("split == 'test' and metric == 'bits_per_byte'")
    length = pd.read_parquet(RESULTS / LANGUAGE / "length.parquet")
    length = length.query("method == 'as trained' and length == length.max() and first >= 1024")
    for variant in comparison.record.variants:
        losses = tested[tested["variant"] == variant.name].groupby("step")["value"].mean()
        later = length[length["variant"] == variant.name].groupby("first")["bits_per_byte"].mean()
        row = [in_words(variant), str(tested.query("variant == @variant.name")["seed"].nunique())]
        row += [f"{variant.settings['learning_rate']:g}", *(f"{each:.3f}" for each in [*losses, *later])]
        assert " ".join(row) in text


@pytest.mark.slow
@pytest.mark.full
def test_equal_records_give_equal_files(made, tmp_path):
    again = make(tmp_path / "again")
    names = {path.relative_to(made) for path in made.rglob("*") if path.is_file()}
    assert names == {path.relative_to(again) for path in again.rglob("*") if path.is_file()}
    for name in names:
        assert (made / name).read_bytes() == (again / name).read_bytes(), name
    shutil.rmtree(again)
