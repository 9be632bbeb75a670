"""performer-pytorch's attention as a variant of this library's models; what it leaks is in test_upgrade.py."""

import copy

import pytest
import torch
from torch import Tensor

from linear_rope import CausalLM, ModelConfig
from tests.linear_rope.tensors import assert_identical
from tests.linear_rope.tensors import random as random_doubles

pytest.importorskip("performer_pytorch", reason="performer-pytorch is not installed")

from linear_rope.interop.performer import PerformerPytorchAttention

DIM, HEADS, LENGTH = 16, 2, 40


def peer(**options: object) -> PerformerPytorchAttention:
    torch.manual_seed(0)
    return PerformerPytorchAttention(DIM, HEADS, **{"num_features": 16, "max_length": 300} | options)


def random(*shape: int, seed: int = 0) -> Tensor:
    return random_doubles(*shape, seed=seed).float()


@pytest.mark.parametrize("causal", [True, False])
def test_attention_weights_reproduce_the_output(causal: bool) -> None:
    for rotary in (True, False):
        module, x = peer(causal=causal, rotary=rotary), random(2, LENGTH, DIM)
        v = module.value(x).view(2, LENGTH, HEADS, -1).transpose(1, 2)
        y = module.out((module.attention_weights(x) @ v).transpose(1, 2).flatten(2))
        torch.testing.assert_close(y, module(x), rtol=0, atol=1e-5)


def test_features_depend_on_the_seed_only_and_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.random.get_rng_state()
    first = PerformerPytorchAttention(DIM, HEADS, num_features=16, max_length=8)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(5)
    draws = [first, *(PerformerPytorchAttention(DIM, HEADS, num_features=16, max_length=8, seed=s) for s in (0, 1))]
    matrices = [module.fast_attention.projection_matrix for module in draws]
    assert_identical(matrices[0], matrices[1])
    assert not torch.equal(matrices[0], matrices[2])
    assert capsys.readouterr().out == ""


def test_inside_a_model_it_starts_with_the_weights_of_the_other_variants() -> None:
    config = ModelConfig(dim=DIM, heads=HEADS, num_features=16, position="rope-before")
    own = CausalLM(config)
    theirs = CausalLM(config, lambda layer: peer(seed=layer))
    parameters = dict(theirs.named_parameters())
    assert parameters.keys() == dict(own.named_parameters()).keys()
    for name, parameter in own.named_parameters():
        assert_identical(parameters[name], parameter)
    tokens = torch.randint(256, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    logits = theirs(tokens)
    logits.square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in theirs.parameters())
    with pytest.raises(ValueError, match="PerformerPytorchAttention has no prefill and step"):
        theirs.generate(tokens, 2)
    state = copy.deepcopy(theirs.state_dict())
    assert len({value.data_ptr() for value in state.values()}) == len(state)
    other = CausalLM(config, lambda layer: peer(seed=layer + 5))
    assert (other(tokens) - logits).abs().max() > 1e-3
    other.load_state_dict(state, strict=True)
    assert_identical(other(tokens), logits)


def test_what_the_peer_cannot_do_is_refused() -> None:
    x = random(2, LENGTH, DIM)
    with pytest.raises(ValueError, match=r"key_padding_mask .* padding in its denominator; trim it"):
        peer()(x, key_padding_mask=torch.zeros(2, LENGTH, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"x has 40 positions, .* ends at 8"):
        peer(max_length=8)(x)
