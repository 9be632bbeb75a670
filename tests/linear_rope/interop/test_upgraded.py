"""An upgraded model of performer-pytorch in use: training, state dicts, the way back, and what is refused."""

import copy
import sys
from typing import Any

import pytest
import torch
from torch import nn

from tests.linear_rope.interop.performers import (
    DIM,
    EITHER,
    HEADS,
    LENGTH,
    ROUNDING,
    TOKENS,
    D,
    attention,
    language_model,
    random,
    rotations,
    text,
)
from tests.linear_rope.tensors import assert_identical, assert_near, assert_refused

pytest.importorskip("performer_pytorch", reason="performer-pytorch is not installed")

from performer_pytorch import CrossAttention, PerformerEncDec, SelfAttention

from linear_rope.interop.performer import downgrade, upgrade


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
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        draws.append(buffer.clone())
    assert losses[-1] < losses[0] / 2
    assert torch.equal(draws[0], draws[4])
    assert not torch.equal(draws[0], draws[5])


def test_dropout_stays() -> None:
    module, x = upgrade(attention(dropout=0.5)), random(2, LENGTH, DIM)
    assert 0.4 < float((module.train()(x) == 0).float().mean()) < 0.6
    assert not (module.eval()(x) == 0).any()


def test_a_redraw_reaches_the_map() -> None:
    for rope in ("before", "after"):
        module, x = upgrade(attention(), rope=rope), random(1, 9, DIM)
        y = module(x)
        module.fast_attention.redraw_projection_matrix(torch.device("cpu"))
        assert (module(x) - y).abs().max() > 1e-3


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
    mask = torch.ones_like(source, dtype=torch.bool)
    model(source, target, enc_mask=mask).backward()
    assert model.generate(source, target[:, :1], 4).shape == (2, 4)


def test_bfloat16_and_autocast() -> None:
    for rope in ("before", "after"):
        module, x = upgrade(attention(causal=True), rope=rope), random(2, LENGTH, DIM)
        expected = module(x, pos_emb=rotations())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert_near(module(x, pos_emb=rotations()).float(), expected, 4e-2)
        low = copy.deepcopy(module).bfloat16()(x.bfloat16(), pos_emb=rotations().bfloat16())
        assert_near(low.float(), expected, 4e-2)


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


def test_calls_that_do_not_fit_are_refused() -> None:
    x = random(2, LENGTH, DIM)
    module = upgrade(attention(causal=True))
    assert_refused(lambda: module(x, context=x), ["context", "causal"])
    assert_refused(lambda: module(x, mask=torch.ones(2, LENGTH)), ["mask", "torch.bool", "float32"])
    assert_refused(lambda: module(x, mask=torch.ones(2, 3, dtype=torch.bool)), ["mask", "(2, 3)", "(2, 40)"])


def test_odd_features_do_where_nothing_rotates_them() -> None:
    x = random(2, LENGTH, DIM)
    upgrade(attention(CrossAttention, nb_features=17))(x, context=x[:, :7])
    upgrade(attention(local_heads=HEADS, local_window_size=10, nb_features=17))(x)


def test_without_the_package_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "performer_pytorch", None)
    with pytest.raises(ImportError, match="pip install performer-pytorch, and setuptools"):
        upgrade(nn.Linear(2, 2))
