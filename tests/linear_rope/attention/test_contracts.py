"""What holds for every attention module: decoding, causality, padding, segments, weights, gradients, saved states."""

import copy
import io
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from linear_rope import FeatureMap, LinearRoPEAttention, SoftmaxRoPEAttention
from linear_rope.diagnostics.attention_weights import attention_matrices
from linear_rope.positions import Decay
from tests.linear_rope.attention.modules import ALL_NORMED, CASES, DIM, KERNELS, MODULES, made, make
from tests.linear_rope.tensors import (
    AUTO_OR_TRITON,
    HEADS,
    assert_identical,
    assert_near,
    assert_refused,
    in_steps,
    random,
    take,
)

LENGTH = 70
EVERY = pytest.mark.parametrize("name", MODULES)
EITHER_WAY = pytest.mark.parametrize(("name", "causal"), CASES)
IDS = torch.tensor([[0] * 7 + [3] + [5] * 42 + [2] * 20, [4] * 20 + [1] * 50])


def gradients(y: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    upstream, options = random(*y.shape, seed=99), {"allow_unused": True, "materialize_grads": True}
    return list(torch.autograd.grad(y, wanted, upstream, retain_graph=True, **options))


def some_padding() -> Tensor:
    """On the left, in the middle of what follows, in scattered places, and none; (4, 70)."""
    place = torch.arange(LENGTH)
    mask = torch.stack((place < 7, (place >= 30) & (place < 36) | (place > 62), place % 4 == 2, place < 0))
    mask[:, 67:] = False
    return mask


@EVERY
def test_prompt_and_steps_are_the_whole_sequence_with_its_gradients(name: str) -> None:
    """And the output of a prefix is the prefix of the output."""
    module = make(name)
    # Steps are equal to each other, and slow: many of them after a short prompt, few around the end of a chunk.
    for length, prompts in ((12, (1,)), (67, (63, 66))):
        x = random(2, length, DIM).requires_grad_()
        expected, wanted = module(x), [x, *module.parameters()]
        for prompt in prompts:
            actual = in_steps(module, x, prompt)
            assert_near([actual, *gradients(actual, wanted)], [expected, *gradients(expected, wanted)])
            with torch.no_grad():
                assert_near(in_steps(module, x, prompt), expected)
                assert_near(module(x[:, :prompt]), expected[:, :prompt])


@EITHER_WAY
def test_padding_has_no_influence_and_no_output(name: str, causal: bool) -> None:
    module, x, mask = make(name, causal=causal), random(4, LENGTH, DIM), some_padding()
    expected = torch.cat([module(x[row : row + 1, keep])[0] for row, keep in enumerate(~mask)])
    wanted = gradients(expected, [*module.parameters()])
    padded = x.masked_fill(mask.unsqueeze(-1), math.nan)
    outputs = [module(padded, key_padding_mask=mask)]
    outputs += [in_steps(module, padded, 67, mask[:, :67])] if causal else []
    for y in outputs:
        assert not y[mask].any()
        assert_near(y[~mask], expected)
        assert_near(gradients(y[~mask], [*module.parameters()]), wanted)
    assert module(x[:0], key_padding_mask=mask[:0]).shape == x[:0].shape
    # A sequence of padding alone gives zeros and finite gradients.
    x = random(2, 6, DIM).requires_grad_()
    y = module(x, key_padding_mask=torch.tensor([[True], [False]]).expand(2, 6))
    assert not y[0].any()
    found = gradients(y, [x, *module.parameters()])
    assert all(gradient.isfinite().all() for gradient in found)
    assert not found[0][0].any()


@EITHER_WAY
def test_weights_reproduce_the_output(name: str, causal: bool) -> None:
    module, x, mask = make(name, causal=causal), random(4, LENGTH, DIM), some_padding()
    held = x.masked_fill(mask.unsqueeze(-1), math.nan)
    weights = module.attention_weights(held, mask)
    assert weights.shape == (4, HEADS, LENGTH, LENGTH)
    assert not weights.transpose(1, 2)[mask].any()
    assert not weights.permute(0, 3, 1, 2)[mask].any()
    assert not (causal and weights.triu(1).any())
    projected = module.project(held, None, mask)
    y = weights @ projected.by_query().v
    if getattr(module, "score_positions", None) is not None:  # they may add to the values, with the same weights
        at = ((~mask).cumsum(-1) - 1).clamp(min=0).unsqueeze(1)
        added = module.score_positions.values(weights, at, at)
        y = y if added is None else y + added
    assert_near(module._merge(y, projected), module(held, key_padding_mask=mask))
    if isinstance(module, LinearRoPEAttention | SoftmaxRoPEAttention):
        matrices = attention_matrices(module, held, mask)
        assert_near(matrices.weights, weights)
        assert not any(each.transpose(1, 2)[mask].any() for each in matrices[:3])


@EITHER_WAY
def test_a_segment_is_as_if_it_were_alone(name: str, causal: bool) -> None:
    """With padding every second one, where ids are not read."""
    module, padding, ids = make(name, causal=causal), None, IDS
    if CASES.index((name, causal)) % 2:  # at both ends of segments, in the middle, and one whole segment
        padding = torch.zeros(2, LENGTH, dtype=torch.bool)
        padding[0, [0, 1, 7, 30, 31, 48, 49]] = padding[1, [20, 21, 68, 69]] = True
        ids = IDS.masked_fill(padding, 9)
    x = random(2, LENGTH, DIM).requires_grad_()
    wanted = torch.zeros_like(x)
    found_weights = module.attention_weights(x, padding, segment_ids=ids)
    is_measured = isinstance(module, LinearRoPEAttention | SoftmaxRoPEAttention)
    matrices = attention_matrices(module, x, padding, segment_ids=ids)[:3] if is_measured else ()
    for row in range(2):
        for segment in IDS[row].unique():
            at = (IDS[row] == segment).nonzero().squeeze(-1)
            alone, of = x[row, at].unsqueeze(0), None if padding is None else padding[row, at].unsqueeze(0)
            wanted = wanted.index_put((torch.tensor(row), at), module(alone, key_padding_mask=of)[0])
            weights = found_weights[row][:, at]
            assert_near(weights[..., at], module.attention_weights(alone, of)[0])
            assert not weights[..., IDS[row] != segment].any()
            if is_measured and not (of is not None and of.all()):
                expected = attention_matrices(module, alone, of)[:3]
                assert_near([each[row][:, at][..., at] for each in matrices], [each[0] for each in expected])
    found = module(x, key_padding_mask=padding, segment_ids=ids)
    inputs = [x, *module.parameters()]
    assert_near([found, *gradients(found, inputs)], [wanted, *gradients(wanted, inputs)])


@EVERY
def test_pieces_of_a_prompt_are_as_the_whole(name: str) -> None:
    module, following, mask = make(name), random(4, 1, DIM, seed=3), some_padding()
    x = random(4, LENGTH, DIM).requires_grad_()
    for padding, sizes in ((None, [LENGTH - 1, 1]), (mask, [1, 2, 3, 4, 45, 15])):
        wanted, end = module.prefill(x, padding)
        outputs, state = list[Tensor](), None
        for at in torch.arange(LENGTH).split(sizes):
            piece = None if padding is None else padding[:, at]
            # A piece without padding can come without a mask.
            piece = piece if piece is None or piece.any() else None
            y, state = module.prefill(x[:, at], piece, state=state)
            outputs.append(y)
        found = torch.cat(outputs, dim=1)
        inputs = [x, *module.parameters()]
        assert_near([found, *gradients(found, inputs)], [wanted, *gradients(wanted, inputs)])
        assert_near(module.step(following, state)[0], module.step(following, end)[0])


@pytest.mark.parametrize(("name", "causal"), [*CASES[: len(MODULES)], *CASES[len(MODULES) :: 3]])
def test_gradients_are_those_of_finite_differences(name: str, causal: bool) -> None:
    module, x = make(name, causal=causal), random(1, 5, DIM).requires_grad_()
    names, parameters = zip(*module.named_parameters(), strict=True)

    def forward(x: Tensor, *parameters: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (x,))
        return result

    assert torch.autograd.gradcheck(forward, (x, *parameters), fast_mode=True, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_sequences_give_none(kernel: str) -> None:
    module, x = made(kernel, **ALL_NORMED), random(0, 5, DIM)
    assert module(x).shape == in_steps(module, x, 3).shape == (0, 5, DIM)
    assert module(x, segment_ids=torch.zeros(0, 5, dtype=torch.int64)).shape == (0, 5, DIM)
    module(x).sum().backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in module.parameters())


@EVERY
def test_states_change_places_are_saved_moved_and_detached(name: str) -> None:
    module, x, order = make(name), random(3, 12, DIM).requires_grad_(), torch.tensor([2, 0, 0])
    _, state = module.prefill(x[:, :11])
    wanted = module.step(x[:, 11:], state)[0]
    beams = tree_map(lambda part: None if part is None else part[order], state)
    assert_near(module.step(x[order, 11:], beams)[0], wanted[order])

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert type(loaded) is type(state)
    assert torch.equal(module.step(x[:, 11:], loaded)[0], wanted)

    y, _ = module.step(x[:, 11:].detach(), state.detach())
    assert torch.equal(y, wanted)
    assert torch.autograd.grad(y.sum(), x, allow_unused=True)[0] is None

    # float32 has 24 digits, of which a sum over ten tokens leaves some.
    small = state.to(torch.float32)
    assert small.position.dtype == torch.int64
    assert_near(module.step(x[:, 11:], small)[0], wanted, 1e-5)
    assert module.step(x[:, 11:], state.to("cpu", torch.float64))[0].equal(wanted)
    assert_refused(lambda: state.to(dtype=torch.int32), ["floating-point"])


@EVERY
def test_the_state_does_not_grow_and_is_float32_or_better(name: str) -> None:
    module, x = make(name).bfloat16(), random(1, 100, DIM).bfloat16()
    states = [module.prefill(x[:, :prompt])[1] for prompt in (1, 10, 99)]
    states += [module.step(x[:, 99:], state)[1] for state in states]
    sizes = {sum(tensor.numel() for tensor in tree_leaves(state) if tensor is not None) for state in states}
    assert (len(sizes) == 1) == (not isinstance(module, SoftmaxRoPEAttention))
    if isinstance(module, SoftmaxRoPEAttention) and module.window is not None:
        lengths = (1, 10, 99, 2, 11, 100)
        assert [state.k.shape[2] for state in states] == [min(length, module.window) for length in lengths]
    if isinstance(module, LinearRoPEAttention):
        kept = tree_leaves([(state.sums, state.position) for state in states])
        dtypes = {part.dtype for part in kept if part is not None}
        assert dtypes <= {torch.float32, torch.float64, torch.int64}


@EVERY
def test_weights_load_strictly_on_any_device_and_copies_are_independent(name: str) -> None:
    module, x = make(name), random(2, 9, DIM)
    state, expected = module.state_dict(), module(x)
    tensors = [value.data_ptr() for value in state.values() if value.numel() > 1]
    assert len(tensors) == len(set(tensors))
    own = isinstance(MODULES[name][1].get("feature_map"), FeatureMap)
    with torch.device("cpu" if own else "meta"):
        empty = make(name)
    for same, assign in ((copy.deepcopy(empty), True), (empty.to_empty(device="cpu"), False)):
        same.load_state_dict(copy.deepcopy(state), strict=True, assign=assign)
        assert_identical(same(x), expected)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        for tensor in (*twin.parameters(), *twin.buffers()):
            tensor.mul_(2)
    assert_identical(module(x), expected)


@pytest.mark.parametrize("form", AUTO_OR_TRITON)
@EVERY
def test_autocast_is_finite_and_close(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The projections are bfloat16 (8 bits: 0.4 %); features, angles, sums and denominators stay float32."""
    take(form, monkeypatch)
    module, x = make(name).float(), random(2, 130, DIM).float().requires_grad_()
    expected = module(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = [module(x), in_steps(module, x, 129)]
    for y in outputs:
        assert y.dtype == torch.bfloat16
        assert_near(y.float(), expected, 0.05)
    assert torch.autograd.grad(outputs[0].float().square().sum(), x)[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", KERNELS)
def test_outputs_and_gradients_are_finite_at_large_norms(kernel: str, dtype: torch.dtype) -> None:
    for options in ({}, ALL_NORMED):
        module = made(kernel, **options).to(dtype)
        # Beyond 20, Taylor's is refused: features/test_features.py
        for norm in (1.0, 20.0) if kernel == "taylor" else (1.0, 1e4):
            x = (random(2, 300, DIM) * norm).to(dtype).requires_grad_()
            y = module(x)
            assert y.isfinite().all()
            assert all(each.isfinite().all() for each in torch.autograd.grad(y.sum(), [x, *module.parameters()]))


@pytest.mark.parametrize("kernel", ["delta", "elu+1"])
def test_gradients_of_a_token_of_zeros_are_of_a_size_that_training_survives(kernel: str) -> None:
    """Two norms, each with a smallest length of 1e-3: 1e6 times the weights."""
    module, x = made(kernel, rope_angles="selective"), random(2, 9, DIM)
    x[0, 1] = 0
    assert torch.autograd.grad(module(x.requires_grad_()).sum(), x)[0].abs().max() < 1e8


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_state_of_another_attention_is_refused(kernel: str) -> None:
    x, plain = random(2, 9, DIM), {} if kernel == "retention" else {"decay": "none"}
    others: list[dict[str, Any]] = [{"rope_angles": "selective"}, {"short_conv": 4}, {"local_conv": 4}, {"head_dim": 6}]
    # Sums over keys are the same with a decay, which fades them from the next token on.
    others += [{"decay": "gate"}] if kernel in ("softmax", "favor+window") else []
    others += [{"denominator": "none"}, {"feature_map": "favor+"}] if kernel == "elu+1" else []
    pairs = [(options, plain) for options in others] + [({name: 2}, {name: 4}) for name in ("short_conv", "local_conv")]
    for options, without in pairs:
        module, other = made(kernel, **plain | options), made(kernel, **plain | without)
        for one, another in ((other, module), (module, other)):
            _, state = one.prefill(x)
            for go_on in (lambda: another.step(x[:, :1], state), lambda: another.prefill(x, state=state)):  # noqa: B023
                for gradients in (True, False):
                    with torch.set_grad_enabled(gradients):
                        assert_refused(go_on, ["state", *options])
    module = made(kernel)
    _, state = module.prefill(x)
    wrong = made("delta" if kernel == "softmax" else "softmax")
    assert_refused(lambda: wrong.prefill(x, state=state), [wrong.state_type.__name__])
    assert_refused(lambda: module.prefill(x[:1], state=state), ["(1, 9, 8)", "(2, 9, 8)"])
    assert_refused(lambda: module.step(x, state), ["one token"])


STARTS = (0, 20, 21, 66, 80)


class Boundaries(Decay):
    """Keeps next to nothing at tokens whose first number is large."""

    def __init__(self, log_kept: float) -> None:
        super().__init__(HEADS)
        self.log_kept = log_kept

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x[..., 0] > 10, self.log_kept, x.new_tensor(-0.1)).unsqueeze(1).expand(-1, self.heads, -1)


@pytest.mark.parametrize("log_kept", [-math.inf, torch.finfo(torch.float32).min])
@pytest.mark.parametrize(
    ("kernel", "causal"),
    [*((kernel, True) for kernel in KERNELS), *((kernel, False) for kernel in ("softmax", "favor+", "elu+1"))],
)
def test_a_token_that_keeps_nothing_begins_a_sequence_of_its_own(kernel: str, causal: bool, log_kept: float) -> None:
    """ln a = −∞, or as masks have it; also token by token, after a padded prompt, and for padding behind it."""
    # FAVOR+ of rotated keys depends on where they are, not on distances alone.
    options = {"rope": "none"} if kernel == "favor+window" else {}
    module = made(kernel, causal=causal, decay=Boundaries(log_kept), **options)
    plain = made(kernel, causal=causal, decay=Boundaries(-math.inf), **options)
    x = random(2, STARTS[-1], DIM).clamp(max=3)
    x[:, STARTS[1:-1], 0] = 20.0
    expected = torch.cat([plain(x[:, start:end]) for start, end in itertools.pairwise(STARTS)], dim=1)
    assert_near(module(x), expected)
    padding, start = torch.zeros(2, STARTS[-1], dtype=torch.bool), STARTS[1]
    padding[:, :start] = True
    y = module(x, key_padding_mask=padding)
    assert_near(y[:, start:], plain(x[:, start:]))
    assert all(each.isfinite().all() for each in (y, *gradients(y, [*module.parameters()])))
    if causal:
        for prompt in (20, 65):
            assert_near(in_steps(module, x, prompt), expected)
        scattered = torch.arange(66).expand(2, -1) % 5 == 2
        y, state = module.prefill(x[:, :66], key_padding_mask=scattered)
        assert y.isfinite().all()
        assert_near(module.step(x[:, 66:67], state)[0], module(x[:, 66:67]))
