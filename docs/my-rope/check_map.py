import torch

from linear_rope import linear_attention
from my_rope.maps import SquarePlus

torch.manual_seed(0)
inputs = [torch.randn(2, 3, 65, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
found = {}
for implementation in ("reference", "auto"):
    y = linear_attention(*inputs, feature_map=SquarePlus(8), rope="after", causal=True, implementation=implementation)
    found[implementation] = [y, *torch.autograd.grad(y.square().sum(), inputs)]
for expected, value in zip(found["reference"], found["auto"], strict=True):
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
print("equal to the oracle")
