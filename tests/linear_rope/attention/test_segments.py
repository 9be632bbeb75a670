"""Packed sequences in the function and in models: each segment is as if it were alone; modules: test_contracts.py."""

import io
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
    linear_attention,
)
from linear_rope.model import DecoderState
from tests.linear_rope.tensors import FORMS, HEADS, SETTINGS, D, assert_refused, random, random_qkv

DIM, LENGTH = HEADS * D, 90
EXACT = 1e-12
IDS = torch.tensor([[0] * 7 + [3] + [5] * 62 + [2] * 20, [4] * 20 + [1] * 70])


def segments_alone(ids: Tensor) -> list[tuple[int, Tensor]]:
    return [(row, (ids[row] == name).nonzero().squeeze(-1)) for row in range(len(ids)) for name in ids[row].unique()]


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
