"""What happens to a model on sequences longer than those it was trained on, and which position encoding bears it?

python -m experiments run length
"""

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from experiments import length_plots
from experiments.claims import BITS_PER_BYTE, SEEN, Claim, ReadSample
from experiments.config import Config
from experiments.csv_files import TEXT, number, read_csv, to_csv, whole
from experiments.plots import FigureEntry, TableEntry, draw
from experiments.position_loss import bins, by_bin, losses_by_position, recut
from experiments.record import write_atomically
from experiments.samples import from_table
from experiments.stats import estimate
from experiments.tasks.language_model import ByteLanguageModel, evenly_spaced
from experiments.trained_models import trained_models
from experiments.variants import PEER, get_variant
from linear_rope.model import CausalLM
from linear_rope.multi_head import RoPEAttention
from linear_rope.scaling import NTKAware, PositionInterpolation, RopeScaling, YaRN

QUESTION = (
    "Models are trained on short sequences and evaluated on sequences up to sixteen times longer, without further "
    "training. Which position encodings go on working, for softmax attention and for linear attention? And what do "
    "the ways of stretching RoPE that were made for softmax attention (position interpolation, NTK-aware base, YaRN) "
    "do for linear attention, where RoPE can act after the feature map?"
)
LONGEST_WINDOWS = 8
"""of sixteen times the context; shorter windows are cut from them"""

METHOD = (
    f"The same bytes of the test split, {LONGEST_WINDOWS} windows of sixteen times the training length, are cut into "
    "windows of the training length, twice that, and so on, so that every length is evaluated on the same targets, the "
    "longer ones with more past. The loss "
    "is the mean over all positions of a window, and it is also looked at by position. RoPE is evaluated as trained, "
    "and with each way of stretching by the factor of the lengths."
)
NOT_SHOWN = (
    "Fine-tuning at the longer length, which position interpolation and YaRN were published with. Large models and "
    "long training. Whether a model uses the far past: a loss that does not rise only says that it is not disturbed. "
    "YaRN's temperature belongs to the exponential of the score: softmax attention has it, and FAVOR+ where RoPE acts "
    "before the map; elsewhere only its angles are used."
)

VARIANTS = (
    "softmax-none",
    "softmax-learned",
    "softmax-sinusoidal",
    "softmax-rope",
    "softmax-alibi",
    *(
        f"{kernel}-{position}"
        for kernel in ("favor+", "elu+1")
        for position in ("none", "learned", "sinusoidal", "rope-before", "rope-after")
    ),
)

FACTORS = (1, 2, 4, 8, 16)
AS_TRAINED = "as trained"
IN_SHORT_WINDOWS = "in windows of the training length"
"""the targets of the longest windows by their position there, each predicted in a window of the training length"""
SCALINGS: dict[str, Callable[[float, int], RopeScaling]] = {
    "position interpolation": lambda factor, length: PositionInterpolation(factor),
    "NTK-aware": lambda factor, length: NTKAware(factor),
    "YaRN": lambda factor, length: YaRN(factor, length),
}
ROPES = ("rope-before", "rope-after")

COLUMNS = {
    "variant": TEXT,
    "seed": whole(0, 10**6),
    "method": TEXT,
    "length": whole(1, 2**30),
    "first": whole(0, 2**30),
    "last": whole(0, 2**30),
    "bits_per_byte": number(0),
}


def measure(root: Path, comparison: dict[str, Any], task: ByteLanguageModel) -> list[str]:
    """Write length.csv; returns sentences about what could not be measured."""
    config = Config(**comparison["config"])
    positions = {variant["name"]: variant["position"] for variant in comparison["variants"]}
    if task.corpus.sequences is not None:
        return [f"--data {task.corpus.name} is generated, and not a text: it has no longer sequences"]
    factors = [factor for factor in FACTORS if len(task.corpus.test) > factor * config.context]
    notes: list[str] = []
    tables = []
    if factors != list(FACTORS):
        longest = factors[-1] * config.context
        notes.append(f"the test split is too short for windows of more than {longest:,} tokens")
    windows = evenly_spaced(task.corpus.test, factors[-1] * config.context, LONGEST_WINDOWS)
    for name, seed, model in trained_models(root, comparison, "the loss at other lengths", notes):
        has_table = positions[name] == "learned" or get_variant(name).kernel == PEER
        if has_table:
            notes.append(f"{name} is not evaluated beyond {config.context} tokens, where its table of positions ends")
        short = recut(windows, config.context)
        parts = [losses_by_position(model, short[part :: factors[-1]], config) for part in range(factors[-1])]
        in_short = by_bin(torch.cat(parts)).assign(method=IN_SHORT_WINDOWS, length=config.context)
        tables.append(in_short.assign(variant=name, seed=seed))
        for factor in factors[:1] if has_table else factors:
            length = factor * config.context
            shown = recut(windows, length)
            for method in (AS_TRAINED, *(SCALINGS if positions[name] in ROPES and factor > 1 else ())):
                scaling = None if method == AS_TRAINED else SCALINGS[method](factor, config.context)
                _set_scaling(model, scaling)
                losses = losses_by_position(model, shown, config)
                tables.append(by_bin(losses).assign(variant=name, seed=seed, method=method, length=length))
        _set_scaling(model, None)
    if tables:
        write_atomically(root / "length.csv", to_csv(pd.concat(tables)[list(COLUMNS)], "%.9g"))
    return list(dict.fromkeys(notes))


def figures(
    root: Path, output: Path, comparison: dict[str, Any], curves: pd.DataFrame, summary: pd.DataFrame
) -> list[FigureEntry | TableEntry]:
    measured = _read(root)
    if measured is None:
        return []
    directory = output / "figures"
    means = window_means(measured[measured["method"] != IN_SHORT_WINDOWS])
    added = by_position(measured)
    entries: list[FigureEntry | TableEntry] = [
        draw(directory, _BY_LENGTH, length_plots.by_length_figure, means, comparison, AS_TRAINED),
        draw(directory, _STRETCHED, length_plots.stretched_figure, means, comparison, AS_TRAINED, tuple(SCALINGS)),
    ]
    if not added.empty:
        entries.append(draw(directory, _BY_POSITION, length_plots.by_position_figure, added, comparison))
    return [*entries, TableEntry("Loss by length", length_table(means, comparison), _TABLE)]


def by_position(measured: pd.DataFrame) -> pd.DataFrame:
    """What the longest windows add to the loss of the same targets in windows of the training length.

    Columns variant, seed, first, last, added: by range of positions in the longest windows, of models as trained, for
    arms that were evaluated there.
    """
    keys = ["variant", "seed", "first", "last"]
    short = measured[measured["method"] == IN_SHORT_WINDOWS].set_index(keys)["bits_per_byte"]
    longest = measured[(measured["method"] == AS_TRAINED) & (measured["length"] == measured["length"].max())]
    added = longest.set_index(keys)["bits_per_byte"] - short
    return added.dropna().rename("added").reset_index()


def window_means(measured: pd.DataFrame) -> pd.DataFrame:
    """Mean over all positions: columns variant, seed, method, length, bits_per_byte.

    Of windows whose positions are all there, in the ranges of ``by_bin``.
    """
    size = measured["last"] - measured["first"] + 1
    weighted = measured.assign(total=measured["bits_per_byte"] * size, size=size)
    keys = ["variant", "seed", "method", "length"]
    grouped: Any = weighted.groupby(keys, sort=False)
    whole_windows = [
        set(zip(rows["first"], rows["last"], strict=True)) == set(bins(place[-1])) for place, rows in grouped
    ]
    sums = grouped[["total", "size"]].sum()[whole_windows].reset_index()
    return sums.assign(bits_per_byte=sums["total"] / sums["size"])[[*keys, "bits_per_byte"]]


def length_table(means: pd.DataFrame, comparison: dict[str, Any]) -> pd.DataFrame:
    """A row of strings per arm and method: bits per byte by length, mean over seeds."""
    lengths = sorted(means["length"].unique())
    rows = []
    for variant in comparison["variants"]:
        mine = means[means["variant"] == variant["name"]]
        for method in mine["method"].unique():
            by_length = mine[mine["method"] == method].groupby("length")["bits_per_byte"]
            found = {int(length): estimate(list(values)) for length, values in by_length}
            row = {"arm": variant["name"], "evaluated": method, "n": str(max(each.n for each in found.values()))}
            for length in lengths:
                row[f"{length:,}"] = f"{found[length].mean:.3f}" if length in found else "-"
            rows.append(row)
    return pd.DataFrame(rows)


def _set_scaling(model: CausalLM, scaling: RopeScaling | None) -> None:
    for module in model.modules():
        if isinstance(module, RoPEAttention):
            module.rope_scaling = scaling


def _read(root: Path) -> pd.DataFrame | None:
    path = root / "length.csv"
    key = ["variant", "seed", "method", "length", "first"]
    return read_csv(path, COLUMNS, key=key) if path.exists() else None


def _by_seed(*terms: tuple[float, str, str, int]) -> ReadSample:
    """Σ weight · loss(arm, method, factor) for each seed; terms (weight, arm, method, factor of the context)."""

    def read(root: Path, comparison: dict[str, Any]) -> Callable[[int], float | None]:
        measured = _read(root)
        if measured is None:
            return lambda seed: None
        losses = window_means(measured).set_index(["variant", "seed", "method", "length"])["bits_per_byte"]
        context = comparison["config"]["context"]

        def weighted(seed: int) -> float | None:
            places = [(arm, seed, method, factor * context) for _, arm, method, factor in terms]
            if not all(place in losses.index for place in places):
                return None
            return sum(term[0] * float(losses[place]) for term, place in zip(terms, places, strict=True))

        return weighted

    return from_table(tuple(arm for _, arm, _, _ in terms), read)


FACTOR = 4
"""the length that stretching is judged at, over the training length"""
FACTORS_JUDGED = (4, 16)
BELOW_0 = (-inf, 0.0)
BREAKS = 0.1
"""bits per byte: what we call breaking"""
LINEAR = "none found for linear attention"
PRESS = (
    "Press et al. 2021 (2108.12409, ALiBi) Fig. 1: perplexity rises with sinusoidal and rotary positions, and not with "
    "ALiBi"
)


def _rise(arm: str, factor: int) -> tuple[tuple[float, str, str, int], ...]:
    return (1, arm, AS_TRAINED, factor), (-1, arm, AS_TRAINED, 1)


def _claim(
    key: str, statement: str, published: str, quantity: str, region: tuple[float, float], *terms: Any, family: str
) -> Claim:
    return Claim(
        key=key,
        statement=statement,
        published=published,
        quantity=f"{quantity}, bits per byte",
        region=region,
        margin=0.01,
        sample=_by_seed(*terms),
        family=family,
        resolution=BITS_PER_BYTE,
    )


def _claims() -> tuple[Claim, ...]:
    breaks = (
        ("softmax-sinusoidal", "Sinusoidal positions break", PRESS),
        ("softmax-rope", "RoPE breaks", PRESS),
        ("favor+-rope-before", "RoPE before the FAVOR+ map breaks", LINEAR),
        ("favor+-rope-after", "RoPE after the FAVOR+ map breaks", LINEAR),
        ("elu+1-rope-after", "RoPE after elu+1 breaks", LINEAR),
    )
    claims = []
    for factor in FACTORS_JUDGED:
        rise = f"loss in windows of {factor} times the training length minus in windows of that length"
        claims += [
            _claim(
                f"{arm}-breaks-{factor}",
                f"{statement} at {factor} times the training length: the loss rises by more than {BREAKS}.",
                published,
                f"{arm}: {rise}",
                (BREAKS, inf),
                *_rise(arm, factor),
                family="length",
            )
            for arm, statement, published in breaks
        ]
        claims.append(
            _claim(
                f"softmax-alibi-gains-{factor}",
                f"ALiBi gains from windows {factor} times longer than those of training.",
                PRESS,
                f"softmax-alibi: {rise}",
                (-inf, 0),
                *_rise("softmax-alibi", factor),
                family="length",
            )
        )
    kazemnejad = "Kazemnejad et al. 2023 (2305.19466): no positions generalise best in length, on reasoning tasks"
    claims += [
        _claim(
            "softmax-none-rises-less",
            f"Without positions, the loss of softmax attention rises less with the length than with RoPE, at {FACTOR} "
            "times the training length.",
            f"none found for language models; {kazemnejad}",
            f"rise of the loss at {FACTOR} times the training length, softmax-none minus softmax-rope",
            (-inf, 0),
            *_rise("softmax-none", FACTOR),
            *((-weight, "softmax-rope", *rest) for weight, _, *rest in _rise("softmax-rope", FACTOR)),
            family="length",
        ),
        _claim(
            "softmax-none-lower",
            f"At {FACTOR} times the training length, softmax attention has a lower loss without positions than with "
            "RoPE.",
            f"none found for language models; {kazemnejad}",
            f"loss at {FACTOR} times the training length, softmax-none minus softmax-rope",
            (-inf, 0),
            (1, "softmax-none", AS_TRAINED, FACTOR),
            (-1, "softmax-rope", AS_TRAINED, FACTOR),
            family="length",
        ),
    ]
    stretched = f"loss at {FACTOR} times the training length"
    chen, ntk, yarn = (
        "none found without fine-tuning; Chen et al. 2023 (2306.15595): its bound on scores is at least 600 times "
        "smaller than that of extrapolation",
        "none found that we could read; Peng et al. 2023 (2309.00071) compares them",
        "none found that we could read; Peng et al. 2023 (2309.00071) compares them",
    )
    pairs = (
        ("interpolation", "position interpolation", AS_TRAINED, "Position interpolation beats extrapolation", chen),
        ("ntk", "NTK-aware", "position interpolation", "An NTK-aware base beats position interpolation", ntk),
        ("yarn", "YaRN", "NTK-aware", "YaRN beats an NTK-aware base", yarn),
    )
    for arm, kind in (
        ("softmax-rope", "softmax attention"),
        ("favor+-rope-before", "FAVOR+ with RoPE before the map"),
        ("favor+-rope-after", "FAVOR+ with RoPE after the map"),
        ("elu+1-rope-after", "elu+1 with RoPE after the map"),
    ):
        claims += [
            _claim(
                f"{arm}-{key}",
                f"{statement}, for {kind} without fine-tuning.",
                published if arm == "softmax-rope" else f"{LINEAR}; for softmax attention {published}",
                f"{arm}, {stretched}: {method} minus {other}",
                (-inf, 0),
                (1, arm, method, FACTOR),
                (-1, arm, other, FACTOR),
                family="stretching",
            )
            for key, method, other, statement, published in pairs
        ]
        claims += [
            _claim(
                f"{arm}-{key}-helps",
                f"{name} beats extrapolation, for {kind} without fine-tuning.",
                SEEN,
                f"{arm}, {stretched}: {method} minus {AS_TRAINED}",
                BELOW_0,
                (1, arm, method, FACTOR),
                (-1, arm, AS_TRAINED, FACTOR),
                family="seen",
            )
            for key, method, name in (("ntk", "NTK-aware", "An NTK-aware base"), ("yarn", "YaRN", "YaRN"))
        ]
    claims += [
        _claim(
            f"{arm}-gains-{factor}",
            f"At {factor} times the training length, {kind} still has a lower loss than without positions.",
            SEEN,
            f"loss at {factor} times the training length, {arm} minus {baseline}",
            BELOW_0,
            (1, arm, AS_TRAINED, factor),
            (-1, baseline, AS_TRAINED, factor),
            family="seen",
        )
        for arm, baseline, kind, factors in (
            ("softmax-rope", "softmax-none", "softmax attention with RoPE", (16,)),
            ("favor+-rope-before", "favor+-none", "FAVOR+ with RoPE before the map", FACTORS_JUDGED),
            ("favor+-rope-after", "favor+-none", "FAVOR+ with RoPE after the map", FACTORS_JUDGED),
            ("elu+1-rope-after", "elu+1-none", "elu+1 with RoPE after the map", FACTORS_JUDGED),
        )
        for factor in factors
    ]
    return tuple(claims)


CLAIMS = _claims()

_BY_LENGTH = FigureEntry(
    "by-length",
    "Loss by evaluation length, models as they were trained",
    "Mean bits per byte over windows of the test split, the same bytes at every length. Dotted vertical line: the "
    "length of training. A line that falls uses the additional past; one that rises is disturbed by positions or "
    "lengths it has not seen. Thin: each seed. A learned table ends where training ended, so its arm has one point.",
)
_STRETCHED = FigureEntry(
    "stretched",
    "RoPE stretched to longer sequences, without further training",
    "Mean bits per byte over windows of the test split, mean over seeds (thin: each seed), for every arm with RoPE, as "
    "trained and with three ways of stretching by the factor of the lengths.",
)
_BY_POSITION = FigureEntry(
    "by-position",
    "What longer windows add, by position",
    "Bits per byte in windows of sixteen times the training length (or the longest that the test split holds) minus "
    "those of the same targets in windows of the training length, in ranges of positions that double; models as they "
    "were trained. Above 0 a model is disturbed by what is farther back than it was trained on, below 0 it uses it. Up "
    "to the training length both are the same.",
)
_TABLE = (
    "Bits per byte, mean over seeds, by window length in tokens; the first is the length of training. A dash: not "
    "evaluated (stretching by a factor of 1 changes nothing; a learned table refuses longer windows)."
)
