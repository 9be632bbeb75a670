import dataclasses
import inspect
import re

import pytest
import torch

from experiments.config import OF_ATTENTION, Config
from experiments.presets import PRESETS, get_preset
from experiments.studies.registry import STUDIES
from experiments.train.models import Shape, build_model, check_parameters_match, count_parameters
from experiments.variants import (
    _POSITIONS,
    FORM,
    OF_SCORES,
    PEER,
    VARIANTS,
    check_variants_differ,
    get_variant,
    is_variant,
    parse_variants,
)
from linear_rope import AttentionSettings, LinearRoPEAttention, ModelConfig, SoftmaxRoPEAttention
from linear_rope.attention import GatedDelta
from linear_rope.model_config import ADDITIONS
from linear_rope.positions import POSITIONS, PositionTable, ScorePositions

SMOKE = get_preset("smoke").config
BYTES = Shape(256, SMOKE.context)
MATRICES = {position: ".attention.score_positions." for position in ("transformer-xl", "tupe", "deberta")}
MATRICES |= {"floater": "block_positions."}
"""positions that add more than tables, and where"""


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_builds_runs_and_has_a_baseline_and_shares_its_first_weights(name):
    variant = VARIANTS[name]
    config = dataclasses.replace(SMOKE, layers=max(1, len(variant.pattern)))
    softmax = build_model(VARIANTS["softmax-none"], config, 3, BYTES)
    assert variant.baseline in VARIANTS
    assert variant.description
    model = build_model(variant, config, 3, BYTES)
    logits = model(torch.zeros(1, 9, dtype=torch.int64))
    assert logits.shape == (1, 9, 256)
    assert logits.isfinite().all()
    weights, others = dict(model.named_parameters()), dict(softmax.named_parameters())
    narrower = {each for each in others if weights[each].shape != others[each].shape}
    assert all(torch.equal(weights[each], others[each]) for each in {*others} - narrower)
    tables = {
        f"{where}.weight" for where, module in model.named_modules() if isinstance(module, PositionTable)
    }  # are counted beside the others
    added = {*weights} - {*others} - tables
    adds = {"hedgehog": ".attention.feature_map.", "delta": ".attention.rate."}.get(variant.kernel)
    rotation = ".attention.rotation" if variant.position.startswith("selective") else None
    positions = MATRICES.get(variant.position)
    own = [what for what in (adds, rotation, positions) if what]
    assert all(any(what in each for what in own) for each in added)
    assert all(".mlp." in each for each in narrower)  # what is added, the MLP has less
    assert bool(own) == bool(added)
    assert own or not narrower


def test_positions_are_those_of_the_library_and_go_with_softmax_alone_where_they_need_scores():
    assert set(_POSITIONS) == set(POSITIONS)
    of_scores = {
        name for name, each in POSITIONS.items() if isinstance(each, type) and issubclass(each, ScorePositions)
    }
    assert set(OF_SCORES) == of_scores | {"xpos", "pope"}
    for position in OF_SCORES:
        assert {name for name in VARIANTS if name.endswith(f"-{position}")} == {f"softmax-{position}"}
    for position in ("complex", "floater"):
        kernels = {variant.kernel for variant in VARIANTS.values() if variant.position == position}
        assert kernels == {
            variant.kernel for variant in VARIANTS.values() if variant.position == "none" and not variant.pattern
        }


@pytest.mark.parametrize("preset", [SMOKE, Config()])
def test_parameters_of_positions_are_tables_or_taken_off_the_mlp(preset):
    names = ["softmax-none", *(f"softmax-{position}" for position in (*OF_SCORES, "complex", "floater"))]
    counts = {name: count_parameters(build_model(VARIANTS[name], preset, 0, BYTES)) for name in names}
    check_parameters_match(counts)
    tables = {name for name, (_, table) in counts.items() if table}
    assert tables == {*names} - {
        "softmax-none",
        "softmax-xpos",
        "softmax-pope",
        "softmax-transformer-xl",
        "softmax-floater",
    }


@pytest.mark.parametrize("kernel", ["softmax", "favor+", "elu+1"])
@pytest.mark.parametrize("preset", [SMOKE, Config()])
def test_whatever_is_added_parameters_stay_equal(kernel, preset):
    position = "selective" if kernel == "softmax" else "selective-after"
    settings = ("", "@decay=gate", "@local_conv=4", "@short_conv=4", "@decay=gate@local_conv=4@short_conv=4")
    settings += ("@kv_heads=1", "@qk_norm=yes@output_norm=yes@output_gate=yes")
    settings += () if kernel == "softmax" else ("@decay=pair", "@decay=pair@pair_denominator=head")
    names = [
        f"{kernel}-none",
        *(f"{kernel}-{place}{setting}" for place in ("none", position) for setting in settings[1:]),
    ]
    counts = {}
    for name in names:
        variant = get_variant(name)
        counts[name] = count_parameters(build_model(variant, variant.config(preset), 0, BYTES))
    check_parameters_match(counts)


@pytest.mark.parametrize("name", ["softmax-rope@decay=pair", "softmax-rope@decay=channel", "elu+1-none@decay=channel"])
def test_a_setting_that_an_attention_cannot_take_is_refused_with_the_variant_and_what_would_do(name):
    variant = get_variant(name)
    with pytest.raises(ValueError, match=rf"^--variants: {re.escape(name)}: decay is .*; give a decay of each head"):
        build_model(variant, variant.config(SMOKE), 0, BYTES)


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("elu+1-selective-after@rope_base=500", "rope_base", 500),
        ("retention-none@output_gate=yes", "output_gate", True),
        ("elu+1-rope-after@output_gate=sigmoid", "output_gate", "sigmoid"),
        ("favor+-none@decay=pair-fixed@pair_denominator=head", "pair_denominator", "head"),
        ("elu+1+paired-rope-after@rope_phase=learned", "rope_phase", "learned"),
        ("softmax-pope@rope_fraction=0.5", "rope_fraction", 0.5),
        ("favor+window-rope-before@rope_fraction=0.5", "rope_fraction", 0.5),
        ("delta-none@beta_range=two", "beta_range", "two"),
        ("delta-none@kv_heads=1", "kv_heads", 1),
    ],
)
def test_a_setting_reaches_the_attention(name, argument, value):
    variant = get_variant(name)
    model = build_model(variant, variant.config(SMOKE), 0, BYTES)
    assert {getattr(block.attention, argument) for block in model.blocks} == {value}


def test_settings_of_attentions_are_the_library_s_with_its_defaults_and_each_layer_may_have_its_own():
    assert set(OF_ATTENTION) == set(ADDITIONS) - {"rope_scaling"} <= vars(AttentionSettings()).keys()
    assert Config().of_attention == {name: getattr(ModelConfig, name) for name in OF_ATTENTION}
    attention: dict = {}
    for kind in (GatedDelta, SoftmaxRoPEAttention, LinearRoPEAttention):
        attention |= inspect.signature(kind).parameters
    assert {name: attention[name].default for name in OF_ATTENTION if name != "decay"} == {
        name: getattr(ModelConfig, name) for name in OF_ATTENTION if name != "decay"
    }


def test_what_a_comparison_says_of_rope_is_nothing_where_there_is_none():
    config = dataclasses.replace(SMOKE, rope_fraction=0.5, rope_base=500.0)
    for name in ("softmax-none", "elu+1-selective-after", "softmax-t5"):
        build_model(VARIANTS[name], config, 0, BYTES)


@pytest.mark.parametrize(("kind", "dim"), [("next", 128), ("translation", 32), ("labels", 32)])
def test_parameters_of_hybrids_and_of_wider_mlps_are_equal(dim, kind):
    config, shape, counts = Config(layers=4, dim=dim, heads=2), Shape(256, 64, kind, 2), {}
    bare = "softmax-none", "elu+1-rope-after@decay=fixed", "hybrid-3to1-rope", "hybrid-1to3"
    bare += ("delta-selective-after",) if kind == "next" else ()
    settings = "", "@output_norm=yes@output_gate=yes", "@local_conv=4", "@kv_heads=1"
    for name in (f"{base}{setting}" for base in bare for setting in settings):
        variant = get_variant(name)
        with torch.device("meta"):
            counts[name] = count_parameters(build_model(variant, variant.config(config), 0, shape))
    check_parameters_match(counts)


def test_unequal_parameters_are_refused_but_a_position_table_is_not():
    check_parameters_match({"a": (1000, 0), "b": (1500, 500)})
    with pytest.raises(ValueError, match="1 %"):
        check_parameters_match({"a": (1000, 0), "b": (1011, 0)})


@pytest.mark.parametrize(
    ("change", "shape", "said"),
    [
        ({"redraw_every": 5}, BYTES, "performer-pytorch"),
        ({"dropout": 0.1}, BYTES, "performer-pytorch"),
        ({"qk_norm": "yes"}, BYTES, "performer-pytorch"),
        ({}, Shape(20, 16, "labels", 2), "no encoder here; leave it out"),
        ({}, Shape(20, 16, "translation", 2), "no decoder here; leave it out"),
    ],
)
def test_the_peer_refuses_what_it_cannot_do(change, shape, said):
    with pytest.raises(ValueError, match=said):
        build_model(VARIANTS[PEER], dataclasses.replace(SMOKE, **change), 0, shape)


def test_presets_are_valid_and_the_paper_s_is_the_paper_s():
    assert all(get_preset(preset).config.evaluate_every <= get_preset(preset).config.steps for preset in PRESETS)
    config = get_preset("paper").config
    assert (config.layers, config.dim, config.heads, config.context, config.batch_size) == (12, 768, 12, 1024, 128)
    assert (config.learning_rate, config.data) == (1e-4, "enwik8")


def test_settings_are_what_a_variant_has_besides_the_comparison_s_configuration():
    variant = get_variant("favor+-rope-after@redraw_every=100@num_features=128@learning_rate=1e-3@denominator=none")
    settings = {"redraw_every": 100, "num_features": 128, "learning_rate": 1e-3, "denominator": "none"}
    assert (variant.settings, variant.kernel, variant.position) == (settings, "favor+", "rope-after")
    assert variant.config(Config(steps=7)) == dataclasses.replace(Config(steps=7), **settings)
    assert "redraw_every 100, num_features 128" in variant.description


@pytest.mark.parametrize(
    ("name", "baseline"),
    [
        ("favor+-rope-after@num_features=32", "favor+-rope-after"),
        ("softmax-none@dim=64", "softmax-none@dim=64"),
        ("elu+1+paired-rope-after@dim=64@heads=2", "elu+1-none@dim=64@heads=2"),
        ("elu+1-rope-after@decay=gate@context=64", "elu+1-rope-after@context=64"),
    ],
)
def test_the_baseline_has_the_size_and_nothing_else_that_is_set(name, baseline):
    assert get_variant(name).baseline == baseline
    assert is_variant(baseline)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("softmax", "there is no variant 'softmax'"),
        ("favor-none@dim=64", "there is no variant 'favor-none'; did you mean 'favor+-none'? choose from softmax-none"),
        ("elu+1-t5", "t5 is a part of the score of each query with each key, and elu+1 has no scores; "),
        ("favor+-xpos", "and favor+ one a head (give @decay=retnet); "),
        ("favor+-pope", "for pope is of softmax's scores, and favor+ has none (elu+1+paired-rope-after "),
        *(
            (f"{name}@rope_phase=learned", "rope_phase says nothing; choose softmax-pope, or RoPE after a feature map")
            for name in ("softmax-rope", "retention-rope-after")
        ),
        ("softmax-none@", f"'' is no setting; {FORM}"),
        ("softmax-none@steps=5", "a variant has no setting 'steps'; choose from "),
        ("softmax-none@Dim=64", "a variant has no setting 'Dim'; did you mean 'dim'? choose from "),
        ("softmax-none@dim=64@dim=64", "dim is set twice; set it once"),
        ("softmax-none@dim", f"'dim' is no setting; {FORM}"),
        ("softmax-none@dim=64,heads=2", f"there is no variant 'heads=2' ({FORM}); choose from "),
        ("softmax-none@dim=64.0", "dim is '64.0'; give a whole number"),
        ("softmax-none@learning_rate=nan", "learning_rate is 'nan'; give a number, more than 0"),
        ("softmax-none@heads=3", "softmax-none@heads=3: dim 32 is not divisible by heads 3"),
        ("retention-none@beta_range=two", "retention has no β, which is the delta rule's; leave beta_range out"),
        ("elu+1-rope-after@denominator=../out", "denominator is '../out'; choose from unrotated, rotated, none, abs"),
        ("elu+1-rope-after@num_features=32", "num_features says nothing; choose from the kernels favor+, "),
        ("favor+-rope-before@denominator=none", "leave it out, or choose a rope-after variant"),
        *(
            (f"{name}@pair_denominator=head", "has no denominator that pairs fade in, so pair_denominator says nothing")
            for name in ("delta-none", "favor+window-none")
        ),
        ("retention-rope-after@denominator=abs", "retention has no denominator, so the setting says nothing; leave it"),
        ("performer-pytorch@kv_heads=1", "performer-pytorch has no kv_heads; leave it out"),
        ("softmax-none@rope_fraction=0.5", "the position none does not turn by RoPE's angles, so rope_fraction says"),
        ("elu+1-alibi@rope_base=500", "the position alibi does not turn by RoPE's angles, so rope_base says nothing"),
        (
            "elu+1-selective-after@rope_fraction=0.5",
            "selective-after turns every pair of channels; leave rope_fraction",
        ),
        ("hybrid-3to1-rope", "is a pattern of 4 layers, and layers is 1; give --layers 4 or a multiple of it, or @lay"),
        ("hybrid-3to1-rope@num_features=8@layers=4", "elu+1 has no random features of this suite's, so num_features"),
        ("elu+1-none@window=32", "elu+1 keeps no tokens that a window could end at, so window says nothing; leave it"),
        ("hybrid-3to1-none@decay=often", "decay is 'often'; choose from none, fixed"),
        ("delta-rope-after@qk_norm=yes", "queries and keys of length 1 anyway, so qk_norm says nothing; leave it out"),
    ],
)
def test_a_name_that_is_no_variant_here_is_refused_with_what_would_do(name, said):
    with pytest.raises(ValueError, match=r"^--variants: ") as refusal:
        check_variants_differ(parse_variants(f"elu+1-none,{name}"), SMOKE)
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    "names",
    [
        "softmax-none,softmax-none@dim=32",
        "favor+-none@num_features=8@redraw_every=5,favor+-none@redraw_every=5@num_features=8",
        "softmax-rope@learning_rate=0.1,softmax-rope@learning_rate=1e-1",
    ],
)
def test_two_names_of_the_same_variant_are_refused(names):
    check_variants_differ(parse_variants("favor+-none,favor+-none@num_features=8,elu+1-none,elu+1-none@dim=16"), SMOKE)
    first, second = names.split(",")
    with pytest.raises(ValueError, match="are the same variant here; leave one of them out") as refusal:
        check_variants_differ(parse_variants(names), SMOKE)
    assert first in str(refusal.value)
    assert second in str(refusal.value)


def test_a_hybrid_s_layers_are_the_variants_of_its_pattern_with_its_settings_where_they_are_taken():
    paired = get_variant("hybrid-3to1-rope@decay=pair@pair_denominator=head")
    given = dataclasses.replace(SMOKE, layers=4, decay="gate")
    *_, softmax = build_model(paired, paired.config(given), 0, BYTES).blocks
    assert softmax.attention.decay is not None  # that of the comparison
    gated = get_variant("hybrid-3to1-rope@decay=gate@qk_norm=yes@denominator=none@dim=64")
    linear = "elu+1-rope-after@decay=gate@qk_norm=yes@denominator=none"
    assert gated.pattern == (linear, linear, linear, "softmax-rope@qk_norm=yes")
    assert (gated.baseline, gated.position) == ("hybrid-3to1-rope@dim=64", "rope")
    config = dataclasses.replace(SMOKE, layers=4, local_conv=4)
    blocks = build_model(gated, gated.config(config), 0, BYTES).blocks
    for layer, block in zip(gated.pattern, blocks, strict=True):
        alone = get_variant(layer)
        (same,) = build_model(alone, dataclasses.replace(alone.config(config), dim=64, layers=1), 0, BYTES).blocks
        assert repr(block.attention) == repr(same.attention)
        assert (block.attention.decay is None) == (same.attention.decay is None)


@pytest.mark.parametrize("name", STUDIES)
def test_the_variants_of_every_study_fit_its_presets(name):
    study = STUDIES[name]
    for preset in ("smoke", "cpu", "gpu") if study.variants else ():
        check_variants_differ(parse_variants(",".join(study.variants)), get_preset(preset, study).config)


def test_a_record_with_settings_of_another_version_is_refused():
    with pytest.raises(ValueError, match="the record has of_tomorrow, which this version does not know"):
        Config.of({"of_tomorrow": 1, "steps": 4})
