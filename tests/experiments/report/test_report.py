import dataclasses
import io
import json
import re
import shutil
from html.parser import HTMLParser
from xml.etree import ElementTree

import pandas as pd
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from experiments.cli import main
from experiments.judge.curves import read_curves
from experiments.records.files import write_json
from experiments.records.record import read_comparison
from experiments.report.interactive import interactive
from experiments.report.render import template
from experiments.report.report import result_table, write_report
from experiments.show.rows import read_rows
from experiments.studies.registry import STUDIES
from experiments.study import Study

HERE = "tests.experiments.report.test_report"
WORDS = {"stem": "a-figure", "title": "A title", "caption": "How to read it."}
FIGURE = {"kind": f"{HERE}:one_figure"} | WORDS
TABLE = {"make": f"{HERE}:one_table", "title": "A table", "caption": "Its caption."}


def one_figure(rows):
    return Figure(figsize=(1, 1))


def one_table(rows):
    return pd.DataFrame({"variant": ["x|y"], "value": [0.5]})


def fails(rows):
    raise ValueError("for the test")


SHOWS = {"variants": ["elu+1-none"], "figures": [FIGURE], "tables": [TABLE]}
STUDY = Study("made-up", "What <is> asked?", "So.", "All else.", lambda *_: [], **SHOWS)


def test_a_table_may_begin_with_numbers():
    page = str(template("parts.html").module.grid(pd.DataFrame({"length": [512], "value": [0.5]})))
    assert '<td data-head="length">512</td><td data-head="value">0.5</td>' in page


SCRIPTS = 5
"""of a page with curves: their data, the figure, Bokeh, what steers it, and what sorts tables"""


class Page(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.words = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def written(root, study=STUDY):
    """The text of the page, and of the Markdown without its marks, as written now."""
    page = Page(write_report(root, study).read_text())
    return page.text.replace(" : ", ": "), re.sub(r"[*`\\]", "", (root / "report.md").read_text())


def files_of(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def reported(make_comparison, tmp_path_factory):
    """A comparison with its report, to be read or copied."""
    root = make_comparison(tmp_path_factory.mktemp("reported"), "elu+1-none")
    write_report(root, STUDY)
    return root


def test_everything_is_rebuilt_alike_from_the_files(reported, tmp_path):
    root = shutil.copytree(reported, tmp_path / "copy")
    made = files_of(root)
    for path in root.iterdir():
        if path.suffix in (".csv", ".md", ".html"):
            path.unlink()
    shutil.rmtree(root / "figures")
    assert write_report(root, STUDY) == root / "report.html"
    assert files_of(root) == made
    # What cannot be drawn leaves the old report.
    with pytest.raises(ValueError, match="for the test"):
        write_report(root, dataclasses.replace(STUDY, figures=[FIGURE, {"kind": f"{HERE}:fails"} | WORDS]))
    assert files_of(root) == made


def test_a_report_has_the_tables_of_the_contract_and_holds_all_it_shows(reported):
    curves, summary = pd.read_csv(reported / "curves.csv"), pd.read_csv(reported / "summary.csv")
    assert list(curves.columns) == ["variant", "seed", "step", "tokens", "split", "metric", "value"]
    assert list(summary.columns[:7]) == ["variant", "metric", "unit", "n", "mean", "low", "high"]
    pd.testing.assert_frame_equal(curves, read_curves(reported, read_comparison(reported)), check_dtype=False)

    page = Page((reported / "report.html").read_text())
    sources = [value for name, value in page.attributes if name in ("src", "href", "srcset")]
    assert sum(source.startswith("data:image/png;base64,") for source in sources) == 1
    for source in sources:  # what is no part of the page is a file beside it
        assert source.startswith(("data:", "#")) or (reported / source).is_file()
    assert {source for source in sources if source.endswith(".csv")} == {"curves.csv", "summary.csv"}
    anchors = {value for name, value in page.attributes if name == "id"}
    assert {source[1:] for source in sources if source.startswith("#")} <= anchors
    assert len((reported / "report.html").read_bytes()) < 4e6


def test_a_run_that_was_stopped_has_the_time_of_all_its_parts(make_comparison, tmp_path):
    root = make_comparison(tmp_path / "made-up", "elu+1-none", 3, fates={("elu+1-none", 2): ("failed", "why")})
    for seed, clock in ((0, [1.0, 2.0, 1.0, 2.5]), (1, [1.0, 2.0, 3.0, 4.5]), (2, [1.0])):
        timed = [{"step": 25 * n - 1, "tokens": n, "split": "train", "seconds": s} for n, s in enumerate(clock, 1)]
        with (root / "elu+1-none" / f"seed{seed}" / "metrics.jsonl").open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in timed)
    curves = json.loads(interactive(read_rows(root, STUDIES["convergence"]))["data"])["validation"]["curves"]
    assert curves["elu+1-none"]["seconds"][-1] == pytest.approx(4.5)


FAILED = {("elu+1-rope-after", 1): ("failed", "the loss was not finite at step 40")}
QUEUED = {("elu+1-none", seed): ("queued", None) for seed in range(3)}
SPLITS = {"sha256": "", "note": "Made up.", "bytes": 5000, "splits": {"train": 3000, "test": 20}, "unit": "examples"}
TOLD = [
    (
        {"variants": "elu+1-none,elu+1-rope-after", "fates": FAILED},
        """1 of 3 failed: seed 1: the loss was not finite at step 40
        elu+1-rope-after, seed 1: failed. the loss was not finite at step 40
        5 of 6 runs""",
        "log.txt",
    ),
    ({"seeds": 1, "fates": {("elu+1-none", 0): ("failed", "why")}}, "No run has finished yet.", "log.txt"),
    ({"fates": QUEUED}, "3 runs are queued. This command finishes what is missing:", "no reason recorded"),
    (
        {"notes": ["The code changed since."]},
        """The code changed since.
        Linear attention with the feature map elu(x) + 1
        Not real text.
        How to read it.
        Its caption.
        0123abc
        a processor
        python -m experiments run convergence --preset smoke
        python -m experiments report DIRECTORY
        Trained on a CPU: the same command gives the same metrics and weights bit for bit""",
        "Resumed",
    ),
    (
        {"machine": {"device": "NVIDIA H100"}, "nondeterministic": ["put_", "matrix products of cuBLAS"]},
        """metrics are not the same bit for bit when the command is run again
        PyTorch names in a training step of these variants: put_; matrix products of cuBLAS.""",
        "Trained on a CPU",
    ),
    ({"data": [SPLITS | {"name": "d", "source": "s"}]}, "train 3,000, test 20", "mine.txt"),
    ({"data": [SPLITS | {"name": "text", "source": "mine.txt"}]}, "on mine.txt\nData mine.txt", "Data text"),
]


@pytest.mark.parametrize(("made", "told", "not_told"), TOLD)
def test_a_report_tells_what_became_of_the_runs_and_what_they_were_made_of(
    make_comparison, tmp_path, no_pictures, made, told, not_told
):
    for text in written(make_comparison(tmp_path, **{"variants": "elu+1-none"} | made)):
        assert [line for line in told.splitlines() if line.strip() not in text] == []
        assert not_told not in text


def test_html_escapes_what_comes_from_files(make_comparison, tmp_path):
    nasty = '<script>alert("x")</script>'
    fates = {("elu+1-none", 0): ("failed", nasty)}
    data = [{"name": nasty, "sha256": nasty, "source": nasty, "note": nasty, "bytes": 1, "splits": {nasty: 1}}]
    other = {key: nasty for key in ("name", "preset", "command", "created")}
    root = make_comparison(
        tmp_path, "elu+1-none", fates=fates, data=data, notes=[nasty], machine={nasty: nasty}, **other
    )
    page = Page(write_report(root, STUDY).read_text())
    assert page.tags.count("script") == SCRIPTS
    assert page.text.count(nasty) >= 12
    assert "What <is> asked?" in page.text
    markdown = re.sub(r"```.*?```|`[^`]*`", "", (root / "report.md").read_text(), flags=re.DOTALL)
    assert nasty not in markdown
    assert r"x\|y" in markdown


@pytest.mark.parametrize("uses_data", [True, False])
def test_data_notes_stand_once_above_the_figures_of_the_data(make_comparison, tmp_path, uses_data):
    root = make_comparison(tmp_path, "elu+1-none")
    html = write_report(
        root, dataclasses.replace(STUDY, figures=[FIGURE | {"uses_data": uses_data}], tables=[])
    ).read_text()
    for text, start, end in (
        (html, "<h2>Figures</h2>", "<h2>Method</h2>"),
        ((root / "report.md").read_text(), "## Figures", "## Method"),
    ):
        assert text.partition(start)[2].partition(end)[0].count("Not real text.") == uses_data


def test_the_terminal_table_has_the_numbers_and_the_failures(make_comparison, tmp_path):
    fates = {("elu+1-none", 2): ("failed", "why [not]")}
    table = result_table(make_comparison(tmp_path, "elu+1-none,elu+1-rope-after", fates=fates))
    console = Console(width=100, file=io.StringIO(), markup=True)
    console.print(table)
    text = console.file.getvalue()
    assert "2 of 3" in text
    assert "elu+1-none: 1 of 3 failed: seed 2: why [not]" in text
    assert re.search(r"\[\d\.\d{3}, \d\.\d{3}\]", text)


NASTY = "<script>alert('$x$ & y')</script>"


def rename_variant(root, old, new):
    """Call a variant of a made-up comparison something else."""
    comparison = json.loads((root / "comparison.json").read_text().replace(f'"{old}"', json.dumps(new)))
    (root / "comparison.json").write_text(json.dumps(comparison))
    (root / new).parent.mkdir(parents=True, exist_ok=True)
    (root / old).rename(root / new)
    for path in (root / new).glob("*/config.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"variant": new}))


@pytest.mark.slow
def test_names_of_variants_are_nothing_but_text_in_page_and_figures(make_comparison, tmp_path):
    root = make_comparison(tmp_path / "run", "elu+1-none,elu+1-rope-after", 1, steps=40)
    rename_variant(root, "elu+1-rope-after", f"group/{NASTY}")
    rename_variant(root, "elu+1-none", r"=1+1\frac")
    html = write_report(root, STUDIES["convergence"]).read_text()
    page = Page(html)
    assert page.tags.count("script") == SCRIPTS
    assert f"group/{NASTY}" in page.text
    figures = [path.read_text() for path in (root / "figures").glob("*.svg")]
    assert len(figures) > 4
    for figure in figures:
        assert "script" not in {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(figure).iter()}
    assert any("<!-- =1+1\\frac -->" in figure for figure in figures)
    assert any("<!-- group/&lt;script&gt;alert(&#x27;$x$" in figure or "$x$" in figure for figure in figures)
    assert "\n=1+1\\frac,0,0,0,validation" in (root / "curves.csv").read_text()
    assert "\n=1+1\\frac,test_bits_per_byte" in (root / "summary.csv").read_text()


def test_what_cannot_be_seen_is_written_out_in_the_report(make_comparison, tmp_path):
    fates = {("elu+1-none", 0): ("failed", "bell \a, turned \u202e, \x1b[31m")}
    data = [{"name": "d", "sha256": "a`b", "source": "s", "note": "", "bytes": 1, "splits": {}}]
    other = {"notes": ["n" * 10000], "command": "run\n```\n<b>", "data": data}
    root = make_comparison(tmp_path, "elu+1-none", fates=fates, **other)
    html = write_report(root, STUDY).read_text()
    markdown = (root / "report.md").read_text()
    shown = r"bell \x07, turned \u202e, \x1b[31m"
    assert shown in html
    assert shown.replace("\\", "\\\\") in markdown or shown in markdown
    assert not set("\a\x1b\u202e") & set(html + markdown)
    assert "\n````\nrun\n```\n<b>\n````\n" in markdown, "code holds what would end it"
    assert "sha256 `` a`b ``." in markdown
    console = Console(width=100, file=io.StringIO())
    console.print(result_table(root))
    assert r"bell \x07" in console.file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("comparison.json", "", "holds no comparison.json; give the directory that `run` wrote"),
        ("elu+1-none/seed0/metrics.jsonl", '{"step": 1}\n', "metrics.jsonl, line 1 lacks tokens"),
        ("elu+1-none/seed1/metrics.jsonl", None, "metrics.jsonl cannot be read (Is a directory)"),
    ],
)
def test_a_wrong_file_is_named_in_one_line_and_the_report_stays(reported, tmp_path, capsys, name, content, message):
    root = shutil.copytree(reported, tmp_path / "copy")
    (root / name).unlink(missing_ok=True)
    if content is None:
        (root / name).mkdir()
    elif content:
        (root / name).write_text(content)
    before = files_of(root)
    capsys.readouterr()
    assert main(["report", str(root)]) == 2
    output, said = capsys.readouterr()
    assert (output, said.count("\n")) == ("", 1)
    assert message in said
    assert files_of(root) == before


def test_what_happened_to_a_run_on_the_way_is_told_with_its_log(make_comparison, tmp_path, no_pictures):
    root = make_comparison(tmp_path, "elu+1-none", fates={("elu+1-none", 2): ("failed", "why")})
    notes = ["checkpoint step00000012 is damaged and was passed over: <why>", "resumed at step 8"]
    write_json(root / "elu+1-none" / "seed1" / "status.json", {"state": "done", "reason": None, "notes": notes})
    (root / "elu+1-none" / "seed2" / "log.txt").touch()
    text, _ = written(root)
    assert f"elu+1-none, seed 1: {notes[0]}; {notes[1]}" in text
    assert "Log: elu+1-none/seed2/log.txt" in text
