"""What the features study measures: errors of random-feature estimates, on random and on trained inputs.

And the quantities of them that its claims are about; the estimators there are ``"<estimator> <directions>"``.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from einops import rearrange
from torch import Tensor, nn

from experiments.presets import size_of
from experiments.records.schema import Comparison
from experiments.studies.features.kernel_errors import DIRECTIONS, ESTIMATORS, Directions, errors, expected_kernel_error
from experiments.studies.tables import RUN, Table, whole_means
from experiments.train.objectives import NextToken
from linear_rope.attention.multi_head import RoPEAttention

Part = Literal["curves", "figure 4", "few features"]

NUM_FEATURES = (16, 32, 64, 128, 256, 512, 1024)
SCALES = (0.25, 0.5, 1.0)
HEAD_DIMS = (16, 32)
"""16 as in Performer's Figure 4, 32 as in the models of the default preset"""
LENGTH = 256
DRAWS = 15
"""as in Performer's Figure 4"""
SMOKE_DRAWS = 3
MOST_DRAWS = 2**20

PUBLISHED_LENGTH, PUBLISHED_HEAD_DIM, PUBLISHED_FEATURES = 1024, 16, 256
FEW_FEATURES, FEW_DRAWS = 16, 200
"""as many features as the head is wide, where orthogonal directions are proved to be better; the gain is small"""
WINDOWS = 8
TRAINED_TOKENS = 128
TRAINED_DRAWS = 5
TRAINED_FEATURES = (16, 64, 256, 1024)
LARGEST_LOGARITHM = 300.0
MARGIN = 0.02
"""of a decimal logarithm: 5 per cent"""

_MADE = {"estimator": str, "directions": str, "num_features": int}
RANDOM = Table(
    "random",
    {"part": str, "length": int, "head_dim": int, "scale": float} | _MADE | {"draw": int},
    dict.fromkeys(("kernel_error", "expected_kernel_error", "attention_error", "output_error"), float),
)
TRAINED = Table(
    "trained",
    RUN | {"layer": int} | _MADE,
    {"log10_kernel_error": float, "log10_attention_error": float, "input_scale": float},
)


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write random.csv and trained.csv; returns sentences about what could not be measured."""
    # These matrices are small: on a busy machine, threads that wait for each other make them 30 times slower.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        draws, few_draws = (planned_draws(comparison, part) for part in ("curves", "few features"))
        point = Grid((PUBLISHED_HEAD_DIM,), (0.5, 1.0), (PUBLISHED_FEATURES,), ("orthogonal",), length=PUBLISHED_LENGTH)
        published = random_table("figure 4", point, draws=draws)
        few = Grid((FEW_FEATURES,), (0.25, 0.5), (FEW_FEATURES,), estimators=("positive",))
        few_features = random_table("few features", few, draws=few_draws)
        RANDOM.write(root, random_table("curves", draws=draws), published, few_features)
        return measure_trained_models(root, comparison, objective)
    finally:
        torch.set_num_threads(threads)


def planned_draws(comparison: Comparison, part: Part, **_: Any) -> int:
    """How many draws a part of random.csv has; the smoke preset has few."""
    if size_of(comparison.preset) == "smoke":
        return SMOKE_DRAWS
    return FEW_DRAWS if part == "few features" else DRAWS


class Grid(NamedTuple):
    """Of what the errors are measured: each of these with each of the others."""

    head_dims: Sequence[int] = HEAD_DIMS
    scales: Sequence[float] = SCALES
    num_features: Sequence[int] = NUM_FEATURES
    directions: Sequence[Directions] = DIRECTIONS
    estimators: Sequence[str] = tuple(ESTIMATORS)
    length: int = LENGTH


WHOLE_GRID = Grid()


def random_table(part: Part, grid: Grid = WHOLE_GRID, draws: int = DRAWS) -> pd.DataFrame:
    """Errors of every estimator on normal inputs: random.csv, a row per draw.

    ``part`` says what the rows are for. ``expected_kernel_error`` is the expectation for independent directions and
    the inputs of that very draw.
    """
    rows = []
    for head_dim in grid.head_dims:
        for number_of_draw in range(draws):
            generator = torch.Generator().manual_seed(number_of_draw)
            q, k, v = torch.randn(3, grid.length, head_dim, generator=generator, dtype=torch.float64)
            factors = torch.tensor(grid.scales, dtype=torch.float64)[:, None, None]
            q, k = factors * q, factors * k
            for made in itertools.product(grid.estimators, grid.directions, grid.num_features):
                estimator, made_with, count = made
                mapping = ESTIMATORS[estimator](head_dim, count, made_with, feature_seed(count, number_of_draw))
                kernel, attention, output = errors(q, k, v, mapping)
                measured = torch.stack((kernel, expected_kernel_error(estimator, q, k, count), attention, output), -1)
                for scale, values in zip(grid.scales, measured.tolist(), strict=True):
                    rows.append((part, grid.length, head_dim, scale, *made, number_of_draw, *values))
    return pd.DataFrame.from_records(rows, columns=RANDOM.columns)


def measure_trained_models(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write trained.csv: the errors on queries and keys of every layer of every trained run.

    Means over draws and heads of the decimal logarithm, because a few heads or draws would make up a mean of errors
    that differ by orders of magnitude. ``input_scale`` is the root mean square of the entries of q and k. Returns a
    sentence for each run or layer that is left out.
    """
    tokens = objective.windows("validation", WINDOWS)[0]
    measured = "the error on trained queries and keys"

    def by_layer(variant: str, seed: int, model: nn.Module) -> Iterator[pd.DataFrame | str]:
        layers = queries_and_keys(model, tokens)
        if not layers:
            yield f"{measured} leaves out {variant}: its attention shows none"
        for layer, (q, k) in enumerate(layers):
            generator = torch.Generator().manual_seed(layer)
            chosen = [torch.randperm(q.shape[-2], generator=generator)[:TRAINED_TOKENS] for _ in "qk"]
            first_draw = (seed * len(layers) + layer) * TRAINED_DRAWS
            table = trained_table(q[:, chosen[0]], k[:, chosen[1]], first_draw)
            place = f"{variant} seed {seed} layer {layer}"
            left_out = f"{measured} leaves out {place}: an estimate of its attention is not finite"
            yield left_out if table is None else table.assign(layer=layer)

    return TRAINED.measure(root, comparison, objective, measured, by_layer)


def trained_table(q: Tensor, k: Tensor, first_draw: int = 0) -> pd.DataFrame | None:
    """Mean logarithms of the errors for the heads of a layer, (H, L, D) each; None if one of them is not finite.

    Draws are numbered from ``first_draw``: runs that share none have errors whose luck is their own.
    """
    q, k = q.double(), k.double()
    scale = torch.cat((q, k)).square().mean().sqrt().item()
    rows = []
    for estimator, directions, count in itertools.product(ESTIMATORS, DIRECTIONS, TRAINED_FEATURES):
        logarithms = []
        for number_of_draw in range(first_draw, first_draw + TRAINED_DRAWS):
            seed = feature_seed(count, number_of_draw)
            measured = errors(q, k, k, ESTIMATORS[estimator](q.shape[-1], count, directions, seed))
            both = torch.stack((measured.kernel, measured.attention)).log10()
            logarithms.append(both.clamp(-LARGEST_LOGARITHM, LARGEST_LOGARITHM).mean(-1))
        kernel, attention = torch.stack(logarithms).mean(0).tolist()
        rows.append((estimator, directions, count, kernel, attention, scale))
    table = pd.DataFrame.from_records(rows, columns=TRAINED.columns[3:])
    return None if table.isna().any(axis=None) else table


def feature_seed(num_features: int, number_of_draw: int) -> int:
    """The seed of a draw of features: another for every M, and never that of the inputs, which is the draw's number.

    With equal seeds, few features would be the first of many, and the inputs those that the features come from.
    """
    return num_features * MOST_DRAWS + number_of_draw


@torch.no_grad()
def queries_and_keys(model: nn.Module, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The queries and keys of all tokens (B, N), two tensors (H, B·N, D) a layer in the order of the calls.

    As they are mapped, but without any rotation. Attention of other libraries has no entry.
    """
    found: list[tuple[Tensor, Tensor]] = []

    def record(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(module, RoPEAttention)
        projected = module.project(arguments[0], arguments[0])
        q, k = (rearrange(each, "b h n d -> h (b n) d").cpu() for each in (projected.q, projected.k))
        found.append((q, k))

    hooks = [module.register_forward_hook(record) for module in model.modules() if isinstance(module, RoPEAttention)]
    try:
        model(tokens.to(next(model.parameters()).device))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def by_estimator(table: pd.DataFrame, comparison: Comparison) -> pd.DataFrame:
    """With ``made``, an estimator and its directions."""
    return table.assign(made=table["estimator"] + " " + table["directions"])


def over_layers(table: pd.DataFrame, comparison: Comparison) -> pd.DataFrame:
    """The same of trained models, means over their layers."""
    keys, layers = ["variant", "seed", "made", "num_features"], comparison.config["layers"]
    return whole_means(by_estimator(table, comparison), keys, "log10_attention_error", layers)


def slopes(table: pd.DataFrame, by: str, part: Part, head_dim: int, scale: float, **_: Any) -> "pd.Series[float]":
    """The slope of log error over log M for independent positive features, for each draw."""
    chosen = {"part": part, "head_dim": head_dim, "scale": scale, "made": "positive independent"}
    rows = table[(table[[*chosen]] == pd.Series(chosen)).all(axis=1)]
    errors_of = rows.pivot(index=by, columns="num_features", values="kernel_error")
    whole_draws = errors_of.reindex(columns=NUM_FEATURES).dropna()
    found, _ = np.polyfit(np.log(NUM_FEATURES), np.log(whole_draws.to_numpy()).T, 1)
    return pd.Series(found, whole_draws.index, dtype=float)


random_error = RANDOM.samples(planned=planned_draws, prepare=by_estimator)
slope = RANDOM.samples(planned=planned_draws, prepare=by_estimator, values=slopes)
trained_error = TRAINED.samples("seed", prepare=over_layers)


def derived(root: Path) -> pd.DataFrame:
    """The output's error at the published point, worked out by others of us; the paper prints no numbers."""
    columns = ["scale", "estimator", "value"]
    return pd.DataFrame([(0.5, "positive", 2.7e-5), (0.5, "trigonometric", 1e-5)], columns=columns)


def trained(root: Path) -> pd.DataFrame:
    """By variant and seed the geometric mean over layers of both errors, with the scale of the variant's inputs."""
    found = TRAINED.read(root)
    scales = found.groupby("variant")["input_scale"].mean()
    errors = {"log10_kernel_error": "kernel", "log10_attention_error": "attention"}
    keys = ["variant", "seed", "estimator", "directions", "num_features"]
    long = found.rename(columns=errors).melt([*keys, "layer"], list(errors.values()), "error", "value")
    means = (10 ** long.groupby([*keys, "error"], sort=False)["value"].mean()).reset_index()
    titles = [f"{name}, scale {scales[name]:.2f}" for name in means["variant"]]
    return means.assign(title=titles, made=means["estimator"] + ", " + means["directions"])
