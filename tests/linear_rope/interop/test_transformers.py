"""``attn_implementation="linear_rope"`` in small random models of transformers; nothing is downloaded."""

import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linear_rope import EluPlusOne, FavorPlus, linear_attention
from linear_rope.features import FeatureMap, Taylor
from linear_rope.interop.transformers import convert, register
from tests.linear_rope.tensors import assert_identical, assert_near, assert_refused
from tests.linear_rope.test_devices import NEEDS_CUDA

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS, DIM, HEADS, LENGTH = 30, 32, 4, 20
# float32 on both sides, some layers deep, relative to the largest number.
ROUNDING = 1e-5
SIZES = {
    kind: {"hidden_size": DIM, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    | {"max_position_embeddings": 64}
    for kind in ("llama", "bert")
}
SIZES["llama"]["num_key_value_heads"] = 2
SIZES["gpt2"] = {"n_embd": DIM, "n_layer": 2, "n_head": HEADS, "n_positions": 64}
OF_SCALE = {"gpt2": {"scale_attn_by_inverse_layer_idx": True}}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
CAUSAL = pytest.mark.parametrize("kind", ["llama", "gpt2"])
EVERY = pytest.mark.parametrize("kind", SIZES)


@pytest.fixture(autouse=True)
def registered() -> None:
    register()


def model_of(kind: str, implementation: str = "linear_rope", **options: Any) -> Any:
    config = transformers.AutoConfig.for_model(kind, vocab_size=TOKENS, **SIZES[kind] | SPECIAL | options)
    make = transformers.AutoModelForMaskedLM if kind == "bert" else transformers.AutoModelForCausalLM
    torch.manual_seed(0)
    model = make.from_config(config, attn_implementation=implementation).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(8)  # so that attention matters to what comes out
    return model


def text(length: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randint(3, TOKENS, (2, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("feature_map", ["favor+", "elu+1", "taylor"])
@EVERY
def test_a_model_calls_linear_attention_without_another_rotation(kind: str, feature_map: str) -> None:
    """The output is that of the definition, with repeated keys and, for maps of scores, the model's scale."""
    register(feature_map, num_features=14 if feature_map == "favor+" else None, seed=3)
    model, tokens = model_of(kind, **OF_SCALE.get(kind, {})), text()
    calls = []

    def by_definition(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, **options: Any) -> Any:
        layer = len(calls)
        calls.append(options["scaling"])
        groups = q.shape[1] // k.shape[1]
        k, v = (x[:, torch.arange(q.shape[1]) // groups] for x in (k, v))
        maps = {"favor+": FavorPlus(q.shape[-1], 14, seed=3000 + layer), "taylor": Taylor(q.shape[-1])}
        phi = maps.get(feature_map, EluPlusOne())
        if feature_map in maps:
            q = q * options["scaling"] * q.shape[-1] ** 0.5
        causal = kind != "bert"
        y = linear_attention(q, k, v, feature_map=phi, rope="none", causal=causal, implementation="reference")
        return y.transpose(1, 2), None

    transformers.AttentionInterface.register("definition", by_definition)
    expected = model_of(kind, "definition", **OF_SCALE.get(kind, {}))(tokens).logits
    assert len(set(calls)) == (2 if kind == "gpt2" else 1)
    assert_near(model(tokens).logits, expected, ROUNDING)
    assert (model_of(kind, "eager")(tokens).logits - expected).abs().max() > 0.01 * expected.abs().max()


@EVERY
def test_padding_on_either_side_has_no_influence(kind: str) -> None:
    model, tokens = model_of(kind), text()
    expected = model(tokens).logits
    for left, right in [(0, 7), (6, 0), (3, 4)]:
        filler = torch.full((2, 1), 5)
        padded = torch.cat((filler.expand(-1, left), tokens, filler.expand(-1, right)), dim=1)
        mask = torch.zeros_like(padded)
        mask[:, left : left + LENGTH] = 1
        places = (mask.cumsum(-1) - 1).clamp(min=0)
        logits = model(padded, attention_mask=mask, position_ids=places).logits
        assert logits.isfinite().all()
        assert_near(logits[:, left : left + LENGTH], expected, ROUNDING)


@CAUSAL
def test_a_cache_in_any_pieces_gives_the_whole(kind: str) -> None:
    model, tokens = model_of(kind), text()
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    expected = model(tokens, attention_mask=mask, position_ids=places).logits
    cache, pieces, start = transformers.DynamicCache(config=model.config), [], 0
    for end in (7, 8, 9, 15, LENGTH):
        options = {"attention_mask": mask[:, :end], "position_ids": places[:, start:end], "past_key_values": cache}
        pieces.append(model(tokens[:, start:end], **options).logits)
        start = end
    assert_near(torch.cat(pieces, dim=1)[0], expected[0], ROUNDING)
    assert_near(torch.cat(pieces, dim=1)[1, 4:], expected[1, 4:], ROUNDING)
    other = torch.cat((tokens[:, :12], text(seed=1)[:, 12:]), dim=1)  # the future changes nothing
    assert_near(model(other).logits[:, :12], model(tokens).logits[:, :12], ROUNDING)


@CAUSAL
def test_generation_is_the_same_with_every_cache_and_with_padding(kind: str) -> None:
    model, tokens = model_of(kind), text(9)
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}

    def generate(tokens: Tensor, **more: Any) -> list[list[int]]:
        mask = (tokens != 0).long()
        new = model.generate(tokens, attention_mask=mask, **options, **more)
        return new[:, tokens.shape[1] :].tolist()

    expected = generate(tokens, use_cache=False)
    assert generate(tokens) == expected
    assert generate(tokens, cache_implementation="static", disable_compile=True) == expected
    assert generate(nn.functional.pad(tokens, (5, 0))) == expected
    assert len(generate(tokens, num_beams=3)[0]) == 6


@EVERY
def test_training_and_saving(kind: str, tmp_path: Any) -> None:
    model, tokens = model_of(kind).train(), text()
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()  # its newer name
    model(tokens, labels=tokens).loss.backward()
    assert all(x.grad is None or x.grad.isfinite().all() for x in model.parameters())
    assert model.state_dict().keys() == model_of(kind, "eager").state_dict().keys()
    model.eval().save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, attn_implementation="linear_rope")
    assert_near(again(tokens).logits, model(tokens).logits, ROUNDING)
    again.set_attn_implementation("eager")
    assert (again(tokens).logits - model(tokens).logits).abs().max() > 1e-3


# Tracing takes seconds, so not every combination.
TRACED = pytest.mark.parametrize(
    ("kind", "how", "masked"),
    [
        pytest.param("llama", "register", False, marks=[pytest.mark.slow, pytest.mark.full]),
        ("llama", "convert", True),
        pytest.param("gpt2", "convert", False, marks=[pytest.mark.slow, pytest.mark.full]),
        ("bert", "register", True),
    ],
)
HOW = pytest.mark.parametrize("how", ["register", "convert"])


def model_made(kind: str, how: str) -> Any:
    return model_of(kind) if how == "register" else convert(model_of(kind, "eager"))


@EVERY
@HOW
def test_inference_mode_leaves_a_model_that_can_be_trained(kind: str, how: str) -> None:
    model, tokens = model_made(kind, how), text()
    with torch.inference_mode():
        expected = model(tokens).logits
    assert_near(model(tokens).logits, expected, ROUNDING)
    model.train()(tokens, labels=tokens).loss.backward()


@TRACED
def test_export_is_the_model_and_leaves_nothing_in_it(kind: str, how: str, masked: bool) -> None:
    """With cached keys a decoder gets another mask than without."""
    model, tokens = model_made(kind, how), text()
    options = {"attention_mask": torch.ones_like(tokens)} if masked else {}
    options |= {} if kind == "bert" else {"use_cache": False}
    exported = torch.export.export(model, (tokens,), options).module()
    found = model(tokens, **options).logits
    assert type(found) is Tensor
    assert_near(exported(tokens, **options).logits, found, ROUNDING)


@pytest.mark.slow
@TRACED
def test_one_graph_is_compiled_and_equal(kind: str, how: str, masked: bool) -> None:
    torch.compiler.reset()
    model, tokens = model_made(kind, how), text()
    options: dict[str, Any] = {"attention_mask": (torch.arange(LENGTH) > 3).expand(2, -1).long()} if masked else {}
    options |= {} if kind == "bert" else {"use_cache": False}
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(tokens, **options).logits
    compiled[:, 4:].sum().backward()
    assert_near(compiled[:, 4:], model(tokens, **options).logits[:, 4:], ROUNDING)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_packed_sequences_do_not_see_each_other(kind: str) -> None:
    model, tokens = model_of(kind).double(), text()[:1]
    ends = torch.tensor([0, 10, 11, LENGTH], dtype=torch.int32)
    places = torch.cat([torch.arange(length) for length in ends.diff().tolist()])[None]
    number = torch.repeat_interleave(torch.arange(3), ends.diff())[None]
    pairs = zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    alone = torch.cat([model(tokens[:, begin:end]).logits for begin, end in pairs], dim=1)
    packings: list[dict[str, Any]] = [{}, {"use_cache": False}, {"attention_mask": torch.ones_like(tokens)}]
    packings += [{"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}, {"seq_idx": number.int()}]
    packings += [packing | {"use_cache": False} for packing in packings[3:]]
    for packing in packings:
        assert_near(model(tokens, position_ids=places, **packing).logits, alone, 1e-12)
    # Both rows are packed alike by one row of places.
    both = model(text(), position_ids=places).logits
    assert_near(both[:1], alone, 1e-12)
    padded = torch.cat((tokens[:, :3], tokens), dim=1)
    mask = (torch.arange(LENGTH + 3) > 2)[None].long()
    shifted = model(padded, attention_mask=mask, position_ids=F.pad(places, (3, 0), value=1)).logits
    assert_near(shifted[:, 3:], alone, 1e-12)


@pytest.mark.slow
def test_compiled_packed_sequences_are_refused_by_what_runs() -> None:
    torch.compiler.reset()
    model, tokens, packed = model_of("llama"), text(), torch.arange(LENGTH)[None] % 10
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for options in ({}, {"attention_mask": torch.ones_like(tokens)}):
        with pytest.raises((RuntimeError, ValueError), match="position_ids begin anew"):
            compiled(tokens, position_ids=packed, use_cache=False, **options)


@EVERY
def test_an_optimiser_that_was_made_before_the_first_call_trains_what_a_map_learns(kind: str) -> None:
    model, tokens = convert(model_of(kind, "eager"), "hedgehog"), text()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    maps = [module for module in model.modules() if isinstance(module, FeatureMap)]
    assert len(maps) == 2
    model(tokens, labels=tokens).loss.backward()
    optimiser.step()
    assert all(each.weight.any() for each in maps)
    again = convert(model_of(kind, "eager"), "hedgehog")
    again.load_state_dict(model.state_dict(), strict=True)
    assert_identical(again(tokens).logits, model(tokens).logits)


@EVERY
def test_a_converted_model_has_maps_of_its_dtype_with_the_draws_of_a_registered_one(kind: str, tmp_path: Any) -> None:
    register(seed=3)
    expected, tokens = model_of(kind)(text()).logits, text()
    model = model_of(kind, "eager")
    model.save_pretrained(tmp_path)
    model = type(model).from_pretrained(tmp_path)
    assert convert(model, seed=3) is model
    assert_near(model(tokens).logits, expected, ROUNDING)
    low = convert(model_of(kind, "eager").bfloat16(), seed=3)
    assert {x.dtype for x in low.buffers() if x.is_floating_point() and x.shape[-1] == DIM // HEADS} == {torch.bfloat16}
    model.save_pretrained(tmp_path)
    assert_near(convert(type(model).from_pretrained(tmp_path), seed=3)(tokens).logits, expected, ROUNDING)


REFUSED = [
    (lambda: register("elu+2"), ["feature_map", "elu+2"]),
    (lambda: register(FavorPlus(8, 16), num_features=64), ["num_features", "belong to the feature map"]),
    (lambda: register("hedgehog"), ["feature_map", "hedgehog", "convert"]),
    (lambda: convert(nn.Linear(2, 2)), ["model", "Linear"]),
    (lambda: convert(model_of("llama", "eager"), FavorPlus(8, 16), num_features=64), ["belong to the feature map"]),
    (lambda: unconverted()(text()), ["LlamaAttention", "convert"]),
    (lambda: model_of("llama")(text(), attention_mask=torch.ones(2, 1, LENGTH, LENGTH).bool()), ["attention_mask"]),
    (lambda: sliding()(text()), ["sliding window"]),
    (lambda: model_of("llama")(text(), softcap=3.0), ["softcap"]),
    (lambda: model_of("llama")(text(), position_bias=torch.zeros(1)), ["position_bias"]),
    (lambda: model_of("llama")(text(), s_aux=torch.zeros(1)), ["s_aux"]),
]


def unconverted() -> Any:
    convert(model_of("llama", "eager"))  # its name is known from then on
    return model_of("llama", "linear_rope_converted")


def sliding() -> Any:
    torch.manual_seed(0)
    config = transformers.MistralConfig(vocab_size=TOKENS, **SIZES["llama"] | SPECIAL, sliding_window=8)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="linear_rope")


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=lambda x: x[0] if isinstance(x, list) else "")
def test_what_linear_attention_cannot_do_is_refused(call: Any, words: list[str]) -> None:
    assert_refused(call, words)


def test_without_the_package_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="pip install 'transformers"):
        register()


@NEEDS_CUDA
def test_a_gpu_gives_what_a_cpu_gives() -> None:
    model, tokens = model_of("llama"), text()
    expected = model(tokens).logits
    assert_near(model.to("cuda")(tokens.to("cuda")).logits.cpu(), expected, 10 * ROUNDING)
