"""This library's language model as one of transformers: its outputs, generation, loss, and the way through a file."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from linear_rope import CausalLM, ModelConfig
from linear_rope.attention.linear import LinearAttentionState
from linear_rope.interop.settings import shape_of
from linear_rope.model_config import AttentionSettings
from linear_rope.positions.rope_scaling import YaRN
from linear_rope.states import mapped
from tests.linear_rope.tensors import assert_identical, assert_near, assert_refused

pytest.importorskip("transformers", reason="transformers is not installed")

import transformers

from linear_rope.interop.language_model import LinearRoPECache, LinearRoPEForCausalLM

TOKENS, PADDING = 40, 0
MODELS: dict[str, dict[str, Any]] = {
    "favor+": {"feature_map": "favor+", "decay": "gate", "redraw_every": 5},
    "elu+1": {"feature_map": "elu+1", "position": "learned", "max_length": 64, "short_conv": 3, "local_conv": 2},
    "softmax": {"attention": "softmax", "position": "rope-before", "rope_scaling": YaRN(4.0, original_length=64)},
    "hybrid": {"feature_map": "elu+1", "pattern": (AttentionSettings(), AttentionSettings(attention="softmax"))},
}
MODELS["hybrid"]["position"] = "rope-before"
EVERY = pytest.mark.parametrize("kind", MODELS)


def both(kind: str) -> tuple[CausalLM, Any]:
    model = CausalLM(ModelConfig(dim=32, heads=2, vocab_size=TOKENS, **MODELS[kind])).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # so that attention matters to what comes out
    return model, LinearRoPEForCausalLM.from_model(model)


def text(length: int = 9, batch: int = 3) -> Tensor:
    return torch.randint(1, TOKENS, (batch, length), generator=torch.Generator().manual_seed(0))


def padded(tokens: Tensor, left: int) -> dict[str, Tensor]:
    rows = F.pad(tokens, (left, 0), value=PADDING)
    return {"input_ids": rows, "attention_mask": (rows != PADDING).long()}


@EVERY
def test_generation_is_this_library_s_with_beams_and_padding(kind: str) -> None:
    model, theirs = both(kind)
    tokens, options = text(), {"max_new_tokens": 12, "do_sample": False, "pad_token_id": PADDING}
    expected = model.generate(tokens, 12, temperature=0)
    assert_identical(theirs.generate(tokens, **options), expected)
    assert_identical(theirs.generate(**padded(tokens, 5), **options)[:, 5:], expected)
    ragged = padded(tokens, 0)
    ragged["input_ids"][1, :4] = PADDING
    ragged["attention_mask"][1, :4] = 0
    alone = model.generate(tokens[1:2, 4:], 12, temperature=0)
    assert_identical(theirs.generate(**ragged, **options)[1:2, 4:], alone)
    beams = options | {"num_beams": 3, "num_return_sequences": 2}
    assert_identical(theirs.generate(tokens, **beams), theirs.generate(tokens, use_cache=False, **beams))


@EVERY
def test_pieces_of_a_prompt_give_the_whole(kind: str) -> None:
    model, theirs = both(kind)
    given = padded(text(), 3)
    cache, found = LinearRoPECache(), []
    for start, end in ((0, 2), (2, 7), (7, 8), (8, 12)):
        piece = {"input_ids": given["input_ids"][:, start:end], "attention_mask": given["attention_mask"][:, :end]}
        found.append(theirs(**piece, past_key_values=cache).logits)
    assert_near(torch.cat(found, dim=1)[:, 3:], model(text()), 1e-5)
    assert cache.get_seq_length() == 12
    assert_near(theirs(**given, logits_to_keep=2).logits, model(text())[:, -2:], 1e-5)


def test_the_cache_of_linear_attention_does_not_grow_and_says_so() -> None:
    _, theirs = both("favor+")
    sizes = []
    for length in (5, 50):
        cache = theirs(text(length), use_cache=True).past_key_values
        count: list[int] = []
        mapped(cache.layers[0].state, lambda _, x, count=count: count.append(x.numel()))
        sizes.append(sum(count))
        assert all(isinstance(each, LinearAttentionState) for each in cache.layers[0].state.blocks)
    assert sizes[0] == sizes[1]
    assert cache.is_linear == [True]
    assert cache.has_previous_state()
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([5, 0]))
    again = theirs(text(3, 2), past_key_values=cache).logits
    rows = torch.cat((text(50)[[2, 0]], text(3, 2)), dim=1)
    assert_near(again, theirs(rows, use_cache=False).logits[:, -3:], 1e-5)
    cache.reset()
    assert not cache.has_previous_state()
    assert cache.get_seq_length() == 0


def test_the_loss_is_of_the_tokens_that_follow_and_leaves_out_what_is_marked() -> None:
    model, theirs = both("elu+1")
    tokens = text()
    labels = tokens.clone()
    labels[0, 5:] = -100
    expected = F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    found = theirs.train()(tokens, labels=labels)
    assert found.past_key_values is None
    assert_near(found.loss, expected, 1e-6)
    found.loss.backward()
    assert all(x.grad is not None for x in theirs.parameters())


@EVERY
def test_what_is_saved_is_loaded(kind: str, tmp_path: Path) -> None:
    model, theirs = both(kind)
    theirs.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert_identical(again(text()).logits, model(text()))
    assert again.model.config == model.config


@pytest.mark.slow
def test_what_is_saved_is_loaded_by_a_process_that_knows_transformers_alone(tmp_path: Path) -> None:
    model, theirs = both("favor+")
    theirs.save_pretrained(tmp_path / "model")
    code = (
        "import sys, torch\nfrom transformers import AutoModelForCausalLM\n"
        "assert 'linear_rope' not in sys.modules\n"
        "model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        "torch.save(model(torch.load(sys.argv[2])).logits.detach(), sys.argv[2])\n"
    )
    torch.save(text(), tmp_path / "tokens")
    surroundings = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code, str(tmp_path / "model"), str(tmp_path / "tokens")]
    subprocess.run(command, check=True, env=surroundings)
    assert_identical(torch.load(tmp_path / "tokens"), model(text()))


@EVERY
def test_packed_sequences_do_not_see_each_other(kind: str) -> None:
    _, theirs = both(kind)
    rows = [{"input_ids": text(length, 1)[0]} for length in (4, 1, 6)]
    alone = torch.cat([theirs(row["input_ids"][None]).logits for row in rows], dim=1)
    for option in ("return_seq_idx", "return_flash_attn_kwargs"):
        collate = transformers.DataCollatorWithFlattening(return_position_ids=False, **{option: True})
        found, labels = theirs(**collate(rows), num_items_in_batch=8), collate(rows)["labels"][0, 1:]
        assert_near(found.logits, alone, 1e-5)
        assert_near(found.loss, F.cross_entropy(alone[0, :-1], labels, reduction="sum") / 8, 1e-5)


@pytest.mark.parametrize("mean_resizing", [True, False])
def test_a_vocabulary_of_another_size_is_in_all_that_tells_of_it(tmp_path: Path, mean_resizing: bool) -> None:
    model, theirs = both("elu+1")
    new = theirs.resize_token_embeddings(TOKENS + 3, mean_resizing=mean_resizing).weight[TOKENS:]
    assert new.std() < (1 + 5 / (2 * new.numel()) ** 0.5) * model.config.initial_std
    grown = theirs(text() + 3, labels=text() + 3)
    assert grown.logits.shape[-1] == theirs.config.vocab_size == theirs.model.config.vocab_size == TOKENS + 3
    assert_near(theirs(text()).logits[..., :TOKENS], model(text()), 1e-6)
    theirs.save_pretrained(tmp_path)
    again = LinearRoPEForCausalLM.from_pretrained(tmp_path)
    assert_identical(again(text() + 3, labels=text() + 3).loss, grown.loss)


REFUSED = [
    *((lambda name=name: both("elu+1")[1](text(), **{name: text()}), [name]) for name in ("position_ids", "lables")),
    (lambda: both("elu+1")[1](text(), max_length_q=9), ["max_length_q"]),
    (lambda: both("elu+1")[1](text(), seq_idx=text(), use_cache=True), ["use_cache", "packed"]),
    (lambda: both("elu+1")[1](text(), seq_idx=text(), past_key_values=LinearRoPECache()), ["past_key_values"]),
    (lambda: both("elu+1")[1](text(), past_key_values=transformers.DynamicCache()), ["past_key_values is a Dyn"]),
    (lambda: both("elu+1")[1](text(), attention_mask=torch.ones(3, 1, 9, 9)), ["attention_mask", "(3, 1, 9, 9)"]),
    (lambda: LinearRoPEForCausalLM.from_model(torch.nn.Linear(2, 2)), ["Linear", "CausalLM"]),
    (lambda: LinearRoPEForCausalLM.from_model(CausalLM(ModelConfig(), lambda _: torch.nn.Linear(2, 2))), ["kind"]),
    (lambda: shape_of({"depth": 3}), ["depth"]),
    (lambda: shape_of({"rope_scaling": {"kind": "Own", "factor": 2.0}}), ["Own"]),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=lambda x: x[0] if isinstance(x, list) else "")
def test_what_does_not_fit_is_refused(call: Any, words: list[str]) -> None:
    assert_refused(call, words)
