"""What was claimed about convergence with RoPE. Quantities are paired by seed; lower is better."""

from collections.abc import Mapping
from math import inf
from typing import Any

from experiments.analysis.claims import BITS_PER_BYTE, SEEN, Claim
from experiments.analysis.samples import gap_closed, paired, paired_average, steps_saved

BELOW_0 = (-inf, 0.0)
SMALLEST_DIFFERENCE = 0.01
"""bits per byte: a sixth of the gap between the Performer and the Transformer on enwik8 (AFT, table 4)"""

NOT_FOUND = "none found"
NONE_FOUND = f"{NOT_FOUND} against no positions"
ELEUTHER = "EleutherAI 2021, Rotary Embeddings"
ROFORMER = (
    "RoFormer (2104.09864) Fig. 3 right: the Performer's loss on enwik8 falls faster and lower with RoPE; a curve, no "
    "numbers. It names performer-pytorch as its code, which has learned positions where it has no RoPE, and adds "
    "sinusoidal ones where it has; whether it was edited is not said"
)
MLLA = "none found: MLLA (LeapLabTHU) and RoFormer's eq. 19 rotate after, and no language model with both was found"
SANA = "SANA-Video (2509.24695): RoPE before the ReLU filters position out, so it is applied after (video, not causal)"

KERNELS = {"softmax": "softmax attention", "favor+": "the Performer", "elu+1": "elu+1", "relu": "relu"}


def _place(variant: str) -> str:
    return " before the map" if variant.endswith("-before") else " after the map" if variant.endswith("-after") else ""


def _kernel(variant: str) -> str:
    return variant.partition("-rope")[0]


def _difference(key: str, statement: str, published: str, variant: str, other: str, family: str) -> Claim:
    return Claim(
        key=key,
        statement=statement,
        published=published,
        quantity=f"test loss, {variant} minus {other}, bits per byte",
        region=BELOW_0,
        margin=SMALLEST_DIFFERENCE,
        sample=paired(variant, other),
        family=family,
        resolution=BITS_PER_BYTE,
    )


def _against_learned() -> list[Claim]:
    published = {
        "softmax-rope": f"{ELEUTHER}: validation loss 2.759 with RoPE, 2.809 with learned positions (125M parameters, "
        "OpenWebText2, nats per token of a tokenizer)",
        "favor+-rope-before": f"{ROFORMER}; performer-pytorch rotates before the map",
        "favor+-rope-after": f"{ROFORMER}; its text (eq. 19) rotates after the map",
        "elu+1-rope-after": NOT_FOUND,
        "relu-rope-after": NOT_FOUND,
    }
    return [
        _difference(
            f"{variant}-learned-loss",
            f"RoPE{_place(variant)} gives {KERNELS[_kernel(variant)]} a lower loss than learned positions.",
            words,
            variant,
            f"{_kernel(variant)}-learned",
            "learned",
        )
        for variant, words in published.items()
    ]


def _against_sinusoidal() -> list[Claim]:
    variants = ("softmax-rope", "favor+-rope-before", "favor+-rope-after", "elu+1-rope-after", "relu-rope-after")
    return [
        _difference(
            f"{variant}-sinusoidal-loss",
            f"RoPE{_place(variant)} gives {KERNELS[_kernel(variant)]} a lower loss than sinusoidal positions.",
            SEEN,
            variant,
            f"{_kernel(variant)}-sinusoidal",
            "sinusoidal",
        )
        for variant in variants
    ]


def _learned_help() -> list[Claim]:
    return [
        _difference(
            f"{kernel}-learned-none-loss",
            f"Learned positions lower the loss of {name}.",
            NONE_FOUND,
            f"{kernel}-learned",
            f"{kernel}-none",
            "none",
        )
        for kernel, name in KERNELS.items()
    ]


def _against_none() -> list[Claim]:
    variants = ("softmax-rope", "favor+-rope-before", "favor+-rope-after", "elu+1-rope-before", "elu+1-rope-after")
    claims = [
        _difference(
            f"{variant}-loss",
            f"RoPE{_place(variant)} lowers the loss of {KERNELS[_kernel(variant)]}.",
            NONE_FOUND,
            variant,
            f"{_kernel(variant)}-none",
            "none",
        )
        for variant in (*variants, "relu-rope-after")
    ]
    filtered = Claim(
        key="relu-rope-before-loss",
        statement="RoPE before the ReLU helps little (by less than 0.02): the ReLU filters position out.",
        published=f"{SANA}; the bound of 0.02 is ours",
        quantity="test loss, relu-rope-before minus relu-none, bits per byte",
        region=(-0.02, inf),
        margin=SMALLEST_DIFFERENCE,
        sample=paired("relu-rope-before", "relu-none"),
        family="none",
        resolution=BITS_PER_BYTE,
    )
    return [*claims, filtered]


def _after_beats_before() -> list[Claim]:
    published = {
        "favor+": "none found: RoFormer (2104.09864) eq. 19 rotates after, performer-pytorch before, and no language "
        "model with both was found",
        "elu+1": MLLA,
        "relu": SANA,
    }
    return [
        _difference(
            f"{kernel}-order",
            f"For {KERNELS[kernel]}, RoPE after the map gives a lower loss than RoPE before it.",
            words,
            f"{kernel}-rope-after",
            f"{kernel}-rope-before",
            "order",
        )
        for kernel, words in published.items()
    ]


def _fewer_steps() -> list[Claim]:
    quantity = (
        "share of the steps that {} saves on the way to {}'s final validation loss; it is evaluated every few steps, "
        "and the first evaluation at or below that loss counts, so the share is a lower bound"
    )
    claims = []
    for key, variant, least, published in (
        ("softmax-steps", "softmax-rope", 0.2, f"{ELEUTHER}: about 30 % faster convergence"),
        ("performer-before-steps", "favor+-rope-before", 0.1, ROFORMER),
        ("performer-after-steps", "favor+-rope-after", 0.1, ROFORMER),
        ("elu+1-after-steps", "elu+1-rope-after", 0.1, NOT_FOUND),
        ("relu-after-steps", "relu-rope-after", 0.1, NOT_FOUND),
    ):
        other = f"{_kernel(variant)}-learned"
        claims.append(
            Claim(
                key=key,
                statement=(
                    f"With RoPE{_place(variant)}, {KERNELS[_kernel(variant)]} needs at least {least:.0%} fewer steps "
                    "than with "
                    "learned positions."
                ),
                published=f"{published} (the bound of {least:.0%} is ours)",
                quantity=quantity.format(variant, other),
                region=(least, inf),
                margin=0.05,
                sample=steps_saved(variant, other),
                pattern=".0%",
                family="steps",
                resolution_of=_evaluations_apart,
            )
        )
    return claims


def _evaluations_apart(config: Mapping[str, Any]) -> float:
    """As a share of the steps."""
    return min(1.0, config["evaluate_every"] / config["steps"])


def _lower_curves() -> list[Claim]:
    published = {
        "softmax-rope": f"{ELEUTHER}: faster convergence than with learned positions",
        "favor+-rope-before": ROFORMER,
        "favor+-rope-after": ROFORMER,
        "elu+1-rope-after": NOT_FOUND,
        "relu-rope-after": NOT_FOUND,
    }
    return [
        Claim(
            key=f"{variant}-curve",
            statement=f"RoPE{_place(variant)} makes {KERNELS[_kernel(variant)]} converge faster than "
            f"learned positions: its "
            "validation loss is lower over training.",
            published=words,
            quantity=f"average of the validation curve, {variant} minus {_kernel(variant)}-learned, bits per byte",
            region=BELOW_0,
            margin=SMALLEST_DIFFERENCE,
            sample=paired_average(variant, f"{_kernel(variant)}-learned"),
            family="curve",
            resolution=BITS_PER_BYTE,
        )
        for variant, words in published.items()
    ]


def _the_gap() -> list[Claim]:
    published = (
        f"{ELEUTHER}: on enwik8 RoPE (before or after the map is not said) helps the Performer, but does not "
        "close the gap; no numbers"
    )
    return [
        Claim(
            key=f"{variant}-gap",
            statement=f"RoPE{_place(variant)} does not close the gap from {KERNELS[_kernel(variant)]} "
            f"to softmax attention "
            "with RoPE.",
            published=published if _kernel(variant) == "favor+" else NOT_FOUND,
            quantity=(
                f"share of the gap in test loss from {_kernel(variant)}-none to softmax-rope that {variant} closes"
            ),
            region=(-inf, 1.0),
            margin=0.05,
            sample=gap_closed(variant, f"{_kernel(variant)}-none", "softmax-rope"),
            pattern=".0%",
            family="gap",
            resolution=BITS_PER_BYTE / SMALLEST_DIFFERENCE,
        )
        for variant in ("favor+-rope-before", "favor+-rope-after", "elu+1-rope-after", "relu-rope-after")
    ]


CLAIMS = (
    *_after_beats_before(),
    *_against_learned(),
    *_against_sinusoidal(),
    *_learned_help(),
    *_against_none(),
    *_fewer_steps(),
    *_lower_curves(),
    *_the_gap(),
)
