"""Positions that act on scores, and xPos, each against a double loop by its paper's formula; outputs and gradients.

Prompts, steps, padding, prefixes and dtypes of the same are in test_contracts.py and test_model.py.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from linear_rope import CausalLM, LinearRoPEAttention, ModelConfig, SoftmaxRoPEAttention
from linear_rope.positions import POSITIONS, Deberta, Huang, ScorePositions, Shaw, T5Buckets, TransformerXL, Tupe
from tests.linear_rope.attention.modules import DIM, SCORES, made
from tests.linear_rope.tensors import HEADS, D, assert_near, assert_refused, random

Pair = Callable[[Tensor, Tensor, int, int], Tensor]


def make(name: str, *, causal: bool) -> Any:
    if name == "xpos":
        return made("softmax", rope="xpos", rope_base=100.0, causal=causal)
    return made("softmax", rope="none", score_positions=name, causal=causal)


def heads_of(x: Tensor) -> Tensor:
    """(R, H·D) → (R, H, D)."""
    return x.unflatten(-1, (HEADS, D))


def shaw(p: Shaw, most: int = 16) -> Pair:
    """Eq. 4: x_i W^Q (x_j W^K + a^K_ij)ᵀ / √d, a_ij = w_clip(j − i, k)."""
    return lambda q, k, i, j: (q * (k + p.keys_table.weight[clip(j - i, most) + most])).sum(-1) / math.sqrt(D)


def huang(p: Huang, most: int = 128) -> Pair:
    """Method 4: the products of query, key and position two by two."""

    def score(q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
        a = p.table.weight[clip(j - i, most) + most]
        return ((q * k).sum(-1) + (q * a).sum(-1) + (k * a).sum(-1)) / math.sqrt(D)

    return score


def transformer_xl(p: TransformerXL) -> Pair:
    """The four terms of section 3.3, with the sinusoid of Vaswani et al. at the distance."""

    def score(q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
        angles = [(i - j) / 10000 ** (2 * pair / DIM) for pair in range(DIM // 2)]
        r = torch.tensor([f(angle) for angle in angles for f in (math.sin, math.cos)], dtype=torch.float64)
        projected = heads_of(p.projection(r))
        content, position = q + p.content_bias, q + p.position_bias
        return ((content * k).sum(-1) + (position * projected).sum(-1)) / math.sqrt(D)

    return score


def t5(p: T5Buckets) -> Pair:
    """Half of the buckets of a side are single distances, the others are evenly wide in the logarithm up to 128."""
    side = 32 if p.causal else 16

    def score(q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
        distance = abs(i - j) if j <= i or not p.causal else 0
        bucket = distance
        if distance >= side // 2:
            step = math.log(distance / (side // 2)) / math.log(128 / (side // 2)) * (side // 2)
            bucket = min(side // 2 + math.floor(step + 1e-9), side - 1)
        bucket += side if j > i and not p.causal else 0
        return (q * k).sum(-1) / math.sqrt(D) + p.table.weight[bucket]

    return score


def tupe(p: Tupe) -> Pair:
    """Eq. 7: (x_i W^Q)(x_j W^K)ᵀ / √(2d) + (p_i U^Q)(p_j U^K)ᵀ / √(2d)."""

    def score(q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
        queries, keys = heads_of(p.query(p.table.weight[i])), heads_of(p.key(p.table.weight[j]))
        return ((q * k).sum(-1) + (queries * keys).sum(-1)) / math.sqrt(2 * D)

    return score


def deberta(p: Deberta, most: int = 128) -> Pair:
    """Eq. 2 to 4: content to content, content to position and position to content, over √(3d)."""

    def score(q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
        row = 0 if i - j <= -most else 2 * most - 1 if i - j >= most else i - j + most
        queries, keys = heads_of(p.query(p.table.weight[row])), heads_of(p.key(p.table.weight[row]))
        return ((q * k).sum(-1) + (q * keys).sum(-1) + (k * queries).sum(-1)) / math.sqrt(3 * D)

    return score


def xpos(p: None) -> Pair:
    """Pair i is rotated by (m − n) θ_i and decays by ζ_i^((m − n)/512), ζ_i = (2i/d + 0.4)/1.4."""

    def score(q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
        total: Any = 0
        for pair in range(D // 2):
            (a, b), (c, d) = (y[..., 2 * pair : 2 * pair + 2].unbind(-1) for y in (q, k))
            angle, decay = (i - j) * 100.0 ** (-2 * pair / D), ((2 * pair / D + 0.4) / 1.4) ** ((i - j) / 512)
            total = total + decay * ((a * c + b * d) * math.cos(angle) + (a * d - b * c) * math.sin(angle))
        return total / math.sqrt(D)

    return score


LOOPS: dict[str, Callable[..., Pair]] = {
    "shaw": shaw,
    "transformer-xl": transformer_xl,
    "t5": t5,
    "tupe": tupe,
    "deberta": deberta,
    "huang": huang,
    "xpos": xpos,
}


def clip(distance: int, most: int) -> int:
    return max(-most, min(most, distance))


def looped(
    module: SoftmaxRoPEAttention, x: Tensor, at: list[int], queries: list[int], **most: int
) -> tuple[Tensor, Tensor]:
    """The output and the weights of some queries, pair by pair, of tokens at the positions ``at``."""
    positions: Any = module.score_positions
    name = next((name for name in SCORES if type(positions) is POSITIONS[name]), "xpos")
    score = LOOPS[name](positions, **most)
    q, k, v = (heads_of(projection(x)) for projection in (module.query, module.key, module.value))
    outputs, weights = [], []
    for i in queries:
        seen = range(i + 1 if module.causal else x.shape[1])
        alpha = torch.stack([score(q[:, i], k[:, j], at[i], at[j]) for j in seen], dim=-1).softmax(-1)
        y = torch.einsum("bhk,bkhd->bhd", alpha, v[:, : len(seen)])
        if isinstance(positions, Shaw):
            end = most.get("most", 16)
            added = torch.stack([positions.values_table.weight[clip(at[j] - at[i], end) + end] for j in seen])
            y = y + alpha @ added  # eq. 3
        outputs.append(y.flatten(1))
        weights.append(torch.nn.functional.pad(alpha, (0, x.shape[1] - len(seen))))
    return module.out(torch.stack(outputs, dim=1)), torch.stack(weights, dim=2)


@pytest.mark.parametrize(
    ("name", "causal", "length"),
    [
        *((name, True, 17) for name in ("xpos", *SCORES)),
        # There are distances beyond every clip and in every bucket, of which T5 has others where it is causal.
        *((name, False, 130) for name in SCORES),
        *((name, True, 130) for name in ("xpos", "t5")),
    ],
)
def test_attention_is_the_paper_s_formula(name: str, causal: bool, length: int) -> None:
    """Sums of up to 130 terms round by about 130 · 1e-16; 1e-10 leaves room for what softmax makes of that."""
    module = make(name, causal=causal)
    x = random(1 if length > 17 else 2, length, DIM).requires_grad_()
    queries = list(range(length)) if length < 20 else [0, 1, 20, 64, 65, 100, 129]
    y, (expected, weights) = module(x)[:, queries], looped(module, x, list(range(length)), queries)
    assert_near(y, expected)
    assert_near(module.attention_weights(x)[:, :, queries], weights)
    upstream, learned = random(*y.shape, seed=99), [x, *module.parameters()]
    found = [torch.autograd.grad(each, learned, upstream) for each in (y, expected)]
    # Of one token all gradients of scores are zero but for rounding, so the scale is that of all gradients together.
    assert_near(*(torch.cat([gradient.flatten() for gradient in each]) for each in found))


@pytest.mark.parametrize("name", SCORES)
def test_positions_can_be_given(name: str) -> None:
    module, x, at = make(name, causal=False), random(1, 9, DIM), [3, 0, 7, 200, 21, 4, 4, 90, 1]
    for given in (torch.tensor(at), torch.tensor([at])):
        assert_near(module(x, positions=given), looped(module, x, at, list(range(9)))[0])


@pytest.mark.parametrize("made_of", [(Shaw, D), (Huang, D), (Deberta, DIM, HEADS, D)], ids=["shaw", "huang", "deberta"])
def test_distances_are_told_apart_as_far_as_it_says(made_of: tuple[Any, ...]) -> None:
    positions, x = made_of[0](*made_of[1:], max_distance=4), random(1, 9, DIM)
    module = made("softmax", rope="none", score_positions=positions, causal=False)
    assert_near(module(x), looped(module, x, list(range(9)), list(range(9)), most=4)[0])


def test_a_table_that_ends_says_so() -> None:
    module = make("tupe", causal=True)
    module.score_positions = Tupe(DIM, HEADS, D, max_length=10).double()
    assert module(random(1, 10, DIM)).shape == (1, 10, DIM)
    assert_refused(lambda: module(random(1, 11, DIM)), ["positions go to 10", "ends at 9", "max_length"])
    _, state = module.prefill(random(1, 10, DIM))
    assert_refused(lambda: module.step(random(1, 1, DIM), state), ["positions go to 10", "ends at 9"])
    model = CausalLM(ModelConfig(attention="softmax", position="tupe", max_length=10, dim=16))
    assert_refused(lambda: model.generate(torch.zeros(1, 8, dtype=torch.int64), 4), ["length is 4", "max_length"])


class Nearer(ScorePositions):
    """One of a user's own: the nearer the better."""

    def __init__(self, head_dim: int, heads: int) -> None:
        super().__init__(head_dim)
        self.slope = torch.nn.Parameter(torch.ones(heads))

    def forward(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        return -self.slope.view(-1, 1, 1) * (q_positions.unsqueeze(-1) - k_positions.unsqueeze(-2)).abs()


def test_one_of_one_s_own_is_a_module_or_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    given = SoftmaxRoPEAttention(DIM, HEADS, rope="none", score_positions=Nearer(D, HEADS), causal=True)
    slopes, x = torch.tensor([2**-4, 2**-8]), random(2, 9, DIM).float()
    alibi = SoftmaxRoPEAttention(DIM, HEADS, rope="none", alibi=True, causal=True)
    given.load_state_dict({**alibi.state_dict(), "score_positions.slope": slopes})
    assert_near(given(x), alibi(x), 1e-5)
    monkeypatch.setitem(POSITIONS, "nearer", Nearer)
    model = CausalLM(ModelConfig(attention="softmax", position="nearer", dim=16, heads=2))
    assert model(torch.zeros(1, 5, dtype=torch.int64)).shape == (1, 5, 256)


@pytest.mark.parametrize("attention", ["linear", "retention", "delta", "favor+window"])
def test_linear_attention_is_refused_with_the_reason(attention: str) -> None:
    for name in SCORES:
        config = ModelConfig(attention=attention, position=name)
        words = [f'position is "{name}"', attention, "sums over the keys before it knows the query", "softmax"]
        assert_refused(lambda config=config: CausalLM(config), words)
        with pytest.raises(TypeError):
            LinearRoPEAttention(DIM, HEADS, score_positions=name)  # type: ignore[call-arg]


def test_xpos_is_finite_and_right_at_20_000_and_counts_by_differences() -> None:
    """In float32 an angle is rounded to 6e-8 of a turn, and ζ^(c/512) cancels to a few units in the last place."""
    module, x, at = make("xpos", causal=True), random(1, 41, DIM), list(range(0, 20_001, 500))
    positions = torch.tensor(at)
    expected = looped(module, x, at, list(range(41)))[0]
    assert_near(module(x, positions=positions), expected, 1e-9)
    assert_near(module(x, positions=positions + 100_000), expected, 1e-9)
    assert make("xpos", causal=True).bfloat16()(x.bfloat16(), positions=positions).isfinite().all()
    single, y = module.float(), x.float().requires_grad_()
    output = single(y, positions=positions)
    assert_near(output.double(), expected, 1e-5)
    assert torch.autograd.grad(output.sum(), y)[0].isfinite().all()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (64, 1000), (16, 20)])
def test_t5_s_buckets_are_those_of_transformers(causal: bool, buckets: int, most: int) -> None:
    theirs: Any = pytest.importorskip("transformers.models.t5.modeling_t5", reason="transformers is not installed")
    distance, options = torch.arange(-3000, 3001), {"num_buckets": buckets, "max_distance": most}
    expected = theirs.T5Attention._relative_position_bucket(-distance, bidirectional=not causal, **options)
    own = T5Buckets(1, D, causal=causal, buckets=buckets, max_distance=most)
    assert own.bucket(distance).tolist() == expected.tolist()
