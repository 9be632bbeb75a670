"""The configuration of a run (a variant trained with one seed): every setting that shapes its training."""

import itertools
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from experiments.extensions import choices

LARGEST_RATE = 1e30
"""of the learning rate and of the largest gradient norm: beyond it float32 overflows in the optimiser"""
Positive = Annotated[int, Meta(ge=1, le=10**9)]
Natural = Annotated[int, Meta(ge=0, le=10**9)]
Rate = Annotated[float, Meta(gt=0, le=LARGEST_RATE)]
Share = Annotated[float, Meta(ge=0, lt=1)]
NOUNS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file holds. Raises ValueError that names it, if it is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None


def kinds_of(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields with their ranges, those that may be None without it."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: get_args(hint)[0] if NoneType in get_args(hint) else hint for name, hint in hints.items()}


def value_of(name: str, kind: Any, given: Any, *, is_text: bool = False) -> Any:
    """The value of a type with a range. ``is_text``: of a command line, where numbers are texts too.

    Raises ValueError that names it, what came and what would do.
    """
    if get_origin(kind) is Literal:
        if given not in get_args(kind):
            raise ValueError(f"{name} is {given!r}; {choices(str(given), [*get_args(kind)])}")
        return given
    try:
        if is_text and int in (kind, *get_args(kind)) and not re.fullmatch("-?[0-9]+", given):
            raise ValueError  # 64.0 and 6e1 are other names of variants
        return msgspec.convert(given, kind, strict=not is_text)
    except (msgspec.ValidationError, ValueError):
        raise ValueError(f"{name} is {given!r}; give {_what_would_do(kind)}") from None


def _what_would_do(kind: Any) -> str:
    plain, *metas = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    ends = {"gt": "more than {:,}", "ge": "{:,} or more", "lt": "less than {:,}", "le": "{:,} or less"}
    bounds = [
        text.format(bound) for meta in metas for end, text in ends.items() if (bound := getattr(meta, end)) is not None
    ]
    return ", ".join([NOUNS[plain], *bounds])


OF_ATTENTION = (
    *("rope_base", "rope_fraction", "rope_phase"),
    *("decay", "pair_denominator", "beta_range", "local_conv", "short_conv", "window"),
    *("kv_heads", "qk_norm", "output_norm", "output_gate"),
)
"""fields of Config that are arguments of an attention and fields of a model's configuration, by the same names"""


@dataclass(frozen=True)
class Config:
    """The resolved settings of a comparison; equal for all its runs. Presets are in presets.py.

    Raises:
        ValueError: a value of the wrong type, out of its range, or that does not fit another; the message names it.
    """

    data: str = "stdlib"
    """data set to train on; `data` names them"""
    objective: Literal["next", "masked"] = "next"
    """what of a text is predicted: the next token, or those 15 % that are hidden"""
    tokenizer: Literal["bytes", "bpe", "wordpiece"] = "bytes"
    """what a token of a text is; bpe (byte-level) and wordpiece (BERT's) are trained on the training split"""
    vocabulary_size: Annotated[int, Meta(ge=256, le=2**16)] = 256
    """tokens of the tokenizer, more than the 256 bytes for bpe"""
    examples: Natural = 0
    """labelled texts or translations to train on, a fair sample; 0: all"""
    initial_weights: str = "none"
    """comparison whose masked encoders labelled texts begin with"""
    layers: Annotated[int, Meta(ge=1, le=10_000)] = 2
    """transformer blocks"""
    dim: Annotated[int, Meta(ge=1, le=2**17)] = 128
    """model width"""
    heads: Annotated[int, Meta(ge=1, le=2**16)] = 4
    """attention heads; divides dim"""
    kv_heads: Annotated[int, Meta(ge=0, le=2**16)] = 0
    """heads of keys and values, divides heads; 0: as many"""
    num_features: Annotated[int, Meta(ge=1, le=2**16)] = 64
    """random features a head of FAVOR+, even"""
    context: Annotated[int, Meta(ge=2, le=2**24)] = 256
    """sequence length N in tokens"""
    packing: Literal["none", "documents"] = "none"
    """documents: in a window of a text no byte sees another document's, and the first of each is not scored"""
    batch_size: Annotated[int, Meta(ge=1, le=2**20)] = 4
    """sequences per optimiser step"""
    steps: Positive = 360
    """optimiser steps"""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """muon: of the matrices in blocks, with AdamW for everything else"""
    learning_rate: Rate = 2e-3
    """peak learning rate, the same for every variant"""
    warmup_steps: Natural = 40
    """steps of linear warm-up to the peak"""
    schedule: Literal["cosine", "inverse-sqrt", "trapezoid"] = "cosine"
    """after the warm-up: a cosine to a tenth of the peak; the peak times √(warmup_steps / step); or the peak, and
    over the last 40 % of the steps linearly to zero"""
    budgets: str = "none"
    """comma-separated steps to be tested at too, as if a run had ended there: the rate of a copy falls to zero over the
    last 40 % of them (with cosine a fifth), as the run's own does at its end"""
    weight_decay: Annotated[float, Meta(ge=0, le=1e6)] = 0.1
    """weight decay, on matrices only"""
    gradient_clip: Rate = 1.0
    """largest gradient norm of an update"""
    dropout: Share = 0.0
    """dropout on attention output and MLP"""
    label_smoothing: Share = 0.0
    """what the loss of translations spreads over all tokens"""
    initial_std: Annotated[float, Meta(gt=0, le=10)] = 0.02
    """standard deviation of first matrices, if initial_spread is 0"""
    initial_spread: Annotated[float, Meta(ge=0, le=10)] = 0.0
    """the same times √dim (0.9: 0.08 at 128); 0: initial_std"""
    redraw_every: Natural = 0
    """steps between redraws of the random features; 0 draws them once"""
    denominator: Literal["unrotated", "rotated", "none", "abs"] = "unrotated"
    """with RoPE after the map (eq. 19: unrotated); abs: max(|rotated|, 1)"""
    rope_base: Annotated[float, Meta(ge=100, le=1e6)] = 10000.0
    """θ_i = base^(−2i / rotated width)"""
    rope_fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """share of the channels, or features, that RoPE rotates"""
    rope_phase: Literal["none", "learned"] = "none"
    """phase of each head and pair"""
    decay: Literal["none", "fixed", "alibi", "retnet", "gate", "pair", "pair-fixed", "channel"] = "none"
    """what is kept of the past at each token: all, the head's own share, or one that the token sets (gate); the same
    for each pair of features; channel: for each channel of the delta rule"""
    pair_denominator: Literal["same", "head"] = "same"
    """with a decay of pairs it fades as they do, or as their mean"""
    beta_range: Literal["one", "two"] = "one"
    """two: twice the delta rule's β"""
    local_conv: Annotated[int, Meta(ge=0, le=4096)] = 0
    """tokens in a learned sum of values, added to the output; 0: none"""
    short_conv: Annotated[int, Meta(ge=0, le=4096)] = 0
    """tokens in learned sums added to queries, keys and values; 0: none"""
    window: Annotated[int, Meta(ge=0, le=2**24)] = 0
    """last tokens that softmax attention sees; 0: all"""
    qk_norm: Literal["no", "yes"] = "no"
    """normalise queries and keys"""
    output_norm: Literal["no", "yes"] = "no"
    """normalise each head's output"""
    output_gate: Literal["no", "yes", "sigmoid"] = "no"
    """gate of the output; yes: SiLU"""
    log_every: Positive = 10
    """steps between training-loss records"""
    evaluate_every: Positive = 40
    """steps between evaluations on the validation split"""
    evaluation_windows: Positive = 48
    """windows of the validation split, evenly spaced, always the same"""
    diagnose_windows: Annotated[int, Meta(ge=0, le=10**4)] = 0
    """windows to measure denominators, weights and row sums on; 0: none"""
    test_windows: Positive = 256
    """windows of the test split, evenly spaced"""
    checkpoint_every: Positive = 100
    """steps between checkpoints"""
    kept_checkpoints: Annotated[int, Meta(ge=2, le=1000)] = 2
    """checkpoints that are kept; translations use their average"""
    tested: Literal["last", "best"] = "last"
    """weights to test and keep: the last, or the best on the validation split"""
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """of the operations; bfloat16: autocast (weights, angles, exponents, states and denominators stay in float32);
    float64: everything"""
    compile: Literal["no", "yes", "graphs"] = "no"
    """yes: training steps run under torch.compile; graphs: as CUDA graphs too, for small models on a GPU"""
    threads: Annotated[int, Meta(ge=1, le=4096)] = 1
    """CPU threads of each run; they change the last bits of sums"""

    def __post_init__(self) -> None:
        for name, kind in SETTINGS.items():
            value_of(name, kind, getattr(self, name))
        for holds, otherwise in RULES:
            if not holds(self):
                raise ValueError(otherwise.format(self))

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.context

    @property
    def of_attention(self) -> dict[str, Any]:
        """The settings of ``OF_ATTENTION``, as a model's configuration has them."""
        words = {"yes": True, "no": False}
        values = {name: getattr(self, name) for name in OF_ATTENTION}
        values |= {name: values[name] or None for name in ("window", "kv_heads")}
        return {name: words.get(value, value) for name, value in values.items()}

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Config":
        """That of a record. Raises ValueError if another version of the suite has made it, with other settings."""
        if unknown := sorted(settings.keys() - SETTINGS.keys()):
            raise ValueError(
                f"the record has {', '.join(unknown)}, which this version does not know; use the one that made it"
            )
        return cls(**settings)

    @property
    def matrix_std(self) -> float:
        """Standard deviation of the initial matrices."""
        return self.initial_spread / math.sqrt(self.dim) if self.initial_spread else self.initial_std


SETTINGS = kinds_of(Config)
"""by name the type of each, with its range: far above what any machine trains, and small enough that nothing overflows
or allocates before it is refused"""


def _are_budgets(budgets: str, steps: int) -> bool:
    if not all(text.isascii() and text.isdigit() for text in budgets.split(",")):
        return budgets == "none"
    ends = budget_steps(budgets)
    return all(5 <= step < steps for step in ends) and list(ends) == sorted(set(ends))


RULES: tuple[tuple[Callable[[Config], bool], str], ...] = (
    (
        lambda c: (c.tokenizer == "bytes") == (c.vocabulary_size == 256),
        "vocabulary_size is {0.vocabulary_size} with the tokenizer {0.tokenizer}; give 256 for bytes, and more, such "
        "as 512, for bpe and wordpiece",
    ),
    (
        lambda c: c.packing == "none" or c.tokenizer == "bytes",
        "packing is documents with the tokenizer {0.tokenizer}; give bytes",
    ),
    (
        lambda c: c.objective == "next" or c.tokenizer == "wordpiece",
        "objective is masked with the tokenizer {0.tokenizer}; give wordpiece",
    ),
    (
        lambda c: _are_budgets(c.budgets, c.steps),
        "budgets is {0.budgets!r}; give ascending steps, from 5 to less than the {0.steps:,} of the run, with commas "
        "between, such as 200,400, or none",
    ),
    (
        lambda c: c.budgets == "none" or c.schedule != "inverse-sqrt",
        "schedule is inverse-sqrt with budgets, at whose ends the learning rate falls to zero; give trapezoid",
    ),
    (
        lambda c: c.optimizer == "adamw" or c.precision != "float64",
        "optimizer is muon with the precision float64, but Muon computes in float32 (on a GPU in bfloat16) whatever "
        "the precision; give adamw, or another precision",
    ),
    (
        lambda c: c.tested == "last" or (c.budgets == "none" and c.kept_checkpoints == 2),
        "tested is best with budgets {0.budgets} and kept_checkpoints {0.kept_checkpoints}; test the last weights, or "
        "leave out budgets and keep 2 checkpoints",
    ),
    (
        lambda c: c.tokens_per_step <= 2**26,
        "batch_size times context is {0.tokens_per_step:,} tokens a step; give values whose product is 67,108,864 or "
        "less",
    ),
    (
        lambda c: c.pair_denominator == "same" or (c.decay.startswith("pair") and c.denominator == "unrotated"),
        "pair_denominator is head with decay {0.decay} and denominator {0.denominator}; give decay pair or pair-fixed, "
        "and the unrotated denominator",
    ),
    (lambda c: c.dim % c.heads == 0, "dim {0.dim} is not divisible by heads {0.heads}; change one of them"),
    (
        lambda c: c.kv_heads == 0 or c.heads % c.kv_heads == 0,
        "heads {0.heads} is not divisible by kv_heads {0.kv_heads}; change one of them, or give 0 for as many",
    ),
    (
        lambda c: c.dim // c.heads % 2 == 0,
        "dim {0.dim} / heads {0.heads} is odd; RoPE rotates pairs, so make it even",
    ),
    (
        lambda c: c.num_features % 2 == 0,
        "num_features {0.num_features} is odd; RoPE rotates pairs of features, so give an even number",
    ),
)
"""what has to hold, and what is said if it does not"""


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
