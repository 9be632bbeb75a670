"""Encoders that another comparison has trained, to begin with."""

from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from torch import nn

from experiments.config import OF_ATTENTION, Config
from experiments.console import program
from experiments.errors import why
from experiments.records.record import read_comparison, run_directory, run_status
from experiments.records.schema import Comparison
from experiments.train.checkpoint import Checkpoint, checkpoint_path, read_checkpoint
from experiments.train.masked import MaskedToken
from experiments.train.tokens import FILE, TextTokenizer
from experiments.variants import Variant, get_variant

PREFIX = "encoder."
NOT_OF_THE_MODEL = ("learning_rate", "dropout", "context")
"""settings in which fine-tuning may differ from pre-training; of a context, a table of positions has the shape"""
AS_PRETRAINED = ("tokenizer", "vocabulary_size", "heads", "denominator", *OF_ATTENTION)
"""settings in which it may not, though not each of them shows in the shape of a weight"""
SCALED = ("sinusoidal", "floater")
"""positions that a model scales by the spread of its initial matrices whenever it reads"""


@dataclass(frozen=True)
class Pretrained:
    """A comparison of masked tokens, whose runs give their encoders to those of the same variant and seed."""

    directory: Path
    comparison: Comparison
    matrix_std: float
    """of the models that are to begin with them"""

    @classmethod
    def read(cls, directory: Path, config: Config) -> "Pretrained":
        """Raises ValueError if it is no such comparison, or its models and tokens are not those of ``config``."""
        if not (directory / "comparison.json").exists():
            raise ValueError(
                f"--initial-weights is {directory}, where no comparison is; `{program()} run mlm --out "
                f"{quote(str(directory))}`, with the same --preset, trains the encoders"
            )
        comparison = read_comparison(directory)
        if comparison.objective.name != MaskedToken.name:
            raise ValueError(
                f"--initial-weights is {directory}, which was trained for the {comparison.objective.name}; give a "
                f"comparison of masked tokens ({program()} run mlm)"
            )
        there = asdict(Config()) | comparison.config
        for name in AS_PRETRAINED:
            if there[name] != getattr(config, name):
                option = f"--{name.replace('_', '-')}"
                raise ValueError(
                    f"{option} is {getattr(config, name)}, but {directory} of --initial-weights was trained with "
                    f"{there[name]}; give {option} {there[name]}"
                )
        return cls(directory, comparison, config.matrix_std)

    @property
    def tokenizer(self) -> TextTokenizer:
        return TextTokenizer.read(self.directory / FILE)

    def load_into(self, encoder: nn.Module, variant: Variant, seed: int) -> None:
        """Give ``encoder`` the weights of its variant and seed.

        Raises ValueError if there are none, or they are of another shape.
        """
        weights = self._final(variant, seed).model.items()
        own = {name.removeprefix(PREFIX): tensor for name, tensor in weights if name.startswith(PREFIX)}
        try:
            encoder.load_state_dict(own)
        except RuntimeError as error:
            told = " ".join(str(error).split())[:300]
            raise ValueError(
                f"--initial-weights {self.directory} holds {variant.name} of another size ({told}); give its --dim, "
                "--layers and, with learned positions, --context"
            ) from None

    def sha256(self, variant: Variant, seed: int) -> str:
        """Of the file of weights that ``load_into`` takes. Raises ValueError if there is none."""
        return self._final(variant, seed).weights_sha256

    def _final(self, variant: Variant, seed: int) -> Checkpoint:
        """What a finished run of this variant and seed left.

        Raises ValueError if there is none, it is damaged, or its positions were scaled by another spread.
        """
        there = Config.of(self.comparison.config)
        if variant.position in SCALED and there.matrix_std != self.matrix_std:
            raise ValueError(
                f"matrices begin at a standard deviation of {self.matrix_std:.3g}, and those of --initial-weights "
                f"{self.directory} at {there.matrix_std:.3g}, by which {variant.name} scales its positions; give "
                f"--initial-std {there.initial_std} --initial-spread {there.initial_spread}"
            )
        wanted = _of_the_model(variant)
        same = [one.name for one in self.comparison.variants if _of_the_model(get_variant(one.name)) == wanted]
        which = f"--initial-weights {self.directory} has no trained {variant.name} with seed {seed}"
        command = f"`{self.comparison.command}`"
        if not same or seed not in self.comparison.seeds:
            raise ValueError(f"{which}; {command} trains it if --variants and --seeds have it")
        if run_status(self.directory, same[0], seed).state != "done":
            raise ValueError(f"{which} yet; {command} finishes what is missing")
        run = run_directory(self.directory, same[0], seed)
        path = checkpoint_path(run / "checkpoint", self.comparison.config["steps"])
        try:
            return read_checkpoint(path)
        except (ValueError, OSError) as error:
            raise ValueError(f"{which}: {path} is damaged ({why(error)}); remove {run} and run mlm again") from None


def _of_the_model(variant: Variant) -> tuple[str, str, dict[str, Any]]:
    settings = {name: value for name, value in variant.settings.items() if name not in NOT_OF_THE_MODEL}
    return variant.kernel, variant.position, settings
