"""Feature maps of other packages in runs: weights with two names, extra state of any kind, weights in lists."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from experiments.config import Config
from experiments.data.corpus import corpus_of_text
from experiments.train.checkpoint import (
    checkpoint_path,
    load_average,
    load_newest_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from experiments.train.models import build_model
from experiments.train.objectives import NextByte
from experiments.variants import Variant
from linear_rope import CausalLM, LinearRoPEAttention, ModelConfig
from linear_rope.features import FeatureMap, Features
from linear_rope.features.registry import FEATURE_MAPS
from tests.experiments.train.tasks import TEXT
from tests.training import check_goes_on, train_run

CONFIG = Config(
    **{"layers": 1, "dim": 16, "heads": 2, "context": 16, "batch_size": 2, "steps": 8, "warmup_steps": 2},
    **{"log_every": 1, "evaluate_every": 3, "evaluation_windows": 2, "test_windows": 2, "checkpoint_every": 3},
)
VARIANT = Variant("foreign-rope-after", "foreign", "rope-after", "foreign-none", "")


class Foreign(FeatureMap):
    """One weight by two names, others in a list, and a scale that training makes, which features depend on."""

    def __init__(self, head_dim):
        super().__init__(head_dim, head_dim)
        self.first = nn.Linear(head_dim, head_dim)
        self.second = self.first
        self.shifts = nn.ParameterList([nn.Parameter(torch.zeros(head_dim)), self.first.bias])
        self.state = {"calls": 0, "scale": torch.ones(()), "kind": "mean"}

    def features(self, x):
        if self.training:
            mean = self.state["scale"] * 0.9 + 0.1 * x.detach().abs().mean()
            self.state = self.state | {"calls": self.state["calls"] + 1, "scale": mean}
        y = self.second(self.first(x)) + self.shifts[0]
        return Features((y / self.state["scale"]).exp().clamp(1e-3, 1e3), None)

    def get_extra_state(self):
        return self.state

    def set_extra_state(self, state):
        self.state = state


class InList(FeatureMap):
    def __init__(self, head_dim):
        super().__init__(head_dim, head_dim)
        self.shifts = [nn.Parameter(torch.zeros(head_dim))]

    def features(self, x):
        return Features((x + self.shifts[0]).exp(), None)


class Unkept(Foreign):
    def get_extra_state(self):
        return {"map": self}


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    for name, made in (("foreign", Foreign), ("in-list", InList), ("unkept", Unkept)):
        monkeypatch.setitem(FEATURE_MAPS, name, made)


def objective():
    return NextByte(corpus_of_text("text", TEXT), CONFIG.context, CONFIG.batch_size)


def test_a_stopped_run_goes_on_to_the_same_numbers_and_its_model_is_loaded(tmp_path):
    check_goes_on(tmp_path, objective, VARIANT, CONFIG)
    model = build_model(VARIANT, CONFIG, 0, objective())
    weights = []
    for name in ("whole", "stopped"):
        checkpoint, notes = load_newest_checkpoint(tmp_path / name / "checkpoint", model)
        assert (checkpoint.step, notes) == (CONFIG.steps, [])
        model.load_state_dict(checkpoint.model)
        weights.append(model.blocks[0].attention.feature_map.state)
    assert weights[0] == weights[1]
    assert weights[0]["calls"] > 1


def test_the_mean_of_checkpoints_is_that_of_both_names(tmp_path):
    model = CausalLM(ModelConfig(vocab_size=8, dim=16, layers=1, heads=2, feature_map="foreign"))
    weight = model.blocks[0].attention.feature_map.first.weight
    for step, value in ((2, 1.0), (4, 3.0)):
        nn.init.constant_(weight, value)
        save_checkpoint(tmp_path / "checkpoint", step, model.state_dict(), {})
    assert load_average(tmp_path, model, replace(CONFIG, steps=4, warmup_steps=2, checkpoint_every=2)) == 2
    assert (weight == 2).all()
    assert read_checkpoint(checkpoint_path(tmp_path / "checkpoint", 4)).model.keys() == model.state_dict().keys()


def test_weights_that_nothing_would_train_are_refused():
    config = ModelConfig(vocab_size=8, dim=16, layers=1, heads=2, feature_map="in-list")
    other = nn.Identity()
    other.gates = {"gate": nn.Linear(2, 2)}
    for make in (
        lambda: CausalLM(config),
        lambda: LinearRoPEAttention(16, 2, feature_map=InList(8)),
        lambda: CausalLM(ModelConfig(vocab_size=8, dim=16, layers=1, heads=2), attention=lambda layer: other),
    ):
        with pytest.raises(
            ValueError, match=r"keeps weights in \w+, a (list|dict), .* make it a torch.nn.ParameterList"
        ):
            make()


def test_extra_state_that_cannot_be_kept_is_refused_before_the_first_step(tmp_path):
    variant = Variant("unkept-rope-after", "unkept", "rope-after", "unkept-none", "")
    with pytest.raises(ValueError, match=r"feature_map._extra_state is a dict that cannot be kept .* get_extra_state"):
        train_run(tmp_path, variant, 0, CONFIG, objective())
    assert not (tmp_path / "checkpoint").exists()
