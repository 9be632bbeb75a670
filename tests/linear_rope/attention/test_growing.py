"""Caches grow where they lie, and what was there before keeps its numbers."""

import torch

from linear_rope import SoftmaxRoPEAttention


def steps(attention, state, tokens):
    outputs = []
    for token in tokens.split(1, dim=1):
        y, state = attention.step(token, state)
        outputs.append(y)
    return torch.cat(outputs, dim=1), state


def setting():
    torch.manual_seed(0)
    return SoftmaxRoPEAttention(16, 2, causal=True).double(), torch.randn(2, 40, 16, dtype=torch.float64)


def test_a_cache_is_not_copied_at_each_token():
    attention, x = setting()
    with torch.no_grad():
        _, state = attention.prefill(x[:, :10])
        places = set()
        for token in x[:, 10:].split(1, dim=1):
            _, state = attention.step(token, state)
            places.add((state.k.data_ptr(), state.v.data_ptr()))
    assert len(places) == 2  # room for 22, then for 46


@torch.no_grad()
def test_two_go_on_from_one_state():
    attention, x = setting()
    _, start = attention.prefill(x[:, :5])
    _, shared = attention.step(x[:, 5:6], start)
    one, of_one = steps(attention, shared, x[:, 6:20])
    other, _ = steps(attention, shared, x[:, 20:34])
    torch.testing.assert_close(one, attention(x[:, :20])[:, 6:], rtol=0, atol=1e-12)
    seen = torch.cat((x[:, :6], x[:, 20:34]), dim=1)
    torch.testing.assert_close(other, attention(seen)[:, 6:], rtol=0, atol=1e-12)
    again, _ = steps(attention, of_one, x[:, 34:])
    seen = torch.cat((x[:, :20], x[:, 34:]), dim=1)
    torch.testing.assert_close(again, attention(seen)[:, 20:], rtol=0, atol=1e-12)


def test_a_state_of_inference_mode_goes_on_outside_it():
    attention, x = setting()
    with torch.inference_mode():
        _, state = attention.prefill(x[:, :5])
        _, state = steps(attention, state, x[:, 5:8])
    with torch.no_grad():
        later, _ = steps(attention, state, x[:, 8:])
        torch.testing.assert_close(later, attention(x)[:, 8:], rtol=0, atol=1e-12)
