"""Translating: token by token as all at once, and the beam search as one that recomputes everything."""

from typing import Any

import pytest
import torch
from torch import Tensor

from linear_rope import EncoderDecoder, LinearRoPEAttention, SoftmaxRoPEAttention
from linear_rope.decoding import beam_search, length_penalty_of, reordered
from tests.linear_rope.tensors import assert_near
from tests.linear_rope.test_model import BOTH_WAYS, ELU, config, random_tokens, spread

BEGIN, END = 1, 2
KINDS: dict[str, dict[str, Any]] = {
    "softmax-rope": {},
    "softmax-learned": {},
    "softmax-alibi": {},
    "elu+1-rope-after": {},
    "elu+1-rope-after, gate": {"decay": "gate", "local_conv": 4, "short_conv": 3},
    "favor+-rope-after": {},
    "softmax-selective, gate": {},
    "elu+1-floater": {},
}
PADDING = torch.arange(15).expand(3, -1) >= torch.tensor([[15], [8], [11]])


def model_of(kind: str) -> Any:
    name = kind if kind in BOTH_WAYS else kind.split(",")[0]
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


@pytest.mark.parametrize("kind", [*BOTH_WAYS, "elu+1-rope-after, gate"])
@torch.no_grad()
def test_token_by_token_is_all_at_once(kind: str) -> None:
    model, source, target = model_of(kind), random_tokens(3, 15), random_tokens(6, 9, seed=1)
    logits = model(source.repeat_interleave(2, 0), target, PADDING.repeat_interleave(2, 0))
    state = model.start(source, PADDING)
    for place in range(9):
        found, state = model.step(target[:, place : place + 1], state)
        assert_near(found, logits[:, place])
    at_once, _ = model.step(target, model.start(source, PADDING))
    assert_near(at_once, logits[:, -1])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_reordered_states_are_those_of_reordered_sequences(kind: str) -> None:
    model, source, target = model_of(kind), random_tokens(3, 15), random_tokens(6, 9, seed=1)
    state = model.start(source, PADDING)
    for place in range(5):
        _, state = model.step(target[:, place : place + 1], state)
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
@pytest.mark.parametrize(("beams", "length_penalty"), [(1, 0.6), (4, 0.6), (3, 0.0)])
def test_beam_search_is_one_that_recomputes_everything(kind: str, beams: int, length_penalty: float) -> None:
    model, source = model_of(kind), random_tokens(3, 15)
    how: Any = {"beams": beams, "length_penalty": length_penalty, "longest": 7}
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


def test_one_beam_takes_the_likeliest_token_each_time() -> None:
    model, source = model_of("elu+1-rope-after"), random_tokens(4, 12)
    found = model.translate(source, begin=BEGIN, end=END, beams=1, longest=9)
    before = torch.cat((torch.full((4, 1), BEGIN), found[:, :-1]), dim=1)
    likeliest = model(source, before).argmax(-1)
    not_ended = (found == END).cumsum(1) - (found == END).long() == 0
    assert torch.equal(likeliest[not_ended], found[not_ended])


@pytest.mark.parametrize("kind", ["softmax-rope", "favor+-rope-after"])
def test_the_padding_of_a_source_changes_no_translation(kind: str) -> None:
    model, source = model_of(kind), random_tokens(3, 15)
    together = model.translate(source, PADDING, begin=BEGIN, end=END, longest=8)
    for row, mask, tokens in zip(source, PADDING, together, strict=True):
        alone = model.translate(row[~mask][None], begin=BEGIN, end=END, longest=8)
        assert tokens.tolist()[: alone.shape[1]] == alone[0].tolist()
        assert (tokens[alone.shape[1] :] == END).all()


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


def test_no_sources_have_no_translations() -> None:
    model = model_of("softmax-rope")
    assert model.translate(random_tokens(0, 5), begin=BEGIN, end=END, longest=4).shape == (0, 0)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("softmax-learned", {"longest": 41}, "longest is 41, but the learned position table ends at 40"),
        ("softmax-rope", {"longest": 0}, "longest is 0; give 1 or more"),
        ("softmax-rope", {"longest": 5, "beams": 0}, "beams is 0"),
        ("softmax-rope", {"longest": 5, "beams": 26}, "beams is 26; give half the vocabulary of 50 or less"),
    ],
)
def test_what_cannot_be_searched_is_refused(name: str, options: dict[str, Any], said: str) -> None:
    model = model_of(name)
    with pytest.raises(ValueError, match=said):
        model.translate(random_tokens(2, 5), begin=BEGIN, end=END, **options)


def test_learned_positions_translate_up_to_the_end_of_their_table() -> None:
    found = model_of("softmax-learned").translate(random_tokens(2, 5), begin=BEGIN, end=49, longest=40)
    assert found.shape[1] <= 40


def test_tokens_that_do_not_fit_a_decoder_s_state_are_refused() -> None:
    model = model_of("softmax-learned")
    state = model.start(random_tokens(2, 5))
    with pytest.raises(ValueError, match="tokens are 3 sequences for 2 sources; give a multiple"):
        model.step(random_tokens(3, 1), state)
    _, state = model.step(random_tokens(2, 40), state)
    with pytest.raises(ValueError, match="target is 41, but the learned position table ends at 40"):
        model.step(random_tokens(2, 1), state)


@pytest.mark.parametrize("kind", [LinearRoPEAttention, SoftmaxRoPEAttention])
def test_what_is_read_token_by_token_has_no_positions(kind: Any) -> None:
    x = torch.zeros(1, 3, 8)
    for settings in ({"causal": True, "rope": "none"}, {"rope": "before"}, {"rope": "none", "local_conv": 2}):
        with pytest.raises(ValueError, match="causal or tells positions"):
            kind(8, 2, **settings).remember(x)
    across = kind(8, 2, rope="none")
    y, context = torch.randn(2, 4, 8), torch.randn(2, 6, 8)
    mask = torch.arange(6).expand(2, -1) >= torch.tensor([[6], [2]])
    assert_near(across.recall(y, across.remember(context, mask)), across(y, context, mask), 1e-5)


def test_blocks_that_something_was_put_around_do_not_decode() -> None:
    model = EncoderDecoder(config("elu+1-rope-after", **ELU))
    model.blocks[1] = torch.nn.Sequential(model.blocks[1])
    with pytest.raises(ValueError, match="a block is a Sequential"):
        model.start(random_tokens(1, 3))
