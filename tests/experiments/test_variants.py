import dataclasses

import pytest
import torch

from experiments.config import Config
from experiments.convergence import VARIANTS as DEFAULT_ARMS
from experiments.models import build_model, check_parameters_match, count_parameters
from experiments.presets import PRESETS
from experiments.variants import VARIANTS, parse_variants

SMOKE = PRESETS["smoke"]().config


def test_the_contract_names_exist():
    names = "softmax-none softmax-rope favor+-none favor+-rope-after favor+-rope-before elu+1-rope-after"
    assert {*names.split(), "performer-pytorch"} <= set(VARIANTS)
    assert set(DEFAULT_ARMS) <= set(VARIANTS)
    assert len(DEFAULT_ARMS) == 7


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_builds_runs_and_has_a_baseline(name):
    variant = VARIANTS[name]
    assert variant.baseline in VARIANTS
    assert variant.description
    model = build_model(variant, SMOKE, seed=0)
    logits = model(torch.zeros(1, 9, dtype=torch.int64))
    assert logits.shape == (1, 9, 256)
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", VARIANTS)
def test_shared_weights_start_equal(name):
    first = dict(build_model(VARIANTS["softmax-none"], SMOKE, seed=3).named_parameters())
    other = dict(build_model(VARIANTS[name], SMOKE, seed=3).named_parameters())
    assert set(first) <= set(other)
    for parameter_name, parameter in first.items():
        assert torch.equal(parameter, other[parameter_name]), parameter_name
    extra = {n for n in other if n not in first}
    assert extra <= {"embedding.positions.table.weight"}


def test_another_seed_starts_elsewhere():
    first = build_model(VARIANTS["softmax-none"], SMOKE, seed=0)
    second = build_model(VARIANTS["softmax-none"], SMOKE, seed=1)
    assert not torch.equal(first.embedding.tokens.weight, second.embedding.tokens.weight)


def test_the_seven_arms_match_in_parameters_within_one_per_cent():
    totals = [count_parameters(build_model(VARIANTS[name], Config(), 0))[0] for name in DEFAULT_ARMS]
    assert max(totals) <= 1.01 * min(totals)


def test_unequal_parameters_are_refused_but_a_position_table_is_not():
    check_parameters_match({"a": (1000, 0), "b": (1500, 500)})
    with pytest.raises(ValueError, match="1 %"):
        check_parameters_match({"a": (1000, 0), "b": (1011, 0)})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("softmax", "no variant 'softmax'"), ("softmax-none,softmax-none", "twice"), ("", "no variant ''")],
)
def test_wrong_variant_lists_are_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_variants(text)


@pytest.mark.parametrize("change", [{"redraw_every": 5}, {"dropout": 0.1}])
def test_the_peer_refuses_what_it_cannot_do(change):
    with pytest.raises(ValueError, match="performer-pytorch"):
        build_model(VARIANTS["performer-pytorch"], dataclasses.replace(SMOKE, **change), 0)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_valid_and_the_paper_s_is_the_paper_s(preset):
    config = PRESETS[preset]().config
    assert config.evaluate_every <= config.steps
    if preset == "paper":
        assert (config.layers, config.dim, config.heads, config.context, config.batch_size) == (12, 768, 12, 1024, 128)
        assert config.learning_rate == 1e-4
        assert config.data == "enwik8"


@pytest.mark.parametrize(
    "change",
    [
        {"num_features": 63},
        {"dim": 130},
        {"dim": 12},
        {"steps": 0},
        {"learning_rate": float("nan")},
        {"learning_rate": 0.0},
        {"warmup_steps": -1},
        {"dropout": 1.0},
        {"gradient_clip": 0.0},
        {"weight_decay": -0.1},
    ],
)
def test_a_configuration_that_cannot_be_is_refused_by_name(change):
    name = next(iter(change))
    with pytest.raises(ValueError, match=name):
        dataclasses.replace(Config(), **change)
