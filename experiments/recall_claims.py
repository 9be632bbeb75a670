"""What was claimed about recall; quantities are test accuracies, and higher is better."""

from math import inf

from experiments.claims import Claim
from experiments.samples import paired_answers, per_seed

ACCURACY = "test_accuracy"
ANSWERS = 4000
"""of the test split, at least: 1000 sequences of four pairs or more"""
LEARNT = 0.95
BEGUN = 0.35
"""guessing among the four values that a sequence of the smallest task tells is right for 0.25 of the answers"""
ZOOLOGY = "Arora et al. 2023 (2312.04927, Zoology): attention 1.0 at every width, with learned positions"
HEDGEHOG = (
    "Hedgehog (2402.04347), as relayed: associative recall softmax 100, 1+elu 17.0, Performer 17.0; nothing on RoPE"
)
WIDTH = (
    "Arora et al. 2023 (2312.04927, Zoology): attention recalls at every width, gated convolutions need more width for "
    "longer sequences; of linear attention it says nothing"
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
KERNELS = {"favor+": "FAVOR+", "elu+1": "elu+1", "relu": "relu"}


def learns(key: str, statement: str, published: str, arm: str, *, family: str, answers: int) -> Claim:
    """That an arm's accuracy is above ``LEARNT``, of so many answers of the test split."""
    return Claim(
        key=key,
        statement=statement,
        published=published,
        quantity=f"test accuracy of {arm}",
        region=(LEARNT, inf),
        margin=0.01,
        sample=per_seed((arm,), lambda cell: cell.last(ACCURACY)),
        pattern=".1%",
        family=family,
        resolution=1 / answers,
    )


def _claims() -> tuple[Claim, ...]:
    claims = [
        learns(
            f"{arm}-solves",
            f"Softmax attention with {positions} recalls (nearly) everything.",
            published,
            arm,
            family="softmax",
            answers=ANSWERS,
        )
        for arm, positions, published in (
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
                quantity=f"test accuracy, {kernel}-{position} of width 64 minus width 32",
                region=(0.0, inf),
                margin=0.01,
                sample=paired_answers(
                    f"{kernel}-{position}", f"{kernel}-{position}{NARROW}", ACCURACY, BEGUN, by="either"
                ),
                pattern="+.1%",
                family="width",
                resolution=1 / ANSWERS,
            )
            for position in ("none", "rope-before", "rope-after")
        ]
    for kernel, name in KERNELS.items():
        for position, words in PLACES.items():
            claims.append(
                Claim(
                    key=f"{kernel}-{position}-behind",
                    statement=f"{name} with {words} recalls less than softmax attention with RoPE.",
                    published=HEDGEHOG if kernel != "relu" else UNPUBLISHED,
                    quantity=f"test accuracy, {kernel}-{position} minus softmax-rope",
                    region=(-inf, 0.0),
                    margin=0.01,
                    sample=paired_answers(f"{kernel}-{position}", "softmax-rope", ACCURACY, LEARNT, by="other"),
                    pattern="+.1%",
                    family="behind",
                    resolution=1 / ANSWERS,
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
                    sample=paired_answers(f"{kernel}-rope-{place}", f"{kernel}-none", ACCURACY, BEGUN, by="either"),
                    pattern="+.1%",
                    family="rope",
                    resolution=1 / ANSWERS,
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
                sample=paired_answers(f"{kernel}-rope-after", f"{kernel}-rope-before", ACCURACY, BEGUN, by="either"),
                pattern="+.1%",
                family="rope",
                resolution=1 / ANSWERS,
            )
        )
    return tuple(claims)


CLAIMS = _claims()
