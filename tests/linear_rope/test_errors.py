"""What the library refuses: the message names the argument, what came, and what would do."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linear_rope import (
    AttentionSettings,
    CausalLM,
    EluPlusOne,
    Encoder,
    EncoderDecoder,
    FavorPlus,
    LinearRoPEAttention,
    ModelConfig,
    NTKAware,
    ReluFeatures,
    SoftmaxRoPEAttention,
    YaRN,
    apply_rope,
    linear_attention,
)
from linear_rope.attention import GatedDelta, Retention, WindowedFavor
from linear_rope.decoding import sampling_probabilities
from linear_rope.diagnostics import diagnose, diagnose_model
from linear_rope.features import FeatureMap, Features
from linear_rope.heads import Classifier, MaskedLM
from linear_rope.positions import Decay, FixedDecay, GatedDecay, Shaw, T5Buckets, TransformerXL
from tests.linear_rope.tensors import assert_refused

QKV, LONGER, SHORTER, EMPTY = (1, 2, 5, 4), (1, 2, 6, 4), (1, 2, 4, 4), (1, 2, 0, 4)
IDS = torch.tensor([[0, 0, 1, 1, 2]] * 2)
SOFTMAX = AttentionSettings(attention="softmax")
X, TOKENS, ANGLES = torch.zeros(2, 5, 16), torch.zeros(2, 5, dtype=torch.int64), torch.zeros(1, 2, 5, 3)


class WithoutAnAxis(FeatureMap):
    def features(self, x: Tensor) -> Features:
        return Features(x.exp(), x.sum(-1))


class OfHeads(FeatureMap):
    """With weights of each head."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, 8, 8))

    def features(self, x: Tensor) -> Features:
        return Features((x @ self.weight).relu(), None)


class Own(Decay):
    """Of a value and shape that is given."""

    def __init__(self, value: float, *shape: int, pairs: int | None = None) -> None:
        super().__init__(2, pairs)
        self.value, self.shape = value, shape

    def forward(self, x: Tensor) -> Tensor:
        return torch.full(self.shape, self.value, dtype=x.dtype)


def elu(**options: Any) -> LinearRoPEAttention:
    return LinearRoPEAttention(16, 2, feature_map="elu+1", causal=True, **options)


def mask(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bool)


def pattern(*positions: str, **options: Any) -> ModelConfig:
    return ModelConfig(pattern=tuple(AttentionSettings(position=each) for each in positions), **options)


def attend(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, **options: Any) -> Tensor:
    q, k, v = (torch.zeros(shape, dtype=dtype) for shape in shapes or (QKV, QKV, QKV))
    return linear_attention(q, k, v, **{"feature_map": FavorPlus(4, 6)} | options)


def absent(index: int) -> list[Any]:
    return [None if i == index else torch.zeros(QKV) for i in range(3)]


def rotate(shape: tuple[int, ...], positions: Tensor, dtype: torch.dtype = torch.float32, **options: Any) -> Tensor:
    return apply_rope(torch.zeros(shape, dtype=dtype), positions, **options)


def linear(**options: Any) -> LinearRoPEAttention:
    return LinearRoPEAttention(16, 2, **options)


def after_state(kind: Any, other: dict[str, Any], own: dict[str, Any]) -> Tensor:
    """A piece after the state of an attention with other settings."""
    one, module = (kind(16, 4, causal=True, **options) for options in (other, own))
    return module.prefill(X, state=one.prefill(X)[1])[0]


def softmax(**options: Any) -> SoftmaxRoPEAttention:
    return SoftmaxRoPEAttention(16, 2, **options)


def scored(positions: Any, **options: Any) -> SoftmaxRoPEAttention:
    return softmax(**{"rope": "none", "score_positions": positions} | options)


def xpos(**options: Any) -> SoftmaxRoPEAttention:
    return softmax(rope="xpos", causal=True, **options)


def model(**options: Any) -> CausalLM:
    return CausalLM(ModelConfig(**{"vocab_size": 50, "dim": 16, "layers": 1, "heads": 2, "num_features": 12} | options))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: attend(*[(1, 2, 5, 0)] * 3, rope="none", feature_map=EluPlusOne()), ["q", "width 0", "one channel"]),
        (lambda: attend(rope="later"), ["rope", "'later'", "'after'", "'before'", "'none'"]),
        (lambda: attend(denominator="one"), ["denominator", "'one'", "'unrotated'", "'rotated'", "'none'"]),
        (lambda: attend(implementation="fast"), ["implementation", "'fast'", "auto", "reference", "chunked"]),
        (lambda: attend(feature_map="relu"), ["feature_map", "'relu'", "FeatureMap"]),
        (lambda: attend(feature_map=FavorPlus(4, 7)), ["num_features", "7", "8"]),
        (lambda: attend(feature_map=FavorPlus(6, 8)), ["head_dim 6", "head_dim=4"]),
        (lambda: attend(causal="False"), ["causal is 'False'", "True, False"]),
        (lambda: FavorPlus(4, 8.0), ["num_features is 8.0", "whole number"]),
        (lambda: FavorPlus(4, 8, redraw_every=2.0), ["redraw_every is 2.0", "whole number"]),
        (lambda: FixedDecay([-0.1, -0.2]), ["log_kept is [-0.1, -0.2]", "tensor (heads,)"]),
        (lambda: attend(*[(1, 2, 5, 3)] * 3, feature_map=EluPlusOne(), rope="before"), ["head dimension", "3", "4"]),
        (lambda: attend((2, 5, 4), QKV, QKV), ["q", "(2, 5, 4)", "(batch, heads, length, width)"]),
        (lambda: attend(QKV, (1, 2, 5, 6), QKV), ["q", "k", "(1, 2, 5, 6)", "equal"]),
        (lambda: attend(QKV, QKV, LONGER), ["k", "v", "(1, 2, 6, 4)", "equal"]),
        (lambda: attend(QKV, EMPTY, EMPTY), ["k", "length 0"]),
        *(
            (lambda index=index: linear_attention(*absent(index), feature_map=EluPlusOne()), [name, "NoneType"])
            for index, name in enumerate(("q is", "k is", "v is"))
        ),
        (lambda: attend(QKV, LONGER, LONGER, causal=True), ["causal", "5 queries", "6 keys"]),
        (lambda: attend(QKV, LONGER, LONGER, positions=torch.arange(5)), ["positions", "5", "6", "pair"]),
        (lambda: attend(positions=torch.arange(4)), ["positions", "(4,)", "(5,)"]),
        (lambda: attend(key_padding_mask=torch.zeros(1, 5)), ["key_padding_mask", "float32", "torch.bool"]),
        (lambda: attend(key_padding_mask=mask(1, 6)), ["key_padding_mask", "(1, 6)", "(1, 5)"]),
        (lambda: attend(log_decay=torch.zeros(2, 5)), ["log_decay", "(1, 2, 5)"]),
        (lambda: attend(log_decay=torch.zeros(1, 2, 5, 4)), ["log_decay", "(1, 2, 5, 4)", "(1, 2, 5, 3)", "pairs"]),
        (lambda: attend(pair_denominator="mean"), ["pair_denominator", "'mean'", "'same'", "'head'"]),
        *(
            (
                lambda options=options: attend(pair_denominator="head", **options),
                ["pair_denominator", "unrotated", f"log_decay of {of}"],
            )
            for options, of in (
                ({}, "heads"),
                ({"log_decay": torch.zeros(1, 2, 5, 3), "denominator": "rotated"}, "pairs"),
            )
        ),
        (lambda: softmax(decay="pair"), ["decay", "'pair'", "linear attention"]),
        (lambda: SoftmaxRoPEAttention(16, 2, decay=GatedDecay(16, 2, pairs=4)), ["decay", "4 pairs", "linear"]),
        (lambda: elu(decay=GatedDecay(16, 2, pairs=3)), ["decay", "3 pairs", "has 4"]),
        (lambda: elu(decay="gate", pair_denominator="head"), ["pair_denominator", "'gate'", "same"]),
        (lambda: elu(decay="pair", pair_denominator="head", denominator="abs"), ["pair_denominator", "'abs'"]),
        (lambda: elu(decay=Own(0.5, 2, 2, 5, 4, pairs=4))(X), ["log_decay", "0.5", "≤ 0"]),
        (lambda: elu(decay=Own(-0.5, 2, 2, 5, pairs=4))(X), ["decay", "(2, 2, 5)", "(2, 2, 5, 4)"]),
        (lambda: attend(QKV, LONGER, LONGER, log_decay=torch.zeros(1, 2, 5)), ["log_decay", "5 queries"]),
        (lambda: attend(angles=torch.zeros(5, 2)), ["angles", "(1, 2, 5, 3)"]),
        (lambda: attend(rope="none", angles=ANGLES), ["angles", "none"]),
        (lambda: attend(angles=ANGLES.long()), ["angles", "int64", "radians"]),
        (lambda: attend(QKV, LONGER, LONGER, angles=ANGLES), ["angles", "5 queries", "6 keys", "positions"]),
        (lambda: attend(angles=ANGLES, positions=torch.arange(5)), ["positions was given beside angles"]),
        (lambda: attend(angles=ANGLES, rope_scaling=NTKAware(2.0)), ["rope_scaling was given beside angles"]),
        (lambda: attend(angles=ANGLES, rope_fraction=0.5), ["rope_fraction was given beside angles"]),
        (lambda: attend(rope_fraction=1.5), ["rope_fraction", "1.5", "at most 1"]),
        (lambda: attend(rope_fraction=0.5, rope="none"), ["rope_fraction", "0.5", "RoPE is not used"]),
        (lambda: attend(dtype=torch.int64), ["q has dtype torch.int64", "floating-point"]),
        (lambda: attend(SHORTER, QKV, QKV, segment_ids=IDS), ["4 queries and 5 keys"]),
        (lambda: linear()(X, segment_ids=torch.tensor([[0, 1, 0, 2, 2]] * 2)), ["come back"]),
        (lambda: linear()(X, segment_ids=IDS[0]), ["shape (5,); give (2, 5)"]),
        (lambda: linear()(X, segment_ids=IDS.float()), ["dtype torch.float32"]),
        (lambda: linear()(X, segment_ids=IDS > 0), ["dtype torch.bool"]),
        (lambda: linear()(X, segment_ids=IDS.to("meta")), ["on meta, and the tokens on cpu"]),
        (lambda: linear()(X, segment_ids=IDS, cu_seqlens=torch.tensor([0, 5])), ["both"]),
        (lambda: linear()(X, cu_seqlens=torch.tensor([0, 5])), ["2 sequences"]),
        (lambda: linear()(X, X, segment_ids=IDS), ["context"]),
        *(
            (lambda ends=ends: linear()(X[:1], cu_seqlens=torch.tensor(ends)), ["from 0 to 5"])
            for ends in ([0, 4], [1, 5], [0, 4, 3, 5])
        ),
        (lambda: rotate((4, 5), torch.arange(4)), ["width", "5", "even"]),
        (lambda: rotate((4, 6), torch.arange(4), layout="pairs"), ["layout", "'pairs'", "'interleaved'", "'half'"]),
        (lambda: rotate((2, 1, 4, 6), torch.zeros(3, 4)), ["positions", "(3, 4)", "(4,)", "(2, 4)"]),
        (lambda: rotate((6,), torch.arange(6)), ["x", "(6,)", "(..., N, width)"]),
        (lambda: rotate((4, 6), mask(4)), ["positions", "torch.bool", "integers or floats"]),
        *((lambda x=x: rotate((1, 6), torch.tensor([x])), [f"positions hold {x}"]) for x in (math.inf, math.nan)),
        (lambda: rotate((4, 6), torch.arange(4), dtype=torch.int64), ["x has dtype torch.int64", "floating-point"]),
        (lambda: NTKAware(0.5), ["factor", "0.5", "1 or more"]),
        (lambda: YaRN(2, original_length=64, alpha=3, beta=2), ["alpha", "3", "beta", "2"]),
        (lambda: YaRN(2, original_length=0), ["original_length", "0"]),
        (lambda: linear(rope_scaling=2.0), ["rope_scaling", "2.0", "NTKAware"]),
        (lambda: softmax(rope="none", rope_scaling=NTKAware(2)), ["rope_scaling", "leave it out"]),
        (lambda: ModelConfig(position="learned", rope_scaling=NTKAware(2)), ["rope_scaling", "leave it out"]),
        (lambda: ModelConfig(pattern=("softmax",)), ["pattern is ('softmax',)", "AttentionSettings"]),
        (lambda: ModelConfig(pattern=SOFTMAX), ["pattern is AttentionSettings(", "a tuple of AttentionSettings"]),
        (lambda: pattern("learned", "none"), ["pattern", "learned, none", "one for all layers", '"rope-before"']),
        (lambda: pattern("floater", "sinusoidal"), ["pattern", "floater, sinusoidal", "one for all layers"]),
        (lambda: ModelConfig(pattern=(SOFTMAX,)), ["rope-after", "softmax attention has no feature map"]),
        (lambda: pattern("none", rope_scaling=NTKAware(2)), ["rope_scaling", "leave it out"]),
        (lambda: pattern("none", rope_fraction=0.5), ["rope_fraction is 0.5", "leave it out"]),
        (lambda: pattern("none", "rope-after", rope_fraction=5.0), ["rope_fraction is 5.0", "at most 1"]),
        (lambda: ModelConfig(decay="x", pattern=(AttentionSettings(decay="gate"),)), ["decay is 'x'", "'gate'"]),
        (
            lambda: model(attention="delta", position="none", denominator="abs"),
            ["denominator is 'abs'", "delta", "leave it out, or give another attention"],
        ),
        *(
            (
                lambda own=own: model(position="none", pattern=(replace(SOFTMAX, **own),)),
                [*own, "'softmax'", "leave it out, or give another attention"],
            )
            for own in ({"feature_map": "relu"}, {"num_features": 8}, {"redraw_every": 3}, {"denominator": "abs"})
        ),
        (lambda: linear(feature_map=OfHeads(2), kv_heads=1), ["kv_heads is 1", "feature_map", "kv_heads=None"]),
        (lambda: FavorPlus(0), ["head_dim", "0"]),
        (lambda: FavorPlus(8, hyperbolic=True, paired=True), ["hyperbolic", "paired", "one of them"]),
        *(
            (lambda kind=kind: kind(8)(torch.zeros(3, 6)), ["head_dim 8", "has 6", "head_dim=6"])
            for kind in (FavorPlus, EluPlusOne, ReluFeatures)
        ),
        (lambda: linear(num_features=7), ["num_features", "7", "even", "8"]),
        (lambda: linear(feature_map="elu+1", num_features=6), ["num_features", "6", "8", "leave it out"]),
        (lambda: linear(feature_map="elu+1", redraw_every=5), ["redraw_every", "5", "leave it out"]),
        (lambda: linear(feature_map="cosine"), ["feature_map", "'cosine'", "favor+", "elu+1", "relu"]),
        (lambda: linear(feature_map=EluPlusOne(), num_features=8), ["num_features", "FeatureMap"]),
        (lambda: linear(feature_map=EluPlusOne(6)), ["feature_map", "head_dim 6", "head_dim=8"]),
        (lambda: FixedDecay(torch.tensor([-1.0, 5.0])), ["log_kept", "5.0", "0 or less"]),
        (lambda: GatedDelta(6, 2), ["head_dim is 3", "even"]),
        (lambda: Retention.recommended(16, 2), ["recommended", "feature_map", "Retention"]),
        *((lambda kind=kind: kind(8, 2, causal=False), ["give causal=True"]) for kind in (GatedDelta, WindowedFavor)),
        (lambda: attend(*[(1, 2, 5, 3)] * 3, feature_map=EluPlusOne()), ["number of features", "3", "even head_dim"]),
        (lambda: attend(feature_map=WithoutAnAxis()), ["WithoutAnAxis", "log_scale", "(1, 2, 5)", "(1, 2, 5, 1)"]),
        (lambda: linear(denominator="sum"), ["denominator", "'sum'", "'unrotated'", "'rotated'", "'none'"]),
        *(
            (lambda pair=pair: after_state(LinearRoPEAttention, *pair), ["state", "another denominator"])
            for pair in itertools.permutations([{"denominator": name} for name in ("unrotated", "none", "abs")], 2)
        ),
        *(
            (lambda kind=kind, pair=pair: after_state(kind, *pair), ["state", "another kv_heads", "here it is"])
            for kind in (LinearRoPEAttention, Retention, GatedDelta, SoftmaxRoPEAttention, WindowedFavor)
            for pair in itertools.permutations(({}, {"kv_heads": 2}))
        ),
        *(
            (lambda kind=kind, pair=pair: after_state(kind, *pair), ["state", f"another {name}", "here it is"])
            for kind, name, pair in (
                (SoftmaxRoPEAttention, "rope", ({"rope": "pope"}, {})),
                (SoftmaxRoPEAttention, "rope", ({}, {"rope": "pope"})),
                (SoftmaxRoPEAttention, "window", ({"window": 3}, {})),
                (SoftmaxRoPEAttention, "window", ({"window": 3}, {"window": 4})),
                (WindowedFavor, "window", ({"window": 3}, {"window": 4})),
                (LinearRoPEAttention, "feature_map, num_features", ({"num_features": 6}, {"num_features": 8})),
            )
        ),
        *(
            (lambda kind=kind: kind(16, 2, decay=[], causal=True), ["decay is []", "'gate'"])
            for kind in (LinearRoPEAttention, GatedDelta, SoftmaxRoPEAttention)
        ),
        (lambda: GatedDelta(16, 2, qk_norm=1), ["qk_norm is 1", "True or False"]),
        (lambda: linear(causal="False"), ["causal is 'False'", "True, False"]),
        (lambda: linear(bias="no"), ["bias is 'no'", "True or False"]),
        (lambda: WindowedFavor(16, 2, window=2.5), ["window is 2.5", "whole number"]),
        (lambda: GatedDelta(16, 2).remember(X), ["remember", "causal"]),
        *(
            (lambda kind=kind: (a := kind(16, 2, rope="none")).recall(X[:1], a.remember(X)), ["1 sequences", "of 2"])
            for kind in (LinearRoPEAttention, SoftmaxRoPEAttention)
        ),
        (lambda: rotate((1, 4, 4), torch.arange(4), scaling="yarn"), ["scaling is 'yarn'", "YaRN or None"]),
        *(
            (lambda n=n: rotate((1, n, 4), torch.full((n,), math.nan)), ["positions hold nan", "finite"])
            for n in (4, 100)
        ),
        (lambda: sampling_probabilities(X, temperature=0), ["temperature is 0", "1e-06"]),
        *(
            (lambda at=at: MaskedLM(ModelConfig())(TOKENS, at), ["at has dtype", "torch.bool"])
            for at in (TOKENS, mask(2))
        ),
        (lambda: model().prefill(TOKENS, state=model(layers=2).prefill(TOKENS)[1]), ["2 layers", "has 1"]),
        (lambda: model().prefill(TOKENS, state=model().prefill(TOKENS)), ["state is a tuple", "LanguageModelState"]),
        (
            lambda: EncoderDecoder(model().config).step(TOKENS, None),
            ["state is a NoneType", "start or the step before"],
        ),
        (lambda: model()([[1, 2, 3]]), ["tokens is of type list", "torch.int64"]),
        (
            lambda: GatedDelta(16, 4, decay=GatedDecay(16, 4, pairs=4)),
            ["decay is GatedDecay", "of channels", 'decay="pair"'],
        ),
        (lambda: linear(redraw_every=0), ["redraw_every is 0", "1 or more"]),
        (lambda: softmax(alibi=True), ["rope", "'before'", "alibi", 'rope="none"']),
        (lambda: GatedDelta(16, 2, decay="channel"), ["decay is 'channel'", 'rope="none"', 'decay="pair"']),
        (lambda: GatedDelta(15, 3, rope="none", decay="pair"), ["decay is 'pair'", "even number"]),
        (lambda: linear(decay="channel"), ["decay is 'channel'", "delta rule's"]),
        *((lambda w=w: softmax(window=w, causal=True), [f"window is {w}", "1 or more"]) for w in (0, 2.5)),
        (lambda: softmax(rope_phase="learned"), ['rope is "before"', "matrix", 'rope="pope"']),
        (lambda: linear(rope_phase="learned", rope="before"), ['rope is "before"', 'rope="after"']),
        (lambda: linear(rope_phase="all"), ["rope_phase is 'all'", "'none'", "'learned'"]),
        (lambda: linear(rope="pope"), ["rope is 'pope'", 'rope="after"']),
        (lambda: softmax(window=4), ["window is 4", "causal is False", "causal=True"]),
        (lambda: softmax(rope="after"), ["rope", "'after'", "'before'", "'none'"]),
        (lambda: scored("shaw", rope="before"), ["score_positions is 'shaw'", "rope='before'", '"none"']),
        (lambda: scored("learned"), ["score_positions is 'learned'", "'shaw'", "ScorePositions"]),
        (lambda: scored(Shaw(5)), ["any number of heads of width 5", "2 of width 8", "head_dim=8"]),
        (lambda: scored(T5Buckets(3, 8)), ["3 heads of width 8", "heads=2"]),
        (lambda: scored("shaws"), ["'shaws'", "did you mean 'shaw'"]),
        (lambda: scored("t5")(X, X), ["context"]),
        (lambda: scored("shaw")(X, positions=torch.arange(5) / 2), ["positions has dtype torch.float32", "integers"]),
        (lambda: Shaw(4, max_distance=0), ["max_distance is 0"]),
        (lambda: T5Buckets(2, 4, buckets=6), ["buckets is 6", "multiple of 4"]),
        (lambda: T5Buckets(2, 4, max_distance=8), ["max_distance is 8", "8 buckets"]),
        (lambda: TransformerXL(7, 1, 7), ["dim is 7", "even"]),
        (lambda: linear(rope="xpos"), ["rope is 'xpos'", "one decay a head", 'decay="retnet"']),
        (lambda: softmax(rope="xpos"), ['rope is "xpos"', "later keys", "causal=True"]),
        (lambda: xpos(head_dim=5), ["head_dim is 5", "even"]),
        (lambda: xpos(rope_fraction=0.5), ["rope_fraction", "0.5", "xpos"]),
        (lambda: xpos(rope_angles="selective"), ["rope_angles is 'selective'", "xpos"]),
        (lambda: Encoder(ModelConfig(attention="softmax", position="xpos")), ['rope is "xpos"', "causal"]),
        (lambda: model(position="complex", dim=15, heads=5), ["dim is 15", "even"]),
        (lambda: Classifier(model().config, 0), ["outputs is 0; give a whole number, 1 or more"]),
        (lambda: model(dim=0), ["dim", "0", "1 or more"]),
        (lambda: model(attention="sofmax"), ["attention is 'sofmax'; did you mean 'softmax'", "'linear'"]),
        (lambda: model(position="rope"), ["position", "'rope'", "'rope-before'", "'rope-after'"]),
        (lambda: model(position="rope-after", attention="softmax"), ["position", "rope-after", "rope-before"]),
        (lambda: model(position="alibi", decay="gate"), ["decay", "gate", "alibi"]),
        (lambda: model(position="sinusoidal", dim=15, heads=5), ["dim", "15", "even"]),
        (lambda: model(initial_std=-0.02), ["initial_std is -0.02", "positive"]),
        (lambda: model(initial_std=math.nan), ["initial_std is nan"]),
        (lambda: model()(TOKENS[0]), ["tokens has shape (5,)", "(batch, length) of torch.int64"]),
        (lambda: model()(TOKENS, mask(2, 4)), ["key_padding_mask", "torch.bool and (2, 5)"]),
        *((lambda last=last: model().prefill(TOKENS, last=last), [f"last is {last}", "1 or more"]) for last in (0, -1)),
        (lambda: model().generate(TOKENS[:, :0], 3), ["prompt has shape"]),
        (lambda: model().generate(TOKENS, -1), ["length is -1", "0 or more"]),
        (lambda: model().generate(TOKENS, 2.5), ["length is 2.5", "whole number"]),
        (lambda: model().generate(TOKENS, 1, temperature=-0.5), ["temperature is -0.5", "1e-06 or more, or 0"]),
        (lambda: model().generate(TOKENS, 1, temperature=math.nan), ["temperature is nan", "1e-06 or more, or 0"]),
        (lambda: model().generate(TOKENS, 1, temperature=math.inf), ["temperature is inf", "1e-06 or more, or 0"]),
        (lambda: model().generate(TOKENS, 1, top_k=-1), ["top_k is -1", "None"]),
        (lambda: model().generate(TOKENS, 1, top_k=2.5), ["top_k is 2.5", "whole number"]),
        (lambda: model().generate(TOKENS, 1, top_p=1.5), ["top_p is 1.5", "from 0 to 1"]),
        (lambda: model().generate(TOKENS, 1.0), ["length is 1.0", "whole number"]),
        (lambda: model().generate(TOKENS, 1, seed=-1), ["seed is -1", "0 or more"]),
        (lambda: model().generate(TOKENS, 1, seed=2**64), [f"seed is {2**64}", "0 to 2**64 - 1"]),
        (lambda: model().generate(TOKENS, 1, seed=1, generator=torch.Generator()), ["seed is 1", "one of them"]),
        (lambda: EncoderDecoder(model().config)(TOKENS, TOKENS[0]), ["target has shape"]),
        (lambda: diagnose(nn.Linear(16, 16), X), ["attention is a Linear", "LinearRoPEAttention"]),
        (lambda: diagnose(linear(causal=True), X, context=X), ["context", "leave it out"]),
        (lambda: diagnose(linear(), X, ~mask(2, 5)), ["leaves a key to see"]),
        (lambda: diagnose_model(nn.Linear(2, 2), X), ["model is a Linear without attention"]),
    ],
)
def test_arguments(call: Callable[[], Any], words: list[str]) -> None:
    assert_refused(call, words)


# Of a module of either kind, causal unless it is said.
CALLS: list[tuple[dict[str, Any], Callable[[Any], Any], list[str]]] = [
    *(
        (options, lambda m: m, words)
        for options, words in (
            ({"heads": 3}, ["dim", "16", "heads", "3", "head_dim"]),
            ({"head_dim": 0}, ["head_dim", "0", "1 or more"]),
            ({"head_dim": 5, "rope": "before"}, ["head_dim", "5", "even"]),
            ({"dropout": 1.0}, ["dropout", "1.0", "less than 1"]),
            ({"rope": "both"}, ["rope", "'both'", "'before'", "'none'"]),
            ({"decay": "slow"}, ["decay", "slow", "fixed"]),
            ({"decay": GatedDecay(16, 3)}, ["decay", "3 heads", "2"]),
            ({"rope_angles": "free"}, ["rope_angles", "free", "selective"]),
            ({"rope_angles": "selective", "rope": "none"}, ["rope_angles", "rope"]),
            ({"local_conv": 1}, ["local_conv", "1", "2"]),
            ({"short_conv": 2.5}, ["short_conv", "2.5", "whole number"]),
            ({"rope_fraction": 0.0, "rope": "before"}, ["rope_fraction", "0.0", "more than 0"]),
            ({"rope_fraction": 0.5, "rope": "none"}, ["rope_fraction", "0.5", "RoPE is not used"]),
            (
                {"rope_fraction": 0.5, "rope": "before", "rope_angles": "selective"},
                ["rope_fraction", "0.5", "selective"],
            ),
            ({"kv_heads": 3}, ["kv_heads", "3", "divides heads 2", "None"]),
            ({"kv_heads": 0}, ["kv_heads", "0", "divides heads 2"]),
            ({"kv_heads": 1, "decay": GatedDecay(16, 2)}, ["decay", "2 heads", "has 1", "kv_heads"]),
            ({"output_norm": "yes"}, ["output_norm", "'yes'", "True"]),
            ({"output_gate": "tanh"}, ["output_gate", "'tanh'", "silu", "sigmoid"]),
            ({"kv_heads": True}, ["kv_heads is True", "divides heads 2"]),
            *(({"output_gate": x}, [f"output_gate is {x}", "silu"]) for x in ([], {}, 1)),
            ({"rope_fraction": "1", "rope": "before"}, ["rope_fraction is '1'", "at most 1"]),
            ({"rope_base": "1"}, ["rope_base is '1'", "positive"]),
            ({"qk_norm": "no"}, ["qk_norm", "'no'", "True"]),
        )
    ),
    ({}, lambda m: m(X[0]), ["x", "(5, 16)", "(batch, length, 16)"]),
    ({}, lambda m: m(X[:, :0]), ["x", "(2, 0, 16)", "1 or more"]),
    ({}, lambda m: m(X, X), ["context", "causal=False"]),
    ({}, lambda m: m(X, key_padding_mask=torch.zeros(2, 5)), ["key_padding_mask", "torch.float32", "torch.bool"]),
    ({}, lambda m: m.prefill(X, mask(2, 4)), ["key_padding_mask", "(2, 4)", "(2, 5)"]),
    ({}, lambda m: m.step(X, m.prefill(X)[1]), ["x", "(2, 5, 16)", "(2, 1, 16)"]),
    ({}, lambda m: m.step(X[:1, :1], m.prefill(X)[1]), ["x", "(1, 1, 16)", "(2, 1, 16)"]),
    ({}, lambda m: m(None), ["x", "NoneType", "(batch, length, 16)"]),
    ({}, lambda m: m.step(X[:, :1], None), ["state", "NoneType", "prefill"]),
    ({}, lambda m: m(X.double()), ["x", "torch.float64", "torch.float32"]),
    ({"decay": Own(0.5, 2, 2, 5)}, lambda m: m(X), ["log_decay", "0.5", "≤ 0"]),
    ({"decay": Own(-0.5, 2, 5, 2)}, lambda m: m(X), ["decay", "(2, 5, 2)", "(2, 2, 5)"]),
    ({"causal": False}, lambda m: m.prefill(X), ["prefill needs a causal attention", "causal=True"]),
    ({"causal": False}, lambda m: m.step(X[:, :1], None), ["step needs a causal attention", "causal=True"]),
    ({"causal": False}, lambda m: m(X, X[..., :8]), ["context", "(2, 5, 8)", "(batch, length, 16)"]),
    ({"causal": False}, lambda m: m(X, X[:, :3], mask(2, 5)), ["key_padding_mask", "(2, 5)", "(2, 3)"]),
]


@pytest.mark.parametrize("kind", [LinearRoPEAttention, SoftmaxRoPEAttention])
@pytest.mark.parametrize(("options", "call", "words"), CALLS)
def test_modules(kind: Any, options: dict[str, Any], call: Callable[[Any], Any], words: list[str]) -> None:
    assert_refused(lambda: call(kind(**{"dim": 16, "heads": 2, "causal": True} | options)), words)
