"""The models: comparable from the start, causal, blind to padding, and the same token by token."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from linear_rope import CausalLM, Encoder, EncoderDecoder, ModelConfig, NTKAware
from tests.linear_rope.tensors import assert_identical, assert_near

SMALL: dict[str, Any] = {"vocab_size": 50, "dim": 16, "layers": 2, "heads": 2, "max_length": 40, "num_features": 12}
SOFTMAX = {"attention": "softmax", "num_features": None}
ELU = {"feature_map": "elu+1", "num_features": None}
SCORES = ("shaw", "transformer-xl", "t5", "tupe", "deberta", "huang")
KERNELS: dict[str, dict[str, Any]] = {"softmax": SOFTMAX, "favor+": {}, "elu+1": ELU}
ALL: dict[str, dict[str, Any]] = {
    "softmax-none": {**SOFTMAX, "position": "none"},
    "softmax-rope": {**SOFTMAX, "position": "rope-before"},
    "favor+-none": {"position": "none"},
    "favor+-rope-before": {"position": "rope-before"},
    "favor+-rope-after": {"position": "rope-after"},
    "elu+1-none": {**ELU, "position": "none"},
    "elu+1-rope-after": {**ELU, "position": "rope-after"},
    "softmax-learned": {**SOFTMAX, "position": "learned"},
    "softmax-alibi": {**SOFTMAX, "position": "alibi"},
    "softmax-ntk": {**SOFTMAX, "position": "rope-before", "rope_scaling": NTKAware(2.0)},
    "favor+-learned": {"position": "learned"},
    "elu+1-sinusoidal": {**ELU, "position": "sinusoidal"},
    "paired": {"feature_map": "favor+paired"},
    "elu+1, paired": {"feature_map": "elu+1+paired", "num_features": None},
    "relu, no denominator": {"feature_map": "relu", "num_features": None, "denominator": "none"},
    "elu+1-alibi": {**ELU, "position": "alibi"},
    "elu+1-selective-after, gate": {**ELU, "position": "selective-after", "decay": "gate", "local_conv": 4},
    "favor+-selective-before, fixed": {"position": "selective-before", "decay": "fixed"},
    "softmax-selective, gate": {**SOFTMAX, "position": "selective-before", "decay": "gate", "short_conv": 4},
    "softmax-rope, normalised": {**SOFTMAX, "position": "rope-before", "qk_norm": True},
    "favor+-rope-after, normalised": {"position": "rope-after", "qk_norm": True},
    **{f"softmax-{name}": {**SOFTMAX, "position": name} for name in SCORES},
    "softmax-xpos": {**SOFTMAX, "position": "xpos"},
    **{f"{kernel}-complex": {**of, "position": "complex"} for kernel, of in KERNELS.items()},
    **{f"{kernel}-floater": {**of, "position": "floater"} for kernel, of in KERNELS.items()},
}
CAUSAL = ("softmax-xpos",)
"""for decoders alone"""
BOTH_WAYS = [name for name in ALL if name not in CAUSAL]
ADDED = (".positions.", ".decay.", ".local.", ".short.", ".rotation", ".score_positions.", "block_positions.", ".gain")


def config(name: str, **options: Any) -> ModelConfig:
    return ModelConfig(**SMALL | ALL[name] | options)


def random_tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(50, shape, generator=torch.Generator().manual_seed(seed))


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
        adding = ("learned", "selective", *SCORES, "complex", "floater", "normalised")
        assert bool(extra) == any(word in name for word in adding)
        for key, parameter in first.items():
            assert_identical(other[key], parameter)
    reseeded = dict(kind(config("favor+-rope-after", seed=1)).named_parameters())
    assert all(not torch.equal(reseeded[key], first[key]) for key in first if first[key].dim() > 1)


@pytest.mark.parametrize("std", [0.02, 0.08])
def test_initial_weights_are_as_documented(std: float) -> None:
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
    logits = model(tokens[:, :-1])
    assert logits.shape == (3, 20, 50)
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert abs(float(loss.detach()) - math.log(50)) < 0.1
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in model.parameters())
    # The embedding is the output projection too, so it learns of tokens that did not occur in the input.
    assert len(tokens.unique()) < 50
    assert model.embedding.tokens.weight.grad.any(dim=1).all()


@pytest.mark.parametrize("name", ALL)
def test_a_causal_model_does_not_see_the_future(name: str) -> None:
    model, tokens = spread(CausalLM(config(name))), random_tokens(2, 40)
    logits = model(tokens)
    changed = tokens.clone()
    changed[:, 25:] = random_tokens(2, 15, seed=1)
    assert_near(model(changed)[:, :25], logits[:, :25], 1e-9)
    assert_near(model(tokens[:, :25]), logits[:, :25])
    changed = tokens.clone()
    changed[:, 0] = (tokens[:, 0] + 1) % 50
    assert (model(changed)[:, 10:] - logits[:, 10:]).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, CausalLM) for name in ALL), *((name, Encoder) for name in BOTH_WAYS)]
)
def test_padding_has_no_influence(name: str, kind: Any) -> None:
    model, tokens = spread(kind(config(name))), random_tokens(4, 20)
    place = torch.arange(20)
    mask = torch.stack((place < 6, place >= 13, place % 3 == 1, place < 0))
    y = model(tokens, key_padding_mask=mask)
    for row, keep in enumerate(~mask):
        assert_near(y[row, keep], model(tokens[row, keep][None])[0])


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_an_encoder_sees_both_sides_and_every_encoding_but_none_tells_the_order(name: str) -> None:
    model, tokens = spread(Encoder(config(name))), random_tokens(1, 12)
    y, changed = model(tokens), tokens.clone()
    changed[:, -1] = (tokens[:, -1] + 1) % 50
    assert (model(changed)[:, 0] - y[:, 0]).abs().max() > 1e-4
    permutation = torch.tensor([3, 0, 8, 1, 2, 7, 11, 4, 6, 5, 10, 9])
    difference = (model(tokens[:, permutation]) - y[:, permutation]).abs().max()
    assert bool(difference < 1e-9) == name.endswith("none")


@pytest.mark.parametrize("name", ALL)
def test_greedy_generation_is_the_argmax_of_the_whole_forward_pass(name: str) -> None:
    model, tokens = spread(CausalLM(config(name))), random_tokens(2, 5)
    generated = model.generate(tokens, 30, temperature=0)
    assert generated.shape == (2, 35)
    torch.testing.assert_close(generated[:, :5], tokens)
    torch.testing.assert_close(generated[:, 5:], model(generated)[:, 4:-1].argmax(-1))
    assert len(generated[:, 5:].unique()) > 1
    assert CausalLM(config(name)).bfloat16()(tokens).dtype == torch.bfloat16


def test_generation_skips_no_block_that_something_was_put_around() -> None:
    model = CausalLM(config("favor+-rope-after"))
    model.blocks[1] = torch.nn.Sequential(model.blocks[1])
    with pytest.raises(ValueError, match="a block is a Sequential"):
        model.generate(random_tokens(1, 3), 1)


@pytest.mark.parametrize("name", ["favor+-rope-after", "softmax-rope"])
def test_generation_of_no_sequences_gives_none(name: str) -> None:
    assert CausalLM(config(name)).generate(random_tokens(0, 3), 4).shape == (0, 7)


def test_sampling_follows_its_generator() -> None:
    model, prompt = spread(CausalLM(config("favor+-rope-after"))), random_tokens(2, 5)

    def sample(seed: int, temperature: float = 1.0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return model.generate(prompt, 20, temperature=temperature, generator=generator)

    before = torch.random.get_rng_state()
    assert_identical(sample(0), sample(0))
    assert not torch.equal(sample(0), sample(1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert_identical(sample(0, temperature=1e-6), model.generate(prompt, 20, temperature=0))
    assert_identical(model.generate(prompt, 0), prompt)


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_an_encoder_decoder_reads_the_source_and_not_its_padding(name: str) -> None:
    model = spread(EncoderDecoder(config(name)))
    source, target = random_tokens(2, 15), random_tokens(2, 9, seed=1)
    mask = torch.arange(15).expand(2, -1) >= torch.tensor([[15], [8]])
    logits = model(source, target, mask)
    assert logits.shape == (2, 9, 50)
    assert_near(logits[1:], model(source[1:, :8], target[1:]))
    at = random_tokens(2, 9, seed=3) % 2 == 0
    assert_near(model(source, target, mask, at), logits[at])
    gradients = torch.autograd.grad(logits.square().sum(), list(model.parameters()))
    assert all(gradient.isfinite().all() and gradient.any() for gradient in gradients)
    changed = source.clone()
    changed[:, 3] = (source[:, 3] + 1) % 50
    assert (model(changed, target, mask) - logits).abs().amax((1, 2)).min() > 1e-4
    later = torch.cat((target[:, :5], random_tokens(2, 4, seed=2)), dim=1)
    assert_near(model(source, later, mask)[:, :5], logits[:, :5])


def test_the_names_of_weights_are_those_of_earlier_checkpoints() -> None:
    """Renamed, they could not be loaded any more."""
    block = {f"{norm}.{part}" for norm in ("attention_norm", "mlp_norm") for part in ("weight", "bias")}
    block |= {f"mlp.{layer}.{part}" for layer in (0, 2) for part in ("weight", "bias")}
    block |= {f"attention.{projection}.weight" for projection in ("query", "key", "value", "out")}
    block |= {f"attention.feature_map.{part}" for part in ("omega", "_extra_state")}
    embedding = {"embedding.tokens.weight", "embedding.positions.table.weight", "norm.weight", "norm.bias"}
    model = CausalLM(ModelConfig(layers=1, position="learned"))
    assert {*model.state_dict()} == embedding | {f"blocks.0.{name}" for name in block}


@pytest.mark.parametrize("kind", [CausalLM, Encoder, EncoderDecoder])
def test_state_dicts_load_strictly_and_copies_are_equal(kind: Any) -> None:
    shape = config("favor+-rope-after")
    model, other = kind(shape).eval(), kind(replace(shape, seed=1, feature_seed=1)).eval()
    inputs = [random_tokens(2, 12)] * (2 if kind is EncoderDecoder else 1)
    assert not torch.allclose(other(*inputs), model(*inputs))
    other.load_state_dict(copy.deepcopy(model.state_dict()), strict=True)
    for same in (other, copy.deepcopy(model)):
        assert_identical(same(*inputs), model(*inputs))
