"""The release command: what was measured and trained, as files that others read without this project.

All of it is made from the packed results, and equal results, code and versions of libraries give equal files.
"""

import os
import shutil
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.commands.export import WRITERS
from experiments.commands.release_report import report_pdf
from experiments.comparison import Comparison, load
from experiments.console import install_command
from experiments.data.registry import DATA_SETS
from experiments.records.environment import git
from experiments.records.files import read_file
from experiments.records.parquet import pyarrow
from experiments.records.record import holds_packed, planned_runs, run_status
from experiments.report.render import template
from experiments.show.words import recipe
from experiments.studies.benchmark.definition import NAME
from experiments.train.trained_models import PACKED_SEED, packed_weights
from linear_rope import __version__

NEEDS = {"typst": "report.pdf", "yaml": "CITATION.cff", "pyarrow": "runs.parquet"}
"""by module, what it is needed for"""
COLUMNS = {
    "comparison": ("string", "folder in results/ of the repository; in one named tuning, trials of learning rates"),
    "study": ("string", "the study that it belongs to"),
    "preset": ("string", "its size"),
    "recipe": (
        "string",
        "optimiser, schedule and spread (or standard deviation) of the first matrices; version 0: the old one",
    ),
    "data": ("string", "name of the data set"),
    "data_sha256": ("string", "of its content"),
    "version": ("string", "of linear-rope, which trained it"),
    "commit": ("string", "of the code that began the comparison"),
    "variant": ("string", "attention, feature map, position encoding, and settings behind @"),
    "learning_rate": ("double", "peak of the run's learning rate"),
    "seed": ("int64", "of batches, weights and features; runs of one seed see the same batches"),
    "step": ("int64", "optimiser steps so far"),
    "tokens": ("int64", "tokens that these steps saw"),
    "split": ("string", "train, validation or test"),
    "metric": ("string", "what was measured; losses are in nats, bits_per_byte in bits"),
    "value": ("double", "the number"),
}
"""of runs.parquet: type and meaning"""


def release(results: Path, out: Path) -> int:
    """Write runs.parquet with its datasheet, models/, CITATION.cff and report.pdf to a new directory. Returns the exit
    status.

    Raises ValueError if ``out`` is there, a library is missing, or ``results`` is no folder of packed results beside a
    CITATION.cff.
    """
    for module, made in NEEDS.items():
        if find_spec(module) is None:
            raise ValueError(f"{made} needs {module}: {install_command('release')}")
    import yaml

    if os.path.lexists(out):
        raise ValueError(f"--out {out} is there already; give a directory that is new")
    comparisons = packed_comparisons(results)
    table = runs_table(results, comparisons)
    facts = _facts(results, comparisons, table.num_rows)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        temporary.mkdir()
        pyarrow().parquet.write_table(table, temporary / "runs.parquet", compression="zstd")
        columns = [(each.name, each.type, each.metadata[b"description"].decode()) for each in table.schema]
        datasheet = template("release/datasheet.md").render(facts, columns=columns)
        (temporary / "DATASHEET.md").write_text(datasheet, encoding="utf-8")
        for comparison in comparisons:
            _write_models(comparison, comparison.directory.relative_to(results).as_posix(), temporary / "models", facts)
        citation = yaml.safe_dump(facts["citation"], sort_keys=False, allow_unicode=True, width=120)
        (temporary / "CITATION.cff").write_text(citation, encoding="utf-8")
        (temporary / "report.pdf").write_bytes(report_pdf(results, facts))
        os.replace(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print(f"{out}: {', '.join(sorted(path.name for path in out.iterdir()))}")
    return 0


def packed_comparisons(results: Path) -> list[Comparison]:
    """Every comparison in a folder whose runs are packed, by its path; those in ``results/runs`` are work in progress.

    Raises ValueError if there is none.
    """
    roots = sorted(path.parent for path in results.rglob("comparison.json"))
    found = [root for root in roots if holds_packed(root) and not root.is_relative_to(results / "runs")]
    if not found:
        raise ValueError(f"--results {results} holds no packed comparison; give the folder results of a checkout")
    return [load(root) for root in found]


def runs_table(results: Path, comparisons: list[Comparison]) -> Any:
    """All curves as one table with the columns of ``COLUMNS``, each with its meaning."""
    curves = pd.concat([_identified(results, comparison) for comparison in comparisons])
    arrow = pyarrow()
    fields = [
        arrow.field(name, arrow.type_for_alias(kind), nullable=False, metadata={"description": meaning})
        for name, (kind, meaning) in COLUMNS.items()
    ]
    columns = [arrow.array(curves[field.name].tolist(), field.type) for field in fields]
    return arrow.Table.from_arrays(columns, schema=arrow.schema(fields))


def _identified(results: Path, comparison: Comparison) -> pd.DataFrame:
    """The curves of a comparison, with what tells each of its runs from those of others."""
    root, record, curves = comparison.directory, comparison.record, comparison.curves
    peak = record.config["learning_rate"]
    rates = {each.name: float(each.settings.get("learning_rate", peak)) for each in record.variants}
    return curves.assign(
        comparison=root.relative_to(results).as_posix(),
        study=record.study,
        preset=record.preset,
        recipe=recipe(record.config),
        data=record.data[0].called,
        data_sha256=record.data[0].sha256,
        version=record.versions["linear-rope"],
        commit=record.git.commit,
        learning_rate=curves["variant"].map(rates),
    )


def _facts(results: Path, comparisons: list[Comparison], rows: int) -> dict[str, Any]:
    """What all files say: versions, counts, and who is to be cited."""
    import yaml

    counted = [_counted(each.directory.relative_to(results).as_posix(), each) for each in comparisons]
    place = results.absolute().parent / "CITATION.cff"
    software = yaml.safe_load(read_file(place, "give --results of a checkout, which has one beside it"))
    code, texts = git(), {each.name: each for comparison in comparisons for each in comparison.record.data}
    facts: dict[str, Any] = {
        "benchmark": NAME,
        "software": __version__,
        "commit": code.commit + " + changes" * code.dirty,
        "license": software["license"],
        "date": max(each.record.created for each in comparisons)[:10],
        "comparisons": counted,
        "rows": rows,
        "texts": texts,
        # Others come from packages that are not here.
        "known": {name: DATA_SETS[name] for name in texts if name in DATA_SETS},
    }
    facts |= {state: sum(each["states"][state] for each in counted) for state in ("done", "failed", "queued")}
    return facts | {"citation": _citation(software, facts)}


def _counted(name: str, comparison: Comparison) -> dict[str, Any]:
    """What the datasheet's table has of a comparison."""
    record, root = comparison.record, comparison.directory
    states = Counter(str(run_status(root, *run).state) for run in planned_runs(root, record))
    rows, of_recipe = len(comparison.curves), recipe(record.config)
    return {"name": name, "recipe": of_recipe, "record": record, "rows": rows, "states": states}


def _citation(software: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """The citation of the software, as that of what was measured with it, which cites the software too."""
    code = {name: software[name] for name in ("type", "title", "license")} | {"version": __version__}
    code["authors"] = [dict(each) for each in software["authors"]]  # the same list twice is an alias in YAML
    return software | {
        "message": "If you use these data, models or figures, please cite them as below.",
        "title": f"The linear-rope benchmark {NAME}: runs, models and report",
        "type": "dataset",
        "version": NAME,
        "commit": facts["commit"],
        "date-released": facts["date"],
        "references": [code, *software.get("references", ())],
    }


def _write_models(comparison: Comparison, name: str, models: Path, facts: dict[str, Any]) -> None:
    """The models of a comparison whose weights are packed, a directory each, with a card."""
    record = comparison.record
    for variant in record.variants:
        if not packed_weights(comparison.directory, variant.name).exists():
            continue
        directory, run = models / name / variant.name, comparison.run(variant.name, PACKED_SEED)
        directory.mkdir(parents=True)
        WRITERS["safetensors"](run.model().float(), directory)
        chosen = {"variant": variant.name, "seed": PACKED_SEED, "split": "test", "metric": record.objective.metric}
        curves: Any = comparison.curves.set_index([*chosen]).sort_index()
        tested = curves.loc[tuple(chosen.values())].sort_values("step").itertuples()
        content = {"name": name, "variant": variant, "record": record, "seed": PACKED_SEED, "tested": [*tested]}
        card = template("release/model_card.md").render(facts, **content)
        (directory / "README.md").write_text(card, encoding="utf-8")
