"""Packed sequences and prompts in pieces: each segment is as if it were alone, and pieces are as the whole."""

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from linear_rope import (
    CausalLM,
    EluPlusOne,
    Encoder,
    EncoderDecoder,
    FavorPlus,
    LinearRoPEAttention,
    ModelConfig,
    SoftmaxRoPEAttention,
    linear_attention,
)
from linear_rope.attention import GatedDelta, Retention, WindowedFavor
from linear_rope.model import DecoderState
from tests.linear_rope.tensors import FORMS, HEADS, SETTINGS, D, assert_refused, random, random_qkv

DIM, LENGTH = HEADS * D, 90
EXACT = 1e-12
KERNELS: dict[str, Callable[..., Any]] = {
    "favor+": lambda **options: LinearRoPEAttention(DIM, HEADS, feature_map="favor+", **options),
    "elu+1": lambda **options: LinearRoPEAttention(DIM, HEADS, feature_map="elu+1", **options),
    "softmax": lambda **options: SoftmaxRoPEAttention(DIM, HEADS, **options),
    "retention": lambda **options: Retention(DIM, HEADS, **options),
    "delta": lambda **options: GatedDelta(DIM, HEADS, **options),
    "favor+window": lambda **options: WindowedFavor(DIM, HEADS, window=5, num_features=6, **options),
}
ADDITIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no decay": {"decay": "none"},
    "all else": {"decay": "gate", "local_conv": 3, "short_conv": 4, "rope_angles": "selective"},
}
CASES = {f"{kernel}, {name}": (kernel, options) for kernel in KERNELS for name, options in ADDITIONS.items()}
CASES |= {"elu+1, before": ("elu+1", {"rope": "before"}), "softmax, xpos": ("softmax", {"rope": "xpos"})}
CASES |= {"softmax, alibi": ("softmax", {"rope": "none", "alibi": True})}
CASES |= {
    f"softmax, {name}": ("softmax", {"rope": "none", "score_positions": name})
    for name in ("shaw", "t5", "deberta", "transformer-xl", "tupe", "huang")
}
BOTH_WAYS = [name for name in CASES if not name.startswith(("delta", "favor+window")) and "xpos" not in name]
IDS = torch.tensor([[0] * 7 + [3] + [5] * 62 + [2] * 20, [4] * 20 + [1] * 70])


def make(name: str, *, causal: bool = True) -> Any:
    kernel, options = CASES[name]
    torch.manual_seed(0)
    module = KERNELS[kernel](causal=causal, **options).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return module


def some_padding() -> Tensor:
    """At the beginning, in the middle, at the end of a segment and of all, and one whole segment."""
    padding = torch.zeros(2, LENGTH, dtype=torch.bool)
    padding[0, :3] = padding[0, 30:34] = padding[0, 67:70] = padding[0, 7] = padding[1, 20:22] = padding[1, 85:] = True
    return padding


def segments_alone(ids: Tensor) -> list[tuple[int, Tensor]]:
    return [(row, (ids[row] == name).nonzero().squeeze(-1)) for row in range(len(ids)) for name in ids[row].unique()]


def assert_equal(found: Tensor, wanted: Tensor, inputs: list[Tensor], padding: Tensor | None) -> None:
    """Values and gradients, where there is no padding."""
    weight = random(*wanted.shape, seed=9)
    if padding is not None:
        weight = weight.masked_fill(padding.unsqueeze(-1), 0)
    pairs = [(found * weight.sign().abs(), wanted * weight.sign().abs())]
    gradients = (
        torch.autograd.grad((y * weight).sum(), inputs, allow_unused=True, materialize_grads=True)
        for y in (found, wanted)
    )
    for a, b in [*pairs, *zip(*gradients, strict=True)]:
        assert (a - b).abs().max() <= EXACT * b.abs().max()


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize(
    ("name", "causal"), [*((name, True) for name in CASES), *((name, False) for name in BOTH_WAYS)]
)
def test_a_segment_is_as_if_it_were_alone(name: str, causal: bool, padded: bool) -> None:
    module, padding = make(name, causal=causal), some_padding() if padded else None
    x = random(2, LENGTH, DIM).requires_grad_()
    wanted = torch.zeros_like(x)
    for row, at in segments_alone(IDS):
        of = None if padding is None else padding[row, at].unsqueeze(0)
        wanted = wanted.index_put((torch.tensor(row), at), module(x[row, at].unsqueeze(0), key_padding_mask=of)[0])
    found = module(x, key_padding_mask=padding, segment_ids=IDS)
    assert_equal(found, wanted, [x, *module.parameters()], padding)


@pytest.mark.parametrize(("name", "causal"), [*((name, True) for name in CASES), ("elu+1, plain", False)])
def test_the_weights_of_a_segment_are_as_if_it_were_alone(name: str, causal: bool) -> None:
    module, padding = make(name, causal=causal), some_padding()
    x = random(2, LENGTH, DIM)
    with torch.no_grad():
        found = module.attention_weights(x, padding, segment_ids=IDS)
        wanted = torch.zeros_like(found)
        for row, at in segments_alone(IDS):
            alone = module.attention_weights(x[row : row + 1, at], padding[row : row + 1, at])
            wanted[row, :, at[:, None], at] = alone[0]
    assert (found - wanted).abs().max() <= EXACT * wanted.abs().max()


@pytest.mark.parametrize("decay", [False, True], ids=["no decay", "decay"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both ways"])
@pytest.mark.parametrize(("rope", "denominator"), SETTINGS)
@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_the_function_sees_segments(
    form: str, rope: Any, denominator: Any, causal: bool, decay: bool
) -> None:
    q, k, v = random_qkv(2, HEADS, LENGTH)
    log_decay = -random(2, HEADS, LENGTH, seed=5).abs() if decay else None
    for feature_map in (FavorPlus(D, 6, seed=0).double(), EluPlusOne()):
        settings: dict[str, Any] = {
            "feature_map": feature_map, "rope": rope, "denominator": denominator, "causal": causal,
        }  # fmt: skip
        found = linear_attention(q, k, v, **settings, log_decay=log_decay, segment_ids=IDS, implementation=form)
        for row, at in segments_alone(IDS):
            one = [None if x is None else x[row : row + 1, :, at] for x in (q, k, v, log_decay)]
            alone = linear_attention(
                *(x for x in one[:3] if x is not None), **settings, log_decay=one[3], implementation="reference"
            )
            # Rotated denominators can come close to zero.
            assert (found[row, :, at] - alone[0]).abs().max() <= 1e-9 * alone.abs().max()


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rope-before", "floater", "complex"])
@pytest.mark.parametrize("model", [CausalLM, Encoder])
def test_models_count_positions_anew(model: type[Any], position: str, attention: str) -> None:
    sizes: dict[str, Any] = {"vocab_size": 50, "dim": 16, "layers": 2, "heads": 2, "max_length": LENGTH}
    made = model(ModelConfig(**sizes, attention=attention, position=position, initial_std=0.3)).double()
    tokens = torch.randint(0, 50, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    ends = torch.tensor([0, 7, 7, 8, 60, LENGTH], dtype=torch.int32)
    found = made(tokens, cu_seqlens=ends)
    for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        if begin < end:
            alone = made(tokens[:, begin:end])
            assert (found[:, begin:end] - alone).abs().max() <= EXACT * alone.abs().max()


def test_a_learned_table_need_be_no_longer_than_a_segment() -> None:
    for model in (CausalLM, Encoder):
        made = model(ModelConfig(vocab_size=50, dim=16, layers=1, heads=2, max_length=8, position="learned"))
        tokens = torch.randint(0, 50, (1, 20), generator=torch.Generator().manual_seed(0))
        made(tokens, cu_seqlens=torch.tensor([0, 8, 16, 20]))
        assert_refused(partial(made, tokens, cu_seqlens=torch.tensor([0, 9, 20])), ["11 positions", "8", "max_length"])


@pytest.mark.parametrize("name", ["elu+1, plain", "softmax, plain", "delta, plain"])
def test_no_sequences_have_no_segments(name: str) -> None:
    module, nothing = make(name, causal=name not in BOTH_WAYS), torch.zeros(0, 5, dtype=torch.int64)
    assert module(torch.zeros(0, 5, DIM).double(), segment_ids=nothing).shape == (0, 5, DIM)


def test_compiled_models_see_segments() -> None:
    for model in (CausalLM, Encoder):
        made = model(ModelConfig(vocab_size=50, dim=16, layers=1, heads=2, feature_map="elu+1")).double()
        tokens = torch.randint(0, 50, (2, LENGTH), generator=torch.Generator().manual_seed(0))
        whole = torch.compile(made, backend="eager", fullgraph=True)
        assert (whole(tokens, segment_ids=IDS) - made(tokens, segment_ids=IDS)).abs().max() < EXACT


def test_segments_that_are_none_are_refused() -> None:
    attention, x = LinearRoPEAttention(DIM, HEADS), random(2, 6, DIM).float()
    ids = torch.tensor([[0, 0, 1, 1, 1, 2]] * 2)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"segment_ids": torch.tensor([[0, 1, 0, 2, 2, 2]] * 2)}, "come back"),
        ({"segment_ids": ids[0]}, "shape (6,); give (2, 6)"),
        ({"segment_ids": ids.float()}, "dtype torch.float32"),
        ({"segment_ids": ids > 0}, "dtype torch.bool"),
        ({"segment_ids": ids.to("meta")}, "on meta, and the tokens on cpu"),
        ({"segment_ids": ids, "cu_seqlens": torch.tensor([0, 6])}, "both"),
        ({"cu_seqlens": torch.tensor([0, 6])}, "2 sequences"),
        ({"segment_ids": ids, "context": x}, "context"),
    ]
    for given, message in refused:
        assert_refused(partial(attention, x, **given), [message])
    for ends in ([0, 5], [1, 6], [0, 4, 3, 6]):
        assert_refused(partial(attention, x[:1], cu_seqlens=torch.tensor(ends)), ["from 0 to 6"])
    # At padding an id is not read.
    padding = torch.tensor([[False, False, True, False, False, True]] * 2)
    attention(x, key_padding_mask=padding, segment_ids=torch.tensor([[1, 1, 0, 2, 2, 0]] * 2))
    q, k, v = random_qkv(2, HEADS, 6)
    assert_refused(
        lambda: linear_attention(q[:, :, :3], k, v, feature_map=EluPlusOne(), segment_ids=ids), ["3 queries and 6 keys"]
    )


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("name", CASES)
def test_pieces_of_a_prompt_are_as_the_whole(name: str, padded: bool) -> None:
    module, padding = make(name), some_padding() if padded else None
    x, following = random(2, LENGTH, DIM).requires_grad_(), random(2, 1, DIM, seed=3)
    wanted, end = module.prefill(x, padding)
    for sizes in ([1, 2, 3, 4, 65, 15], [1] * 8 + [82], [LENGTH - 1, 1]):
        outputs, state, begin = list[Tensor](), None, 0
        for size in sizes:
            mask = None if padding is None else padding[:, begin : begin + size]
            # A piece without padding can come without a mask.
            mask = mask if mask is None or mask.any() else None
            y, state = module.prefill(x[:, begin : begin + size], mask, state=state)
            outputs.append(y)
            begin += size
        assert_equal(torch.cat(outputs, dim=1), wanted, [x, *module.parameters()], padding)
        after, whole = module.step(following, state)[0], module.step(following, end)[0]
        assert (after - whole).abs().max() <= EXACT * whole.abs().max()
        wanted, end = module.prefill(x, padding)


@pytest.mark.parametrize("kernel", ["elu+1", "softmax", "delta", "favor+window"])
def test_states_are_saved_moved_and_detached(kernel: str) -> None:
    module = make(f"{kernel}, all else")
    x, following = random(2, 9, DIM).requires_grad_(), random(2, 1, DIM, seed=3)
    _, state = module.prefill(x)
    wanted = module.step(following, state)[0]
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert type(loaded) is type(state)
    assert torch.equal(module.step(following, loaded)[0], wanted)

    y, _ = module.step(following, state.detach())
    assert torch.equal(y, wanted)
    assert torch.autograd.grad(y.sum(), x, allow_unused=True)[0] is None

    # float32 has 24 digits, of which a sum over ten tokens leaves some.
    small = state.to(dtype=torch.float32)
    assert small.position.dtype == torch.int64
    assert (module.step(following, small)[0] - wanted).abs().max() < 1e-5 * wanted.abs().max()
    assert module.step(following, state.to("cpu", torch.float64))[0].equal(wanted)
    assert_refused(lambda: state.to(dtype=torch.int32), ["floating-point"])


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_a_decoder_s_state_is_saved_moved_and_detached(attention: str) -> None:
    config = ModelConfig(vocab_size=20, dim=16, layers=2, heads=2, attention=attention, position="rope-before")
    model = EncoderDecoder(config).double()
    source, tokens = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[7], [8]])
    _, state = model.step(tokens, model.start(source))
    wanted, _ = model.step(tokens, state)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    for same in (torch.load(file, weights_only=True), state.detach(), state.to("cpu", torch.float64)):
        assert type(same) is DecoderState
        assert torch.equal(model.step(tokens, same)[0], wanted)
    memory = state.to(dtype=torch.float32).read[0]
    assert memory[0].dtype == torch.float32


def test_states_of_other_attentions_are_refused() -> None:
    x = random(2, 4, DIM)
    _, state = make("elu+1, plain").prefill(x)
    assert_refused(lambda: make("softmax, plain").prefill(x, state=state), ["KeyValueCache"])
    assert_refused(lambda: make("elu+1, all else").prefill(x, state=state), ["rope_angles"])
    assert_refused(lambda: make("elu+1, plain").prefill(x[:1], state=state), ["(1, 4, 8)", "(2, 4, 8)"])
    assert_refused(lambda: make("elu+1, plain").step(x, state), ["one token"])
