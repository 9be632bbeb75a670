import cmath
import copy
import math

import pytest
import torch
from torch import nn

from linear_rope import (
    CausalLM,
    Encoder,
    EncoderDecoder,
    FavorPlus,
    LinearRoPEAttention,
    ModelConfig,
    SoftmaxRoPEAttention,
)
from linear_rope.diagnostics import (
    AttentionCollapseWarning,
    attention_maps,
    diagnose,
    diagnose_model,
    expected_rope_mask,
    rope_decay_bound,
    statistics,
    weight_by_distance,
)
from linear_rope.diagnostics.attention_weights import attention_matrices
from linear_rope.features import Features


def test_the_bound_is_the_definition_s():
    width, base = 8, 100.0
    for distance in (0, 3, 17):
        partial, total = 0j, 0.0
        for i in range(width // 2):
            partial += cmath.exp(1j * distance * base ** (-2 * i / width))
            total += abs(partial)
        expected = total * 2 / width
        assert rope_decay_bound(torch.tensor(distance), width, base=base).item() == pytest.approx(expected, rel=1e-12)


def test_the_bound_starts_at_a_quarter_of_the_width_plus_a_half():
    assert rope_decay_bound(torch.tensor([0]), 128).tolist() == [32.5]


def test_the_mask_is_the_mean_cosine():
    expected = (math.cos(5) + math.cos(5 / 10)) / 2
    assert expected_rope_mask(torch.tensor(5), 4, base=100.0).item() == pytest.approx(expected, rel=1e-12)
    assert expected_rope_mask(torch.tensor(0), 64).item() == 1


@pytest.mark.parametrize(("attention", "position"), [("softmax", "rope-before"), ("linear", "rope-before")])
def test_maps_of_positive_attention_are_distributions_over_the_past(attention, position):
    model = CausalLM(ModelConfig(dim=16, heads=2, layers=3, num_features=8, attention=attention, position=position))
    maps = attention_maps(model.eval(), torch.arange(12).view(1, 12))
    assert [weights.shape for weights in maps] == [(1, 2, 12, 12)] * 3
    for weights in maps:
        assert (weights.triu(1) == 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 12))


def test_maps_are_those_of_eval_mode_and_leave_a_model_in_training_as_it_was():
    size = {"dim": 16, "heads": 2, "layers": 2, "num_features": 8, "dropout": 0.5, "redraw_every": 1}
    model, tokens = CausalLM(ModelConfig(**size)).train(), torch.arange(12).view(1, 12)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    found = attention_maps(model, tokens)
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    torch.testing.assert_close(found, attention_maps(model.eval(), tokens))


def test_weights_are_averaged_by_distance():
    weights = torch.zeros(1, 1, 4, 4)
    weights[0, 0, 2, 2], weights[0, 0, 3, 3] = 1.0, -3.0
    weights[0, 0, 2, 1], weights[0, 0, 3, 2] = 0.5, 0.25
    weights[0, 0, 1, 1] = 100.0  # a query of the first half does not count
    signed, absolute = weight_by_distance(weights)
    assert signed.tolist() == [-1.0, 0.375]
    assert absolute.tolist() == [2.0, 0.375]


def one_head(width, **options):
    """A head whose queries are the first ``width`` channels of x, and whose keys are the others."""
    softmax = options.pop("softmax", False)
    attention = (SoftmaxRoPEAttention if softmax else LinearRoPEAttention)(2 * width, 1, head_dim=width, **options)
    with torch.no_grad():
        attention.query.weight.copy_(torch.eye(2 * width)[:width])
        attention.key.weight.copy_(torch.eye(2 * width)[width:])
    return attention


def normal(*shape, seed=0, scale=1.0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) * scale


def rotated(x, base=10000.0):
    """RoPE by complex numbers, at positions 0, 1, 2, ..."""
    angles = torch.arange(x.shape[-2])[:, None] * base ** (-torch.arange(0, x.shape[-1], 2).double() / x.shape[-1])
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def plain_features(feature_map, x):
    """φ(x) by its definition, without a stabiliser."""
    if isinstance(feature_map, FavorPlus):
        x = x / x.shape[-1] ** 0.25
        exponents = x @ feature_map.omega.double().T - x.square().sum(-1, keepdim=True) / 2
        return exponents.exp() / math.sqrt(feature_map.num_features)
    return torch.where(x > 0, x + 1, x.exp())


def by_definition(attention, q, k):
    """Every measure for one head's q (N, D) and k (K, D), query by query, in float64."""
    linear = isinstance(attention, LinearRoPEAttention)
    if attention.rope == "before":
        q, k = rotated(q), rotated(k)
    errors, distances, softmax_distances, denominators, sums, signs = [], [], [], [], [], []
    for i in range(len(q)):
        n = i + 1 if attention.causal else len(k)
        scores = q[i] @ k[:n].T / math.sqrt(q.shape[-1])
        if not linear and attention.alibi:
            scores = scores - (i - torch.arange(n)).abs() / 2**8  # the slope of one head
        exponentials = scores.exp()
        softmax = exponentials / exponentials.sum()
        kernel, weights, denominator = softmax, softmax, exponentials.sum() / exponentials.max()
        if linear:
            query, keys = plain_features(attention.feature_map, q)[i], plain_features(attention.feature_map, k)[:n]
            plain = keys @ query
            kernel, scores = plain / plain.sum(), plain
            if attention.rope == "after":
                scores = (
                    rotated(plain_features(attention.feature_map, k))[:n]
                    @ (rotated(plain_features(attention.feature_map, q))[i])
                )
            total = {"unrotated": plain.sum(), "rotated": scores.sum(), "none": torch.tensor(1.0)}[
                attention.denominator
            ]
            weights, denominator = scores / total, total / (query.max() * keys.max())
        denominators.append(denominator.item())
        sums.append(weights.sum().item())
        signs += (weights < 0).tolist()
        if n > 1:
            errors.append(math.sqrt(((kernel - softmax) ** 2).sum() / (softmax**2).sum()))
            distances.append(sum(abs(w - 1 / n) for w in kernel.tolist()) / 2)
            softmax_distances.append(sum(abs(w - 1 / n) for w in softmax.tolist()) / 2)
    return {
        "kernel_error": sum(errors) / len(errors),
        "distance_from_uniform": sum(distances) / len(distances),
        "softmax_distance_from_uniform": sum(softmax_distances) / len(softmax_distances),
        "smallest_denominator": None if linear and attention.denominator == "none" else min(denominators, key=abs),
        "nonpositive_denominators": None
        if linear and attention.denominator == "none"
        else sum(denominator <= 0 for denominator in denominators) / len(denominators),
        "negative_share": sum(signs) / len(signs),
        "row_sums": (min(sums), sum(sums) / len(sums), max(sums)),
    }


def assert_close(found, expected, rel=1e-10):
    for name, value in expected.items():
        exact = value is None or isinstance(value, str)
        assert getattr(found, name) == (value if exact else pytest.approx(value, rel=rel, abs=1e-14)), name


KINDS = {
    "favor+ after": {"rope": "after"},
    "favor+ after, rotated": {"rope": "after", "denominator": "rotated"},
    "favor+ after, none": {"rope": "after", "denominator": "none"},
    "favor+ before": {"rope": "before"},
    "favor+ none": {"rope": "none"},
    "elu+1 after": {"rope": "after", "feature_map": "elu+1"},
    "elu+1 before": {"rope": "before", "feature_map": "elu+1"},
    "softmax": {"softmax": True},
    "softmax none": {"softmax": True, "rope": "none"},
    "softmax alibi": {"softmax": True, "rope": "none", "alibi": True},
}


def make_kind(kind, **options):
    options = {**KINDS[kind], **options}
    if "softmax" not in options:
        # Without ε the features are the definition's.
        options.setdefault("feature_map", FavorPlus(4, 6, eps=0))
    return one_head(4, **options).double()


@pytest.fixture(autouse=True)
def _nothing_warned_yet(monkeypatch):
    monkeypatch.setattr(statistics, "_warned", False)


quiet = pytest.mark.filterwarnings("ignore::linear_rope.diagnostics.AttentionCollapseWarning")


@quiet
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_measures_are_their_definitions(kind, causal):
    attention, x = make_kind(kind, causal=causal), normal(1, 9, 8)
    assert_close(diagnose(attention, x), by_definition(attention, x[0, :, :4], x[0, :, 4:]))


@quiet
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "after" not in kind and "before" not in kind])
def test_cross_attention_is_measured(kind):
    # Without RoPE, so that the definition needs no second axis of positions.
    attention = make_kind(kind, rope="none")
    x, context = normal(1, 5, 8), normal(1, 7, 8, seed=1)
    assert_close(diagnose(attention, x, context=context), by_definition(attention, x[0, :, :4], context[0, :, 4:]))


@quiet
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_left_out_whatever_it_holds(kind, causal):
    attention, x = make_kind(kind, causal=causal), normal(1, 6, 8)
    padded = torch.cat((torch.full((1, 2, 8), math.nan), x, torch.full((1, 1, 8), math.inf)), dim=1)
    mask = torch.tensor([[True, True, *[False] * 6, True]])
    found, expected = diagnose(attention, padded, mask), vars(diagnose(attention, x))
    assert_close(found, expected)


@quiet
def test_padding_of_a_context_is_left_out():
    attention = make_kind("favor+ after", causal=False)
    x, context = normal(1, 5, 8), normal(1, 7, 8, seed=1)
    padded = torch.cat((context, torch.full((1, 2, 8), math.nan)), dim=1)
    mask = torch.arange(9)[None] >= 7
    assert_close(diagnose(attention, x, mask, context=padded), vars(diagnose(attention, x, context=context)))


@quiet
def test_a_batch_and_heads_are_averaged_over():
    attention = LinearRoPEAttention(8, 2, causal=True).double()
    x = normal(2, 5, 8, scale=3)
    both, first, second = (diagnose(attention, part) for part in (x, x[:1], x[1:]))
    for name in ("kernel_error", "distance_from_uniform", "negative_share"):
        mean = (getattr(first, name) + getattr(second, name)) / 2
        assert getattr(both, name) == pytest.approx(mean, rel=1e-10)
    assert both.row_sums.largest == max(first.row_sums.largest, second.row_sums.largest)


def test_positions_are_those_of_the_call():
    attention, x = make_kind("favor+ after", causal=True), normal(1, 6, 8, scale=0.3)
    shifted = diagnose(attention, x, positions=torch.arange(6) + 100)
    assert_close(shifted, vars(diagnose(attention, x)), rel=1e-8)
    assert diagnose(attention, x, positions=torch.zeros(6)).row_sums == pytest.approx((1, 1, 1))


@quiet
def test_denominators_that_are_not_positive_are_counted():
    # Far apart, and with large features, so that rotated products are of either sign.
    x = normal(2, 40, 8, scale=2)
    found = {
        denominator: diagnose(make_kind("favor+ after", denominator=denominator, causal=True), x)
        for denominator in ("unrotated", "rotated", "none")
    }
    # A query that sees one key, itself, is rotated as that key is: its denominator is positive.
    share = found["rotated"].nonpositive_denominators
    assert 0 < share < 1
    assert share * 80 == pytest.approx(round(share * 80), abs=1e-9)
    assert found["unrotated"].nonpositive_denominators == 0
    assert found["none"].nonpositive_denominators is None
    lines = str(found["rotated"]).splitlines()
    assert f"denominators ≤ 0       {share:.1%}" in lines


@quiet
def test_signs_and_sums_that_were_measured_before():
    # 29.8 % and 3.4 % are the share that was measured at N = 1024; six draws of each have a standard deviation of
    # 0.8 and 0.1 percentage points, and the tolerance is four of them. The smallest row sum of elu+1, 0.15, has 0.008.
    x = normal(1, 1024, 128, dtype=torch.float32)
    favor = diagnose(one_head(64, num_features=256, causal=True), x)
    elu = diagnose(one_head(64, feature_map="elu+1", causal=True), x)
    assert favor.negative_share == pytest.approx(0.298, abs=0.032)
    assert elu.negative_share == pytest.approx(0.034, abs=0.004)
    assert elu.row_sums.smallest == pytest.approx(0.15, abs=0.032)


def test_a_query_that_sees_one_key_has_no_distance():
    found = diagnose(make_kind("favor+ after", causal=True), normal(1, 1, 8))
    assert (found.kernel_error, found.distance_from_uniform, found.collapse) == (None, None, None)
    assert found.row_sums == pytest.approx((1, 1, 1))


class DrownedFeatures(FavorPlus):
    """One scale for all keys, and an ε beside which most features vanish, as in performer-pytorch."""

    def features(self, x):
        values, log_scale = super().features(x)
        return Features(values * (log_scale - log_scale.max()).exp() + 1e-4, None)


def test_large_norms_are_warned_of_once():
    attention = one_head(64, num_features=256, causal=True)
    with pytest.warns(AttentionCollapseWarning, match="arbitrary keys") as caught:
        found = diagnose(attention, normal(1, 128, 128, dtype=torch.float32))
    assert caught[0].filename == __file__
    assert found.collapse == "arbitrary keys"
    # An error from here on, by the settings of pytest.
    assert diagnose(attention, normal(1, 128, 128, seed=1, dtype=torch.float32)).collapse == "arbitrary keys"


def test_a_uniform_kernel_is_warned_of():
    attention = one_head(64, feature_map=DrownedFeatures(64, 256), causal=True)
    with pytest.warns(AttentionCollapseWarning, match="almost uniform"):
        assert diagnose(attention, normal(1, 128, 128, scale=1.5, dtype=torch.float32)).collapse == "uniform"


@pytest.mark.parametrize("options", [{"num_features": 256}, {"feature_map": DrownedFeatures(64, 256)}])
def test_small_norms_are_not_warned_of(options):
    attention = one_head(64, causal=True, **options)
    assert diagnose(attention, normal(1, 128, 128, scale=0.25, dtype=torch.float32)).collapse is None


def test_maps_that_do_not_estimate_softmax_do_not_collapse():
    found = diagnose(one_head(64, feature_map="elu+1"), normal(1, 128, 128, dtype=torch.float32))
    assert found.distance_from_uniform < found.softmax_distance_from_uniform / 2
    assert found.collapse is None


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_every_layer_of_a_model_is_measured_on_its_input(attention):
    config = ModelConfig(dim=16, heads=2, layers=2, num_features=8, attention=attention, position="rope-before")
    model, tokens = Encoder(config).double(), torch.arange(14).view(2, 7)
    mask = torch.arange(7).expand(2, 7) >= torch.tensor([[7], [4]])
    measured = diagnose_model(model, tokens, key_padding_mask=mask)
    assert list(measured) == ["blocks.0.attention", "blocks.1.attention"]
    block = model.blocks[0]
    normed = block.attention_norm(model.embedding(tokens, torch.arange(7)))
    assert measured["blocks.0.attention"] == diagnose(block.attention, normed, mask)


def test_cross_attention_of_a_model_is_measured():
    model = EncoderDecoder(ModelConfig(dim=16, heads=2, layers=1, num_features=8))
    measured = diagnose_model(model, torch.arange(9).view(1, 9), torch.arange(5).view(1, 5))
    assert list(measured) == ["encoder.blocks.0.attention", "blocks.0.attention", "blocks.0.cross_attention"]
    attention, x, context = (LinearRoPEAttention(8, 2), *(normal(1, n, 8, dtype=torch.float32) for n in (3, 6)))
    measured = diagnose_model(attention, x, context=context)
    assert measured == {"LinearRoPEAttention": diagnose(attention, x, context=context)}


class Repeating(nn.Module):
    """One attention layer called twice, inside a model of the user's own."""

    def __init__(self):
        super().__init__()
        self.shared = LinearRoPEAttention(8, 2, redraw_every=1, dropout=0.5)
        self.frozen = nn.Dropout(0.5).eval()
        self.fails = False
        self.gradients = True

    def forward(self, x):
        self.gradients = torch.is_grad_enabled()
        y = self.shared(self.frozen(self.shared(x=x, key_padding_mask=None)))
        if self.fails:
            raise RuntimeError("after the attention")
        return y


def test_a_module_called_twice_has_two_entries():
    model, x = Repeating(), normal(1, 5, 8, dtype=torch.float32)
    measured = diagnose_model(model, x)
    assert list(measured) == ["shared", "shared#2"]
    assert measured["shared"] == diagnose(model.shared, x)
    model.eval()
    assert measured["shared#2"] == diagnose(model.shared, model.shared(x).detach())


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(fails):
    model, x = Repeating(), normal(1, 5, 8, dtype=torch.float32)
    model(x)
    model(x)
    model.fails = fails
    state = {name: value.clone() for name, value in model.state_dict().items()}
    flags = [module.training for module in model.modules()]
    random = torch.get_rng_state()
    if fails:
        with pytest.raises(RuntimeError, match="after the attention"):
            diagnose_model(model, x)
    else:
        diagnose_model(model, x)
        diagnose(model.shared, x)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert "shared.feature_map._extra_state" in state  # the count of redraws
    assert [module.training for module in model.modules()] == flags
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(torch.get_rng_state(), random)
    assert not model.gradients
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_dropout_in_a_projection_does_not_fall():
    attention, x = LinearRoPEAttention(8, 2), normal(1, 5, 8, dtype=torch.float32)
    expected = diagnose(attention, x)
    attention.query = nn.Sequential(attention.query, nn.Dropout(0.5))
    assert diagnose(attention, x) == expected


def test_a_bfloat16_module_is_measured_in_float32():
    attention = LinearRoPEAttention(16, 2, num_features=8, causal=True)
    low, x = copy.deepcopy(attention).bfloat16(), normal(1, 8, 16, dtype=torch.float32)
    matrices = attention_matrices(low, x.bfloat16(), None, None, None)
    assert {matrix.dtype for matrix in matrices} == {torch.float32, torch.bool}
    # bfloat16 rounds weights, inputs, q and k: each by 2⁻⁹ relative, and the exponentials by a few times as much.
    assert diagnose(low, x.bfloat16()).kernel_error == pytest.approx(diagnose(attention, x).kernel_error, rel=0.05)


def test_autocast_changes_nothing():
    attention, x = LinearRoPEAttention(16, 2, num_features=8), normal(1, 8, 16, dtype=torch.float32)
    expected = diagnose(attention, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert diagnose(attention, x) == expected


def test_a_table_has_a_line_for_every_measure():
    lines = str(diagnose(make_kind("favor+ after, none"), normal(1, 6, 8, scale=0.1))).splitlines()
    assert len(lines) == 8
    assert "smallest denominator   -" in lines
    assert "denominators ≤ 0       -" in lines
    assert "collapse               none" in lines


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention": nn.Linear(8, 8)}, "attention is a Linear; give a LinearRoPEAttention"),
        ({"x": torch.zeros(1, 5, 7)}, r"x has shape \(1, 5, 7\); give \(batch, length, 8\)"),
        ({"x": torch.zeros(5, 8)}, r"x has shape \(5, 8\)"),
        ({"context": torch.zeros(1, 0, 8)}, r"context has shape \(1, 0, 8\)"),
        ({"context": torch.zeros(2, 5, 8)}, "x has 1 sequences and context 2"),
        ({"context": torch.zeros(1, 5, 8), "attention": LinearRoPEAttention(8, 2, causal=True)}, "leave it out"),
        ({"key_padding_mask": torch.zeros(1, 4, dtype=torch.bool)}, r"give torch.bool and \(1, 5\)"),
        ({"key_padding_mask": torch.ones(1, 5, dtype=torch.bool)}, "leaves a key to see"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    arguments = {"attention": LinearRoPEAttention(8, 2), "x": torch.zeros(1, 5, 8), **change}
    with pytest.raises(ValueError, match=message):
        diagnose(**arguments)


def test_a_model_without_attention_is_named():
    with pytest.raises(ValueError, match="model is a Linear without attention"):
        diagnose_model(nn.Linear(2, 2), torch.zeros(1, 2))
