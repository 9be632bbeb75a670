import torch

from experiments.train.determinism import nondeterministic_operations


def test_operations_without_a_fixed_order_are_named_once_and_the_setting_is_as_before():
    def compute():
        torch.ones(3).cumsum(0)
        for _ in range(2):
            torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))

    assert nondeterministic_operations(compute) == ["put_"]
    assert not torch.are_deterministic_algorithms_enabled()
