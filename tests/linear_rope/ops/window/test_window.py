"""An exact window with the FAVOR+ remainder against its quadratic definition."""

import math

import pytest
import torch

from linear_rope.attention import WindowedFavor
from linear_rope.ops.window.definition import windowed_reference
from linear_rope.positions.decay import Decay
from tests.linear_rope.tensors import assert_near, random


class Resets(Decay):
    """Keeps 0.8, and nothing at every eleventh token."""

    def forward(self, x):
        log_decay = x.new_full((x.shape[0], self.heads, x.shape[1]), math.log(0.8))
        return log_decay.masked_fill(torch.arange(x.shape[1]) % 11 == 7, -torch.inf)


@pytest.mark.parametrize(
    "options", [{"rope": "before"}, {"rope": "none"}, {"decay": "fixed"}, {"decay": "gate"}, {"decay": Resets(2)}]
)
@pytest.mark.parametrize(("length", "window"), [(1, 4), (17, 4), (17, 32), (130, 32), (257, 1)])
def test_the_module_equals_the_definition(length, window, options):
    torch.manual_seed(0)
    module = WindowedFavor(16, 2, **options, window=window, num_features=8).double()
    x = random(2, length, 16).requires_grad_()

    def definition(x):
        projected = module.project(x, x)
        q, k, *_ = module._sequence(projected, None)
        mapped = module.feature_map(q), module.feature_map(k)
        return module._merge(windowed_reference(q, k, projected.v, *mapped, window, projected.log_decay), None)

    found = []
    for of in (module, definition):
        y = of(x)
        gradients = torch.autograd.grad(y, [x, *module.parameters()], random(*y.shape, seed=9))
        # One scale: where there is one token, those of queries and keys are zero but for rounding.
        found.append([y, torch.cat([gradient.flatten() for gradient in gradients])])
    assert_near(*found)
