"""The benchmark as its files have it: valid throughout, what it says it is, and how its models are measured."""

import shutil

import pandas as pd
import pytest
import torch
from scipy import stats

from experiments.config import Config
from experiments.data.corpus import NOT_SCORED
from experiments.data.registry import DATA_SETS, load_data
from experiments.judge.statistics import Estimate
from experiments.records.record import read_comparison
from experiments.show import style
from experiments.show.entries import entries_of, figures_over
from experiments.show.rows import read_rows
from experiments.studies import tables
from experiments.studies.benchmark import claims, definition, measure, overview, results
from experiments.studies.benchmark.definition import read_benchmark
from experiments.studies.length.measure import LOSSES
from experiments.studies.registry import STUDIES
from experiments.train.chosen_objective import make_objective
from experiments.train.costs import attention_flops, costs, state_numbers
from experiments.train.models import Shape, build_model, check_parameters_match
from experiments.variants import check_variants_differ, get_variant
from linear_rope.attention.multi_head import RoPEAttention
from tests.made_up import make_record

from .conftest import made_alone, write

STUDY = STUDIES["benchmark"]
V1 = read_benchmark()
TRAINED = [name for name, task in V1.tasks.items() if task.study == "benchmark"]


@pytest.mark.parametrize("name", TRAINED)
def test_every_task_can_be_run(name):
    """Its configuration is one, its data set is there, its variants differ and have as many parameters."""
    task, config, small = V1.tasks[name], V1.config(name, "cpu"), V1.config(name, "smoke")
    variants = [get_variant(each) for each in task.variants + task.more]
    check_variants_differ(variants, config)
    for each in (config, small):
        if each.data.partition("-")[0] not in ("imdb", "newsgroups", "stdlib"):
            assert load_data(each.data).sequences.length == each.context
    found = {each.name: costs(each, each.config(config), Shape(256, config.context)) for each in variants}
    check_parameters_match({each: (cost.parameters, 0) for each, cost in found.items()})
    assert all(cost.state and cost.flops for cost in found.values())
    assert task.tested[0] == 1


def test_texts_are_those_of_the_data_sets_that_are_read():
    assert {name: text.sha256 for name, text in V1.texts.items()} == {
        V1.tasks[name].data: DATA_SETS[V1.tasks[name].data].known_sha256
        for name in TRAINED
        if V1.tasks[name].recipe == "text"
    }


@pytest.mark.parametrize(
    ("file", "before", "after", "said"),
    [
        ("order.toml", "seeds = 3", "seed = 3", r"order\.toml.*(missing required field `seeds`|unknown field `seed`)"),
        ("tasks.toml", "[cost]", "[cost", r"tasks\.toml.*is not TOML"),
        ("recipe.toml", "[text]\n", "[text]\nstpes = 1\n", "task language: .*'stpes'"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_a_wrong_setting_with_its_task(tmp_path, file, before, after, said):
    folder = shutil.copytree(definition.FOLDER / "v1", tmp_path / "v1")
    text = (folder / file).read_text()
    assert before in text
    (folder / file).write_text(text.replace(before, after, 1))
    with pytest.raises(ValueError, match=said):
        read_benchmark(folder).config("language", "cpu")


@pytest.mark.parametrize(
    "name",
    [
        "softmax-rope", "elu+1-rope-after", "elu+1-rope-after@decay=gate@local_conv=4", "favor+-rope-before",
        "elu+1-none@short_conv=3", "taylor-none", "hedgehog-rope-after", "retention-none", "delta-none@decay=gate",
        "favor+window-rope-before@decay=fixed", "softmax-rope@window=9", "softmax-rope@kv_heads=1", "softmax-pope",
        "elu+1-rope-after@kv_heads=1@decay=gate", "elu+1-none@decay=pair", "elu+1-rope-after@denominator=abs",
        "delta-none@decay=channel", "delta-none@kv_heads=1",
    ],
)  # fmt: skip
def test_the_numbers_of_a_state_are_those_that_are_carried(name):
    variant = get_variant(name)
    config = variant.config(Config(layers=1, dim=24, heads=2, num_features=10, context=40))
    model = build_model(variant, config, 0, Shape(256, 40))
    (attention,) = (module for module in model.modules() if isinstance(module, RoPEAttention))
    _, state = attention.prefill(torch.zeros(1, 40, 24))
    sums = getattr(state, "sums", None)
    carried = [state.carried.local, state.carried.short, getattr(state, "k", None), getattr(state, "v", None)]
    carried += [getattr(state, "memory", None), getattr(sums, "memory", None), getattr(sums, "key_sum", None)]
    assert state_numbers(attention, 40) == sum(tensor.numel() for tensor in carried if tensor is not None)


def test_flops_of_a_token():
    """By hand, for one layer of width 8 with one head: 12·8² weights in matrices, 256·8 of the embedding."""
    config = Config(layers=1, dim=8, heads=1, num_features=6, context=3)
    matrices = 2 * (12 * 64 + 256 * 8)
    expected = {
        "softmax-rope": 4 * 8 * 2,  # keys in the mean of 1, 2 and 3
        "elu+1-rope-after": 4 * 8 * 9,
        "elu+1-none@decay=fixed": 5 * 8 * 9,
        "favor+-rope-before": 4 * 6 * 9 + 2 * (2 * 6 * 8),
        "delta-none": 6 * 64,
        "softmax-pope": 6 * 8 * 2,
        "softmax-rope@window=2": 4 * 8 * 5 / 3,
    }
    for name, flops in expected.items():
        variant = get_variant(name)
        found = costs(variant, variant.config(config), Shape(256, 3)).flops
        extra = 2 * (8 - 2 * 8) * (name == "delta-none")  # the matrix of β, for which the MLP has a channel less
        assert found == matrices + round(flops) + extra, name
    for name, of_keys in (("elu+1-none@heads=2@decay=fixed", 2), ("elu+1-none@heads=2@decay=fixed@kv_heads=1", 1)):
        with torch.device("meta"):
            model = build_model(get_variant(name), get_variant(name).config(config), 0, Shape(256, 3))
        (attention,) = (each for each in model.modules() if isinstance(each, RoPEAttention))
        assert attention_flops(attention, 3) == (2 * 2 + 3 * of_keys) * 4 * 5


def test_the_state_and_flops_of_a_hybrid_are_the_sums_over_its_layers_and_an_encoder_has_no_state():
    config = Config(layers=4, dim=24, heads=2, context=40)
    names = "hybrid-3to1-rope", "elu+1-rope-after@decay=fixed", "softmax-rope"
    hybrid, *parts = (costs(each, each.config(config), Shape(256, 40)) for each in map(get_variant, names))
    linear, softmax = parts
    assert (linear.state, softmax.state) == (4 * 24 * 13, 4 * 2 * 40 * 24)
    assert hybrid.state == (3 * linear.state + softmax.state) / 4
    assert hybrid.flops == (3 * linear.flops + softmax.flops) / 4
    assert hybrid.parameters == linear.parameters == softmax.parameters
    (encoder,) = (costs(each, config, Shape(256, 40, "masked")) for each in [get_variant("softmax-rope")])
    assert encoder.state is None
    assert encoder.flops - softmax.flops == 4 * 4 * 24 * 39 / 2 + 2 * 24 * 24  # keys on both sides; the head's matrix


class FirstHalf(torch.nn.Module):
    """Knows every target of the sequences as far as position 64, and never one behind it."""

    def __init__(self, sequences):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))
        self.sequences = sequences

    def forward(self, tokens):
        whole = torch.cat((tokens, tokens[:, -1:]), dim=1).numpy()
        sequences = self.sequences.longer(tokens.shape[1] // self.sequences.length)
        targets = torch.from_numpy(sequences.targets(whole)).clamp(min=0)
        targets[:, 64:] = 255
        return torch.nn.functional.one_hot(targets, 256).float()


def test_accuracy_is_measured_at_every_length(monkeypatch, tmp_path):
    config = V1.config("parity-16", "cpu")
    task = make_objective(load_data("parity-16"), config)
    monkeypatch.setattr(tables, "trained_models", lambda *_: [("elu+1-none", 0, FirstHalf(task.sequences))])
    record = make_record(name="parity-16", preset="cpu", config=vars(config), variants=["elu+1-none"])
    assert measure.measure(tmp_path, record, task) == []
    found = pd.read_csv(tmp_path / "longer.csv").set_index("factor")
    assert found["accuracy"].to_dict() == {1: 1, 2: 1, 4: 1, 8: 0.5, 16: 0.25, 32: 0.125}
    assert set(found["pairs"]) == {0}


def test_recall_is_measured_with_each_number_of_pairs(monkeypatch, tmp_path):
    config = V1.config("recall-2k", "cpu")
    task = make_objective(load_data("recall-256-full"), config)
    seen = []
    monkeypatch.setattr(
        measure, "are_right", lambda model, inputs, targets, config: seen.append((inputs, targets)) or targets
    )
    monkeypatch.setattr(tables, "trained_models", lambda *_: [("elu+1-none", 0, None)])
    record = make_record(name="recall-2k", preset="cpu", config=vars(config), variants=["elu+1-none"])
    assert measure.measure(tmp_path, record, task) == []
    found = pd.read_csv(tmp_path / "longer.csv")
    assert [*found[["factor", "pairs"]].itertuples(index=False, name=None)] == [
        (factor, pairs) for factor in (1, 2, 4, 8, 16) for pairs in (4, 16, 64)
    ]
    for (inputs, targets), row in zip(seen, found.itertuples(), strict=True):
        assert inputs.shape[1] == 256 * row.factor
        assert inputs.shape[0] == min(512, 2**18 // inputs.shape[1], 256)  # as many as make_record evaluates
        assert ((targets != NOT_SCORED).sum(1) == row.pairs).all()


@pytest.mark.parametrize(
    ("expect", "low", "high", "p", "verdict"),
    [
        ("lower", -0.05, -0.03, 0.04, "supported"),
        ("lower", -0.05, -0.03, 0.06, "undecided"),
        ("lower", 0.01, 0.03, 0.04, "not supported"),
        ("lower", -0.015, 0.015, 1.0, "not supported"),
        ("lower", -0.015, -0.005, 0.04, "supported"),
        ("lower", -0.05, 0.01, 1.0, "undecided"),
        ("higher", 0.03, 0.05, 0.04, "supported"),
        ("higher", -0.03, -0.01, 0.04, "not supported"),
        ("higher", -0.015, 0.015, 1.0, "not supported"),
        ("higher", -0.01, 0.03, 1.0, "undecided"),
        ("equal", -0.015, 0.019, 0.04, "supported"),
        ("equal", -0.015, 0.019, 0.06, "undecided"),
        ("equal", 0.021, 0.03, 1.0, "not supported"),
        ("equal", -0.03, -0.021, 1.0, "not supported"),
        ("equal", 0.01, 0.03, 1.0, "undecided"),
    ],
)
def test_the_frozen_rule(expect, low, high, p, verdict):
    claim = claims.Claim(key="", family="", task="", first="", second="", expect=expect)
    found = Estimate(5, (low + high) / 2, low, high)
    assert claims.Judged(claim, found, 0.01, margin=0.02, in_family=p).verdict == verdict
    assert claims.Judged(claim, Estimate(2, low), 0.01, margin=0.02).verdict == "undecided"
    assert claims.Judged(claim, Estimate(0), 0.01, margin=0.02).verdict == "not run"


FIXED, AFTER, SHORT = "elu+1-rope-after@decay=fixed", "elu+1-rope-after", "elu+1-rope-after@decay=gate@short_conv=4"
ACCURACY = {"name": "answers", "metric": "accuracy", "unit": "share", "better": "higher", "vocabulary": 256}


def test_claims_are_judged_on_the_tasks_that_are_there(make_comparison, tmp_path):
    steps = (-0.02, -0.03, -0.04, -0.05, 0)
    behind = {"softmax-rope": lambda seed: 0, FIXED: lambda seed: steps[seed], AFTER: lambda seed: 0.2}
    made = {"experiment": "benchmark", "loss": lambda name, seed, step: 2 + seed + behind[name](seed)}
    diverged = {(FIXED, 4): ("failed", "diverged at step 40")}
    language = make_comparison(tmp_path / "a", ",".join(behind), 5, name="language", fates=diverged, **made)
    made["loss"] = lambda name, seed, step: 2 + (name == FIXED) * (seed - 1) / 100
    ladder = make_comparison(tmp_path / "b", f"softmax-rope,{FIXED}", 3, name="ladder-1.6m", **made)
    found = {each.claim.key: each for each in claims.judged([language, ladder])}
    assert len(found) == 30

    fixed, differences = found["decay-below-softmax"], (-0.02, -0.03, -0.04, -0.05, 0.05)  # the last: the diverged one
    assert fixed.found.n == 5
    assert fixed.found.mean == pytest.approx(sum(differences) / 5)
    assert fixed.p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)
    plain = found["no-decay-above-softmax"]
    assert (plain.verdict, plain.found.n) == ("supported", 5)
    # Holm: of seventeen in the family three were tested, of thirty five.
    ordered = sorted((found["no-decay-above-softmax"].p, found["decay-or-not"].p, fixed.p))
    assert fixed.in_family == min(1, max((17 - place) * p for place, p in enumerate(ordered)))
    assert plain.in_family == pytest.approx(17 * plain.p)
    assert plain.of_all == pytest.approx(30 * plain.p)

    less = found["lead-shrinks-with-size"]
    assert less.found.mean == pytest.approx((-0.01 + 0.02 + 0 + 0.03 + 0.01 + 0.04) / 3)
    assert found["rope-without-decay"].verdict == "not run"
    shown = claims.table([language, ladder]).set_index("claim")
    assert shown.loc[f"{AFTER} − softmax-rope is above 0", "verdict"] == "supported"


@pytest.fixture
def recall(make_comparison, tmp_path):
    """A task of recall: softmax attention has 60 % of the answers right, the other half of them."""

    def make(name="recall-2k", other=FIXED, seeds=1, **made):
        root = make_comparison(
            *(tmp_path / name, f"softmax-rope,{other}", seeds),
            **{"name": name, "experiment": "benchmark", "objective": ACCURACY} | made,
            loss=lambda variant, seed, step: 0.1 if variant == "softmax-rope" else 0.2 * seed,
        )
        rows = [
            (variant, seed, pairs, factor, (1 - 0.5 * (variant == other) * (pairs == 64)) / factor)
            for variant in ("softmax-rope", other)
            for seed in range(seeds)
            for pairs in (4, 64)
            for factor in (1, 2)
        ]
        write(measure.LONGER, root, rows)
        return root

    return make


@pytest.fixture
def language(make_comparison, tmp_path):
    """A task of language models: with a decay the loss in longer windows is higher, by 1, 2 and 3."""
    floor = {"name": "6-gram", "metric": "bits_per_byte", "value": 2.55, "split": "test", "steps": 100}

    def make(name="language", **other):
        fields = {"experiment": "benchmark", "name": name, "floors": [floor]} | other
        root = make_comparison(tmp_path / name, f"softmax-rope,{FIXED},{AFTER}", 3, **fields)
        ranges = {32: [(0, 15), (16, 31)], 128: [(0, 15), (16, 31), (32, 63), (64, 127)]}
        rows = [
            (variant, seed, "as trained", length, first, last, 2 + (variant == FIXED) * (length == 128) * (seed + 1))
            for variant in ("softmax-rope", FIXED)
            for seed in range(3)
            for length, of_length in ranges.items()
            for first, last in of_length
        ]
        far = [("softmax-rope", 0, "in windows of the training length", 128, 64, 127, 2.25)]
        write(LOSSES, root, rows + far)
        return root

    return make


def test_the_table_and_the_figures_of_a_task(recall, tmp_path, monkeypatch):
    monkeypatch.setattr(style, "save_figure", made_alone)
    *figures, table = entries_of(read_rows(recall(seeds=2), STUDY), tmp_path)
    assert {each.stem for each in figures} == {"longer-4", "longer-64", "by-step"}
    shown = table.table.set_index(["variant", "pairs"])
    assert shown.columns.tolist() == ["n", "32", "64"]
    assert shown.loc[("softmax-rope", 4)].tolist() == ["2", "100.0%", "50.0%"]
    assert shown.loc[(FIXED, 64)].tolist() == ["2", "50.0%", "25.0%"]


def test_variants_stand_side_by_side_over_the_tasks(language, recall):
    made = {"fates": {(AFTER, 0): ("failed", "stopped")}}
    short, rates = language("windows-256", floors=[], **made), language("language-rates", **made)
    shown, far = overview.texts([rates, short, language(**made)]).set_index("variant").T, "positions 64 to 127"
    of_language = ["language: 6,400 bytes", "language: minus softmax-rope", f"language: {far}"]
    assert [*shown.index] == [
        *(*of_language, f"language: {far}, in windows of 32", "numbers of the state", "MFLOPs a token"),
        *("windows-256: 6,400 bytes", "windows-256: minus softmax-rope", f"windows-256: {far}"),
        f"windows-256: {far}, in windows of 32",
    ]
    assert [*shown] == ["floor: 6-gram", "softmax-rope", AFTER, FIXED]
    assert [*shown["softmax-rope"].iloc[1:4]] == ["-", "2.000 [2.000, 2.000]", "2.250"]
    assert [*shown[AFTER].iloc[:3]] == ["3.477", "+0.194", "-"]  # of two seeds: one failed
    assert shown.loc[of_language[2], FIXED].startswith("4.000 [")
    assert [*shown["floor: 6-gram"].iloc[:2]] == ["2.550", "-"]

    assert overview.sequences([recall()]).set_index("variant").to_dict("index") == {
        "softmax-rope": {"recall-2k": "60.0%", "recall-2k: 64 tokens": "50.0%"},
        FIXED: {"recall-2k": "50.0%", "recall-2k: 64 tokens": "25.0%"},
    }
    shares = overview.sequences([recall("recall-32k", seeds=3)]).set_index("variant")["recall-32k"]
    assert shares[FIXED] == "70.0% [20.3%, 100.0%]"  # cut there
    assert overview.texts([recall("recall-8k")]) is None


def test_claims_of_longer_windows_and_of_pairs_are_of_those(language, recall):
    found = {each.claim.key: each for each in claims.judged([language(), recall("recall-8k", SHORT, 3)])}
    assert found["longer-decay-below-softmax"].found.mean == 2
    assert found["recall-softmax"].found.mean == -0.5
    assert found["recall-softmax"].verdict == "supported"  # of equal values the spread is one text's


def test_the_figures_over_tasks(language, recall, tmp_path, monkeypatch):
    guess = {"name": "guessing", "metric": "accuracy", "value": 0.02, "split": "test", "steps": 100}
    made = {"budgets": "40", "fates": {(AFTER, 0): ("failed", "stopped")}}
    roots = [language(name, **made) for name in ("language", "ladder-1.6m", "windows-256")]
    roots += [recall(name, floors=[guess]) for name in ("recall-2k", "recall-8k")]
    sizes = results.by_size(roots)
    assert sizes.groupby("variant").size().to_dict() == {FIXED: 2 * 3, AFTER: 2 * 2}
    assert (results.floor_by_size(roots)["value"] < 0).all()
    assert [*results.by_state(roots)["value"]] == [0.5, 1.0] * 2
    assert results.guessing(roots)["value"].tolist() == [0.02, 0.02]
    monkeypatch.setattr(style, "save_figure", made_alone)
    figures = figures_over(STUDY, roots, tmp_path)
    assert {each.stem for each in figures} == {"behind", "trend", "by-size", "positions", "by-state"}
    assert STUDY.asked(read_comparison(roots[-1])) == V1.tasks["recall-8k"].asks
