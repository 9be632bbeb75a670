"""Generating and translating: what is drawn from, by its definition in plain Python, and the beam search as one that
recomputes everything."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from linear_rope import CausalLM, EncoderDecoder, LinearRoPEAttention, SoftmaxRoPEAttention
from linear_rope.decoding import (
    LOWEST_TEMPERATURE,
    beam_search,
    length_penalty_of,
    reordered,
    sample,
    sampling_probabilities,
)
from tests.linear_rope.tensors import assert_near, assert_refused
from tests.linear_rope.test_model import config, random_tokens, spread

LOGITS = torch.randn(6, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def by_definition(logits: list[float], temperature: float, top_k: int | None, top_p: float) -> list[float]:
    """The softmax of logits / T; the k likeliest; of these the fewest that reach p, the likeliest first."""
    order = sorted(range(len(logits)), key=lambda token: -logits[token])[: top_k or None]
    weights = [math.exp((logits[token] - logits[order[0]]) / temperature) for token in order]
    kept, mass = 0, 0.0
    while kept == 0 or (kept < len(order) and mass < top_p):
        mass += weights[kept] / math.fsum(weights)
        kept += 1
    found = [0.0] * len(logits)
    for token, weight in zip(order[:kept], weights, strict=False):
        found[token] = weight / math.fsum(weights[:kept])
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(None, 1.0), (0, 1.0), (5, 1.0), (99, 0.61), (None, 0.91), (5, 0.5), (1, 1.0), (3, 0.0)]
)
def test_what_is_drawn_from_is_what_the_definition_says(dtype: torch.dtype, top_k: int | None, top_p: float) -> None:
    # Logits that are told apart in every dtype: the definition says nothing of ties.
    logits = torch.stack([row.argsort().argsort() for row in LOGITS]).to(dtype) / 4
    for temperature in (LOWEST_TEMPERATURE, 0.01, 0.7, 1.0, 5.0, 1e6):
        found = sampling_probabilities(logits, temperature=temperature, top_k=top_k, top_p=top_p)
        rows = [by_definition(row, temperature, top_k, top_p) for row in logits.tolist()]
        expected = torch.tensor(rows, dtype=torch.float64)
        assert found.dtype == torch.promote_types(dtype, torch.float32)
        assert torch.equal(found > 1e-30, expected > 1e-30)
        # The exponent's rounding: eps of up to 87, where a float32 is not yet subnormal, for difference and quotient
        # each; and that of sums over 40.
        torch.testing.assert_close(found.double(), expected, rtol=250 * torch.finfo(torch.float32).eps, atol=1e-37)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_logits_of_a_dtype_are_finite_probabilities(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    logits = torch.tensor([[largest, -largest, 0], [largest, largest, -torch.inf], [-largest] * 3], dtype=dtype)
    expected = torch.tensor([[1, 0, 0], [0.5, 0.5, 0], [1 / 3] * 3], dtype=torch.float64)
    for temperature in (LOWEST_TEMPERATURE, 1e-3, 1.0):
        for top_p in (1.0, 0.99):
            found = sampling_probabilities(logits, temperature=temperature, top_p=top_p).double()
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
        assert sample(logits, temperature=temperature)[0] == 0


def test_tokens_as_likely_as_the_last_of_top_k_are_kept_and_top_p_reaches_its_sum_exactly() -> None:
    assert sampling_probabilities(torch.zeros(1, 4), top_k=2).tolist() == [[0.25] * 4]
    halves = torch.tensor([[0.0, 0.0, -torch.inf]])
    assert sampling_probabilities(halves, top_p=0.5).tolist() == [[1, 0, 0]]
    assert sampling_probabilities(halves, top_p=0.5001).tolist() == [[0.5, 0.5, 0]]


def test_tokens_come_as_often_as_they_are_probable() -> None:
    count, logits = 100_000, torch.arange(40) / 8
    expected = torch.tensor(by_definition(logits.tolist(), 0.5, 9, 0.8), dtype=torch.float64)
    drawn = sample(logits.expand(count, -1), temperature=0.5, top_k=9, top_p=0.8, generator=torch.Generator())
    off = (drawn.flatten().bincount(minlength=40) - count * expected).abs()
    # Bernstein: beyond this with a probability of 2 exp(-16) = 2e-7.
    assert (off <= (2 * 16 * count * expected * (1 - expected)).sqrt() + 2 / 3 * 16 * (expected > 0)).all()


def test_a_model_generates_by_a_seed_among_the_likeliest() -> None:
    model, prompt = spread(CausalLM(config("elu+1-rope-after"))), random_tokens(2, 5)
    before = torch.random.get_rng_state()
    first = model.generate(prompt, 20, seed=7)
    assert torch.equal(first, model.generate(prompt, 20, seed=7))
    assert torch.equal(first, model.generate(prompt, 20, generator=torch.Generator().manual_seed(7)))
    assert not torch.equal(first, model.generate(prompt, 20, seed=8))
    assert torch.equal(torch.random.get_rng_state(), before)
    greedy = model.generate(prompt, 20, temperature=0)
    for settings in ({"top_k": 1}, {"top_p": 0.0}, {"temperature": LOWEST_TEMPERATURE}):
        assert torch.equal(model.generate(prompt, 20, seed=7, **settings), greedy)
    few = model.generate(prompt, 20, seed=7, top_k=3)
    likeliest = model(few).topk(3).indices[:, 4:-1]
    assert (likeliest == few[:, 5:, None]).any(-1).all()
    assert not torch.equal(few, greedy)
    assert torch.equal(model.generate(prompt, 0), prompt)
    assert model.generate(random_tokens(0, 3), 4).shape == (0, 7)
    for dtype in (torch.bfloat16, torch.float16):
        assert model.to(dtype).generate(prompt, 5, temperature=LOWEST_TEMPERATURE, seed=0).max() < 50


BEGIN, END = 1, 2
KINDS: dict[str, dict[str, Any]] = {
    "softmax-rope": {},
    "softmax-learned": {},
    "softmax-alibi": {},
    "elu+1-rope-after": {},
    "elu+1-rope-after, gate": {"decay": "gate", "local_conv": 4, "short_conv": 3},
    "favor+-rope-after": {},
    "softmax-selective, gate": {},
    "softmax-shaw": {},
    "elu+1-floater": {},
}
PADDING = torch.arange(15).expand(3, -1) >= torch.tensor([[15], [8], [11]])


def model_of(kind: str) -> Any:
    name = "elu+1-rope-after" if kind.startswith("elu+1-rope-after") else kind
    return spread(EncoderDecoder(config(name, **KINDS.get(kind, {}))))


def best_by_recomputing(model: Any, source: Tensor, *, beams: int, length_penalty: float, longest: int) -> list[int]:
    """The beam search of one source (1, K) in plain Python, every sequence decoded anew for each token."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for _ in range(longest):
        grown = []
        for score, tokens in live:
            logits = model(source, torch.tensor([[BEGIN, *tokens]]))[0, -1]
            grown += [(score + p, [*tokens, new]) for new, p in enumerate(logits.log_softmax(-1).tolist())]
        grown.sort(key=lambda each: -each[0])
        now = [(score, tokens) for score, tokens in grown[:beams] if tokens[-1] == END]
        ended += [(score / length_penalty_of(len(tokens), length_penalty), tokens) for score, tokens in now]
        live = [each for each in grown if each[1][-1] != END][:beams]
        if len(ended) >= beams:
            break
    return max(ended)[1] if ended else live[0][1]


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_token_by_token_is_all_at_once_also_of_reordered_sequences(kind: str) -> None:
    model, source, target = model_of(kind), random_tokens(3, 15), random_tokens(6, 9, seed=1)
    logits, state = model(source.repeat_interleave(2, 0), target, PADDING.repeat_interleave(2, 0)), None
    at_once, _ = model.step(target, model.start(source, PADDING))
    assert_near(at_once, logits[:, -1])
    state = model.start(source, PADDING)
    for place in range(5):
        found, state = model.step(target[:, place : place + 1], state)
        assert_near(found, logits[:, place])
    # The first source is done; of the others three sequences each go on, some of them twice.
    order, left = torch.tensor([3, 3, 2, 5, 4, 5]), torch.tensor([1, 2])
    state = state._replace(own=reordered(state.own, order), read=reordered(state.read, left), sources=2)
    target = torch.cat((target[order, :5], random_tokens(6, 4, seed=2)), dim=1)
    of_each = torch.tensor([1, 1, 1, 2, 2, 2])
    logits = model(source[of_each], target, PADDING[of_each])
    for place in range(5, 9):
        found, state = model.step(target[:, place : place + 1], state)
        assert_near(found, logits[:, place])


@pytest.mark.parametrize("kind", KINDS)
def test_beam_search_is_one_that_recomputes_everything_without_padding(kind: str) -> None:
    model, source = model_of(kind), random_tokens(3, 15)
    for beams, length_penalty in ((1, 0.6), (4, 0.6)) if kind == "softmax-rope" else ((3, 0.0),):
        how: Any = {"beams": beams, "length_penalty": length_penalty, "longest": 5}
        found = model.translate(source, PADDING, begin=BEGIN, end=END, **how)
        for row, mask, tokens in zip(source, PADDING, found, strict=True):
            with torch.no_grad():
                expected = best_by_recomputing(model, row[~mask][None], **how)
            assert tokens.tolist()[: len(expected)] == expected
            assert (tokens[len(expected) :] == END).all()


def test_the_source_is_read_once_and_each_new_token_alone() -> None:
    model, read, decoded = model_of("elu+1-rope-after"), [], []
    model.encoder.register_forward_hook(lambda module, given, result: read.append(given[0].shape))
    model.norm.register_forward_hook(lambda module, given, result: decoded.append(given[0].shape[-2]))
    model.translate(random_tokens(3, 15), PADDING, begin=BEGIN, end=END, beams=2, longest=7)
    assert read == [(3, 15)]
    assert len(decoded) > 1


@pytest.mark.parametrize(("length_penalty", "expected"), [(0.0, [END, END]), (2.0, [3, END])])
def test_the_length_penalty_decides_between_a_short_and_a_long_hypothesis(
    length_penalty: float, expected: list[int]
) -> None:
    # Ending at once has the probability 1/2, going on with 3 and ending then 0.4: ln 0.5 = -0.69, ln 0.4 = -0.92. With
    # α = 2 the second is divided by (7/6)², which makes it -0.67.
    ends = iter((0.5, 0.8))

    def step(tokens: Tensor, sequences: Tensor, sources: Tensor) -> Tensor:
        row = torch.full((8,), 1e-9, dtype=torch.float64)
        row[END] = next(ends)
        row[3] = 1 - row[END]
        return row.log().expand(len(tokens), -1)

    how: Any = {"beams": 2, "length_penalty": length_penalty, "longest": 2, "device": torch.device("cpu")}
    found = beam_search(step, 1, begin=BEGIN, end=END, **how)[0]
    assert found.tolist() == expected[: len(found)]
    assert length_penalty_of(13, 0.6) == pytest.approx(3**0.6)


def test_what_cannot_be_searched_is_refused() -> None:
    model = model_of("softmax-learned")

    def translate(**options: Any) -> Any:
        return lambda: model.translate(random_tokens(2, 5), begin=BEGIN, end=49, **options)

    for options, said in (
        ({"longest": 41}, "longest is 41, but the learned position table ends at 40"),
        ({"longest": 0}, "longest is 0; give a whole number, 1 or more"),
        ({"longest": 5, "beams": 0}, "beams is 0"),
        ({"longest": 5, "beams": 26}, "beams is 26; give half the vocabulary of 50 or less"),
    ):
        assert_refused(translate(**options), [said])
    assert translate(longest=40)().shape[1] <= 40
    assert model.translate(random_tokens(0, 5), begin=BEGIN, end=END, longest=4).shape == (0, 0)
    state = model.start(random_tokens(2, 5))
    assert_refused(lambda: model.step(random_tokens(3, 1), state), ["3 sequences for 2 sources; give a multiple"])
    _, full = model.step(random_tokens(2, 40), state)
    assert_refused(lambda: model.step(random_tokens(2, 1), full), ["target is 41", "position table ends at 40"])


@pytest.mark.parametrize("kind", [LinearRoPEAttention, SoftmaxRoPEAttention])
def test_what_is_read_token_by_token_has_no_positions(kind: Any) -> None:
    for settings in ({"causal": True, "rope": "none"}, {"rope": "before"}, {"rope": "none", "local_conv": 2}):
        module = kind(8, 2, **settings)
        assert_refused(lambda module=module: module.remember(torch.zeros(1, 3, 8)), ["causal or tells positions"])


def test_blocks_that_something_was_put_around_do_not_decode() -> None:
    translator, model = EncoderDecoder(config("elu+1-rope-after")), CausalLM(config("favor+-rope-after"))
    for each in (translator, model):
        each.blocks[1] = torch.nn.Sequential(each.blocks[1])
    for call in (lambda: translator.start(random_tokens(1, 3)), lambda: model.generate(random_tokens(1, 3), 1)):
        with pytest.raises(ValueError, match="a block is a Sequential"):
            call()
