"""Every number that a report shows is worked out again from the records, with Python's own arithmetic and Student's t.

Nothing of the suite's statistics, tables or readers is used here, so that both would have to be wrong alike.
"""

import csv
import json
import math
import shutil
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyarrow import parquet
from scipy import stats

from experiments.cli import main
from experiments.show import style as plots

REFERENCE = Path(__file__).parents[3] / "results" / "reference"

EQUAL = {"rel": 1e-9, "abs": 1e-12}
BASELINE, BEFORE = "test_bits_per_byte_minus_baseline", "test_bits_per_byte_minus_rope_before"


def student_t(degrees):
    """What Student's t exceeds with a probability of 2.5 %."""
    return stats.t.isf(0.025, degrees)


class Records:
    """The files of a comparison, and the numbers that follow from them."""

    def __init__(self, root):
        self.comparison = json.loads((root / "comparison.json").read_text())
        self.config = self.comparison["config"]
        self.variants = {variant["name"]: variant for variant in self.comparison["variants"]}
        self.seeds = self.comparison["seeds"]
        self.rows = {(variant, seed): [] for variant in self.variants for seed in self.seeds}
        self.states, self.speeds = {}, {}
        if (root / "runs.parquet").exists():
            self._read_packed(root / "runs.parquet")
            return
        for variant in self.variants:
            for seed in self.seeds:
                run = root / variant / f"seed{seed}"
                lines = (run / "metrics.jsonl").read_text().splitlines()
                self.rows[variant, seed] = [json.loads(line) for line in lines]
                self.states[variant, seed] = json.loads((run / "status.json").read_text())["state"]

    def _read_packed(self, path):
        rows = {}
        for number in parquet.read_table(path).to_pylist():
            place = {name: number[name] for name in ("step", "tokens", "split")}
            row = rows.setdefault((number["variant"], number["seed"], *place.values()), place)
            row[number["metric"]] = number["value"]
        for (variant, seed, *_), row in rows.items():
            self.rows[variant, seed].append(row)
        for run, status in json.loads(parquet.read_metadata(path).metadata[b"statuses"]).items():
            variant, _, seed = run.rpartition("/seed")
            self.states[variant, int(seed)] = status["state"]
            self.speeds[variant, int(seed)] = status["tokens_per_second"]

    @property
    def tokens_per_step(self):
        return self.config["batch_size"] * self.config["context"]

    def finished(self, variant):
        return [seed for seed in self.seeds if self.states[variant, seed] == "done"]

    def count(self, variant, state):
        return sum(self.states[variant, seed] == state for seed in self.seeds)

    def curve(self, variant, seed, split, metric="bits_per_byte"):
        """step → value"""
        return {row["step"]: row[metric] for row in self.rows[variant, seed] if row["split"] == split}

    def last(self, variant, seed, split):
        curve = self.curve(variant, seed, split)
        return curve[max(curve)]

    def steps_to_baseline(self, variant, seed):
        target = self.last(self.variants[variant]["baseline"], seed, "validation")
        reached = [step for step, value in self.curve(variant, seed, "validation").items() if value <= target]
        return min(reached, default=None)

    def compared_with(self, variant, metric):
        """The variant that is subtracted, None if there is none."""
        mine = self.variants[variant]
        if metric == BASELINE:
            return mine["baseline"] if mine["baseline"] in self.variants and mine["baseline"] != variant else None
        if mine["position"] != "rope-after":
            return None
        others = [o for o in self.variants.values() if (o["kernel"], o["position"]) == (mine["kernel"], "rope-before")]
        return others[0]["name"] if others else None

    def values(self, variant, metric):
        """seed → the value of a finished run, None for a baseline that was never reached."""
        seeds = self.finished(variant)
        if metric in ("test_bits_per_byte", "validation_bits_per_byte"):
            return {seed: self.last(variant, seed, metric.partition("_")[0]) for seed in seeds}
        if metric == "tokens_per_second":
            # Of a packed run few records of training are there, and the median of all.
            return {
                seed: self.speeds.get((variant, seed))
                or statistics.median(self.curve(variant, seed, "train", "tokens_per_second").values())
                for seed in seeds
            }
        if metric in (BASELINE, BEFORE):
            other = self.compared_with(variant, metric)
            both = [seed for seed in seeds if seed in self.finished(other)]
            return {seed: self.last(variant, seed, "test") - self.last(other, seed, "test") for seed in both}
        assert metric in ("steps_to_baseline", "tokens_to_baseline")
        baseline = self.variants[variant]["baseline"]
        both = [seed for seed in seeds if baseline in self.variants and seed in self.finished(baseline)]
        steps = {seed: self.steps_to_baseline(variant, seed) for seed in both}
        unit = 1 if metric == "steps_to_baseline" else self.tokens_per_step
        return {seed: None if step is None else step * unit for seed, step in steps.items()}

    def estimate(self, variant, metric):
        """n, mean, interval and standard deviation; NaN for what there is not."""
        values = list(self.values(variant, metric).values())
        n = len(values)
        found = SimpleNamespace(n=n, mean=math.nan, low=math.nan, high=math.nan, std=math.nan)
        found.reached = sum(value is not None for value in values)
        if n and found.reached == n:
            found.mean = statistics.fmean(values)
            found.std = statistics.stdev(values) if n >= 2 else math.nan
            half = student_t(n - 1) * found.std / math.sqrt(n) if n >= 3 else math.nan
            found.low, found.high = found.mean - half, found.mean + half
        return found


ENDS = {"elu+1-learned": 2.7, "elu+1-rope-before": 2.3, "elu+1-rope-after": 2.36, "softmax-rope": 2.51}


def made_up_loss(variant, seed, step):
    """Falls to an end of the variant, or near 2.5, with ripples; one seed of elu+1-rope-after stays above its
    baseline.
    """
    number = sum(map(ord, variant)) + 7 * seed
    end = ENDS.get(variant, 2.5) + 0.05 * math.sin(number) + (0.4 if (variant, seed) == ("elu+1-rope-after", 3) else 0)
    return end + (8 - end) * 0.5 ** (step / 15) + 0.02 * math.sin(number * (step + 1))


MADE_UP_VARIANTS = (
    "softmax-none,softmax-rope,elu+1-none,elu+1-learned,elu+1-rope-before,elu+1-rope-after,"
    "favor+-none,favor+-rope-after,relu-rope-after"
)
FATES = {
    ("elu+1-rope-before", 1): ("failed", "the loss is nan at step 41"),
    ("softmax-none", 2): ("running", None),
    **{("favor+-none", seed): ("failed", "why") for seed in (0, 1, 2)},  # two seeds left: no interval
    **{("favor+-rope-after", seed): ("failed", "why") for seed in (3, 4)},  # no seed in common with its baseline
}


class Report:
    """A report as it was written, the figures that it was written with, and the records that it is about."""

    def __init__(self, root, figures):
        self.root = root
        self.figures = figures
        self.records = Records(root)
        self.markdown = (root / "report.md").read_text()

    def read_csv(self, name):
        """The rows of a table as texts, and of a packed one as what they are."""
        packed = (self.root / name).with_suffix(".parquet")
        if packed.exists():
            return parquet.read_table(packed).to_pylist()
        with (self.root / name).open(newline="") as file:
            return list(csv.DictReader(file))

    def table(self, heading):
        """The rows of the table below a heading, each from column to cell; a figure and a table may have the same."""
        below = [part.split("\n#", 1)[0] for part in self.markdown.split(f"# {heading}\n")[1:]]
        lines = [line.strip("| ").split(" | ") for part in below for line in part.splitlines() if line.startswith("|")]
        columns, _, *rows = [[run.strip() for run in line] for line in lines]
        return [dict(zip(columns, row, strict=False)) for row in rows]  # an empty last run was stripped


def rebuild(root):
    """Rebuild the report of a comparison; its records, tables, and two figures, which are kept instead of rendered."""
    figures = {}

    def keep(make, directory, stem):
        directory.mkdir(exist_ok=True)
        (directory / f"{stem}.svg").touch()
        if stem in ("final", "validation"):
            with plots.style():
                figures[stem] = make()
        return True

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plots, "save_figure", keep)
        assert main(["report", str(root)]) == 0
    return Report(root, figures)


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """Rebuilds the report of a committed comparison."""

    def rebuilt(name):
        root = tmp_path_factory.mktemp("reference") / name
        made = shutil.ignore_patterns("figures", "report.*", "curves.csv", "summary.csv")
        return rebuild(shutil.copytree(REFERENCE / name, root, ignore=made))

    return rebuilt


@pytest.fixture(scope="session")
def convergence(reference):
    return reference("convergence")


@pytest.fixture(scope="session")
def speed(reference):
    return reference("speed")


@pytest.fixture(scope="session")
def made_up(tmp_path_factory, make_comparison):
    root = tmp_path_factory.mktemp("made") / "up"
    make_comparison(root, MADE_UP_VARIANTS, 5, steps=120, loss=made_up_loss, fates=FATES)
    return rebuild(root)


@pytest.fixture(params=[pytest.param("convergence", marks=[pytest.mark.slow, pytest.mark.full]), "made_up"])
def report(request):
    """Of every comparison of training runs."""
    return request.getfixturevalue(request.param)
