"""Packed results: what is kept of a comparison in git, read as its directory is, added to, and gone on with."""

import json
import os
import shutil
import sys

import msgspec
import pandas as pd
import pytest
import torch

from experiments import load
from experiments.cli import main
from experiments.commands import run_training
from experiments.records import files
from experiments.records.files import write_json
from experiments.records.record import is_finished, packed_statuses, run_directory, run_status
from experiments.show.rows import read_rows
from experiments.studies.registry import STUDIES
from experiments.train.checkpoint import checkpoint_path, read_checkpoint
from tests.made_up import DATA, trained_here

parquet = pytest.importorskip("pyarrow.parquet", reason='pyarrow is not installed: pip install -e ".[packed]"')

VARIANTS = "softmax-none,softmax-rope"
FATES = {("softmax-rope", 0): ("failed", "loss is nan at step 41"), ("softmax-rope", 1): ("queued", "stopped")}
ATTENTION = "variant,seed,layer,distance,weight\n"


def pack(directory, out, *words):
    assert main(["pack", str(directory), "--out", str(out), *words]) == 0
    return out


def contents(directory):
    return {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def states(root, *runs):
    return [run_status(root, *run).state for run in runs]


@pytest.mark.usefixtures("quickly")
def test_a_packed_folder_is_read_as_the_directory_of_runs(make_comparison, tmp_path):
    root = make_comparison(tmp_path / "runs", VARIANTS, 4, every=5, fates=FATES, stopped_at=0)
    packed = pack(root, tmp_path / "packed")
    assert {path.name for path in packed.iterdir()} == {"comparison.json", "runs.parquet"}
    assert (packed / "comparison.json").read_bytes() == (root / "comparison.json").read_bytes()
    there, here = load(root), load(packed)
    whole = there.curves[(there.curves["variant"] != "softmax-rope") | (there.curves["seed"] != 1)]
    whole = whole[(whole["split"] != "train") | whole["step"].isin([50, 100])]
    pd.testing.assert_frame_equal(here.curves, whole.reset_index(drop=True))
    pd.testing.assert_frame_equal(here.summary, there.summary)
    study = STUDIES["convergence"]
    assert read_rows(packed, study).judged == read_rows(root, study).judged
    for each in (root, packed):
        assert main(["report", str(each)]) == 0
    assert (packed / "report.md").read_text() == (root / "report.md").read_text()
    assert "loss is nan at step 41" in (packed / "report.md").read_text()
    # The columns are the contract's.
    path = packed / "runs.parquet"
    found = [(field.name, str(field.type)) for field in parquet.read_schema(path)]
    texts, numbers = [("variant", "string")], [(name, "int64") for name in ("seed", "step", "tokens")]
    assert found == [*texts, *numbers, ("split", "string"), ("metric", "string"), ("value", "double")]
    group = parquet.ParquetFile(path).metadata.row_group(0)
    assert {group.column(place).compression for place in range(group.num_columns)} == {"ZSTD"}


def test_of_the_training_records_one_of_ten_and_the_last_stay(make_comparison, tmp_path):
    root = make_comparison(tmp_path / "runs", VARIANTS, 1, steps=250, every=10)
    there, here = load(root).curves, load(pack(root, tmp_path / "packed")).curves
    kept = there[(there["split"] != "train") | there["step"].isin([100, 200, 250])]
    pd.testing.assert_frame_equal(here, kept.reset_index(drop=True))
    evidence = read_rows(tmp_path / "packed", STUDIES["convergence"])
    assert "unfinished" not in str([row.remark for row in evidence.judged]), "no record is missed that was left out"
    # Or all, where claims are about single ones.
    of_all = make_comparison(tmp_path / "denominator", "elu+1-none", 1, experiment="denominator", every=5)
    pd.testing.assert_frame_equal(load(pack(of_all, tmp_path / "all")).curves, load(of_all).curves)


def test_packing_what_is_packed_changes_no_byte_and_what_an_older_version_packed_is_read(make_comparison, tmp_path):
    root = make_comparison(tmp_path / "runs", VARIANTS, 2, every=5, fates=FATES)
    (root / "attention.csv").write_text(ATTENTION + "softmax-none,0,0,1,0.5\n")
    shutil.copytree(root, root / "tuning", ignore=shutil.ignore_patterns("*.csv"))
    packed = pack(root, tmp_path / "packed")
    before = contents(packed)
    assert contents(pack(packed, packed)) == contents(pack(packed, tmp_path / "again")) == before
    older = shutil.copytree(packed, tmp_path / "older")
    for each in (older, older / "tuning"):
        statuses = {run: msgspec.to_builtins(status) for run, status in packed_statuses(each).items()}
        for status in statuses.values():
            del status["tokens_per_second"]
        write_json(each / "runs.json", statuses)
        runs = parquet.read_table(each / "runs.parquet").replace_schema_metadata(None)
        parquet.write_table(runs, each / "runs.parquet")
    assert states(older, *FATES, RUN) == states(packed, *FATES, RUN) == ["failed", "queued", "done"]
    pd.testing.assert_frame_equal(load(older).curves, load(packed).curves)
    pack(shutil.copytree(root, tmp_path / "without trials", ignore=shutil.ignore_patterns("tuning")), older)
    assert states(older / "tuning", *FATES, RUN) == ["failed", "queued", "done"]
    assert contents(pack(root, older)).keys() == before.keys(), "its statuses have moved"


def test_equal_runs_make_equal_files_in_any_order_and_what_is_unchanged_is_not_written(make_comparison, tmp_path):
    roots = [make_comparison(tmp_path / name, name, 2) for name in VARIANTS.split(",")]
    for root in roots:
        (root / "attention.csv").write_text(ATTENTION + f"{root.name},1,0,1,0.5\n{root.name},0,0,1,0.5\n")
    first, second = (pack(b, pack(a, tmp_path / a.name[-4:])) for a, b in (roots, roots[::-1]))
    assert (first / "runs.parquet").read_bytes() == (second / "runs.parquet").read_bytes()
    before = [path.stat().st_ino for path in sorted(first.iterdir())]
    assert [path.stat().st_ino for root in roots for path in sorted(pack(root, first).iterdir())] == before * 2


@pytest.mark.parametrize("created", ["2026-01-02T03:04:05Z", "2026-05-05T00:00:00Z"], ids=["went on", "begun anew"])
def test_new_runs_are_added_and_what_is_packed_stays(make_comparison, tmp_path, created):
    packed = pack(make_comparison(tmp_path / "a", VARIANTS, 2, notes=["an old note"]), tmp_path / "packed")
    before = load(packed).curves
    machine = {"cpu": "another", "device": "cpu"}
    other = make_comparison(tmp_path / "b", "softmax-rope,elu+1-none", 3, created=created, machine=machine)
    for run in (("softmax-rope", 0), ("softmax-rope", 1)):  # as in a directory that went on from the packed one
        shutil.rmtree(run_directory(other, *run))
    for table, rows in ((other, "elu+1-none,0,0,1,0.5\n"), (tmp_path / "a", "softmax-none,0,0,1,0.25\n")):
        (table / "attention.csv").write_text(ATTENTION + rows)
        pack(table, packed)
    after = load(packed)
    assert {variant.name for variant in after.record.variants} == {"softmax-none", "softmax-rope", "elu+1-none"}
    assert after.record.seeds == [0, 1, 2]
    assert len(after.curves.merge(before, how="inner")) == len(before)
    done = {run for run in after.record.runs if run_status(packed, *run).state == "done"}
    assert done == {*after.record.runs} - {("softmax-none", 2)}
    measured = parquet.read_table(packed / "attention.parquet")["variant"].to_pylist()
    assert {*measured} == {"elu+1-none", "softmax-none"}
    if created != "2026-01-02T03:04:05Z":
        assert "an old note" in after.record.notes
        assert any("continued with another machine" in note for note in after.record.notes)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"loss": lambda name, seed, step: 3.0}, "holds softmax-none seed 0 with other records than "),
        ({"steps": 200}, "steps (100 there, 200 now)"),
        ({"data": [DATA | {"sha256": "cd" * 32}]}, "the content of the data set"),
        ({"experiment": "length"}, "of the study convergence, not length"),
        (None, "holds runs that are not packed"),
    ],
)
def test_a_run_that_was_trained_twice_or_otherwise_is_refused_and_nothing_is_changed(
    make_comparison, tmp_path, capsys, other, told
):
    root = make_comparison(tmp_path / "a", VARIANTS, 1)
    out = root if other is None else pack(root, tmp_path / "packed")
    now = root if other is None else make_comparison(tmp_path / "b", VARIANTS + ",elu+1-none", 1, **other)
    before = contents(out)
    assert main(["pack", str(now), "--out", str(out)]) == 2
    assert told in capsys.readouterr().err
    assert contents(out) == before


def test_a_learning_rate_that_was_found_stays_and_another_is_refused(make_comparison, tmp_path, capsys):
    """Of a search that goes on: its runs come later."""
    packed = tmp_path / "packed"
    for name, rate in (("a", None), ("b", 0.002), ("a", None), ("c", 0.004)):
        root = tmp_path / name
        if not root.exists():
            make_comparison(root, "softmax-none", 1, learning_rates=[0.002, 0.004])
            shutil.rmtree(root / "softmax-none")
            record = json.loads((root / "comparison.json").read_text())
            record["variants"][0]["settings"] = {} if rate is None else {"learning_rate": rate}
            write_json(root / "comparison.json", record)
        status = main(["pack", str(root), "--out", str(packed)])
        assert status == (2 if name == "c" else 0)
    assert "learning_rate (0.002 there, 0.004 now)" in capsys.readouterr().err
    assert load(packed).record.variants[0].settings == {"learning_rate": 0.002}


RUN = ("softmax-none", 0)


@pytest.mark.parametrize(
    ("before", "now", "then"),
    [
        ("failed", "done", "done"),
        ("queued", "done", "done"),
        ("done", "failed", "done"),
        ("failed", "queued", "failed"),
        ("done", None, "done"),
        ("running", "running", "queued"),
    ],
)
def test_the_fate_of_which_more_is_known_counts(make_comparison, tmp_path, before, now, then):
    """None: the run was not begun there."""
    fates = {RUN: (before, f"it was {before}" if before != "done" else None)}
    packed = pack(make_comparison(tmp_path / "a", VARIANTS, 1, fates=fates), tmp_path / "packed")
    other = make_comparison(tmp_path / "b", VARIANTS, 1, fates={RUN: (now, f"now {now}")} if now != "done" else {})
    if now is None:
        shutil.rmtree(run_directory(other, *RUN))
    pack(other, packed)
    status = run_status(packed, *RUN)
    assert status.state == then
    assert is_finished(packed, *RUN, 100) == (then == "done")
    if now == "running":
        assert status.reason == "it was being trained when this was packed"
    rows = load(packed).curves
    steps = rows[(rows["variant"] == RUN[0]) & (rows["split"] == "validation")]["step"]
    assert steps.tolist() == {"done": [0, 20, 40, 60, 80, 100], "failed": [0, 20, 40]}.get(then, [])


class Killed(BaseException):
    pass


@pytest.mark.parametrize("at", [0, 2, 3])
def test_what_is_killed_at_any_rename_leaves_what_was_packed_and_is_done_again(
    make_comparison, tmp_path, monkeypatch, at
):
    """Comparison, table and runs, and two of the trials."""

    def made(name, seeds, **other):
        root = make_comparison(tmp_path / name, VARIANTS, seeds, **other)
        shutil.copytree(root, root / "tuning")
        (root / "attention.csv").write_text(ATTENTION + f"softmax-none,{seeds - 1},0,1,0.5\n")
        return root

    def rename(source, target, replace=os.replace):
        renamed.append(target)
        if len(renamed) > at:
            raise Killed
        replace(source, target)

    packed, second, renamed = pack(made("a", 2, fates=FATES), tmp_path / "packed"), made("b", 3), []
    before = load(packed).curves
    whole = contents(pack(second, shutil.copytree(packed, tmp_path / "whole")))
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", rename)
        with pytest.raises(Killed):
            pack(second, packed)
    now = load(packed)
    done = before[before["variant"] == "softmax-none"]
    pd.testing.assert_frame_equal(now.curves[now.curves["seed"] < 2].merge(done, how="inner"), done)
    assert states(packed, ("softmax-none", 0), ("softmax-none", 1)) == ["done", "done"]
    assert contents(pack(second, packed)) == whole


def test_without_pyarrow_the_extra_is_named_and_nothing_counts_as_missing(make_comparison, tmp_path, monkeypatch):
    packed = pack(make_comparison(tmp_path / "a", VARIANTS, 1), tmp_path / "packed")
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    os.utime(packed / "runs.parquet", (0, 0))  # it was not read before
    for read in (lambda: load(packed).curves, lambda: is_finished(packed, *RUN, 100)):
        with pytest.raises(ValueError, match=r"which pyarrow reads and writes; pip install .*\[packed\]"):
            read()


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("int32", "has other columns, or of other types, than variant, seed, step, tokens, split, metric, value"),
        ("int64", "has no statuses of its runs"),
    ],
)
def test_damaged_rows_are_an_error_that_names_the_file(make_comparison, tmp_path, kind, told):
    path = pack(make_comparison(tmp_path / "a", VARIANTS, 1), tmp_path / "packed") / "runs.parquet"
    table = parquet.read_table(path)
    table = table.set_column(1, "seed", table["seed"].cast(kind))
    metadata = parquet.read_metadata(path).metadata if kind == "int32" else None
    parquet.write_table(table.replace_schema_metadata(metadata), path)
    with pytest.raises(ValueError, match=f"^{path} {told}"):
        load(path.parent).summary.size  # noqa: B018


def test_the_weights_of_the_first_seed_are_packed_in_bfloat16(tmp_path, monkeypatch):
    monkeypatch.setattr(run_training, "write_report", lambda root, study: root)
    name, trained = "elu+1-none", tmp_path / "trained"
    words = ["--preset=smoke", "--steps=4", "--evaluate-every=4", f"--variants={name}", f"--out={trained}"]
    with trained_here():
        assert main(["run", "convergence", *words]) == 0
    packed = pack(trained, tmp_path / "packed", "--weights")
    run = load(packed).run(name, 0)
    model, step = run.model(), checkpoint_path(run_directory(trained, name, 0) / "checkpoint", 4)
    for parameter, value in read_checkpoint(step).model.items():
        rounded = value.bfloat16().to(value.dtype) if value.is_floating_point() else value
        assert torch.equal(model.state_dict()[parameter], rounded), parameter
    assert not model.training
    assert run.generate("abc", tokens=3) != ""
    size = (packed / "weights" / f"{name}.safetensors").stat().st_size
    assert size < 0.6 * (step / "model.safetensors").stat().st_size
    (packed / "weights" / f"{name}.safetensors").write_bytes(b"no weights")
    with pytest.raises(ValueError, match=r"elu\+1-none.safetensors holds no weights of this model"):
        run.model()
    packed = pack(trained, tmp_path / "without")
    with pytest.raises(ValueError, match=r"seed 0 in .* has no trained model .it is packed there, with no weights"):
        load(packed).run(name, 0).model()
