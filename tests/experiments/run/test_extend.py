"""A finished comparison is given more steps, seeds and variants; what it had stays."""

import shutil

import pytest

from experiments.cli import main
from experiments.records.record import read_comparison, run_status, write_record
from experiments.run import extend
from tests.made_up import quick, repeated_rows

QUICK = ["run", "convergence", "--preset", "smoke", "--evaluate-every", "2", "--log-every", "1"]
QUICK += ["--checkpoint-every", "2", "--kept-checkpoints", "3"]  # so that there are weights from the fall, too
TWO = "softmax-rope,elu+1-rope-after"


def run(root, *more, steps=10, variants=TWO):
    with quick():
        return main([*QUICK, "--variants", variants, "--seeds", "1", "--steps", str(steps), "--out", str(root), *more])


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs") / "short"
    assert run(root) == 0
    return root


@pytest.fixture
def copy(short, tmp_path):
    return shutil.copytree(short, tmp_path / "short")


def metrics(root, variant="softmax-rope"):
    return repeated_rows(root / variant / "seed0" / "metrics.jsonl")


def content(root):
    """All files but those of the lock."""
    files = (path for path in root.rglob("*") if path.is_file() and path.name != ".lock")
    return {path.relative_to(root): path.read_bytes() for path in files}


def test_with_more_steps_it_is_the_longer_comparison_whose_budget_it_was(copy, short, monkeypatch, tmp_path):
    """Also where it was killed between two runs."""
    whole, done = extend._extend_run, []

    def killed(*run):
        if done:
            raise KeyboardInterrupt
        done.append(whole(*run))

    with monkeypatch.context() as patch:
        patch.setattr(extend, "_extend_run", killed)
        with pytest.raises(KeyboardInterrupt):
            run(copy, "--extend", steps=20)
    assert run(copy, "--extend", steps=20) == 0
    assert run(tmp_path / "long", "--budgets", "10", steps=20) == 0
    for variant in TWO.split(","):
        by_place = [{(r["step"], r["split"]): r for r in metrics(at, variant)} for at in (copy, tmp_path / "long")]
        assert by_place[0] == by_place[1]
        ended = copy / variant / "seed0" / "ended-10"
        assert (ended / "metrics.jsonl").read_bytes() == (short / variant / "seed0" / "metrics.jsonl").read_bytes()
        assert (ended / "step00000010" / "model.safetensors").is_file()
        assert not any("passed over" in note for note in run_status(copy, variant, 0).notes)
    assert read_comparison(copy).config == read_comparison(tmp_path / "long").config
    before = content(copy / "softmax-rope")
    assert run(copy, "--extend", steps=20) == 0
    assert content(copy / "softmax-rope") == before


@pytest.mark.slow
def test_trials_of_learning_rates_stay_as_long_as_they_were(tmp_path):
    root = tmp_path / "tuned"
    rates = "--learning-rates", "0.01,0.02,0.04"
    assert run(root, *rates, variants="softmax-rope") == 0
    chosen = read_comparison(root).variants[0].settings
    before = content(root / "tuning")
    assert run(root, *rates, "--extend", steps=20, variants="softmax-rope") == 0
    assert read_comparison(root).variants[0].settings == chosen
    assert content(root / "tuning") == before


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--steps", "5"], "--steps is 5, and the runs of {root} have 10; give more"),
        (["--steps", "20", "--dim", "64"], "{root} holds a comparison that differs in dim (32 there, 64 now)"),
        (["--steps", "20", "--dry-run"], "--extend and --prepare change what is there, and --dry-run writes nothing"),
        (["--steps", "20", "--budgets", "5"], "--budgets is given with --extend"),
        (["--steps", "20", "--baseline", "softmax-nine"], "--baseline is 'softmax-nine'"),
        (["--steps", "20", "--learning-rates", "0.01,0.02"], "learning_rates"),
    ],
)
def test_what_cannot_be_extended_is_refused_and_stays(copy, capsys, more, said):
    before = content(copy)
    assert main([*QUICK, "--variants", TWO, "--seeds", "1", "--out", str(copy), "--extend", *more]) == 2
    assert said.format(root=copy) in capsys.readouterr().err
    assert content(copy) == before


def test_what_has_no_weights_from_which_it_could_go_on_is_refused(copy, tmp_path, capsys):
    assert run(tmp_path / "none", "--extend") == 2
    assert "holds none; leave it out" in capsys.readouterr().err
    shutil.rmtree(copy / "softmax-rope" / "seed0" / "checkpoint" / "step00000006")
    assert run(copy, "--extend", steps=20) == 2
    assert "has no weights of step 6, where its learning rate began to fall" in capsys.readouterr().err
    record = read_comparison(copy)
    record.config["schedule"] = "cosine"
    write_record(copy / "comparison.json", record)
    assert run(copy, "--schedule", "cosine", "--extend", steps=20) == 2
    assert "have the schedule cosine, which depends on their end; give another --out" in capsys.readouterr().err


def test_without_steps_it_keeps_those_it_had_and_with_seeds_and_variants_nothing_there_is_touched(copy):
    before = content(copy / "softmax-rope" / "seed0")
    words = [*QUICK, "--variants", f"{TWO},softmax-none", "--seeds", "2", "--out", str(copy), "--extend"]
    with quick():
        assert main(words) == 0
    assert read_comparison(copy).config["steps"] == 10
    assert content(copy / "softmax-rope" / "seed0") == before
    assert (copy / "softmax-none" / "seed1" / "metrics.jsonl").is_file()
