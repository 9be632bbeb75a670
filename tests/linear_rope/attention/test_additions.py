"""Decays, selective angles, convolutions and norms of the modules: what they compute, and what is refused.

That the function with ``log_decay`` and ``angles`` agrees with the oracle is in test_linear_attention.py.
"""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from linear_rope import LinearRoPEAttention
from linear_rope.positions import Decay, FixedDecay, GatedDecay, SelectiveRotation
from linear_rope.positions.decay import make_decay
from linear_rope.positions.rotary import rope_frequencies
from linear_rope.positions.selective import SelectiveAngles
from tests.linear_rope.attention.modules import ADDITIONS, DIM, made
from tests.linear_rope.tensors import HEADS, assert_near, assert_refused, random

LENGTH = 70
KERNELS = ("softmax", "favor+", "elu+1")
ALONG_ONE_SEQUENCE = [each for each in ADDITIONS.values() if "qk_norm" not in each]


def test_alibi_of_softmax_is_the_decay_of_the_same_name() -> None:
    x = random(2, LENGTH, DIM)
    assert_near(made("softmax", rope="none", decay="alibi")(x), made("softmax", rope="none", alibi=True)(x))


BEGINS_AS_ROPE = pytest.mark.parametrize(
    "settings", [SelectiveRotation(), SelectiveRotation(rank=None, bias=True, gate=True)]
)


@BEGINS_AS_ROPE
def test_selective_angles_without_their_projections_are_rope(settings: SelectiveRotation) -> None:
    """The speed is 1 at every token."""
    module, plain = (LinearRoPEAttention(DIM, HEADS, feature_map="elu+1", rope_angles=x) for x in (settings, "fixed"))
    assert module.rotation is not None
    with torch.no_grad():
        module.rotation.projections[-1].zero_()
        if module.rotation.gate is not None:
            module.rotation.gate.zero_()
    weights = {name: x for name, x in module.state_dict().items() if not name.startswith("rotation")}
    plain.load_state_dict(weights)
    x = random(2, LENGTH, DIM)
    assert_near(module.double()(x), plain.double()(x))


@BEGINS_AS_ROPE
def test_selective_angles_begin_near_rope(settings: SelectiveRotation) -> None:
    """Weights of 0.02 change a speed of 1 by a few hundredths."""
    torch.manual_seed(0)
    module, x = (
        LinearRoPEAttention(DIM, HEADS, causal=True, num_features=6, rope_angles=settings),
        torch.randn(2, 100, DIM),
    )
    phase = module.prefill(x)[1].carried.phase
    assert ((phase - 100).abs() < 10).all()


def test_selective_angles_are_as_precise_after_many_tokens() -> None:
    """After 50,000 speeds near 1 a sum in float32 has steps of 0.004; an angle below 2π has steps of 5e-7."""
    torch.manual_seed(0)
    angles, x = SelectiveAngles(SelectiveRotation(), DIM, HEADS, 4, 10_000.0), torch.randn(1, 50_000, DIM)
    speed = angles.inputs(x)
    phase = (speed + 1).double().cumsum(1).view(1, -1, HEADS, 2).transpose(1, 2)
    found = angles(x, speed, None, None)[0]
    exact = phase * torch.tensor([1.0, 0.01], dtype=torch.float64)
    torch.testing.assert_close(found.double().cos(), exact.cos(), rtol=0, atol=5e-7)


@pytest.mark.parametrize("kernel", KERNELS)
def test_angles_and_decays_keep_their_precision_under_autocast(kernel: str) -> None:
    module = made(kernel, decay="gate", rope_angles=SelectiveRotation(bias=True, gate=True)).float()
    x, low = random(2, 300, DIM).float(), random(2, 300, DIM).bfloat16()
    for tokens in (x, low):
        expected = module.project(tokens.float(), tokens.float())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = module.project(tokens, tokens)
        assert found.q.dtype == torch.bfloat16
        for name in ("angles", "log_decay"):
            assert getattr(found, name).dtype == torch.float32
            assert_near(getattr(found, name), getattr(expected, name), 1e-5)


class Own(Decay):
    """Of a value and shape that is given."""

    def __init__(self, value: float, *shape: int) -> None:
        super().__init__(HEADS)
        self.value, self.shape = value, shape

    def forward(self, x: Tensor) -> Tensor:
        return torch.full(self.shape, self.value, dtype=x.dtype)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_decay_of_one_s_own_that_cannot_be_is_refused(kernel: str) -> None:
    x = random(2, 9, DIM)
    assert_refused(lambda: made(kernel, decay=Own(0.5, 2, HEADS, 9))(x), ["log_decay", "0.5", "≤ 0"])
    assert_refused(lambda: made(kernel, decay=Own(-0.5, 2, 9, HEADS))(x), ["decay", "(2, 9, 2)", "(2, 2, 9)"])


@pytest.mark.parametrize("window", [2.5, "4", None])
def test_windows_that_are_no_whole_numbers_are_refused(window: Any) -> None:
    assert_refused(lambda: made("elu+1", local_conv=window), ["local_conv", repr(window), "whole number"])


@pytest.mark.parametrize("rank", [None, 3])
def test_selective_angles_of_the_paper_are_its_formula(rank: int | None) -> None:
    """Token by token, as its code has it, from weights as they begin: a bias of zero is a speed of one."""
    torch.manual_seed(0)
    settings = SelectiveRotation(rank=rank, bias=True, gate=True, init="paper")
    module = LinearRoPEAttention(DIM, HEADS, feature_map="elu+1", causal=True, rope_angles=settings).double()
    rotation, convolution = module.rotation, module.rotation_convolution
    assert rotation is not None
    assert convolution is not None
    assert rotation.gate is not None
    x, pairs = random(1, 9, DIM), DIM // HEADS // 2
    angles = module.project(x, x).angles
    assert angles is not None
    weights = [w.detach() for w in rotation.projections]
    gate, kernel = rotation.gate.detach(), convolution.weight.detach()
    assert kernel.std() > 0

    def usual(weight: Tensor) -> Tensor:  # of the variance with which PyTorch's layers begin
        return weight / (0.02 * math.sqrt(3 * weight.shape[1]))

    phi, phase, frequencies = [], torch.zeros(HEADS, pairs, dtype=torch.float64), rope_frequencies(2 * pairs)
    for t in range(9):
        token = torch.nn.functional.normalize(x[0, t].view(HEADS, -1), dim=-1)
        if rank is None:
            columns = torch.nn.functional.normalize(weights[0].view(HEADS, pairs, -1), dim=-1)
            phi.append((columns * token[:, None]).sum(-1).flatten())
        else:
            phi.append(usual(weights[1]) @ usual(weights[0]) @ token.flatten())
        last = [phi[s] if s >= 0 else torch.zeros_like(phi[0]) for s in range(t - 3, t + 1)]
        speed = (torch.stack(last, dim=-1) * usual(kernel)).sum(-1).view(HEADS, pairs) + 1
        phase = phase + speed * (usual(gate) @ token.flatten()).sigmoid()[:, None]
        assert_near(angles[0, :, t].cos(), (phase * frequencies).cos())


@pytest.mark.parametrize("kernel", KERNELS)
def test_without_additions_the_state_dict_is_what_it_was(kernel: str) -> None:
    names = {name.split(".")[0] for name in made(kernel).state_dict()}
    assert names <= {"query", "key", "value", "out", "feature_map"}
    fixed, plain = made(kernel, decay="fixed"), made(kernel)
    fixed.load_state_dict(plain.state_dict(), strict=True)


def test_gates_and_fixed_decays_begin_as_they_say() -> None:
    x = torch.zeros(1, 3, DIM)
    kept = GatedDecay(DIM, 4)(x).exp()
    torch.testing.assert_close(kept[0, :, 0], 1 - torch.tensor([2, 11 / 3, 16 / 3, 7]).neg().exp2())
    tempered = GatedDecay(DIM, 4, temperature=16)(x)
    torch.testing.assert_close(tempered.exp(), kept)
    shares = {
        "fixed": 1 - torch.tensor([1, 3, 5, 7]).neg().exp2(),
        "alibi": torch.tensor([2, 4, 6, 8]).neg().exp2().neg().exp(),
        "retnet": 1 - torch.tensor([5, 6, 7, 8]).neg().exp2(),
    }
    for name, expected in shares.items():
        decay = make_decay(name, DIM, 4)
        assert decay is not None
        torch.testing.assert_close(decay(x).exp(), expected.view(1, 4, 1).expand(1, 4, 3))
    module = made("elu+1", decay=FixedDecay(torch.tensor([-0.5, -torch.inf])))
    assert module(random(1, 5, DIM)).isfinite().all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"decay": "slow"}, ["decay", "slow", "fixed"]),
        ({"decay": GatedDecay(DIM, 3)}, ["decay", "3 heads", "2"]),
        ({"rope_angles": "free"}, ["rope_angles", "free", "selective"]),
        ({"rope_angles": "selective", "rope": "none"}, ["rope_angles", "rope"]),
        ({"local_conv": 1}, ["local_conv", "1", "2"]),
        ({"short_conv": -2}, ["short_conv", "-2"]),
        ({"qk_norm": "no"}, ["qk_norm", "'no'", "True"]),
    ],
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_what_does_not_fit_is_refused(kernel: str, options: dict[str, Any], words: list[str]) -> None:
    assert_refused(lambda: made(kernel, **options), words)


@pytest.mark.parametrize(("kernel", "options"), list(itertools.product(KERNELS, ALONG_ONE_SEQUENCE)))
def test_a_context_is_refused(kernel: str, options: dict[str, Any]) -> None:
    module = made(kernel, causal=False, **options)
    with pytest.raises(ValueError, match=r"^context was given, but .* make it without$") as error:
        module(random(2, 3, DIM), context=random(2, 3, DIM))
    named = {name for name in ("decay", "rope_angles", "local_conv", "short_conv") if name in str(error.value)}
    assert named == set(options)
