"""The configuration of a run (a variant trained with one seed): every setting that shapes its training."""

import itertools
import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

MOST_TOKENS_PER_STEP = 2**26
LARGEST_RATE = 1e30
"""of the learning rate and of the largest gradient norm: beyond it float32 overflows in the optimiser"""
LARGEST_DECAY = 1e6
LARGEST_STD = 10.0


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file holds. Raises ValueError that names it, if it is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not TOML: {error}") from None


def check_range(name: str, value: int, smallest: int, largest: int) -> None:
    """Raises ValueError, with the values that would do, unless ``value`` is a whole number in the range."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is {value!r}; give a whole number")
    if value < smallest:
        raise ValueError(f"{name} is {value}; give {smallest} or more")
    if value > largest:
        raise ValueError(f"{name} is {value}; give {largest:,} or less")


@dataclass(frozen=True)
class Config:
    """The resolved settings of a comparison; equal for all its runs. Presets are in presets.py.

    Raises:
        ValueError: a value of the wrong type, out of its range, or that does not fit another; the message names it.
    """

    data: str = "stdlib"
    """data set to train on; the command `data` names them"""
    objective: Literal["next", "masked"] = "next"
    """of a text: its next token is predicted, or those 15 % of its tokens that are hidden; other data have their own"""
    tokenizer: Literal["bytes", "bpe", "wordpiece"] = "bytes"
    """bpe: byte-level byte-pair encoding; wordpiece: BERT's; both are trained on the training split"""
    vocabulary_size: Annotated[int, 256, 2**16] = 256
    """tokens of the tokenizer; more than the 256 bytes for bpe"""
    examples: Annotated[int, 0, 10**9] = 0
    """of labelled texts and translations: how many of the training split are used, a fair sample of it; 0: all"""
    initial_weights: str = "none"
    """directory of a comparison of masked tokens, whose encoders labelled texts begin with; none: from the start"""
    layers: Annotated[int, 1, 10_000] = 2
    """transformer blocks"""
    dim: Annotated[int, 1, 2**17] = 128
    """model width"""
    heads: Annotated[int, 1, 2**16] = 4
    """attention heads; divides dim"""
    num_features: Annotated[int, 1, 2**16] = 64
    """random features M per head for the FAVOR+ variants; even (elu+1 and relu have M = dim / heads)"""
    context: Annotated[int, 1, 2**24] = 256
    """sequence length N in tokens"""
    packing: Literal["none", "documents"] = "none"
    """documents: in a window of a text no byte sees another document's, and the first byte of each is not scored"""
    batch_size: Annotated[int, 1, 2**20] = 4
    """sequences per optimiser step"""
    steps: Annotated[int, 1, 10**9] = 360
    """optimiser steps"""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """muon: of the matrices in blocks; AdamW of everything else, and with adamw of all"""
    learning_rate: float = 2e-3
    """peak learning rate, of both optimisers; the same for every variant"""
    warmup_steps: Annotated[int, 0, 10**9] = 40
    """steps of linear warm-up to the peak"""
    schedule: Literal["cosine", "inverse-sqrt", "trapezoid"] = "cosine"
    """learning rate after the warm-up: a cosine to a tenth of the peak; the peak times √(warmup_steps / step); or the
    peak, and over the last 40 % of the steps linearly to zero"""
    budgets: str = "none"
    """steps, comma-separated, after which a run is tested as if it had ended there: a copy of it is trained over the
    last 40 % of them (with cosine a fifth) with a learning rate that falls to zero, as the run's own does at its end"""
    weight_decay: float = 0.1
    """weight decay, on matrices only"""
    gradient_clip: float = 1.0
    """largest gradient norm of an update"""
    dropout: float = 0.0
    """dropout on attention output and MLP"""
    label_smoothing: float = 0.0
    """probability that the training loss of translations spreads over all tokens; evaluations have none"""
    initial_std: float = 0.02
    """standard deviation of the initial matrices, where initial_spread is 0"""
    initial_spread: float = 0.0
    """times 1/√dim, the standard deviation of the initial matrices: 0.9 is 0.08 at a width of 128; 0: initial_std"""
    redraw_every: Annotated[int, 0, 10**9] = 0
    """training steps between redraws of the random features; 0 draws them once"""
    denominator: Literal["unrotated", "rotated", "none"] = "unrotated"
    """denominator of linear attention with RoPE after the map (RoFormer eq. 19: unrotated)"""
    decay: Literal["none", "fixed", "alibi", "retnet", "gate"] = "none"
    """what each head keeps of the past at each token: all of it, a share of the head's own, or one the token sets"""
    local_conv: Annotated[int, 0, 4096] = 0
    """tokens in a learned sum of values that is added to the heads' output; 0: none"""
    short_conv: Annotated[int, 0, 4096] = 0
    """tokens in a learned sum of queries, keys and values that is added to each; 0: none"""
    qk_norm: Literal["no", "yes"] = "no"
    """yes: each head's queries and keys are normalised before map and rotation, with a learned gain of the head"""
    log_every: Annotated[int, 1, 10**9] = 10
    """steps between training-loss records"""
    evaluate_every: Annotated[int, 1, 10**9] = 40
    """steps between evaluations on the validation split"""
    evaluation_windows: Annotated[int, 1, 10**9] = 48
    """windows of `context` tokens of the validation split, evenly spaced, the same at every evaluation"""
    diagnose_windows: Annotated[int, 0, 10**4] = 0
    """validation windows on which every evaluation also measures denominators, weights and row sums; 0: none"""
    test_windows: Annotated[int, 1, 10**9] = 256
    """windows of the test split, evenly spaced, for the final figure"""
    checkpoint_every: Annotated[int, 1, 10**9] = 100
    """steps between checkpoints"""
    kept_checkpoints: Annotated[int, 2, 1000] = 2
    """checkpoints that are kept; of translations the average of their weights is measured"""
    tested: Literal["last", "best"] = "last"
    """weights that are tested and kept: the last ones, or those that were best on the validation split"""
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """bfloat16: autocast (weights, angles, exponents, states and denominators stay in float32); float64: everything, to
    compare last digits"""
    compile: Literal["no", "yes", "graphs"] = "no"
    """yes: training steps run under torch.compile, whose operations round otherwise; evaluations do not; graphs: as
    CUDA graphs too, for models so small that a GPU waits for Python"""
    threads: Annotated[int, 1, 4096] = 1
    """CPU threads of each worker; part of the configuration because it changes the last bits of sums"""

    def __post_init__(self) -> None:
        for name, kind in TYPES.items():
            value = getattr(self, name)
            if kind is int:
                check_range(name, value, *LIMITS[name])
            elif (words := get_args(kind)) and value not in words:
                raise ValueError(f"{name} is {value!r}; give {' or '.join(words)}")
            elif kind is str and not isinstance(value, str):
                raise ValueError(f"{name} is {value!r}; give a name")
            elif kind is float and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ValueError(f"{name} is {value!r}; give a number")
        if (self.tokenizer == "bytes") != (self.vocabulary_size == 256):
            raise ValueError(
                f"vocabulary_size is {self.vocabulary_size} with the tokenizer {self.tokenizer}; give 256 for bytes, "
                "and more, such as 512, for bpe and wordpiece"
            )
        if self.packing == "documents" and self.tokenizer != "bytes":
            raise ValueError(f"packing is documents with the tokenizer {self.tokenizer}; give bytes")
        if self.objective == "masked" and self.tokenizer != "wordpiece":
            raise ValueError(f"objective is masked with the tokenizer {self.tokenizer}; give wordpiece")
        if self.budgets != "none" and not all(text.isascii() and text.isdigit() for text in self.budgets.split(",")):
            raise ValueError(f"budgets is {self.budgets!r}; give steps with commas between, such as 200,400, or none")
        budgets = budget_steps(self.budgets)
        if any(step < 5 or step >= self.steps for step in budgets) or list(budgets) != sorted(set(budgets)):
            raise ValueError(
                f"budgets is {self.budgets!r}; give ascending steps, from 5 to less than the {self.steps:,} of the run"
            )
        if self.budgets != "none" and self.schedule == "inverse-sqrt":
            raise ValueError(
                "schedule is inverse-sqrt with budgets, at whose ends the learning rate falls to zero; give trapezoid"
            )
        if self.optimizer == "muon" and self.precision == "float64":
            raise ValueError(
                "optimizer is muon with the precision float64, but Muon computes in float32 (on a GPU in bfloat16) "
                "whatever the precision; give adamw, or another precision"
            )
        if self.tested == "best" and (self.budgets != "none" or self.kept_checkpoints > 2):
            raise ValueError(
                f"tested is best with budgets {self.budgets} and kept_checkpoints {self.kept_checkpoints}; test the "
                "last weights, or leave out budgets and keep 2 checkpoints at most"
            )
        if self.context < 2:
            raise ValueError(f"context is {self.context}; give 2 or more, or there is no past to attend to")
        if self.tokens_per_step > MOST_TOKENS_PER_STEP:
            raise ValueError(
                f"batch_size times context is {self.tokens_per_step:,} tokens a step; give values whose product is "
                f"{MOST_TOKENS_PER_STEP:,} or less"
            )
        if self.dim % self.heads:
            raise ValueError(f"dim {self.dim} is not divisible by heads {self.heads}; change one of them")
        if (self.dim // self.heads) % 2:
            raise ValueError(f"dim / heads is {self.dim // self.heads}; RoPE rotates pairs, so make it even")
        if self.num_features % 2:
            raise ValueError(
                f"num_features {self.num_features} is odd; RoPE rotates pairs of features, so give an even number, "
                f"such as {self.num_features + 1}"
            )
        most = {"learning_rate": LARGEST_RATE, "gradient_clip": LARGEST_RATE, "initial_std": LARGEST_STD}
        for name, limit in most.items():
            if not 0 < getattr(self, name) <= limit:
                raise ValueError(f"{name} is {getattr(self, name)}; give a positive number, {limit:g} or less")
        if not 0 <= self.weight_decay <= LARGEST_DECAY:
            raise ValueError(f"weight_decay is {self.weight_decay}; give 0 or more, {LARGEST_DECAY:g} or less")
        if not 0 <= self.initial_spread <= LARGEST_STD:
            raise ValueError(f"initial_spread is {self.initial_spread}; give 0 or more, {LARGEST_STD:g} or less")
        for name in ("dropout", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give 0 or more and less than 1")

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.context

    @property
    def matrix_std(self) -> float:
        """Standard deviation of the initial matrices."""
        return self.initial_spread / math.sqrt(self.dim) if self.initial_spread else self.initial_std


TYPES: dict[str, Any] = get_type_hints(Config)
LIMITS: dict[str, tuple[int, int]] = {
    name: hint.__metadata__
    for name, hint in get_type_hints(Config, include_extras=True).items()
    if get_origin(hint) is Annotated
}
"""smallest and largest value of every whole number: far above what any machine trains, and small enough that nothing
overflows or allocates before it is refused"""


def budget_steps(budgets: str) -> tuple[int, ...]:
    """The steps that ``Config.budgets`` names."""
    return () if budgets == "none" else tuple(int(step) for step in budgets.split(","))


def recorded_steps(split: str, steps: int, log_every: int, evaluate_every: int, budgets: str = "none") -> Iterator[int]:
    """The steps at which a run of ``steps`` that is finished has a record of a split, ascending: the last, and before.

    An iterator, because of a run of 10⁹ steps the first lacking one is enough.
    """
    before = {
        "train": range(log_every, steps, log_every),
        "validation": range(0, steps, evaluate_every),
        "test": budget_steps(budgets),
    }
    return itertools.chain(before[split], [steps])
