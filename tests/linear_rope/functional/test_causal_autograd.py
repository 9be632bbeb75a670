"""Causal attention in training: derivatives by hand, blocks and groups, buffers that are used again, memory.

The reference is differentiated by autograd. Tolerances against it are those of test_linear_attention.py: 1e-10 of the
largest value in float64. ``denominator="rotated"`` is compared at positions in [0, 0.1), where nothing cancels, as
there.
"""

import importlib
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

from linear_rope import EluPlusOne, FavorPlus, FeatureMap, LinearRoPEAttention, ReluFeatures, linear_attention
from linear_rope.features import Features, GivenFeatures
from linear_rope.functional import causal_autograd, chunked
from linear_rope.functional.chunked import CHUNK_SIZE
from linear_rope.functional.rotated_features import Rope

B, H, D, M = 3, 3, 4, 6
SETTINGS = [("after", name) for name in ("unrotated", "rotated", "none")]
SETTINGS += [(rope, name) for rope in ("before", "none") for name in ("unrotated", "none")]


class Learned(FeatureMap):
    """exp(x W) with a matrix for each head, scaled as FAVOR+ is; W is (H, D, M), the temperature a scalar."""

    def __init__(self, heads: int = H) -> None:
        super().__init__(D, M)
        self.weight = nn.Parameter(random(heads, D, M, seed=50))
        self.temperature = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def features(self, x: Tensor) -> Features:
        projected = x @ self.weight.to(x.dtype) * self.temperature.to(x.dtype)
        largest = projected.detach().amax(-1, keepdim=True)
        return Features((projected - largest).exp(), largest)


class Plain(FeatureMap):
    """A user's map without a scale of its own, and with a parameter that only some inputs reach."""

    def __init__(self) -> None:
        super().__init__(D, D)
        self.slope = nn.Parameter(random(D, seed=51))
        self.unused = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def features(self, x: Tensor) -> Features:
        return Features(nn.functional.softplus(x * self.slope.to(x.dtype)) + 0.1, None)


# ε is relative to a maximum, which is a constant for autograd; without it gradients are those of the function itself.
MAPS: dict[str, Callable[[], FeatureMap]] = {
    "favor+": lambda: FavorPlus(D, M, eps=0.0),
    "favor+hyperbolic": lambda: FavorPlus(D, M, hyperbolic=True, eps=0.0),
    "favor+paired": lambda: FavorPlus(D, M, paired=True, eps=0.0),
    "elu+1": EluPlusOne,
    "elu+1+paired": lambda: EluPlusOne(paired=True),
    "relu": lambda: ReluFeatures(eps=1e-1),
    "learned": Learned,
    "plain": Plain,
}
BY_NAME = pytest.mark.parametrize("name", MAPS)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_qkv(length: int, *, batch: int = B, heads: int = H, width: int = D, seed: int = 0) -> list[Tensor]:
    return [random(batch, heads, length, width, seed=3 * seed + i).requires_grad_() for i in range(3)]


def some_padding(batch: int, length: int) -> Tensor:
    """Scattered padding that leaves the first sequence whole, and of the others the first token at least."""
    mask = torch.rand(batch, length, generator=torch.Generator().manual_seed(0)) < 0.3
    mask[0] = mask[:, 0] = False
    return mask


def options_of(feature_map: FeatureMap, rope: str, denominator: str, length: int) -> dict[str, Any]:
    positions = torch.arange(length) / (10 * length) if denominator == "rotated" else torch.arange(length)
    return dict(feature_map=feature_map, rope=rope, denominator=denominator, causal=True, positions=positions)


def gradients(qkv: list[Tensor], implementation: str = "chunked", **options: Any) -> tuple[Tensor, list[Tensor]]:
    """The output, and the gradients of q, k, v and of all that the feature map learns, zero where there is none."""
    held = (*options["feature_map"].parameters(), *options["feature_map"].buffers())
    wanted = [*qkv, *(x for x in held if x.requires_grad)]
    output = linear_attention(*qkv, implementation=implementation, **options)
    found = torch.autograd.grad(output, wanted, random(*output.shape, seed=99).to(output), allow_unused=True)
    return output.detach(), [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]


def assert_near(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    largest = float(expected.detach().abs().max())
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * largest)


def assert_agree(actual: tuple[Tensor, list[Tensor]], expected: tuple[Tensor, list[Tensor]]) -> None:
    """Gradients on one scale: that of q is zero but for rounding where there is one token."""
    assert_near(actual[0], expected[0])
    got, wanted = (torch.cat([gradient.flatten() for gradient in result[1]]) for result in (actual, expected))
    assert_near(got, wanted)


def assert_identical(actual: tuple[Tensor, list[Tensor]], expected: tuple[Tensor, list[Tensor]]) -> None:
    for got, wanted in zip((actual[0], *actual[1]), (expected[0], *expected[1]), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("length", [1, 70])
@BY_NAME
def test_gradients_are_those_of_finite_differences(name: str, length: int) -> None:
    """Central differences with steps of 1e-6 are off by 1e-12 times third derivatives, and by rounding of 1e-16 / 1e-6;
    both are multiplied by sums over 70·M terms."""
    for rope, denominator in SETTINGS:
        for mask in (None, some_padding(2, length))[rope != "after" :]:
            feature_map = MAPS[name]()
            options = options_of(feature_map, rope, denominator, length) | {"key_padding_mask": mask}
            qkv = random_qkv(length, batch=2)

            def attend(q: Tensor, k: Tensor, v: Tensor, *held: Tensor, options: dict[str, Any] = options) -> Tensor:
                return linear_attention(q, k, v, implementation="chunked", **options)

            inputs = (*qkv, *feature_map.parameters())
            assert torch.autograd.gradcheck(attend, inputs, fast_mode=True, atol=1e-6, rtol=1e-5), (rope, denominator)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], list[tuple[int, ...]]]:
    """Makes blocks of two chunks, and groups of as many heads as are asked for; gives the shapes of blocks."""
    shapes: list[tuple[int, ...]] = []
    block_sums = chunked.block_sums

    def spy(terms: Any, *args: Any) -> Any:
        shapes.append(tuple(terms.q.shape))
        return block_sums(terms, *args)

    def set_rows(rows: int, features: int) -> list[tuple[int, ...]]:
        monkeypatch.setattr(causal_autograd, "BLOCK_ELEMENTS", {"cpu": rows * features * 2 * CHUNK_SIZE})
        shapes.clear()
        return shapes

    for module in (chunked, causal_autograd):
        monkeypatch.setattr(module, "BLOCK_CHUNKS", 2)
    monkeypatch.setattr(causal_autograd, "block_sums", spy)
    return set_rows


LONG = 2 * 2 * CHUNK_SIZE + 37
# What a group holds of 3 sequences with 3 heads, by how many heads fit into it.
GROUPS = {2: [(1, 2), (1, 1)] * 3, 6: [(2, 3), (1, 3)]}


@BY_NAME
@pytest.mark.parametrize("rows", GROUPS)
def test_blocks_and_groups_are_one_whole(
    rows: int, name: str, small_blocks: Callable[[int, int], list[tuple[int, ...]]]
) -> None:
    feature_map = MAPS[name]()
    features = feature_map.count(D)
    qkv = random_qkv(LONG)
    for rope, denominator in SETTINGS:
        options = options_of(feature_map, rope, denominator, LONG) | {"key_padding_mask": some_padding(B, LONG)}
        # Other positions for each sequence.
        options["positions"] = options["positions"] * torch.tensor([[1.0], [0.5], [0.9]])
        shapes = small_blocks(rows, features)
        actual = gradients(qkv, **options)
        whole = [(B, H)] if isinstance(feature_map, Learned | Plain) else GROUPS[rows]
        assert [shape[:2] for shape in shapes if shape[2] == 37] == whole
        assert len(shapes) >= 3 * len(whole)
        assert_agree(actual, gradients(qkv, "reference", **options))


@pytest.mark.parametrize("grad", [False, True])
@BY_NAME
@pytest.mark.parametrize("rope", ["after", "none"])
def test_prefill_and_steps_go_on_from_blocks_and_groups(
    rope: Rope, name: str, grad: bool, small_blocks: Callable[[int, int], list[tuple[int, ...]]]
) -> None:
    torch.manual_seed(0)
    feature_map = MAPS[name]()
    module = LinearRoPEAttention(H * D, H, feature_map=feature_map, rope=rope, causal=True).double()
    x, prompt = random(B, LONG + 3, H * D).requires_grad_(), LONG
    mask = some_padding(B, LONG + 3)
    mask[:, prompt:] = False
    shapes = small_blocks(2, feature_map.count(D))
    with torch.set_grad_enabled(grad):
        y, state = module.prefill(x[:, :prompt], key_padding_mask=mask[:, :prompt])
        outputs = [y]
        for index in range(prompt, prompt + 3):
            y, state = module.step(x[:, index : index + 1], state)
            outputs.append(y)
    assert grad or len(shapes) >= 3
    actual = torch.cat(outputs, dim=1)
    expected = module(x, key_padding_mask=mask)
    assert_near(actual, expected)
    if grad:
        wanted = [x, *module.parameters()]
        upstream = random(*expected.shape, seed=1)
        pairs = (torch.autograd.grad(y, wanted, upstream, allow_unused=True) for y in (actual, expected))
        for got, wished in zip(*pairs, strict=True):
            assert (got is None) == (wished is None)
            if got is not None and wished is not None:
                assert_near(got, wished)


@BY_NAME
@pytest.mark.parametrize("grad", [False, True])
def test_later_calls_do_not_write_into_earlier_results(name: str, grad: bool) -> None:
    feature_map = MAPS[name]()
    module = LinearRoPEAttention(H * D, H, feature_map=feature_map, causal=True).double()
    others = [random_qkv(100, seed=1), random_qkv(300, seed=2), random_qkv(7, batch=1, seed=3)]
    others.append([x.detach().float().requires_grad_() for x in others[0]])
    x = random(B, 100, H * D)
    with torch.set_grad_enabled(grad):
        for rope, denominator in SETTINGS:
            options = options_of(feature_map, rope, denominator, 100)
            output = linear_attention(*random_qkv(100), **options)
            kept = output.detach().clone()
            prefix, state = module.prefill(x)
            memory = (prefix.detach().clone(), state.sums.memory.detach().clone())
            for qkv in others:
                del options["positions"]
                options["positions"] = torch.arange(qkv[0].shape[2])
                later = linear_attention(*qkv, **options)
                if grad:
                    later.sum().backward()
            module.prefill(2 * x)
            torch.testing.assert_close(output, kept, rtol=0, atol=0)
            torch.testing.assert_close(prefix, memory[0], rtol=0, atol=0)
            torch.testing.assert_close(state.sums.memory, memory[1], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["favor+", "elu+1", "learned"])
def test_other_calls_between_forward_and_backward_change_no_gradient(name: str) -> None:
    options = options_of(MAPS[name](), "after", "unrotated", 100)
    qkv, other = random_qkv(100), random_qkv(100, seed=1)
    expected = gradients(qkv, **options)
    output = linear_attention(*qkv, **options)
    gradients(other, **options)
    found = torch.autograd.grad(output, qkv, random(*output.shape, seed=99))
    assert_identical((output.detach(), list(found)), (expected[0], expected[1][:3]))


@pytest.mark.parametrize("name", ["favor+", "elu+1", "learned"])
def test_threads_do_not_disturb_each_other(name: str) -> None:
    """Bit for bit what each call gives alone; the threads take turns as often as Python lets them."""
    options = options_of(MAPS[name](), "after", "unrotated", 100)
    tasks = [random_qkv(100, seed=seed) for seed in range(2)]
    alone = [gradients(qkv, **options) for qkv in tasks]
    start = threading.Barrier(len(tasks), timeout=30)

    def work(qkv: list[Tensor]) -> list[tuple[Tensor, list[Tensor]]]:
        torch.set_num_threads(1)
        start.wait()
        return [gradients(qkv, **options) for _ in range(8)]

    interval, threads = sys.getswitchinterval(), torch.get_num_threads()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(len(tasks)) as pool:
            results = list(pool.map(work, tasks))
    finally:
        sys.setswitchinterval(interval)
        torch.set_num_threads(threads)
    for expected, found in zip(alone, results, strict=True):
        for actual in found:
            assert_identical(actual, expected)


def test_training_after_a_first_call_in_inference_mode() -> None:
    options = options_of(FavorPlus(D, M), "after", "unrotated", 100)
    qkv = random_qkv(100)

    def infer_then_train() -> tuple[Tensor, list[Tensor]]:
        with torch.inference_mode():
            linear_attention(*qkv, **options)
        return gradients(qkv, **options)

    # In a thread of its own, whose first call this is.
    with ThreadPoolExecutor(1) as pool:
        actual = pool.submit(infer_then_train).result()
    assert_identical(actual, gradients(qkv, **options))


@BY_NAME
def test_backward_twice_gives_the_same(name: str) -> None:
    feature_map = MAPS[name]()
    qkv = random_qkv(100)
    wanted = [*qkv, *feature_map.parameters()]
    for rope, denominator in SETTINGS:
        output = linear_attention(*qkv, **options_of(feature_map, rope, denominator, 100))
        upstream = random(*output.shape, seed=1)
        results = [
            torch.autograd.grad(output, wanted, upstream, retain_graph=True, allow_unused=True) for _ in range(2)
        ]
        for first, second in zip(*results, strict=True):
            torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("rope", ["after", "before", "none"])
def test_a_redraw_leaves_pending_backward_passes_their_features(rope: str, learned: bool) -> None:
    """``learned`` takes the path of maps that are differentiated by autograd."""
    separate, outputs = [], []
    together = [random_qkv(70, seed=seed) for seed in range(2)]
    feature_map = FavorPlus(D, M)
    for draw, qkv in enumerate(together):
        options = options_of(feature_map, rope, "unrotated", 70)
        feature_map.redraw(draw)
        feature_map.omega.requires_grad_(learned)
        separate.append(gradients(qkv, **options)[1][:3])
    for draw, qkv in enumerate(together):
        feature_map.redraw(draw)
        feature_map.omega.requires_grad_(learned)
        outputs.append(linear_attention(*qkv, **options))
    upstream = random(*outputs[0].shape, seed=99)
    sum((output * upstream).sum() for output in outputs).backward()  # type: ignore[union-attr]
    for qkv, expected in zip(together, separate, strict=True):
        for x, gradient in zip(qkv, expected, strict=True):
            torch.testing.assert_close(x.grad, gradient, rtol=0, atol=0)


def test_changing_a_feature_map_in_place_before_backward_is_an_error() -> None:
    """Gradients of a mixture of old and new features would be silently wrong."""
    learned, favor = Learned(), FavorPlus(D, M)
    for feature_map, held in ((learned, learned.weight), (favor, favor.omega)):
        output = linear_attention(*random_qkv(70), **options_of(feature_map, "after", "unrotated", 70))
        with torch.no_grad():
            held.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()


class Squared(FavorPlus):
    """A subclass that maps in another way."""

    def features(self, x: Tensor) -> Features:
        values, log_scale = super().features(x)
        return Features(values.square(), None if log_scale is None else 2 * log_scale)


class ShiftedElu(EluPlusOne):
    """The same, of a map without draws."""

    def features(self, x: Tensor) -> Features:
        return Features(super().features(x - 1).values, None)


class OneSided(FavorPlus):
    """A subclass that maps queries in another way than keys."""

    def queries(self, q: Tensor) -> Features:
        return super().queries(q / 2)


def with_trained_draw() -> FavorPlus:
    feature_map = FavorPlus(D, M)
    feature_map.omega.requires_grad_(True)
    return feature_map


USERS: dict[str, Callable[[], FeatureMap]] = {
    "per head": Learned,
    "unused parameter": Plain,
    "subclass": lambda: Squared(D, M),
    "subclass of elu+1": ShiftedElu,
    "other queries": lambda: OneSided(D, M),
    "omega learns": with_trained_draw,
}


@pytest.mark.parametrize("user", USERS)
def test_maps_of_users_are_used_as_they_are(user: str) -> None:
    """Two float32 parameters' gradients are rounded to 6e-8; all else is float64."""
    feature_map, qkv = USERS[user](), random_qkv(150)
    if user == "omega learns":
        feature_map = feature_map.double()
        feature_map.get_buffer("omega").requires_grad_(True)
    for rope, denominator in SETTINGS:
        options = options_of(feature_map, rope, denominator, 150) | {"key_padding_mask": some_padding(B, 150)}
        actual, expected = gradients(qkv, **options), gradients(qkv, "reference", **options)
        assert_agree(actual, expected)
        for got, wanted in zip(actual[1][3:], expected[1][3:], strict=True):
            assert_near(got, wanted)
        if user in ("per head", "omega learns"):
            assert len(actual[1]) > 3
            assert all(gradient.any() for gradient in actual[1])


@BY_NAME
def test_second_derivatives_are_refused_or_right(name: str) -> None:
    feature_map = MAPS[name]()
    qkv = random_qkv(5, batch=1)
    options = options_of(feature_map, "after", "unrotated", 5)
    output = linear_attention(*qkv, implementation="chunked", **options)
    # Also for a loss that is linear in the output, whose gradient would come back as if it were a constant.
    for loss in (output.square().sum(), output.sum()):
        with pytest.raises(RuntimeError, match='implementation="reference"'):
            torch.autograd.grad(loss, qkv[:1], create_graph=True)

    def attend(*qkv: Tensor) -> Tensor:
        return linear_attention(*qkv, implementation="reference", **options)

    assert torch.autograd.gradgradcheck(attend, qkv, fast_mode=True, atol=1e-5)


# What vmap has no rule for it does one by one, with this warning.
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("rope", ["after", "before", "none"])
@pytest.mark.parametrize("name", ["favor+", "elu+1", "learned"])
def test_function_transforms_equal_autograd(name: str, rope: str) -> None:
    options = options_of(MAPS[name](), rope, "unrotated", 70)
    qkv = [torch.stack((a, b)).detach() for a, b in zip(random_qkv(70), random_qkv(70, seed=1), strict=True)]
    upstream = random(*qkv[0].shape[1:], seed=99)
    expected = [gradients([x[i].clone().requires_grad_() for x in qkv], **options) for i in range(2)]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return linear_attention(q, k, v, **options)

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (attend(q, k, v) * upstream).sum()

    assert_near(torch.func.vmap(attend)(*qkv), torch.stack([output for output, _ in expected]))
    first = torch.func.grad(loss, argnums=(0, 1, 2))(*(x[0] for x in qkv))
    each = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*qkv)
    for index in range(3):
        assert_near(first[index], expected[0][1][index])
        assert_near(each[index], torch.stack([found[index] for _, found in expected]))


def kept_for_backward(length: int, feature_map: FeatureMap, **options: Any) -> float:
    """Numbers per token and head that a causal call keeps: whole storages, each once."""
    storages: dict[int, float] = {}
    alive = []

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        alive.append(storage)
        storages[storage.data_ptr()] = storage.nbytes() / x.element_size()
        return x

    qkv = random_qkv(length, batch=1, heads=4, width=64)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        output = linear_attention(*qkv, feature_map=feature_map, causal=True, **options)
    assert output.requires_grad
    return sum(storages.values()) / (4 * length)


@pytest.mark.parametrize(("rope", "denominator"), SETTINGS)
def test_what_is_kept_for_backward_is_narrower_than_features(
    rope: str, denominator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """q, k, v and the output of width D, the gain, C weights a token; before each block of 1024 positions M·(D + 1)
    numbers of state and M of the denominator's; the rotations, M a token for all four heads together; 10 % for the
    last, shorter chunk and what belongs to no token. One tensor of features would be M = 256 more."""
    width, features, heads = 64, 256, 4
    feature_map = FavorPlus(width, features)
    bound = 1.1 * (4 * width + 1 + CHUNK_SIZE + features * (width + 2) / 1024 + features / heads)
    kept = {n: kept_for_backward(n, feature_map, rope=rope, denominator=denominator) for n in (550, 1024, 2048)}
    assert max(kept.values()) <= bound
    # The same sums, differentiated by autograd: the bound tells them apart.
    module = importlib.import_module("linear_rope.functional.linear_attention")
    monkeypatch.setattr(module, "is_eager", lambda *tensors: False)
    assert kept_for_backward(550, feature_map, rope=rope, denominator=denominator) > bound + features


def test_fake_tensors_neither_see_nor_leave_buffers() -> None:
    """They have shapes and no values; a buffer that came from them would be garbage for the next call."""
    options = dict(feature_map=EluPlusOne(), causal=True)
    qkv = random_qkv(70)
    expected = gradients(qkv, "reference", **options)

    def real() -> tuple[Tensor, list[Tensor]]:
        return gradients(qkv, **options)

    def fake() -> None:
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert linear_attention(*(torch.empty(B, H, 70, D) for _ in range(3)), **options).shape == (B, H, 70, D)

    for order in ((fake, real), (real, fake, real)):
        with ThreadPoolExecutor(1) as fresh_thread:
            results = [fresh_thread.submit(step).result() for step in order]
        assert_agree(results[-1], expected)


def test_changing_a_mask_or_positions_before_the_backward_pass_is_an_error() -> None:
    mask = torch.zeros(B, 70, dtype=torch.bool)
    output = linear_attention(*random_qkv(70), feature_map=EluPlusOne(), causal=True, key_padding_mask=mask)
    mask[:, :3] = True
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_redraws_in_inference_mode_do_not_break_training() -> None:
    module = LinearRoPEAttention(8, 2, causal=True, redraw_every=1)
    x = torch.randn(1, 5, 8)
    module(x)
    with torch.inference_mode():
        module(x)
    module(x).sum().backward()


@pytest.mark.parametrize("causal", [True, False])
@BY_NAME
def test_an_empty_batch_gives_an_empty_output(name: str, causal: bool) -> None:
    qkv = random_qkv(7, batch=0)
    output = linear_attention(*qkv, feature_map=MAPS[name](), causal=causal)
    assert output.shape == (0, H, 7, D)
    output.sum().backward()
    assert all(x.grad is not None and x.grad.shape == x.shape for x in qkv)


def test_values_may_have_another_width_and_begin_anywhere_in_memory() -> None:
    """Rotation takes pairs of channels as complex numbers, which cannot begin in the middle of a pair."""
    flat = random(1 + B * H * 70 * D)[1:]
    q = flat.view(B, H, 70, D).requires_grad_()
    qkv = [q, random_qkv(70)[1], random(B, H, 70, 5).requires_grad_()]
    for rope in ("after", "before"):
        options = dict(feature_map=FavorPlus(D, M), rope=rope, causal=True)
        assert_agree(gradients(qkv, **options), gradients(qkv, "reference", **options))


@pytest.mark.parametrize(("rope", "denominator"), SETTINGS)
def test_given_features_are_used_and_left_as_they_are(rope: str, denominator: str) -> None:
    """No copy is made of them, so nothing may be written into them."""
    qkv = [x.detach().abs().requires_grad_() for x in random_qkv(150)]
    before = [x.detach().clone() for x in qkv]
    for mask in (None, some_padding(B, 150)):
        options = options_of(GivenFeatures(), rope, denominator, 150) | {"key_padding_mask": mask}
        assert_agree(gradients(qkv, **options), gradients(qkv, "reference", **options))
    assert all(torch.equal(x, copy) for x, copy in zip(qkv, before, strict=True))


class Noisy(Plain):
    """Draws random numbers at each call."""

    def features(self, x: Tensor) -> Features:
        return Features(nn.functional.dropout(super().features(x).values, 0.5), None)


class NoisyKeys(Plain):
    """Draws random numbers for keys alone."""

    def keys(self, x: Tensor) -> Features:
        return Features(self.features(x).values * torch.rand(()), None)


class Unregistered(Plain):
    """Learns a tensor that is not one of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [torch.ones(D, dtype=torch.float64, requires_grad=True)]

    def features(self, x: Tensor) -> Features:
        return Features(super().features(x).values * self.hidden[0].to(x.dtype), None)


@pytest.mark.parametrize(
    ("make", "says"), [(Noisy, "random numbers"), (NoisyKeys, "random numbers"), (Unregistered, "nn.Parameter")]
)
def test_maps_that_cannot_map_again_are_refused(make: Callable[[], FeatureMap], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        linear_attention(*random_qkv(7), feature_map=make(), causal=True)


# PyTorch's own tables of forward-mode derivatives are written in TorchScript.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_forward_mode_derivatives_equal_those_of_the_reference() -> None:
    qkv = [x.detach() for x in random_qkv(70)]
    tangent = random(*qkv[0].shape, seed=7)
    found = []
    for implementation in ("chunked", "reference"):
        with forward_ad.dual_level():
            q = forward_ad.make_dual(qkv[0], tangent)
            options = dict(feature_map=FavorPlus(D, M), causal=True, implementation=implementation)
            found.append(forward_ad.unpack_dual(linear_attention(q, *qkv[1:], **options)).tangent)
    assert_near(*found)


def test_freezing_features_before_the_backward_pass_changes_nothing() -> None:
    feature_map = FavorPlus(D, M).double()
    feature_map.omega.requires_grad_(True)
    options = dict(feature_map=feature_map, causal=True)
    qkv = random_qkv(70)
    expected = gradients(qkv, **options)
    output = linear_attention(*qkv, **options)
    wanted = [*qkv, feature_map.omega]
    frozen = feature_map.omega
    feature_map.omega = frozen.detach().clone()
    found = torch.autograd.grad(output, wanted, random(*output.shape, seed=99))
    assert_identical((output.detach(), list(found)), expected)
