"""A plug-in for a check of the recipe: AdamW's groups get 2.0 times the learning rate that Muon's group has."""

import torch

FACTOR = 2.0


class Scaled(torch.optim.AdamW):
    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] *= FACTOR
        super().step(closure)
        for group in self.param_groups:
            group["lr"] /= FACTOR


torch.optim.AdamW = Scaled
