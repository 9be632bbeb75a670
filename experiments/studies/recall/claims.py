"""What was claimed about recall; quantities are test accuracies, and higher is better."""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Literal

from experiments.analysis.claims import Claim, ReadSample
from experiments.analysis.samples import paired_answers, per_seed, with_all_variants
from experiments.data.associative_recall import SIZES
from experiments.data.synthetic import TEST_SEQUENCES

ACCURACY = "test_accuracy"
LEARNT = 0.95
BEGUN = 0.35
"""guessing among the four values that a sequence of the smallest task tells is right for 0.25 of the answers, and for
0.29 if earlier pairs are guessed, which are asked for sooner"""
ZOOLOGY = "Arora et al. 2023 (2312.04927, Zoology): attention 1.0 at every width, with learned positions"
HEDGEHOG = (
    "Hedgehog (2402.04347), as relayed, of another associative recall task: softmax 100, 1+elu 17.0, Performer 17.0; "
    "its size and positions are not known to us"
)
WIDTH = (
    "none found for linear attention; Arora et al. 2023 (2312.04927, Zoology): attention recalls at every width, gated "
    "convolutions need more width for longer sequences"
)
UNPUBLISHED = "none found: no published table has linear attention by position encoding"
PLACES = {
    "none": "no positions",
    "learned": "learned positions",
    "rope-before": "RoPE before the map",
    "rope-after": "RoPE after the map",
}
NARROW = "@dim=32"
"""of models half as wide"""
STATES = {
    "favor+": "half of its state, as it keeps its 64 features",
    "elu+1": "a quarter of its state, as it has half of the features",
}
"""what a model half as wide has"""
KERNELS = {"favor+": "FAVOR+", "elu+1": "elu+1", "relu": "relu"}


def _published_behind(kernel: str, position: str) -> str:
    if kernel == "relu":
        return UNPUBLISHED
    return f"none found with {'RoPE' if position.startswith('rope') else 'known positions'}; {HEDGEHOG}"


def last_answers(variant: str) -> ReadSample:
    """The last accuracy of a variant, by seed."""
    return per_seed((variant,), lambda run: run.last(ACCURACY))


def one_answer(answers: Callable[[int], int]) -> Callable[[Mapping[str, Any]], float]:
    """What one answer is of an accuracy on the test split; ``answers(length)`` are those of a sequence, at least."""

    def share(config: Mapping[str, Any]) -> float:
        return 1 / (min(config["test_windows"], TEST_SEQUENCES) * answers(config["context"]))

    return share


ONE_ANSWER = one_answer(lambda length: SIZES[length][0] if length in SIZES else 1)


def learns(
    key: str,
    statement: str,
    published: str,
    variant: str,
    sample: ReadSample,
    *,
    family: str,
    resolution_of: Callable[[Mapping[str, Any]], float],
) -> Claim:
    """That a variant's accuracy is above ``LEARNT``."""
    return Claim(
        key=key,
        statement=statement,
        published=published,
        quantity=f"test accuracy of {variant}",
        region=(LEARNT, inf),
        margin=0.01,
        sample=sample,
        pattern=".1%",
        family=family,
        resolution_of=resolution_of,
        limits=(0.0, 1.0),
    )


def _difference(variant: str, other: str, learnt: float, by: Literal["either", "other"]) -> ReadSample:
    # Twice the variance of one variant: what the variants of a seed share, data and first weights, is taken to decide
    # nothing.
    return with_all_variants(paired_answers(variant, other, ACCURACY, learnt, by), ACCURACY, 2**0.5)


def _claims() -> tuple[Claim, ...]:
    claims = [
        learns(
            f"{variant}-solves",
            f"Softmax attention with {positions} recalls (nearly) everything.",
            published,
            variant,
            with_all_variants(last_answers(variant), ACCURACY, 1.0),
            family="softmax",
            resolution_of=ONE_ANSWER,
        )
        for variant, positions, published in (
            ("softmax-learned", "learned positions", ZOOLOGY),
            ("softmax-rope", "RoPE", "none found for RoPE alone"),
            (f"softmax-learned{NARROW}", "learned positions, half as wide,", ZOOLOGY),
            (f"softmax-rope{NARROW}", "RoPE, half as wide,", "none found for RoPE alone"),
        )
    ]
    for kernel in ("favor+", "elu+1"):
        claims += [
            Claim(
                key=f"{kernel}-{position}-width",
                statement=f"{KERNELS[kernel]} with {PLACES[position]} recalls more in a wider model.",
                published=WIDTH,
                quantity=f"test accuracy, {kernel}-{position} of width 64 minus width 32 ({STATES[kernel]})",
                region=(0.0, inf),
                margin=0.01,
                sample=_difference(f"{kernel}-{position}", f"{kernel}-{position}{NARROW}", BEGUN, by="either"),
                pattern="+.1%",
                family="width",
                resolution_of=ONE_ANSWER,
            )
            for position in ("none", "rope-before", "rope-after")
        ]
    for kernel, name in KERNELS.items():
        for position, words in PLACES.items():
            claims.append(
                Claim(
                    key=f"{kernel}-{position}-behind",
                    statement=f"{name} with {words} recalls less than softmax attention with RoPE.",
                    published=_published_behind(kernel, position),
                    quantity=f"test accuracy, {kernel}-{position} minus softmax-rope",
                    region=(-inf, 0.0),
                    margin=0.01,
                    sample=_difference(f"{kernel}-{position}", "softmax-rope", LEARNT, by="other"),
                    pattern="+.1%",
                    family="behind",
                    resolution_of=ONE_ANSWER,
                )
            )
        for place in ("before", "after"):
            claims.append(
                Claim(
                    key=f"{kernel}-rope-{place}-helps",
                    statement=f"RoPE {place} the map makes {name} recall more than it does without positions.",
                    published=UNPUBLISHED,
                    quantity=f"test accuracy, {kernel}-rope-{place} minus {kernel}-none",
                    region=(0.0, inf),
                    margin=0.01,
                    sample=_difference(f"{kernel}-rope-{place}", f"{kernel}-none", BEGUN, by="either"),
                    pattern="+.1%",
                    family="rope",
                    resolution_of=ONE_ANSWER,
                )
            )
        claims.append(
            Claim(
                key=f"{kernel}-order",
                statement=f"With {name}, RoPE after the map recalls more than RoPE before it.",
                published=UNPUBLISHED,
                quantity=f"test accuracy, {kernel}-rope-after minus {kernel}-rope-before",
                region=(0.0, inf),
                margin=0.01,
                sample=_difference(f"{kernel}-rope-after", f"{kernel}-rope-before", BEGUN, by="either"),
                pattern="+.1%",
                family="rope",
                resolution_of=ONE_ANSWER,
            )
        )
    return tuple(claims)


CLAIMS = _claims()
