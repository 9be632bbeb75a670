"""The report of a release: prose and mathematics in a Typst template, every number from the records."""

import csv
import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import structs

from experiments.judge.difference import LOSS_MARGIN
from experiments.judge.statistics import estimate, with_interval
from experiments.records.files import read_file
from experiments.records.record import read_comparison, run_status
from experiments.report import render
from experiments.report.overview import comparisons_in
from experiments.show.entries import entries_of
from experiments.show.rows import Rows, read_rows
from experiments.show.words import answer, in_words, listed, setting
from experiments.studies.benchmark.claims import judged
from experiments.studies.benchmark.definition import FOLDER, NAME, Task, read_benchmark
from experiments.studies.benchmark.measure import WINDOWS
from experiments.studies.benchmark.results import YARDSTICK as BASELINE
from experiments.studies.benchmark.results import losses_by_position, tested_by_budget
from experiments.studies.recipe.factorial import test_losses
from experiments.studies.registry import STUDIES
from experiments.studies.tokens.budgets import best_floors
from experiments.studies.tokens.budgets import in_words as tokens_in_words
from experiments.study import read_toml

TEMPLATES = Path(render.__file__).parent / "templates" / "release"
NOTHING = "–"
LANGUAGE = f"benchmark/{NAME}/language"
FIGURES: dict[str, tuple[str, dict[str, Any]]] = {
    "budgets": (LANGUAGE, {"like": "by-budget", "panel": "", "line": "variant", "names": "ends", "size": [4.6, 3]}),
    "curves": (
        "convergence",
        {"like": "validation", "only": "experiments.studies.convergence.overview:variants", "panel": "", "y_from": 0.1}
        | {"spread": "band", "names": "values", "size": [5.6, 2.8]},
    ),
    "forgetting": (
        "reference/forgetting",
        {"like": "final-loss", "order": "value", "baseline": BASELINE, "group": ""},
    ),
    "tokens": ("reference/tokens", {"like": "by-budget", "columns": 4, "size": [1.9, 2.4]}),
}
"""by name, the comparison and what is drawn of it"""
DECAYS = (BASELINE, "elu+1-rope-after", "favor+-rope-before")
"""the figure of the study of forgetting has these with all their settings"""
TOLD = re.compile(r'#(?:told|answer|about)\("([^"]+)"\)')
"""where the template tells what a comparison answers, or is about"""


def report_pdf(results: Path, facts: dict[str, Any]) -> bytes:
    """The report as a PDF; ``facts`` are those of the release. Equal records give equal bytes.

    Raises ValueError if a record that it needs is not there.
    """
    import typst

    created = date.fromisoformat(facts["date"])
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shutil.copytree(TEMPLATES, folder, dirs_exist_ok=True)
        for name in FIGURES:
            _save_figure(results, name, folder)
        shown = re.sub(r"(?<![\w.])-(?=\d)", "\N{MINUS SIGN}", json.dumps(report_data(results, facts)))
        (folder / "data.json").write_text(shown, encoding="utf-8")
        made: bytes = typst.compile(
            folder / "report.typ", ignore_system_fonts=True, timestamp=(created - date(1970, 1, 1)).days * 86400
        )
    return made


def report_data(results: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """What the template shows besides figures: numbers as texts, ready to be printed."""
    claims, benchmark = _rows(results / "claims.csv"), read_benchmark()
    roots = TOLD.findall((TEMPLATES / "report.typ").read_text(encoding="utf-8"))
    told = {name: facts[name] for name in ("benchmark", "software", "commit", "date")}
    told |= {name: f"{facts[name]:,}" for name in ("done", "failed", "rows")}
    return told | {
        "comparisons": len(facts["comparisons"]),
        "answers": {root: _answer(results / root) for root in roots},
        "language": _language(results / LANGUAGE),
        "factorial": _factorial(sorted((results / "recipe").glob("recipe-*"))),
        "tasks": [_task(results / "benchmark" / NAME, *each) for each in benchmark.tasks.items()],
        "ordered": [each.task for each in benchmark.comparisons()],
        "frozen": {
            each.claim.key: {"measured": each.found.show("+.3f"), "seeds": str(each.found.n), "verdict": each.verdict}
            for each in judged(comparisons_in(results / "benchmark" / NAME))
        },
        "rule": read_toml(FOLDER / NAME / "claims.toml")["rule"],
        "verdicts": Counter(row["verdict"] for row in claims),
        "claims": {f"{row['comparison']}/{row['claim']}": row | {"measured": _measured(row)} for row in claims},
        "published": [_beside(results, row) for row in _rows(TEMPLATES / "published.csv")],
    }


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(read_file(path, "take it from the repository").decode().splitlines()))


def _save_figure(results: Path, name: str, folder: Path) -> None:
    """Draw what ``FIGURES`` says, as figures/NAME.svg."""
    place, entry = FIGURES[name]
    root = results / place
    study = replace(
        STUDIES[read_comparison(root).study], figures=({"stem": name, **entry},), tables=(), overview_figures=()
    )
    rows = read_rows(root, study)
    if name == "forgetting":
        shown = tuple(each for each in rows.comparison.variants if each.name.partition("@")[0] in DECAYS)
        rows = Rows(root, study, structs.replace(rows.comparison, variants=shown), rows.curves)
    entries_of(rows, folder)


def _answer(root: Path) -> dict[str, str]:
    """What a comparison answers, and what it was measured on."""
    record = read_comparison(root)
    study = STUDIES[record.study]
    measured = setting(record, study.measured).partition(";")[0].rstrip(".")
    return {"answer": answer(read_rows(root, study)), "setting": measured}


def _language(root: Path) -> dict[str, Any]:
    """The benchmark's language models: a row for each variant, then the best floor at each budget."""
    record = read_comparison(root)
    names = [each.name for each in record.variants]
    by_budget = {tokens: found.reindex(columns=names) for tokens, found in tested_by_budget(root, record).items()}
    by_seed = [*by_budget.values()][-1]
    counts, ends = by_seed.count(), by_seed.mean()
    longer = {each: found.reindex(columns=names).mean() for each, found in losses_by_position(root).items()}
    beyond = [each for each in longer if each[0] >= record.config["context"]]
    within = max(each for each in longer if each not in beyond)
    rise = longer[beyond[-1]] - longer[within]
    rows = list[list[str]]()
    for variant in record.variants:
        name = variant.name
        minus = estimate([*(by_seed[name] - by_seed[BASELINE]).dropna()])
        means = [*(losses[name].mean() for losses in by_budget.values()), *(longer[each][name] for each in beyond)]
        rows.append(
            [
                in_words(variant),
                str(counts[name]),
                f"{variant.settings.get('learning_rate', record.config['learning_rate']):g}",
                *(_number(mean) for mean in means),
                with_interval(minus.mean, minus.low, minus.high, "+.3f") if name != BASELINE and minus.n else NOTHING,
            ]
        )
    floors = best_floors(root).sort_values("tokens")["value"]
    seeds = [n for n in counts if n]
    task = read_benchmark().tasks[record.name]
    numbers: dict[str, Any] = {"begun": len(seeds), "planned": len(task.variants + task.more)}
    numbers |= {"margin": LOSS_MARGIN, "within": _range(within), "farthest": _range(beyond[-1])}
    numbers |= {"longest": beyond[-1][1] + 1, "windows": record.evaluated_windows["test"], "longest_windows": WINDOWS}
    numbers |= {**record.config, "parameters": record.variants[0].parameters, "bytes": record.data[0].bytes}
    return {
        "head": [
            *(tokens_in_words(each) for each in by_budget),
            *(_range(each).replace(" to", "\nto") for each in beyond),
        ],
        "rows": rows,
        "floor": ["best n-gram", "", "", *(f"{value:.3f}" for value in floors), *[""] * (len(beyond) + 1)],
        "seeds": f"{_range(sorted({min(seeds), max(seeds)}))} seed{'s' * (max(seeds) > 1)} each",
        "below_floor": listed(in_words(each) for each in record.variants if ends[each.name] < floors.iloc[-1]),
        "keeping": listed(in_words(each) for each in record.variants if rise[each.name] < LOSS_MARGIN),
        "numbers": {name: f"{value:,}" if isinstance(value, int) else str(value) for name, value in numbers.items()},
        "sha256": record.data[0].sha256,
    }


def _factorial(roots: list[Path]) -> dict[str, Any]:
    """The losses of the study of recipes, and what was trained there."""
    records = [read_comparison(root) for root in roots]
    words, rows, floors = {each.name: in_words(each) for each in records[0].variants}, [], {}
    for root, record in zip(roots, records, strict=True):
        losses, data, config = test_losses(root, record), record.data[0].called, record.config
        recipe = [data, config["optimizer"], f"{config['initial_spread']:g}", str(len(losses))]
        rows.append(recipe + [_number(mean) for mean in losses.mean().reindex([*words])])
        floors[data] = f"{best_floors(root)['value'].iloc[-1]:.3f}"
    rows = sorted(rows) + [[data, "best n-gram", "", "", *[best] * len(words)] for data, best in floors.items()]
    config, floor = records[0].config, floors[records[0].data[0].called]
    size, read = f"{config['layers']} layers, width {config['dim']}", config["steps"] * records[0].tokens_per_step
    told = {"floor": floor, "data": records[0].data[0].called, "size": size, "bytes": f"{read:,}"}
    return told | {"head": ["data", "optimiser", "spread", "seeds", *words.values()], "rows": rows}


def _number(value: float) -> str:
    return f"{value:.3f}".replace("nan", NOTHING)


def _range(ends: Sequence[int]) -> str:
    return " to ".join(f"{end:,}" for end in ends)


def _task(benchmark: Path, name: str, task: Task) -> dict[str, str]:
    """How many runs of a task of the benchmark are done; of rates beside the best there are two for each variant."""
    variants = task.variants + task.more
    planned = len(variants) * task.seeds * (2 if task.neighbours_of else 1)
    root = benchmark / name
    runs = read_comparison(root).runs if (root / "comparison.json").exists() else ()
    done = sum(run_status(root, *run).state == "done" for run in runs if run[0] in variants)
    return {"name": name, "done": str(done), "planned": str(planned)}


def _measured(row: dict[str, str]) -> str:
    mean, low, high = (float(row[name] or "nan") for name in ("mean", "low", "high"))
    pattern = ".1%" if "accuracy" in row["quantity"] else ".3f"
    return with_interval(mean, low, high, f"{'+' * ('minus' in row['quantity'])}{pattern}")


def _beside(results: Path, row: dict[str, str]) -> dict[str, str]:
    """A published figure with that of the same kind of model here."""
    root = results / row["comparison"]
    record = read_comparison(root)
    (variant,) = (each for each in record.variants if each.name == row["variant"])
    found = estimate([*test_losses(root, record)[variant.name].dropna()])
    measured = with_interval(found.mean, found.low, found.high, ".3f")
    words = {"measured": measured, "model": in_words(variant), "data": record.data[0].called}
    return row | words | {"seeds": str(found.n)}
