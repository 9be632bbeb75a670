"""Drawing tokens: what is drawn from, by its definition in plain Python, and how often each token comes."""

import math

import pytest
import torch
from torch import Tensor

from linear_rope import CausalLM
from linear_rope.decoding import LOWEST_TEMPERATURE, sample, sampling_probabilities
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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [LOWEST_TEMPERATURE, 0.01, 0.7, 1.0, 5.0, 1e6])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(None, 1.0), (0, 1.0), (5, 1.0), (99, 0.61), (None, 0.91), (5, 0.5), (1, 1.0), (3, 0.0)]
)
def test_what_is_drawn_from_is_what_the_definition_says(
    dtype: torch.dtype, temperature: float, top_k: int | None, top_p: float
) -> None:
    # Logits that are told apart in every dtype: the definition says nothing of ties.
    logits = torch.stack([row.argsort().argsort() for row in LOGITS]).to(dtype) / 4
    found = sampling_probabilities(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    rows = [by_definition(row, temperature, top_k, top_p) for row in logits.tolist()]
    expected = torch.tensor(rows, dtype=torch.float64)
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    assert torch.equal(found > 1e-30, expected > 1e-30)
    # The exponent's rounding: eps of up to 87, where a float32 is not yet subnormal, for difference and quotient each;
    # and that of sums over 40.
    torch.testing.assert_close(found.double(), expected, rtol=250 * torch.finfo(torch.float32).eps, atol=1e-37)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [LOWEST_TEMPERATURE, 1e-3, 1.0])
def test_the_largest_logits_of_a_dtype_are_finite_probabilities(dtype: torch.dtype, temperature: float) -> None:
    largest = torch.finfo(dtype).max
    logits = torch.tensor([[largest, -largest, 0], [largest, largest, -torch.inf], [-largest] * 3], dtype=dtype)
    expected = [[1, 0, 0], [0.5, 0.5, 0], [1 / 3] * 3]
    for top_p in (1.0, 0.99):
        found = sampling_probabilities(logits, temperature=temperature, top_p=top_p).double()
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0)
    assert sample(logits, temperature=temperature)[0] == 0


def test_tokens_as_likely_as_the_last_of_top_k_are_kept_and_top_p_reaches_its_sum_exactly() -> None:
    assert sampling_probabilities(torch.zeros(1, 4), top_k=2).tolist() == [[0.25] * 4]
    halves = torch.tensor([[0.0, 0.0, -torch.inf]])
    assert sampling_probabilities(halves, top_p=0.5).tolist() == [[1, 0, 0]]
    assert sampling_probabilities(halves, top_p=0.5001).tolist() == [[0.5, 0.5, 0]]


def draws(count: int, logits: Tensor, **settings: float) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    found = sample(logits.expand(count, -1), generator=generator, **settings)  # type: ignore[arg-type]
    assert found.shape == (count, 1)
    return found[:, 0].bincount(minlength=len(logits))


@pytest.mark.parametrize(
    "dtype", [torch.float32, *(pytest.param(x, marks=pytest.mark.slow) for x in DTYPES if x != torch.float32)]
)
@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.5}, {"top_k": 4}, {"top_p": 0.7}, {"top_k": 9, "top_p": 0.8}]
)
def test_tokens_come_as_often_as_they_are_probable(dtype: torch.dtype, settings: dict[str, float]) -> None:
    count, logits = 200_000, (torch.arange(40) / 8).to(dtype)
    asked = {"temperature": 1.0, "top_k": None, "top_p": 1.0} | settings
    expected = by_definition(logits.tolist(), **asked)  # type: ignore[arg-type]
    for token, found in enumerate(draws(count, logits, **settings).tolist()):
        p = expected[token]
        # Bernstein: beyond this with a probability of 2 exp(-16) = 2e-7; there are 800 such comparisons.
        bound = math.sqrt(2 * 16 * count * p * (1 - p)) + 2 / 3 * 16 * (p > 0)
        assert abs(found - count * p) <= bound, token


def test_a_lower_temperature_draws_the_likeliest_and_those_equal_to_it() -> None:
    logits = torch.tensor([1.0, 0.99, 1.0])
    found = draws(1000, logits, temperature=LOWEST_TEMPERATURE)
    assert found[1] == 0
    assert min(found[0], found[2]) > 400  # 6 standard deviations of 16 from 500
    assert sample(logits[None], temperature=0).tolist() == [[0]]


def test_a_model_generates_by_a_seed_among_the_likeliest() -> None:
    model, prompt = spread(CausalLM(config("elu+1-rope-after"))), random_tokens(2, 5)
    first = model.generate(prompt, 20, seed=7)
    assert torch.equal(first, model.generate(prompt, 20, seed=7))
    assert torch.equal(first, model.generate(prompt, 20, generator=torch.Generator().manual_seed(7)))
    assert not torch.equal(first, model.generate(prompt, 20, seed=8))
    greedy = model.generate(prompt, 20, temperature=0)
    for settings in ({"top_k": 1}, {"top_p": 0.0}, {"temperature": LOWEST_TEMPERATURE}):
        assert torch.equal(model.generate(prompt, 20, seed=7, **settings), greedy)
    few = model.generate(prompt, 20, seed=7, top_k=3)
    likeliest = model(few).topk(3).indices[:, 4:-1]
    assert (likeliest == few[:, 5:, None]).any(-1).all()
    assert not torch.equal(few, greedy)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_of_few_bits_draws_at_the_lowest_temperature(dtype: torch.dtype) -> None:
    model, prompt = spread(CausalLM(config("elu+1-rope-after"))).to(dtype), random_tokens(2, 5)
    assert model.generate(prompt, 5, temperature=LOWEST_TEMPERATURE, seed=0).max() < 50
