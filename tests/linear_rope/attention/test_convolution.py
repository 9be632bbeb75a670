"""Short convolutions, and what the modules add them to, against their sums."""

import pytest
import torch
from torch import Tensor, nn

from linear_rope.attention.convolution import ShortConvolution
from tests.linear_rope.attention.modules import DIM, made
from tests.linear_rope.tensors import assert_near, random, some_padding

CHANNELS, WIDTH, LENGTH = 3, 3, 70


@pytest.mark.parametrize("causal", [True, False])
def test_it_is_the_weighted_sum_of_the_neighbours_that_are_no_padding(causal: bool) -> None:
    convolution = ShortConvolution(CHANNELS, WIDTH, causal=causal).double()
    with torch.no_grad():
        convolution.weight.copy_(random(*convolution.weight.shape, seed=1))
    x, padding = random(2, 11, CHANNELS), some_padding(2, 11)
    y = convolution(x.masked_fill(padding.unsqueeze(-1), 0), padding)
    assert (y[padding] == 0).all()
    for sequence, mask, found in zip(x, padding, y, strict=True):
        kept = sequence[~mask]
        for at, actual in enumerate(found[~mask]):
            neighbours = range(at - WIDTH + 1, at + 1 if causal else at + WIDTH)
            terms = [convolution.weight[:, place] * kept[n] for place, n in enumerate(neighbours) if 0 <= n < len(kept)]
            assert_near(actual, torch.stack(terms).sum(0))


class WithNeighbours(nn.Module):
    """A projection and a convolution of it."""

    def __init__(self, project: nn.Module, weight: Tensor, causal: bool) -> None:
        super().__init__()
        self.project, self.convolution = project, ShortConvolution(len(weight), WIDTH, causal=causal)
        self.convolution.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(x)
        return y + self.convolution(y)


def weights_of(part: nn.Module | None) -> Tensor:
    assert isinstance(part, ShortConvolution)
    return part.weight.detach()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kernel", ["softmax", "favor+", "elu+1"])
def test_modules_add_them_to_queries_keys_and_values_and_to_the_output(kernel: str, causal: bool) -> None:
    x = random(2, LENGTH, DIM)
    plain, short = made(kernel, causal=causal), made(kernel, causal=causal, short_conv=WIDTH)
    local = made(kernel, causal=causal, local_conv=WIDTH)
    for module in (short, local):
        module.load_state_dict(plain.state_dict(), strict=False)
    expected = plain(x)
    added = ShortConvolution(DIM, WIDTH, causal=causal).double()
    added.weight = nn.Parameter(weights_of(local.local))
    assert_near(local(x), expected + plain.out(added(plain.value(x))))
    weights = weights_of(short.short).chunk(3)
    for name, weight in zip(("query", "key", "value"), weights, strict=True):
        setattr(plain, name, WithNeighbours(getattr(plain, name), weight, causal))
    assert_near(short(x), plain(x))
