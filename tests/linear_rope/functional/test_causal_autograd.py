"""Causal attention in training: derivatives by hand, blocks and groups, buffers that are used again, memory.

The reference is differentiated by autograd. Tolerances against it are those of test_linear_attention.py: 1e-10 of the
largest value in float64. ``denominator="rotated"`` is compared at positions in [0, 0.1), where nothing cancels, as
there.
"""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from linear_rope import EluPlusOne, FavorPlus, LinearRoPEAttention, linear_attention
from linear_rope.features import GivenFeatures
from linear_rope.functional import causal_autograd, chunked
from linear_rope.functional.chunked import CHUNK_SIZE
from tests.linear_rope.functional.differentiated import (
    BY_NAME,
    MAPS,
    B,
    D,
    H,
    Learned,
    M,
    assert_agree,
    gradients,
    leaves,
    options_of,
)
from tests.linear_rope.tensors import (
    SETTINGS,
    assert_identical,
    assert_near,
    in_steps,
    random,
    some_padding,
)

BY_KIND = pytest.mark.parametrize("name", ["favor+", "elu+1", "learned"])


@pytest.mark.parametrize("length", [1, 70])
@BY_NAME
def test_gradients_are_those_of_finite_differences(name: str, length: int) -> None:
    """Central differences with steps of 1e-6 are off by 1e-12 times third derivatives, and by rounding of 1e-16 / 1e-6;
    both are multiplied by sums over 70·M terms."""
    for rope, denominator in SETTINGS:
        feature_map = MAPS[name]()
        options = options_of(feature_map, rope, denominator, length) | {"key_padding_mask": some_padding(2, length)}

        def attend(q: Tensor, k: Tensor, v: Tensor, *held: Tensor, options: dict[str, Any] = options) -> Tensor:
            return linear_attention(q, k, v, implementation="chunked", **options)

        inputs = (*leaves(2, H, length), *feature_map.parameters())
        assert torch.autograd.gradcheck(attend, inputs, fast_mode=True, atol=1e-6, rtol=1e-5), (rope, denominator)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Makes blocks of two chunks, and groups of as many rows (a head of a sequence) as are asked for."""
    for module in (chunked, causal_autograd):
        monkeypatch.setattr(module, "BLOCK_CHUNKS", 2)

    def set_rows(rows: int, features: int) -> None:
        monkeypatch.setattr(causal_autograd, "BLOCK_ELEMENTS", {"cpu": rows * features * 2 * CHUNK_SIZE})

    return set_rows


LONG = 2 * 2 * CHUNK_SIZE + 37


@pytest.mark.parametrize(("rows", "name"), [*((2, name) for name in MAPS), (6, "favor+")])
def test_blocks_and_groups_are_one_whole(rows: int, name: str, small_blocks: Callable[[int, int], None]) -> None:
    feature_map, qkv = MAPS[name](), leaves(B, H, LONG)
    small_blocks(rows, feature_map.count(D))
    for rope, denominator in SETTINGS:
        options = options_of(feature_map, rope, denominator, LONG) | {"key_padding_mask": some_padding(B, LONG)}
        # Other positions for each sequence.
        options["positions"] = options["positions"] * torch.tensor([[1.0], [0.5], [0.9]])
        assert_agree(gradients(qkv, **options), gradients(qkv, "reference", **options))


@pytest.mark.parametrize("grad", [False, True])
@BY_NAME
def test_prefill_and_steps_go_on_from_blocks_and_groups(
    name: str, grad: bool, small_blocks: Callable[[int, int], None]
) -> None:
    torch.manual_seed(0)
    module = LinearRoPEAttention(H * D, H, feature_map=MAPS[name](), causal=True).double()
    x, mask = random(B, LONG + 3, H * D).requires_grad_(), some_padding(B, LONG + 3)
    mask[:, LONG:] = False
    small_blocks(2, module.feature_map.count(D))
    with torch.set_grad_enabled(grad):
        actual, expected = in_steps(module, x, LONG, mask[:, :LONG]), module(x, key_padding_mask=mask)
    assert_near(actual, expected)
    if grad:
        upstream, wanted = random(*expected.shape, seed=1), [x, *module.parameters()]
        results = (torch.autograd.grad(y, wanted, upstream, materialize_grads=True, allow_unused=True)
                   for y in (actual, expected))  # fmt: skip
        for got, wished in zip(*results, strict=True):
            assert_near(got, wished)


@BY_KIND
@pytest.mark.parametrize("grad", [False, True])
def test_later_calls_do_not_write_into_earlier_results(name: str, grad: bool) -> None:
    feature_map = MAPS[name]()
    module = LinearRoPEAttention(H * D, H, feature_map=feature_map, causal=True).double()
    others = [leaves(B, H, 100, seed=1), leaves(B, H, 300, seed=2), leaves(1, H, 7, seed=3)]
    others.append([x.detach().float().requires_grad_() for x in others[0]])
    with torch.set_grad_enabled(grad):
        for rope, denominator in SETTINGS:
            options = options_of(feature_map, rope, denominator, 100)
            prefix, state = module.prefill(random(B, 100, H * D))
            results = [linear_attention(*leaves(B, H, 100), **options), prefix, state.sums.memory]
            kept = [x.detach().clone() for x in results]
            for qkv in others:
                later = linear_attention(*qkv, **options | {"positions": torch.arange(qkv[0].shape[2])})
                if grad:
                    later.sum().backward()
            module.prefill(random(B, 100, H * D, seed=1))
            assert_identical([x.detach() for x in results], kept)


@BY_KIND
def test_other_calls_and_an_earlier_backward_pass_change_no_gradient(name: str) -> None:
    options = options_of(MAPS[name](), "after", "unrotated", 100)
    qkv = leaves(B, H, 100)
    expected = gradients(qkv, **options)
    output = linear_attention(*qkv, **options)
    for seed in (1, 2):
        gradients(leaves(B, H, 100, seed=seed), **options)
        found = torch.autograd.grad(output, qkv, random(*output.shape, seed=99), retain_graph=True)
        assert_identical((output.detach(), list(found)), (expected[0], expected[1][:3]))


@BY_KIND
def test_threads_do_not_disturb_each_other(name: str) -> None:
    """Bit for bit what each call gives alone; the threads take turns as often as Python lets them."""
    options = options_of(MAPS[name](), "after", "unrotated", 100)
    tasks = [leaves(B, H, 100, seed=seed) for seed in range(2)]
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
        assert_identical(found, [expected] * 8)


def test_a_thread_that_began_in_inference_mode_or_with_fake_tensors_can_train() -> None:
    """Neither may leave a buffer behind that the next call would use: fake tensors have shapes and no values."""
    options = options_of(FavorPlus(D, M), "after", "unrotated", 70)
    qkv = leaves(B, H, 70)

    def real() -> tuple[Tensor, list[Tensor]]:
        return gradients(qkv, **options)

    def inference() -> None:
        with torch.inference_mode():
            linear_attention(*qkv, **options)

    def fake() -> None:
        with FakeTensorMode(allow_non_fake_inputs=True):
            empty = [torch.empty(B, H, 70, D) for _ in range(3)]
            assert linear_attention(*empty, feature_map=EluPlusOne(), causal=True).shape == (B, H, 70, D)

    for order in ((inference, real), (fake, real), (real, fake, real)):
        with ThreadPoolExecutor(1) as fresh_thread:
            assert_identical([fresh_thread.submit(step).result() for step in order][-1], real())


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("rope", ["after", "before", "none"])
def test_a_redraw_leaves_pending_backward_passes_their_features(rope: str, learned: bool) -> None:
    """``learned`` takes the path of maps that are differentiated by autograd."""
    feature_map, options = FavorPlus(D, M), options_of(FavorPlus(D, M), rope, "unrotated", 70)
    together, separate, outputs = [leaves(B, H, 70, seed=seed) for seed in range(2)], [], []
    options["feature_map"] = feature_map
    for found in (separate, outputs):
        for draw, qkv in enumerate(together):
            feature_map.redraw(draw)
            feature_map.omega.requires_grad_(learned)
            found.append(gradients(qkv, **options)[1][:3] if found is separate else linear_attention(*qkv, **options))
    upstream = random(*outputs[0].shape, seed=99)
    sum((output * upstream).sum() for output in outputs).backward()  # type: ignore[union-attr]
    assert_identical([[x.grad for x in qkv] for qkv in together], separate)


def test_changing_a_map_mask_or_positions_before_the_backward_pass_is_an_error() -> None:
    """Gradients of a mixture of old and new would be silently wrong."""
    learned, favor = Learned(), FavorPlus(D, M)
    mask, positions = torch.zeros(B, 70, dtype=torch.bool), torch.arange(70.0)
    for feature_map, held in ((learned, learned.weight), (favor, favor.omega), (EluPlusOne(), mask)):
        options = dict(feature_map=feature_map, causal=True, key_padding_mask=mask, positions=positions)
        output = linear_attention(*leaves(B, H, 70), **options)
        with torch.no_grad():
            held.fill_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()


def test_freezing_features_before_the_backward_pass_changes_nothing() -> None:
    feature_map, qkv = FavorPlus(D, M).double(), leaves(B, H, 70)
    feature_map.omega.requires_grad_(True)
    options = dict(feature_map=feature_map, causal=True)
    expected = gradients(qkv, **options)
    output, learned = linear_attention(*qkv, **options), feature_map.omega
    feature_map.omega = learned.detach().clone()
    found = torch.autograd.grad(output, [*qkv, learned], random(*output.shape, seed=99))
    assert_identical((output.detach(), list(found)), expected)


@pytest.mark.parametrize(("rope", "denominator"), SETTINGS)
def test_what_is_kept_for_backward_is_narrower_than_features(rope: str, denominator: str) -> None:
    """q, k, v and the output of width D, the gain, C weights a token; before each block of 1024 positions M·(D + 1)
    numbers of state and M of the denominator's; the rotations, M a token for all four heads together; 10 % for the
    last, shorter chunk and what belongs to no token. One tensor of features would be M = 256 more."""
    width, features, heads = 64, 256, 4
    bound = 1.1 * (4 * width + 1 + CHUNK_SIZE + features * (width + 2) / 1024 + features / heads)
    for length in (550, 2048):
        storages: dict[int, Any] = {}  # whole ones, each once, and alive, so that no address occurs twice

        def pack(x: Tensor, storages: dict[int, Any] = storages) -> Tensor:
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage()
            return x

        options = dict(feature_map=FavorPlus(width, features).double(), rope=rope, denominator=denominator, causal=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            output = linear_attention(*leaves(1, heads, length, width=width), **options)
        assert output.requires_grad
        assert sum(storage.nbytes() for storage in storages.values()) / 8 / (heads * length) <= bound


@pytest.mark.parametrize("causal", [True, False])
@BY_NAME
def test_an_empty_batch_gives_an_empty_output(name: str, causal: bool) -> None:
    qkv = leaves(0, H, 7)
    output = linear_attention(*qkv, feature_map=MAPS[name](), causal=causal)
    assert output.shape == (0, H, 7, D)
    output.sum().backward()
    assert all(x.grad is not None and x.grad.shape == x.shape for x in qkv)


def test_values_may_have_another_width_and_begin_anywhere_in_memory() -> None:
    """Rotation takes pairs of channels as complex numbers, which cannot begin in the middle of a pair."""
    q = random(1 + B * H * 70 * D)[1:].view(B, H, 70, D).requires_grad_()
    qkv = [q, leaves(B, H, 70)[1], random(B, H, 70, 5).requires_grad_()]
    for rope in ("after", "before"):
        options = dict(feature_map=FavorPlus(D, M), rope=rope, causal=True)
        assert_agree(gradients(qkv, **options), gradients(qkv, "reference", **options))


@pytest.mark.parametrize(("rope", "denominator"), SETTINGS)
def test_given_features_are_used_and_left_as_they_are(rope: str, denominator: str) -> None:
    """No copy is made of them, so nothing may be written into them."""
    qkv = [x.detach().abs().requires_grad_() for x in leaves(B, H, 150)]
    before = [x.detach().clone() for x in qkv]
    options = options_of(GivenFeatures(), rope, denominator, 150) | {"key_padding_mask": some_padding(B, 150)}
    assert_agree(gradients(qkv, **options), gradients(qkv, "reference", **options))
    assert_identical([x.detach() for x in qkv], before)
