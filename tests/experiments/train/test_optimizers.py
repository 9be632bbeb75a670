"""Muon beside AdamW: which weights each trains, that they go on exactly, and what is refused."""

import dataclasses

import pytest
import torch

from experiments.presets import get_preset
from experiments.train.models import Shape, build_model
from experiments.train.optimizers import all_orthogonal, block_matrices, make_optimizer, orthogonal
from experiments.variants import get_variant

CONFIG = dataclasses.replace(get_preset("smoke").config, optimizer="muon", learning_rate=0.01)
LINEAR = {f"attention.{name}.weight" for name in ("query", "key", "value", "out")} | {"mlp.0.weight", "mlp.2.weight"}


def model_of(variant):
    variant = get_variant(variant)
    return build_model(variant, variant.config(CONFIG), 0, Shape(256, CONFIG.context))


@pytest.mark.parametrize(
    ("variant", "of_adamw"),
    [
        ("softmax-rope", set()),
        ("performer-pytorch", set()),
        ("softmax-learned", {"embedding.positions.table.weight"}),
        ("hedgehog-none", {"attention.feature_map.weight"}),
        ("delta-none@decay=gate", {"attention.rate.weight", "attention.decay.weight"}),
        ("elu+1-rope-after@decay=gate@local_conv=4", {"attention.decay.weight", "attention.local.weight"}),
        ("softmax-tupe", {f"attention.score_positions.{name}.weight" for name in ("table", "query", "key")}),
    ],
)
def test_muon_trains_the_linear_maps_of_blocks_and_adamw_all_else(variant, of_adamw):
    model = model_of(variant)
    muons = {id(weight) for weight in block_matrices(model)}
    names = {name.removeprefix("blocks.0."): weight for name, weight in model.named_parameters()}
    assert {name for name, weight in names.items() if id(weight) in muons} == LINEAR
    matrices = {name for name, weight in names.items() if weight.dim() > 1}
    assert matrices - LINEAR == {"embedding.tokens.weight"} | of_adamw


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="PyTorch before 2.9 has no Muon to compare with")
def test_a_step_is_that_of_pytorchs_muon_in_float32_and_of_adamw(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda x: x.float().clone())
    together, apart = model_of("softmax-rope"), model_of("softmax-rope")
    optimizer, muons = make_optimizer(together, CONFIG), block_matrices(apart)
    others = [weight for weight in apart.parameters() if not any(weight is each for each in muons)]
    muon = torch.optim.Muon(muons, lr=0.01, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    groups = [
        {"params": [weight for weight in others if (weight.dim() > 1) == is_matrix], "weight_decay": decay}
        for is_matrix, decay in ((True, 0.1), (False, 0.0))
    ]
    adamw = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95))
    for seed in range(3):
        for model, optimizers in ((together, [optimizer]), (apart, [muon, adamw])):
            backward(model, seed)
            for each in optimizers:
                each.step()
    for weight, expected in zip(together.parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(weight, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("shape", [(8, 8), (32, 8), (8, 32)])
def test_an_update_has_the_singular_vectors_of_the_gradient(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    inside = left.mT @ orthogonal(matrix) @ right.mT
    values = inside.diagonal()
    assert ((values > 0.6) & (values < 1.3)).all()
    assert (inside - values.diag()).abs().max() < 1e-4


def backward(model, seed):
    model.zero_grad()
    tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(seed))
    model(tokens).logsumexp(-1).square().mean().backward()


def test_muon_is_refused_where_it_would_not_be_what_was_asked_for():
    with pytest.raises(ValueError, match=r"optimizer is muon with the precision float64.*give adamw"):
        dataclasses.replace(CONFIG, precision="float64")


def test_matrices_of_one_shape_together_are_those_one_by_one():
    generator = torch.Generator().manual_seed(0)
    matrices = [torch.randn(shape, generator=generator) for shape in ((8, 8), (32, 8), (8, 32), (8, 8), (32, 8))]
    together, apart = (all_orthogonal(matrices, at_once) for at_once in (True, False))
    for matrix, made, expected in zip(matrices, together, apart, strict=True):
        assert made.shape == matrix.shape
        torch.testing.assert_close(made, expected, rtol=0, atol=1e-5)  # float32, and values up to about 1
    assert all_orthogonal([], True) == []
