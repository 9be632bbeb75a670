"""performer-pytorch's models, upgraded in place: their function, what they leak of the future and padding, and use."""

import copy
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linear_rope import FavorPlus, linear_attention
from tests.linear_rope.tensors import assert_identical, assert_near, assert_refused
from tests.linear_rope.tensors import random as random_doubles
from tests.linear_rope.test_devices import NEEDS_CUDA

pytest.importorskip("performer_pytorch", reason="performer-pytorch is not installed")

from performer_pytorch import CrossAttention, PerformerEncDec, PerformerLM, SelfAttention
from performer_pytorch.performer_pytorch import FixedPositionalEmbedding

from linear_rope.interop.performer import downgrade, upgrade

DIM, HEADS, D, LENGTH, TOKENS = 32, 4, 8, 40, 20
BOTH = pytest.mark.parametrize("causal", [True, False])
EITHER = pytest.mark.parametrize("rope", ["before", "after"])
# Both sides are float32, with sums over some ten numbers in each of a few layers, relative to the largest.
ROUNDING = 1e-5


def random(*shape: int, seed: int = 0) -> Tensor:
    return random_doubles(*shape, seed=seed).float()


def attention(kind: type[nn.Module] = SelfAttention, **options: Any) -> Any:
    torch.manual_seed(0)
    return kind(DIM, **{"heads": HEADS, "dim_head": D, "nb_features": 16, "qkv_bias": True} | options)


def language_model(*, dominated: bool = False, **options: Any) -> Any:
    """A model, if dominated, whose first token, 0, has the largest key in every layer: no later one exceeds it."""
    torch.manual_seed(0)
    settings = {"num_tokens": TOKENS, "max_seq_len": 64, "dim": DIM, "depth": 2, "heads": HEADS, "dim_head": D}
    model = PerformerLM(**settings | {"nb_features": 16, "qkv_bias": True, "attn_out_bias": True} | options).eval()
    if not dominated:
        return model
    with torch.no_grad():
        for table in model.pos_emb.parameters():
            table.mul_(0.1)  # learned positions would make other keys of a token
        first = model.token_emb.weight[0].mul_(30)
        for module in model.modules():
            if isinstance(module, SelfAttention):
                module.to_k.weight += 0.8 * torch.outer(random(module.to_k.out_features, seed=1), first / first.norm())
    return model


def text() -> Tensor:
    tokens = torch.randint(1, TOKENS, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    tokens[:, 0] = 0
    return tokens


def rotations() -> Tensor:
    return FixedPositionalEmbedding(D, 64)(random(1, LENGTH, D))


def output_and_gradients(model: nn.Module, *inputs: Any, **options: Any) -> list[Tensor]:
    model.train().zero_grad()
    output = model(*inputs, **options)
    output.square().mean().backward()
    return [output.detach(), torch.cat([x.grad.flatten() for x in model.parameters() if x.grad is not None])]


MODELS: dict[str, dict[str, Any]] = {
    "odd": {"nb_features": 17},
    "generalized": {"generalized_attention": True, "kernel_fn": nn.Softplus()},
    "local": {"local_attn_heads": 2, "local_window_size": 10},
    "all-local": {"local_attn_heads": (HEADS, 0), "local_window_size": 10},
    "reversible": {"reversible": True},
    "learned": {"rotary_position_emb": False, "tie_embed": True},
    "shifted": {"shift_tokens": True, "use_rezero": True, "ff_glu": True, "ff_chunks": 2},
}


@BOTH
@pytest.mark.parametrize("kind", MODELS)
def test_rope_before_keeps_the_function_and_its_gradients(kind: str, causal: bool) -> None:
    model, tokens = language_model(dominated=causal, causal=causal, **MODELS[kind]), text()
    expected = output_and_gradients(model, tokens)
    assert_near(output_and_gradients(upgrade(model, rope="before"), tokens), expected, ROUNDING)


def test_rope_before_keeps_the_gradients_of_queries_and_keys_alone() -> None:
    """They are the smallest, and what ε makes of the maxima is a small part of them."""
    module, x, found = attention(), random(2, LENGTH, DIM), []
    for _ in range(2):
        module.zero_grad()
        module(x).square().mean().backward()
        found.append([layer.weight.grad.clone() for layer in (module.to_q, module.to_k)])
        upgrade(module, rope="before")
    assert_near(found[1], found[0], ROUNDING)


@pytest.mark.parametrize("mask", [None, torch.arange(LENGTH).expand(2, -1) < 30])
def test_rope_before_keeps_cross_attention(mask: Tensor | None) -> None:
    module, x, context = attention(CrossAttention), random(2, 7, DIM), random(2, LENGTH, DIM, seed=1)
    # What the peer has where there is padding it has where it was cut off: it keeps padding in its denominator.
    expected = module(x, context=context if mask is None else context[:, :30])
    upgrade(module, rope="before")
    # The peer's models give pos_emb to these too, and nothing comes of it.
    assert_near(module(x, context=context, context_mask=mask, pos_emb=rotations()), expected, ROUNDING)


@pytest.mark.parametrize("generalized", [False, True])
@BOTH
def test_rope_after_is_eq_19_with_the_same_weights(causal: bool, generalized: bool) -> None:
    module, x = attention(causal=causal, generalized_attention=generalized), random(2, LENGTH, DIM)
    upgrade(module, rope="after")
    q, k, v = (layer(x).view(2, LENGTH, HEADS, D).transpose(1, 2) for layer in (module.to_q, module.to_k, module.to_v))
    features = module.feature_map
    if not generalized:
        features = FavorPlus(D, 16)
        features.omega = module.fast_attention.projection_matrix
    y = linear_attention(q, k, v, feature_map=features, rope="after", causal=causal, implementation="reference")
    assert_near(module(x), module.to_out(y.transpose(1, 2).flatten(2)), ROUNDING)


@torch.no_grad()
def change_of_prefix(module: nn.Module, loudness: float) -> float:
    """How far outputs before position 30 move when what follows grows louder, or is cut off for 0; relatively."""
    x, pos_emb = random(2, LENGTH, DIM), rotations()
    y = module(x, pos_emb=pos_emb)[:, :30]
    if loudness:
        x = torch.cat((x[:, :30], loudness * x[:, 30:]), dim=1)
    else:
        x, pos_emb = x[:, :30], pos_emb[:, :30]
    return float((module(x, pos_emb=pos_emb)[:, :30] - y).abs().max() / y.std())


@EITHER
@BOTH
@pytest.mark.parametrize("generalized", [False, True])
def test_neither_the_future_nor_padding_has_an_influence_any_more(generalized: bool, causal: bool, rope: str) -> None:
    module, pos_emb = attention(causal=causal, generalized_attention=generalized), rotations()
    if (
        causal and not generalized
    ):  # the peer; if a later one no longer does this, its variant's description must change
        assert change_of_prefix(module, 100) > 0.1
    upgrade(module, rope=rope)
    if causal:
        assert change_of_prefix(module, 100) < ROUNDING
        assert change_of_prefix(module, 0) < ROUNDING
    with torch.no_grad():  # keys of padding, which are their bias, as large as others
        module.to_k.bias.mul_(8)
    x = random(2, 25, DIM)
    expected = output_and_gradients(module, x, pos_emb=pos_emb[:, :25])
    for padding in (torch.arange(LENGTH) >= 25, torch.arange(LENGTH) < 15, torch.arange(LENGTH) % 8 < 3):
        padded = torch.full((2, LENGTH, DIM), torch.inf)
        padded[:, ~padding] = x
        y = module(padded, pos_emb=pos_emb, mask=~padding.expand(2, -1))[:, ~padding]
        gradients = torch.autograd.grad(y.square().mean(), list(module.parameters()))
        assert_near([y.detach(), torch.cat([x.flatten() for x in gradients])], expected, ROUNDING)


@BOTH
def test_padding_at_the_end_has_no_influence_on_local_heads(causal: bool) -> None:
    module = upgrade(attention(causal=causal, local_heads=2, local_window_size=10))
    x, keep = random(2, LENGTH, DIM), torch.arange(LENGTH).expand(2, -1) < 25
    assert_near(module(x, mask=keep)[:, :25], module(x[:, :25], mask=keep[:, :25]), ROUNDING)


@EITHER
def test_training_goes_on(rope: str) -> None:
    model = language_model(causal=True, feature_redraw_interval=5, attn_dropout=0.1).train()
    tokens = text()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    parameters = list(model.parameters())
    assert upgrade(model, rope=rope) is model
    assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))
    buffer = next(x for x in model.modules() if hasattr(x, "projection_matrix")).projection_matrix
    losses, draws = [], []
    for _ in range(20):
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        draws.append(buffer.clone())
    assert losses[-1] < losses[0] / 2
    assert torch.equal(draws[0], draws[4])
    assert not torch.equal(draws[0], draws[5])


@EITHER
def test_dropout_redraws_and_low_precision(rope: str) -> None:
    module, x = upgrade(attention(dropout=0.5), rope=rope), random(2, LENGTH, DIM)
    assert 0.4 < float((module.train()(x) == 0).float().mean()) < 0.6
    y = module.eval()(x)
    assert y.all()
    module.fast_attention.redraw_projection_matrix(torch.device("cpu"))
    assert (module(x) - y).abs().max() > 1e-3
    module = upgrade(attention(causal=True), rope=rope)
    expected = module(x, pos_emb=rotations())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_near(module(x, pos_emb=rotations()).float(), expected, 4e-2)
    low = copy.deepcopy(module).bfloat16()(x.bfloat16(), pos_emb=rotations().bfloat16())
    assert_near(low.float(), expected, 4e-2)


def test_state_goes_back_and_forth() -> None:
    peer, tokens = language_model(causal=True), text()
    expected, state = peer(tokens), copy.deepcopy(peer.state_dict())
    upgraded = upgrade(language_model(causal=True), rope="after")
    with torch.no_grad():
        for parameter in upgraded.parameters():
            parameter.mul_(1.1)
        upgraded.performer.net.layers[0][0].fn.fast_attention.projection_matrix.mul_(1.1)
    trained = copy.deepcopy(upgraded.state_dict())
    assert trained.keys() == state.keys()
    peer.load_state_dict(trained, strict=True)
    assert not torch.equal(peer(tokens), expected)
    assert_identical(downgrade(upgraded)(tokens), peer(tokens))
    upgraded.load_state_dict(state, strict=True)
    assert_identical(upgraded(tokens), expected)


def test_the_way_back_and_a_change_of_mind() -> None:
    model, tokens = language_model(), text()
    expected = model(tokens)
    after = upgrade(model)(tokens)
    other = copy.deepcopy(model)
    before = upgrade(model, rope="before")(tokens)
    assert (after - before).abs().max() > 1e-2
    assert_identical(other(tokens), after)
    assert_near(before, expected, ROUNDING)
    assert "rope='before'" in repr(model)
    assert_identical(downgrade(model)(tokens), expected)
    assert type(model.performer.net.layers[0][0].fn) is SelfAttention
    assert "feature_map" not in repr(downgrade(model))


def test_encoder_and_decoder_generate() -> None:
    torch.manual_seed(0)
    sizes = {"num_tokens": TOKENS, "max_seq_len": 64, "depth": 1, "heads": HEADS, "dim_head": D, "nb_features": 16}
    parts = {f"{part}_{name}": size for part in ("enc", "dec") for name, size in sizes.items()}
    model = upgrade(PerformerEncDec(dim=DIM, **parts))
    source, target = text(), text()[:, :9]
    model(source, target, enc_mask=torch.ones_like(source, dtype=torch.bool)).backward()
    assert model.generate(source, target[:, :1], 4).shape == (2, 4)


class Own(SelfAttention):
    """A user's."""


REFUSED = [
    (lambda: attention(nb_features=17), {}, ["nb_features", "17", "18", 'rope="before"']),
    (lambda: attention(no_projection=True), {}, ["no_projection"]),
    (lambda: attention(Own), {}, ["Own"]),
    (lambda: nn.Linear(2, 2), {}, ["ModuleList", "PerformerLM"]),
    (lambda: attention(), {"rope": "none"}, ["rope", "'none'", "'after'"]),
]


@pytest.mark.parametrize(("make", "options", "words"), REFUSED, ids=lambda x: x[0] if isinstance(x, list) else "")
def test_what_cannot_be_upgraded_is_refused_and_unchanged(make: Any, options: Any, words: list[str]) -> None:
    model = nn.ModuleList([make()])
    if isinstance(model[0], SelfAttention):
        model.insert(0, attention())
    kinds = [type(x) for x in model.modules()]
    assert_refused(lambda: upgrade(model, **options), words)
    assert [type(x) for x in model.modules()] == kinds


def test_calls_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x, module = random(2, LENGTH, DIM), upgrade(attention(causal=True))
    assert_refused(lambda: module(x, context=x), ["context", "causal"])
    assert_refused(lambda: module(x, mask=torch.ones(2, LENGTH)), ["mask", "torch.bool", "float32"])
    assert_refused(lambda: module(x, mask=torch.ones(2, 3, dtype=torch.bool)), ["mask", "(2, 3)", "(2, 40)"])
    # Odd features do where nothing rotates them.
    upgrade(attention(CrossAttention, nb_features=17))(x, context=x[:, :7])
    upgrade(attention(local_heads=HEADS, local_window_size=10, nb_features=17))(x)
    monkeypatch.setitem(sys.modules, "performer_pytorch", None)
    with pytest.raises(ImportError, match="pip install performer-pytorch, and setuptools"):
        upgrade(nn.Linear(2, 2))


@NEEDS_CUDA
def test_a_gpu_gives_what_a_cpu_gives() -> None:
    model, tokens = upgrade(language_model(causal=True), rope="after"), text()
    expected = output_and_gradients(model, tokens)
    found = output_and_gradients(model.to("cuda"), tokens.to("cuda"))
    assert_near([x.cpu() for x in found], expected, 10 * ROUNDING)
