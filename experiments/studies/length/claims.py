"""What was claimed about sequences longer than those of training; quantities are losses, and lower is better."""

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

from experiments.analysis.claims import BITS_PER_BYTE, SEEN, Claim, ReadSample
from experiments.analysis.samples import from_table
from experiments.records.schema import Comparison
from experiments.studies.length.tables import AS_TRAINED, read_losses, window_means

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


def _by_seed(*terms: tuple[float, str, str, int]) -> ReadSample:
    """Σ weight · loss(variant, method, factor) for each seed; terms (weight, variant, method, factor of the
    context).
    """

    def read(root: Path, comparison: Comparison) -> Callable[[int], float | None]:
        measured = read_losses(root)
        if measured is None:
            return lambda seed: None
        losses = window_means(measured).set_index(["variant", "seed", "method", "length"])["bits_per_byte"]
        context = comparison.config["context"]

        def weighted(seed: int) -> float | None:
            places = [(variant, seed, method, factor * context) for _, variant, method, factor in terms]
            if not all(place in losses.index for place in places):
                return None
            return sum(term[0] * float(losses[place]) for term, place in zip(terms, places, strict=True))

        return weighted

    return from_table(tuple(variant for _, variant, _, _ in terms), read)


def _rise(variant: str, factor: int) -> tuple[tuple[float, str, str, int], ...]:
    return (1, variant, AS_TRAINED, factor), (-1, variant, AS_TRAINED, 1)


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
                f"{variant}-breaks-{factor}",
                f"{statement} at {factor} times the training length: the loss rises by more than {BREAKS}.",
                published,
                f"{variant}: {rise}",
                (BREAKS, inf),
                *_rise(variant, factor),
                family="length",
            )
            for variant, statement, published in breaks
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
    for variant, kind in (
        ("softmax-rope", "softmax attention"),
        ("favor+-rope-before", "FAVOR+ with RoPE before the map"),
        ("favor+-rope-after", "FAVOR+ with RoPE after the map"),
        ("elu+1-rope-after", "elu+1 with RoPE after the map"),
    ):
        claims += [
            _claim(
                f"{variant}-{key}",
                f"{statement}, for {kind} without fine-tuning.",
                published if variant == "softmax-rope" else f"{LINEAR}; for softmax attention {published}",
                f"{variant}, {stretched}: {method} minus {other}",
                (-inf, 0),
                (1, variant, method, FACTOR),
                (-1, variant, other, FACTOR),
                family="stretching",
            )
            for key, method, other, statement, published in pairs
        ]
        claims += [
            _claim(
                f"{variant}-{key}-helps",
                f"{name} beats extrapolation, for {kind} without fine-tuning.",
                SEEN,
                f"{variant}, {stretched}: {method} minus {AS_TRAINED}",
                BELOW_0,
                (1, variant, method, FACTOR),
                (-1, variant, AS_TRAINED, FACTOR),
                family="seen",
            )
            for key, method, name in (("ntk", "NTK-aware", "An NTK-aware base"), ("yarn", "YaRN", "YaRN"))
        ]
    claims += [
        _claim(
            f"{variant}-gains-{factor}",
            f"At {factor} times the training length, {kind} still has a lower loss than without positions.",
            SEEN,
            f"loss at {factor} times the training length, {variant} minus {baseline}",
            BELOW_0,
            (1, variant, AS_TRAINED, factor),
            (-1, baseline, AS_TRAINED, factor),
            family="seen",
        )
        for variant, baseline, kind, factors in (
            ("softmax-rope", "softmax-none", "softmax attention with RoPE", (16,)),
            ("favor+-rope-before", "favor+-none", "FAVOR+ with RoPE before the map", FACTORS_JUDGED),
            ("favor+-rope-after", "favor+-none", "FAVOR+ with RoPE after the map", FACTORS_JUDGED),
            ("elu+1-rope-after", "elu+1-none", "elu+1 with RoPE after the map", FACTORS_JUDGED),
        )
        for factor in factors
    ]
    return tuple(claims)


CLAIMS = _claims()
