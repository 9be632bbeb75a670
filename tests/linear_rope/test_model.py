"""The models: comparable from the start, causal, blind to padding and other segments, and the same token by token."""

import io
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from linear_rope import (
    AttentionSettings,
    CausalLM,
    Encoder,
    EncoderDecoder,
    LinearRoPEAttention,
    ModelConfig,
    NTKAware,
)
from linear_rope.heads import Classifier, MaskedLM
from linear_rope.model import DecoderState
from linear_rope.model_config import ADDITIONS
from tests.linear_rope.tensors import assert_identical, assert_near, assert_refused

SMALL: dict[str, Any] = {"vocab_size": 50, "dim": 16, "layers": 2, "heads": 2, "max_length": 40, "num_features": 12}
SOFTMAX = {"attention": "softmax", "num_features": None}
ELU = {"feature_map": "elu+1", "num_features": None}
SCORES = ("shaw", "tupe")
KERNELS: dict[str, dict[str, Any]] = {"softmax": SOFTMAX, "favor+": {}, "elu+1": ELU}
FADING = AttentionSettings(attention="linear", feature_map="elu+1", position="rope-after", decay="fixed")
EXACT = AttentionSettings(attention="softmax", heads=4, position="rope-before", local_conv=3)
ALL: dict[str, dict[str, Any]] = {
    **{f"{kernel}-none": {**of, "position": "none"} for kernel, of in KERNELS.items()},
    "softmax-rope": {**SOFTMAX, "position": "rope-before"},
    "favor+-rope-before": {"position": "rope-before"},
    "favor+-rope-after": {"position": "rope-after"},
    "elu+1-rope-after": {**ELU, "position": "rope-after"},
    "softmax-learned": {**SOFTMAX, "position": "learned"},
    "softmax-alibi": {**SOFTMAX, "position": "alibi"},
    "elu+1-sinusoidal": {**ELU, "position": "sinusoidal"},
    "elu+1-selective-after, gate": {**ELU, "position": "selective-after", "decay": "gate", "local_conv": 4},
    "softmax-selective, gate": {**SOFTMAX, "position": "selective-before", "decay": "gate", "short_conv": 4},
    "favor+-rope-after, normalised": {"position": "rope-after", "qk_norm": True},
    **{f"softmax-{name}": {**SOFTMAX, "position": name} for name in SCORES},
    "hybrid": {"pattern": (FADING, EXACT), "num_features": None},
    "hybrid-window": {"pattern": (FADING, replace(EXACT, window=7)), **ELU},
    "hybrid-ntk": {"pattern": (replace(FADING, position="none"), EXACT), **ELU, "rope_scaling": NTKAware(2.0)},
    "hybrid-learned": {"pattern": (AttentionSettings(), AttentionSettings(**SOFTMAX)), "position": "learned"},
    "softmax-xpos": {**SOFTMAX, "position": "xpos"},
    "softmax-complex": {**SOFTMAX, "position": "complex"},
    **{f"{kernel}-floater": {**of, "position": "floater"} for kernel, of in KERNELS.items() if kernel != "favor+"},
}
BOTH_WAYS = [name for name in ALL if name not in ("softmax-xpos", "hybrid-window")]
"""also for encoders"""
ADDED = (".positions.", ".decay.", ".local.", ".short.", ".rotation", ".score_positions.", "block_positions.", ".gain")


def config(name: str, **options: Any) -> ModelConfig:
    return ModelConfig(**SMALL | ALL[name] | options)


def random_tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(50, shape, generator=torch.Generator().manual_seed(seed))


def changed_at(tokens: Tensor, place: int) -> Tensor:
    changed = tokens.clone()
    changed[:, place] = (tokens[:, place] + 1) % 50
    return changed


def spread(model: Any) -> Any:
    """The model in float64, with weights so large that attention matters to its output."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                # Positions at every block would drown the tokens.
                parameter.mul_(1 if "block_positions" in name else 5 if "embedding" in name else 25)
    return model.double().eval()


@pytest.mark.parametrize("kind", [CausalLM, Encoder, EncoderDecoder])
def test_shared_parameters_start_equal_and_the_seed_changes_them(kind: Any) -> None:
    torch.manual_seed(0)
    first = dict(kind(config("favor+-rope-after")).named_parameters())
    torch.manual_seed(1)
    for name in ALL if kind is CausalLM else BOTH_WAYS:
        other = dict(kind(config(name)).named_parameters())
        extra = {key for key in other if any(part in key for part in ADDED)}
        assert other.keys() - extra == first.keys()
        adding = ("learned", "selective", *SCORES, "complex", "floater", "normalised", "hybrid")
        assert bool(extra) == any(word in name for word in adding)
        for key, parameter in first.items():
            assert_identical(other[key], parameter)
    reseeded = dict(kind(config("favor+-rope-after", seed=1)).named_parameters())
    assert all(not torch.equal(reseeded[key], first[key]) for key in first if first[key].dim() > 1)


def test_layers_follow_the_pattern_over_and_over_in_every_stack_and_take_its_state_dict() -> None:
    hybrid = config("hybrid", layers=5)
    model, other = EncoderDecoder(hybrid), EncoderDecoder(replace(hybrid, seed=1))
    for stack in (model.encoder, model):
        found = [(block.attention.heads, type(block.attention.decay).__name__) for block in stack.blocks]
        assert found == [(2, "FixedDecay"), (4, "NoneType")] * 2 + [(2, "FixedDecay")]
    for own, across in ((block.attention, block.cross_attention) for block in model.blocks):
        assert (type(own), own.heads) == (type(across), across.heads)
        assert (across.rope, across.decay, across.local) == ("none", None, None)
    other.load_state_dict(model.state_dict())
    assert_identical(*(each(random_tokens(1, 9), random_tokens(1, 5)) for each in (model, other)))
    with pytest.raises(RuntimeError, match="local"):
        other.load_state_dict(EncoderDecoder(replace(hybrid, pattern=(FADING,))).state_dict())


def test_what_is_recommended_is_the_same_in_a_model_and_alone() -> None:
    attention = LinearRoPEAttention.recommended(16, 2, qk_norm=True)
    model = CausalLM(ModelConfig.recommended(vocab_size=50, dim=16, heads=2, layers=1, qk_norm=True))
    attention.load_state_dict(model.blocks[0].attention.state_dict())
    x = torch.randn(2, 9, 16)
    assert_identical(attention(x), model.blocks[0].attention(x))
    plain = LinearRoPEAttention(16, 2, feature_map="elu+1", rope="after", decay="fixed", qk_norm=True)
    plain.load_state_dict(attention.state_dict())
    both_sides = LinearRoPEAttention.recommended(16, 2, causal=False, qk_norm=True)
    both_sides.load_state_dict(attention.state_dict())
    assert_identical(both_sides(x), plain(x))
    # A position that is a decay itself takes the recommended one's place.
    assert ModelConfig.recommended(position="alibi") == ModelConfig(feature_map="elu+1", position="alibi")


def test_every_addition_to_an_attention_can_be_one_layer_s() -> None:
    assert {*ADDITIONS} - {"rope_scaling"} <= {*AttentionSettings.__dataclass_fields__}


def test_initial_weights_are_as_documented() -> None:
    std = 0.08
    options: Any = {"vocab_size": 4096, "dim": 64, "heads": 4, "layers": 2, "attention": "softmax", "initial_std": std}
    options |= {"decay": "gate", "local_conv": 4, "short_conv": 4, "qk_norm": True}
    model, sinusoidal = (CausalLM(ModelConfig(**options, position=kind)) for kind in ("none", "sinusoidal"))
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            expected = std / math.sqrt(4) if name.endswith(("out.weight", "mlp.2.weight")) else std
            # Five standard errors of the standard deviation of n normal numbers.
            assert abs(float(parameter.detach().std()) / expected - 1) < 5 / math.sqrt(2 * parameter.numel())
        else:
            assert torch.all(parameter == (1 if name.endswith(("norm.weight", "norm.gain")) else 0))
    # A pair of sine and cosine has the mean square 1/2, and is made as large as the embedding.
    tokens, places = torch.arange(4096)[None], torch.arange(4096)
    added = sinusoidal.embedding(tokens, places) - model.embedding(tokens, places)
    assert float(added.square().mean().sqrt().detach()) == pytest.approx(std, rel=1e-5)


def test_features_differ_from_layer_to_layer_and_not_from_variant_to_variant() -> None:
    configs = (config("favor+-rope-after"), config("favor+-rope-before"), config("favor+-rope-after", feature_seed=1))
    after, before, other = ([b.attention.feature_map.omega for b in CausalLM(each).blocks] for each in configs)
    assert_identical(before, after)
    assert not torch.equal(after[0], after[1])
    assert not any(map(torch.equal, other, after))


def test_training_starts_near_the_uniform_distribution_and_reaches_every_parameter() -> None:
    model, tokens = CausalLM(config("favor+-rope-after")), random_tokens(3, 21)
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert abs(float(loss.detach()) - math.log(50)) < 0.1
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in model.parameters())
    # The embedding is the output projection too, so it learns of tokens that did not occur in the input.
    assert len(tokens.unique()) < 50
    assert model.embedding.tokens.weight.grad.any(dim=1).all()


@pytest.mark.parametrize("name", ALL)
def test_a_decoder_sees_neither_the_future_nor_padding_and_generates_what_it_computes(name: str) -> None:
    model, tokens, place = spread(CausalLM(config(name))), random_tokens(4, 40), torch.arange(20)
    logits = model(tokens)
    later = torch.cat((tokens[:, :25], random_tokens(4, 15, seed=1)), dim=1)
    assert_near(model(later)[:, :25], logits[:, :25], 1e-9)
    assert_near(model(tokens[:, :25]), logits[:, :25])
    assert (model(changed_at(tokens, 0))[:, 10:] - logits[:, 10:]).abs().max() > 1e-4
    mask = torch.stack((place < 6, place >= 13, place % 3 == 1, place < 0))
    y = model(tokens[:, :20], key_padding_mask=mask)
    for row, keep in enumerate(~mask):
        assert_near(y[row, keep], model(tokens[row, :20][keep][None])[0])
    prompt = random_tokens(2, 5)
    generated = model.generate(prompt, 30, temperature=0)
    assert torch.equal(generated[:, :5], prompt)
    assert torch.equal(generated[:, 5:], model(generated)[:, 4:-1].argmax(-1))
    assert len(generated[:, 5:].unique()) > 1
    assert CausalLM(config(name)).bfloat16()(tokens).dtype == torch.bfloat16


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_an_encoder_sees_both_sides_but_padding_and_every_encoding_but_none_tells_the_order(name: str) -> None:
    model, tokens = spread(Encoder(config(name))), random_tokens(1, 12)
    y, permutation = model(tokens), torch.tensor([3, 0, 8, 1, 2, 7, 11, 4, 6, 5, 10, 9])
    assert (model(changed_at(tokens, -1))[:, 0] - y[:, 0]).abs().max() > 1e-4
    difference = (model(tokens[:, permutation]) - y[:, permutation]).abs().max()
    assert bool(difference < 1e-9) == name.endswith("none")
    padded, mask = torch.full((1, 20), 7), torch.ones(1, 20, dtype=torch.bool)
    places = torch.tensor([2, 3, 5, 6, 7, 8, 9, 12, 13, 14, 15, 16])
    padded[:, places], mask[:, places] = tokens, False
    assert_near(model(padded, key_padding_mask=mask)[:, places], y)


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_an_encoder_decoder_reads_the_source_and_not_its_padding(name: str) -> None:
    model = spread(EncoderDecoder(config(name)))
    source, target = random_tokens(2, 15), random_tokens(2, 9, seed=1)
    mask = torch.arange(15).expand(2, -1) >= torch.tensor([[15], [8]])
    logits = model(source, target, mask)
    assert_near(logits[1:], model(source[1:, :8], target[1:]))
    at = random_tokens(2, 9, seed=3) % 2 == 0
    assert_near(model(source, target, mask, at), logits[at])
    gradients = torch.autograd.grad(logits.square().sum(), list(model.parameters()))
    assert all(gradient.isfinite().all() and gradient.any() for gradient in gradients)
    assert (model(changed_at(source, 3), target, mask) - logits).abs().amax((1, 2)).min() > 1e-4
    later = torch.cat((target[:, :5], random_tokens(2, 4, seed=2)), dim=1)
    assert_near(model(source, later, mask)[:, :5], logits[:, :5])


@pytest.mark.parametrize(
    "name", ["softmax-learned", "elu+1-sinusoidal", "favor+-rope-before", "elu+1-floater", "softmax-complex"]
)
@pytest.mark.parametrize("kind", [CausalLM, Encoder])
def test_models_count_positions_anew_in_each_segment(kind: Any, name: str) -> None:
    model, tokens, ends = spread(kind(config(name))), random_tokens(1, 40), [0, 7, 7, 8, 30, 40]
    found = model(tokens, cu_seqlens=torch.tensor(ends, dtype=torch.int32))
    for begin, end in ((0, 7), (7, 8), (8, 30), (30, 40)):
        assert_near(found[:, begin:end], model(tokens[:, begin:end]), 1e-9)


def test_a_learned_table_need_be_no_longer_than_a_segment_and_graphs_see_segments() -> None:
    model, tokens = Encoder(config("softmax-learned", max_length=8)), random_tokens(1, 20)
    model(tokens, cu_seqlens=torch.tensor([0, 8, 16, 20]))
    ends = torch.tensor([0, 9, 20])
    assert_refused(lambda: model(tokens, cu_seqlens=ends), ["11 positions", "8", "max_length"])
    model, ids = CausalLM(config("elu+1-rope-after")).double(), torch.tensor([[0] * 7 + [3] + [5] * 12])
    whole = torch.compile(model, backend="eager", fullgraph=True)
    assert_near(whole(tokens, segment_ids=ids), model(tokens, segment_ids=ids), 1e-12)
    length, given = {1: torch.export.Dim("length", min=2)}, {"segment_ids": ids}
    shapes = {"tokens": length, "segment_ids": length}
    exported = torch.export.export(model, (tokens,), given, dynamic_shapes=shapes).module()
    assert_near(exported(tokens[:, :2], segment_ids=ids[:, :2]), model(tokens[:, :2], segment_ids=ids[:, :2]), 1e-12)


class AllButTheFirst(CausalLM):
    def forward(self, tokens: Any) -> Any:
        return self.prefill(tokens, last=tokens.shape[1] - 1)[0]


def test_counts_may_be_symbols_of_a_traced_graph() -> None:
    model, tokens = AllButTheFirst(config("elu+1-rope-after")).double(), random_tokens(1, 20)
    length = torch.export.Dim("length", min=3)
    exported = torch.export.export(model, (tokens,), dynamic_shapes=({1: length},), strict=False).module()
    assert_near(exported(tokens[:, :9]), model(tokens[:, :9]))


def test_the_names_of_weights_are_those_of_earlier_checkpoints() -> None:
    """Renamed, they could not be loaded any more."""
    block = {f"{norm}.{part}" for norm in ("attention_norm", "mlp_norm") for part in ("weight", "bias")}
    block |= {f"mlp.{layer}.{part}" for layer in (0, 2) for part in ("weight", "bias")}
    block |= {f"attention.{projection}.weight" for projection in ("query", "key", "value", "out")}
    block |= {f"attention.feature_map.{part}" for part in ("omega", "_extra_state")}
    embedding = {"embedding.tokens.weight", "embedding.positions.table.weight", "norm.weight", "norm.bias"}
    model = CausalLM(ModelConfig(layers=1, position="learned"))
    assert {*model.state_dict()} == embedding | {f"blocks.0.{name}" for name in block}


@pytest.mark.parametrize("name", ["favor+-rope-before", "softmax-rope"])
def test_a_decoder_s_state_is_saved_moved_and_detached(name: str) -> None:
    model, source, tokens = spread(EncoderDecoder(config(name))), random_tokens(2, 3), random_tokens(2, 1, seed=1)
    _, state = model.step(tokens, model.start(source))
    wanted, _ = model.step(tokens, state)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    for same in (torch.load(file, weights_only=True), state.detach(), state.to("cpu", torch.float64)):
        assert type(same) is DecoderState
        assert torch.equal(model.step(tokens, same)[0], wanted)
    assert state.to(dtype=torch.float32).read[0][0].dtype == torch.float32


def test_a_masked_token_is_predicted_from_both_sides() -> None:
    model, tokens, at = MaskedLM(config("elu+1-rope-after")), random_tokens(2, 10), torch.rand(2, 10) < 0.4
    assert model(tokens).shape == (2, 10, 50)
    torch.testing.assert_close(model(tokens, at), model(tokens)[at])
    asked = torch.zeros(1, 10, dtype=torch.bool)
    asked[0, 5] = True
    logits = model(tokens[:1], asked)
    for place in (0, 9):
        assert (model(changed_at(tokens[:1], place), asked) - logits).abs().max() > 1e-6


def test_a_class_does_not_depend_on_padding() -> None:
    model, tokens = Classifier(config("elu+1-rope-after"), 3).eval(), random_tokens(2, 10)
    padded, mask = F.pad(tokens, (0, 2), value=7), torch.arange(12).expand(2, -1) >= 10
    assert model(tokens).shape == (2, 3)
    torch.testing.assert_close(model(padded, mask), model(tokens))
    assert model(tokens, torch.ones(2, 10, dtype=torch.bool)).isfinite().all()
