"""Learning rates that are found for each variant, from made-up trials and from runs through the command line."""

import json
import math
import re
import shutil
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from experiments.cli import main
from experiments.commands import run_training
from experiments.commands.watch import look
from experiments.comparison import load
from experiments.judge.statistics import summarise
from experiments.presets import get_preset
from experiments.records.files import write_json
from experiments.records.record import read_comparison, run_config, run_status, write_record
from experiments.report.tables import how_to_read, main_table, terminal_table
from experiments.show.rates import table
from experiments.show.rates import trials as rates_tried
from experiments.studies.registry import STUDIES
from experiments.train.tuning import (
    fewest_trials,
    parse_rates,
    search,
    search_of,
    trial_name,
    trials,
    trials_left,
    untuned,
)
from experiments.variants import get_variant
from tests.made_up import metrics_rows, repeated_rows, trained_here, undrawn

QUICK = ["--preset", "smoke", "--steps", "4", "--evaluate-every", "2", "--log-every", "1", "--checkpoint-every", "2"]
VARIANT = "softmax-none"


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("0.002,0.001", [0.001, 0.002]),
        ("1e-3, 2e-3,0.001", [0.001, 0.002]),
        ("1,1e30", [1.0, 1e30]),
        ("1,1.05", [1.0, 1.05]),
    ],
)
def test_a_grid_is_ascending_and_has_no_rate_twice(text, rates):
    assert parse_rates(text) == rates


@pytest.mark.parametrize(
    "text", ["1,1.04", "0.1,", "0.1,0.1", "0,0.1", "nan,0.1", "1e31,1", "0.1;0.2", "1,2,3,4,5,6,7,8,9,10"]
)
def test_what_is_no_grid_is_refused(text):
    with pytest.raises(ValueError, match=rf"^--learning-rates is '{text}'; give two to 9 positive numbers, 1e\+30 or"):
        parse_rates(text)


GRID = (0.001, 0.002, 0.004)


def searched(losses, grid=GRID, seeds=3, better="lower", **options):
    """The search for the best rate where it has ended, and how many trials were asked for each time it waited.

    ``losses`` are by rate those of the seeds, one for all seeds, or infinite if it is not there.
    """
    ended, rounds = dict[tuple[float, int], float](), []
    while True:
        found = search(grid, range(seeds), better, lambda rate, seed: ended.get((rate, seed)), **options)
        if not found.missing:
            assert sorted(ended) == [(rate, seed) for rate in found.rates for seed in found.seeds[rate]]
            return found, rounds
        rounds.append(found.missing)
        for rate, seed in found.missing:
            assert (rate, seed) not in ended, "no trial is made twice"
            loss = losses(rate) if callable(losses) else losses.get(rate, math.inf)
            ended[rate, seed] = loss[seed] if isinstance(loss, list) else loss


def distance_to(optimum):
    return lambda rate: abs(math.log2(rate / optimum))


HALVED = [3.125e-05, 6.25e-05, 0.000125, 0.00025, 0.0005]
ONE_SEED_DIVERGES = {0.001: 3.0, 0.002: [1.0, 1.0, math.nan], 0.004: 2.5, 0.008: 2.75, 0.016: 3.0}
THE_MEAN_DECIDES = {0.001: 3.0, 0.002: [1.0, 3.0, 3.0], 0.004: 2.0, 0.008: [2.5, 1.0, 1.0], 0.016: 2.6}


@pytest.mark.parametrize(
    ("losses", "grid", "rate", "not_tuned", "rates", "on_all", "rounds"),
    [
        # Inside the grid it is checked with its neighbours, and nothing else is tried.
        (distance_to(0.002), (0.0005, *GRID, 0.008), 0.002, "", [0.0005, *GRID, 0.008], list(GRID), [5, 6]),
        # The grid is extended on either side until the best is inside.
        (distance_to(0.016), GRID, 0.016, "", [*GRID, 0.008, 0.016, 0.032], [0.008, 0.016, 0.032], [3, 1, 1, 1, 6]),
        (distance_to(0.00025), GRID, 0.00025, "", [*HALVED[2:], *GRID], HALVED[2:], [3, 1, 1, 1, 6]),
        # What is at the edge after five more is not tuned; beyond it lies the ratio at that edge, which is not quite 3
        # of 0.1 and 0.3, up to the largest rate there is.
        (lambda rate: 1 / rate, (0.0003, 0.001, 0.003), 0.729, "upper edge",
         [0.0003, 0.001, 0.003, 0.009, 0.027, 0.081, 0.243, 0.729], [0.243, 0.729], None),
        (lambda rate: 1 / rate, (0.1, 0.3), 72.9, "upper edge", [0.1, 0.3, 0.9, 2.7, 8.1, 24.3, 72.9], [24.3, 72.9],
         None),
        (lambda rate: 1 / rate, (1e29, 1e30), 1e30, "upper edge", [1e29, 1e30], [1e29, 1e30], None),
        (lambda rate: 1 / rate, (1e-40, 1e30), 1e30, "upper edge", [1e-40, 1e30], [1e-40, 1e30], None),
        (lambda rate: rate, GRID, 3.125e-05, "lower edge", [*HALVED, *GRID], HALVED[:2], None),
        # A rate at which the loss diverges bounds the search, and is tried with one seed; of one seed, it is not taken.
        (lambda rate: 1 / rate if rate < 0.008 else math.nan, GRID, 0.004, "", [*GRID, 0.008], [0.002, 0.004], None),
        (ONE_SEED_DIVERGES, GRID, 0.004, "", [*GRID, 0.008], [0.001, 0.002, 0.004, 0.008], None),
        (lambda rate: math.nan, GRID, None, "diverged", list(GRID), [], [3]),
        # The mean of all seeds decides, and the search goes on from there.
        (THE_MEAN_DECIDES, GRID, 0.008, "", [*GRID, 0.008, 0.016], [*GRID, 0.008, 0.016], [3, 6, 1, 2, 1, 2]),
        # Of equally good ones the lower.
        ({0.0005: 3.0, 0.001: 2.5, 0.002: 2.5, 0.004: 3.0}, GRID, 0.001, "", [0.0005, *GRID], [0.0005, 0.001, 0.002],
         None),
    ],
)  # fmt: skip
def test_the_rule_finds_the_best_rate(losses, grid, rate, not_tuned, rates, on_all, rounds):
    found, asked = searched(losses, grid=grid)
    assert (found.rate, found.not_tuned, found.rates) == (rate, not_tuned, rates)
    assert [each for each, seeds in found.seeds.items() if len(seeds) > 1] == on_all
    assert rounds in (None, [len(each) for each in asked])
    if callable(losses):
        assert (
            searched(lambda rate: -losses(rate), grid=grid, better="higher")[0]._replace(figures=found.figures) == found
        )


@pytest.mark.parametrize(("number", "seeds"), [(2, 1), (2, 3), (5, 1), (5, 3)])
def test_the_fewest_trials_are_those_of_a_grid_with_the_best_inside(number, seeds):
    grid = [0.001 * 2**place for place in range(number)]
    made = [
        sum(map(len, searched(distance_to(optimum), grid=grid, seeds=seeds)[0].seeds.values()))
        for optimum in (grid[0] / 4, *grid, grid[-1] * 4)
    ]
    assert fewest_trials(number, seeds) == min(made)
    assert searched(distance_to(0.008), seeds=1)[0].rate == 0.008


def test_rates_that_are_close_have_different_names_that_say_them_exactly():
    rates = (0.0012345678, 0.0012345679)
    names = [trial_name("favor+-none@num_features=32", rate) for rate in rates]
    assert [get_variant(name).settings["learning_rate"] for name in names] == list(rates)


def rates_table(root, comparison):
    return table(SimpleNamespace(root=root, comparison=comparison))


@pytest.fixture
def made_up(make_comparison, tmp_path):
    """Makes a comparison and its trials with given validation losses (None: failed); those of the test are opposite."""

    def make(losses, **other):
        rates = [0.001 * 2**k for k in range(len(losses))]
        by_name = {trial_name(VARIANT, rate): loss for rate, loss in zip(rates, losses, strict=True)}
        make_comparison(tmp_path, VARIANT, 1, learning_rates=rates, **other)
        fates = {(name, 0): ("failed", "diverged: made up") for name, loss in by_name.items() if loss is None}
        at = make_comparison(
            tmp_path / "tuning", ",".join(by_name), 1, fates=fates, loss=lambda name, seed, step: by_name[name] or 0.1
        )
        for path in at.glob("*/seed0/metrics.jsonl"):
            rows = metrics_rows(path)
            for row in rows:
                if row["split"] == "test":
                    row["bits_per_byte"] = 100 - row["bits_per_byte"]
                if row["split"] == "validation" and row["step"] < 100:
                    row["bits_per_byte"] = 50 - row["bits_per_byte"]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path, read_comparison(tmp_path)

    return make


@pytest.mark.parametrize(
    ("losses", "better", "tested", "best", "figures"),
    [
        ([3.0, 2.5, 2.0], "lower", "last", 0.004, [3.0, 2.5, 2.0]),
        ([None, 2.5, 3.0], "lower", "last", 0.002, [math.nan, 2.5, 3.0]),
        ([3.0, 2.5], "higher", "last", 0.001, [3.0, 2.5]),
        ([3.0, 2.5], "lower", "best", 0.002, [3.0, 2.5]),
        # The evaluations before the last one are of 50 less these.
        ([3.0, 2.5], "higher", "best", 0.002, [47.0, 47.5]),
    ],
)
def test_of_a_fixed_grid_the_choice_is_the_best_validation_figure_and_never_of_a_diverged_trial(
    made_up, losses, better, tested, best, figures
):
    root, comparison = made_up(losses)
    comparison.objective = replace(comparison.objective, better=better)
    comparison.config["tested"] = tested
    found = search_of(root, comparison, VARIANT)
    assert (found.rate, found.rates, found.missing) == (best, comparison.learning_rates, [])
    assert [value for values in found.figures.values() for value in values] == pytest.approx(figures, nan_ok=True)
    write_json(root / "tuning" / trial_name(VARIANT, 0.002) / "seed0" / "status.json", {"state": "running"})
    assert search_of(root, comparison, VARIANT).missing == [(0.002, 0)]


@pytest.mark.parametrize(
    ("losses", "grid", "rate_seeds", "settings", "not_tuned", "figures", "told"),
    [
        ([3.0, 2.5, None], None, 0, {"learning_rate": 0.004}, "", ["3.000", "2.500", "-"], "0.004 (edge)"),
        ([3.0, 2.5, None], None, 0, {}, "", ["3.000", "2.500", "-"], "not chosen yet"),
        # Of the search: what was tried beyond its grid, what diverged, and what is not tuned.
        ([3.0, 2.5, 2.75, None], [0.002, 0.004], 1, {"learning_rate": 0.002}, "upper edge",
         ["3.000", "2.500", "2.750"], "0.002 (not tuned: upper edge)"),
        ([3.0, 2.5, 2.75, None], [0.004, 0.008], 1, {"learning_rate": 0.002}, "",
         ["3.000", "2.500", "2.750", "diverged"], "0.002"),
    ],
)  # fmt: skip
def test_the_table_shows_every_trial_and_the_rate_of_the_variant(
    made_up, losses, grid, rate_seeds, settings, not_tuned, figures, told
):
    root, comparison = made_up(losses, rate_seeds=rate_seeds)
    comparison.learning_rates = grid or comparison.learning_rates
    (variant,) = comparison.variants
    variant.settings, variant.not_tuned = settings, not_tuned
    (row,) = rates_table(root, comparison).to_dict("records")
    by_rate = zip(("0.001", "0.002", "0.004", "0.008"), figures, strict=False)
    assert row == {"variant": VARIANT, **dict(by_rate), "trained with": told}
    comparison.learning_rates = []
    assert rates_table(root, comparison) is None


def test_trials_of_a_variant_that_is_not_known_here_are_shown_also_with_seeds_that_were_not_tried(made_up):
    root, comparison = made_up([3.0, 2.5, 2.75, 2.6])
    of_trials = read_comparison(root / "tuning")
    write_record(root / "tuning" / "comparison.json", replace(of_trials, seeds=[0, 1]))
    assert load(root / "tuning").difference(*(each.name for each in of_trials.variants[:2])).n == 1
    (variant,) = comparison.variants
    variant.name = variant.baseline = "theirs-rope-after"
    assert "theirs-rope-after@learning_rate=0.002" in {each.name for each in trials(root, comparison).variants}


def test_what_is_not_tuned_is_marked_beside_its_name_and_said_below_the_table(make_comparison, tmp_path):
    comparison = read_comparison(make_comparison(tmp_path, f"{VARIANT},elu+1-none,relu-none", rate_seeds=3))
    summary = summarise(tmp_path, comparison)
    assert "ot tuned" not in how_to_read(main_table(summary, comparison), summary, comparison)
    for variant, why in zip(comparison.variants, ("", "upper edge", "diverged"), strict=True):
        variant.not_tuned = why
    table = main_table(summary, comparison)
    assert table["variant"].tolist() == [VARIANT, "elu+1-none\n[not tuned]", "relu-none\n[not tuned]"]
    said = how_to_read(table, summary, comparison)
    assert "Not tuned, as the highest learning rate that was tried is its best: elu+1-none." in said
    assert "Not tuned, as its loss diverged at every learning rate that was tried: relu-none." in said
    assert terminal_table(summary, comparison).caption.plain.count("Not tuned") == 2


@pytest.mark.parametrize(
    ("losses", "better", "shown"),
    [
        ([3.0, 2.5, 2.75, 2.0], "lower", {0.002: 2.5, 0.004: 2.75, 0.008: 2.0}),
        ([3.0, 2.5, 2.75, 2.25], "higher", {0.001: 3.0, 0.002: 2.5, 0.004: 2.75}),
    ],
)
def test_a_figure_shows_no_rate_worse_than_the_best_and_its_neighbours_and_a_fixed_grid_has_none(
    made_up, losses, better, shown
):
    root, comparison = made_up(losses, rate_seeds=1)
    comparison.objective = replace(comparison.objective, better=better)
    write_record(root / "comparison.json", comparison)
    found = rates_tried(root)
    assert dict(zip(found["rate"], found["value"], strict=True)) == shown
    comparison.rate_seeds = 0
    write_record(root / "comparison.json", comparison)
    assert rates_tried(root) is None


def test_trials_are_of_every_variant_but_those_whose_name_fixes_the_rate(made_up):
    root, comparison = made_up([3.0, 2.5])
    tuned = replace(comparison.variants[0], settings={"learning_rate": 0.002})
    rope = replace(tuned, name="softmax-rope@dim=64", baseline="softmax-none@dim=64", settings={"dim": 64})
    fixed = replace(rope, name="softmax-rope@learning_rate=0.1", settings={"learning_rate": 0.1})
    comparison.variants = [tuned, rope, fixed]
    found = {variant.name: (variant.baseline, variant.settings) for variant in trials(root, comparison).variants}
    assert found == {
        f"{name}@learning_rate={rate}": (f"{baseline}@learning_rate={rate}", {**settings, "learning_rate": rate})
        for name, baseline, settings in ((VARIANT, VARIANT, {}), (rope.name, rope.baseline, {"dim": 64}))
        for rate in (0.001, 0.002)
    }
    assert [variant.name for variant in untuned(comparison)] == ["softmax-rope@dim=64"]
    comparison.variants = [replace(tuned, settings={})]
    left = [trials_left(root, replace(comparison, rate_seeds=seeds))[VARIANT] for seeds in (3, 1, 0)]
    assert left == [7, 1, 0], "of three seeds nine, less these two"


def tuned_run(root, *more, variants=VARIANT, rates="0.1,1,1e29"):
    """At 0.1 it is lowest, at 1e29 it is not finite after a step."""
    arguments = ["run", "convergence", *QUICK, "--variants", variants, "--seeds", "2", "--out", str(root), *more]
    with trained_here():
        return main([*arguments, *(["--learning-rates", rates] if rates else [])])


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs") / "tuned"
    with undrawn():
        assert tuned_run(root) == 1
    return root


@pytest.fixture
def copied(tuned, tmp_path):
    return shutil.copytree(tuned, tmp_path / "tuned")


@pytest.fixture
def _without_report(monkeypatch):
    """Figures take most of the time of so small a run."""
    monkeypatch.setattr(
        run_training, "_measure_and_report", lambda trainer, comparison: trainer.plan.root / "report.html"
    )
    monkeypatch.setattr(run_training, "result_table", lambda root: "")


def settings_of(root):
    return {variant.name: variant.settings for variant in read_comparison(root).variants}


def trained(root):
    """The trials on disk, by rate: their seeds."""
    runs = sorted(path.parent for path in (root / "tuning").glob("*/seed*/config.json"))
    return {
        rate: [run.name for run in runs if run.parent.name == trial_name(VARIANT, rate)]
        for rate in (0.01, 0.1, 1.0, 10.0, 1e29)
    }


WHOLE = {0.01: ["seed0", "seed1"], 0.1: ["seed0", "seed1"], 1.0: ["seed0", "seed1"], 10.0: [], 1e29: ["seed0"]}


def test_all_runs_of_a_variant_are_trained_with_the_best_rate_which_the_grid_is_extended_for(tuned, capsys):
    assert settings_of(tuned) == {VARIANT: {"learning_rate": 0.1}}
    assert [run_config(tuned, VARIANT, seed).config["learning_rate"] for seed in (0, 1)] == [0.1, 0.1]
    assert trained(tuned) == WHOLE
    assert run_status(tuned / "tuning", f"{VARIANT}@learning_rate=1e+29", 0).state == "failed"
    for seed in (0, 1):
        (note,) = run_status(tuned, VARIANT, seed).notes
        place = f"taken over from tuning, {VARIANT}@learning_rate=0.1 seed {seed}"
        assert note.startswith(f"{place}, trained there at commit ")
        trial = tuned / "tuning" / f"{VARIANT}@learning_rate=0.1" / f"seed{seed}"
        assert (tuned / VARIANT / f"seed{seed}" / "metrics.jsonl").read_bytes() == (
            trial / "metrics.jsonl"
        ).read_bytes()
    report = (tuned / "report.md").read_text()
    assert "| variant | 0.01 | 0.1 | 1.0 | 1e+29 | trained with |" in report
    assert place in report
    assert "](figures/rates.png)" in report
    record = read_comparison(tuned / "tuning")
    assert [variant.settings["learning_rate"] for variant in record.variants] == [0.01, 0.1, 1.0, 1e29]
    assert record.seeds == [0, 1]
    assert tuned_run(tuned, "--dry-run", "--seeds=3") == 0
    assert "2 runs done already; left: 1 run, 1,024 tokens" in capsys.readouterr().out
    for rates, now in (("0.001,0.002", r"\[0.001, 0.002\]"), (None, r"\[\]")):  # another grid is refused
        before = (tuned / "comparison.json").read_bytes()
        assert tuned_run(tuned, rates=rates) == 2
        told = rf"differs in learning_rates \(\[0.1, 1.0, 1e\+29\] there, {now} now\); give another --out"
        assert re.search(told, capsys.readouterr().err)
        assert (tuned / "comparison.json").read_bytes() == before


@pytest.mark.parametrize("packed", [False, True])
def test_trials_that_the_search_did_not_ask_for_are_not_waited_for(tuned, tmp_path, packed, capsys):
    root = tmp_path / "packed" if packed else tuned
    if packed:
        assert main(["pack", str(tuned), "--out", str(root)]) == 0
    (trials_alone,) = look(root / "tuning")
    assert (trials_alone.counts, trials_alone.has_ended) == ({"done": 6, "failed": 1}, True)
    assert main(["watch", str(root / "tuning"), "--once"]) == 0
    assert "queued" not in capsys.readouterr().out
    summary = summarise(root / "tuning", read_comparison(root / "tuning")).drop_duplicates("variant")
    assert summary["planned"].tolist() == [2, 2, 2, 1]
    assert summary["unfinished"].tolist() == [0, 0, 0, 0]


def forget_the_choice(root, **other):
    comparison = replace(read_comparison(root), **other)
    comparison.variants[0].settings = {}
    write_record(root / "comparison.json", comparison)
    shutil.rmtree(root / VARIANT)


@pytest.mark.usefixtures("_without_report")
def test_a_run_that_was_stopped_in_a_trial_goes_on_to_the_same_choice_and_repeats_no_other(tuned, copied):
    forget_the_choice(copied)
    trial = copied / "tuning" / f"{VARIANT}@learning_rate=0.1" / "seed0"
    write_json(trial / "status.json", {"state": "queued", "reason": "stopped at step 2"})
    rows = (trial / "metrics.jsonl").read_text().splitlines(keepends=True)
    (trial / "metrics.jsonl").write_text("".join(row for row in rows if json.loads(row)["step"] <= 2))
    shutil.rmtree(trial / "checkpoint" / "step00000004")
    shutil.rmtree(copied / "tuning" / f"{VARIANT}@learning_rate=1.0" / "seed1")
    statuses = {path: path.read_bytes() for path in (copied / "tuning").glob("*/seed*/status.json")}
    del statuses[trial / "status.json"]
    assert tuned_run(copied) == 0, "what diverged is not tried again"
    assert settings_of(copied) == settings_of(tuned)
    assert trained(copied) == WHOLE
    assert {path: path.read_bytes() for path in statuses} == statuses
    for seed in ("seed0", "seed1"):
        before, after = (repeated_rows(root / VARIANT / seed / "metrics.jsonl") for root in (tuned, copied))
        assert before == after


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures("_without_report")
def test_an_older_comparison_whose_rates_were_found_in_the_fixed_grid_keeps_to_it_and_another_goes_on(copied):
    for rate, seed in ((0.01, 0), (0.01, 1), (1.0, 1)):
        shutil.rmtree(copied / "tuning" / trial_name(VARIANT, rate) / f"seed{seed}")
    write_record(copied / "comparison.json", replace(read_comparison(copied), rate_seeds=0))
    before = trained(copied)
    assert tuned_run(copied) == 0
    assert (trained(copied), read_comparison(copied).rate_seeds) == (before, 0)
    assert rates_table(copied, read_comparison(copied))["trained with"].tolist() == ["0.1 (edge)"]
    # Without a choice it searches on.
    forget_the_choice(copied, rate_seeds=0)
    kept = copied / "tuning" / trial_name(VARIANT, 0.1) / "seed0" / "status.json"
    status = kept.read_bytes()
    assert tuned_run(copied) == 0
    assert (trained(copied), settings_of(copied)) == (WHOLE, {VARIANT: {"learning_rate": 0.1}})
    assert kept.read_bytes() == status


@pytest.mark.usefixtures("_without_report")
def test_variants_that_are_added_later_have_trials_of_their_own_and_change_no_choice(tuned, copied):
    failed = f"{VARIANT}@learning_rate=1e+29/seed0/status.json"
    runs = {path: path.read_bytes() for path in (copied / VARIANT).rglob("*") if path.is_file()}
    assert tuned_run(copied, variants="elu+1-none") == 1
    assert list(settings_of(copied)) == [VARIANT, "elu+1-none"]
    assert settings_of(copied)[VARIANT] == {"learning_rate": 0.1}
    names = [variant.name for variant in read_comparison(copied / "tuning").variants]
    of_each = [[name for name in names if name.startswith(f"{variant}@")] for variant in (VARIANT, "elu+1-none")]
    assert of_each[0] == [trial_name(VARIANT, rate) for rate in (0.01, 0.1, 1.0, 1e29)]
    assert {trial_name("elu+1-none", rate) for rate in (0.1, 1.0, 1e29)} <= {*of_each[1]}
    assert names == of_each[0] + of_each[1]
    assert (copied / "tuning" / failed).read_bytes() == (tuned / "tuning" / failed).read_bytes()
    assert {path: path.read_bytes() for path in runs} == runs


@pytest.mark.usefixtures("_without_report")
def test_a_variant_all_of_whose_trials_diverged_keeps_the_comparison_s_rate_for_good(tmp_path, capsys):
    root = tmp_path / "out"
    assert tuned_run(root, rates="1e29,1e30") == 1
    rate = get_preset("smoke", STUDIES["convergence"]).config.learning_rate
    assert f"{VARIANT}: {rate} (the comparison's: it diverged at all of them)" in capsys.readouterr().out
    assert settings_of(root) == {VARIANT: {"learning_rate": rate}}
    assert run_status(root, VARIANT, 0).state == "done"
    told = f"{rate} (not tuned: diverged)"
    row = {"variant": VARIANT, "1e+29": "diverged", "1e+30": "diverged", "trained with": told}
    assert rates_table(root, read_comparison(root)).to_dict("records") == [row]
    assert tuned_run(root, rates="1e29,1e30") == 0, "what is on record is whole, and nothing is tried again"
    assert run_config(root, VARIANT, 1).config["learning_rate"] == rate


@pytest.mark.usefixtures("_without_report")
def test_what_there_was_no_time_for_counts_the_trials(tmp_path, capsys, monkeypatch):
    hour = 3600.0
    monkeypatch.setattr(run_training, "estimated_seconds", lambda variants, *_: {each.name: hour for each in variants})
    variants = f"{VARIANT},{VARIANT}@learning_rate=0.1"
    assert tuned_run(tmp_path / "out", "--for", "30m", "--workers", "1", variants=variants, rates="0.001,0.002") == 0
    told = capsys.readouterr().out
    # Of two rates and one beyond them with two seeds each; and two runs at the rate that is known.
    assert "8 runs or more left that there was no time for (--for)" in told


def test_a_dry_run_tells_what_the_trials_cost(tmp_path, capsys):
    out = tmp_path / "out"
    variants = "softmax-none,softmax-none@learning_rate=0.1"
    assert tuned_run(out, "--dry-run", variants=variants, rates="0.001,0.002,0.004") == 0
    told = capsys.readouterr().out
    # Of the first, three rates with two seeds, and the best of them are its runs; of the other, two seeds.
    assert "8 runs or more, 8,192 tokens" in told
    assert "6 of the runs are trials of learning rates (0.001, 0.002, 0.004)" in told
    assert "up to 5 beyond it are tried too" in told
    assert not out.exists()
