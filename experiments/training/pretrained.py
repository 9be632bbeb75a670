"""Encoders that another comparison has trained, to begin with."""

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from experiments.records.record import read_comparison, run_directory
from experiments.records.schema import Comparison
from experiments.training.checkpoint import newest_checkpoint
from experiments.training.masked import MaskedToken
from experiments.training.subwords import FILE
from experiments.training.text_tokens import TextTokenizer
from experiments.variants import Variant, get_variant

PREFIX = "encoder."
NOT_OF_THE_MODEL = ("learning_rate", "dropout", "context")
"""settings in which fine-tuning may differ from pre-training; of a context, a table of positions has the shape"""


@dataclass(frozen=True)
class Pretrained:
    """A comparison of masked tokens, whose runs give their encoders to those of the same variant and seed."""

    directory: Path
    comparison: Comparison

    @classmethod
    def read(cls, directory: Path) -> "Pretrained":
        """Raises ValueError if it is no such comparison."""
        comparison = read_comparison(directory)
        if comparison.objective.name != MaskedToken.name:
            raise ValueError(
                f"--initial-weights is {directory}, which was trained for the {comparison.objective.name}; give a "
                "comparison of masked tokens (python -m experiments run mlm)"
            )
        return cls(directory, comparison)

    @property
    def tokenizer(self) -> TextTokenizer:
        return TextTokenizer.read(self.directory / FILE)

    def load_into(self, encoder: nn.Module, variant: Variant, seed: int) -> None:
        """Give ``encoder`` the weights of its variant and seed.

        Raises ValueError if there are none, or they are of another shape.
        """
        wanted = _of_the_model(variant)
        same = [one.name for one in self.comparison.variants if _of_the_model(get_variant(one.name)) == wanted]
        checkpoint = None
        if same and seed in self.comparison.seeds:
            checkpoint = newest_checkpoint(run_directory(self.directory, same[0], seed) / "checkpoint")
        if checkpoint is None:
            raise ValueError(
                f"--initial-weights {self.directory} has no trained {variant.name} with seed {seed}; train it there "
                "first"
            )
        weights = {
            name.removeprefix(PREFIX): tensor for name, tensor in checkpoint.model.items() if name.startswith(PREFIX)
        }
        here = {name: tensor.shape for name, tensor in encoder.state_dict().items()}
        if here != {name: tensor.shape for name, tensor in weights.items()}:
            raise ValueError(
                f"--initial-weights {self.directory} holds {variant.name} of another size; give its --dim, --layers, "
                "--heads and, with learned positions, --context"
            )
        encoder.load_state_dict(weights)


def _of_the_model(variant: Variant) -> tuple[object, ...]:
    settings = {name: value for name, value in variant.settings.items() if name not in NOT_OF_THE_MODEL}
    return variant.kernel, variant.position, settings
