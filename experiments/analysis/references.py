"""The comparisons that the claims are judged on, and the commands that make them.

Each is a directory of results/reference. ``python -m experiments run all`` makes them all, in this order.
"""

from collections.abc import Sequence
from typing import NamedTuple

from experiments.analysis.claims import Claim


class Reference(NamedTuple):
    """What a reference is a comparison of, the options of ``run`` that make it, and what is claimed of it."""

    experiment: str
    options: str
    claims: tuple[str, ...] | None = None
    """keys of the claims that are judged on it; None: all of the experiment's"""


def _variants(kernels: dict[str, tuple[str, ...]]) -> str:
    return ",".join(f"{kernel}-{position}" for kernel, positions in kernels.items() for position in positions)


EQUAL_TEXT = "--seeds 5 --steps 800 --warmup-steps 80 --evaluate-every 40 --test-windows 781 --checkpoint-every 200"
TUNED_TEXT = f"{EQUAL_TEXT} --learning-rates 0.001,0.002,0.004"
"""equal settings, so that runs of one reference are the runs of another"""

ABSOLUTE, ROPE = ("none", "learned", "sinusoidal"), ("rope-before", "rope-after")
ALL_VARIANTS = _variants(
    {"softmax": (*ABSOLUTE, "rope"), **{k: (*ABSOLUTE, *ROPE) for k in ("favor+", "elu+1", "relu")}}
)
IMDB_VARIANTS = _variants(
    {
        "softmax": ("none", "learned", "rope"),
        "favor+": ("none", "learned", *ROPE),
        "elu+1": ("none", *ROPE),
    }
)
LONG_VARIANTS = _variants({"softmax": ("none", "rope"), "favor+": ("none", *ROPE), "elu+1": ("none", *ROPE)})
ROPE_VARIANTS = _variants(
    {"softmax": ("none", "learned", "rope"), **{k: ("none", *ROPE) for k in ("favor+", "elu+1", "relu")}}
)
NARROW_VARIANTS = ",".join(
    f"{variant}@dim=32"
    for variant in _variants(
        {"softmax": ("none", "learned", "rope"), **{k: ("none", *ROPE) for k in ("favor+", "elu+1")}}
    ).split(",")
)
RECALL_VARIANTS = _variants(
    {"softmax": ("none", "learned", "rope"), **{k: ("none", "learned", *ROPE) for k in ("favor+", "elu+1", "relu")}}
)
LENGTH_VARIANTS = _variants(
    {"softmax": (*ABSOLUTE, "rope", "alibi"), **{k: (*ABSOLUTE, *ROPE) for k in ("favor+", "elu+1")}}
)

REFERENCES: dict[str, Reference] = {
    "convergence": Reference("convergence", f"--data enwik8-4MB {TUNED_TEXT} --variants {ALL_VARIANTS}"),
    "convergence-imdb": Reference(
        "convergence",
        f"--data imdb {EQUAL_TEXT} --variants {IMDB_VARIANTS}",
        claims=(
            "softmax-learned-none-loss",
            "softmax-rope-learned-loss",
            "softmax-rope-loss",
            "favor+-learned-none-loss",
            "favor+-rope-before-learned-loss",
            "favor+-rope-after-learned-loss",
            "favor+-rope-before-loss",
            "favor+-rope-after-loss",
            "elu+1-rope-before-loss",
            "elu+1-rope-after-loss",
            "favor+-order",
            "elu+1-order",
            "favor+-rope-before-gap",
            "favor+-rope-after-gap",
            "elu+1-rope-after-gap",
        ),
    ),
    "convergence-long": Reference(
        "convergence",
        "--data enwik8-4MB --seeds 3 --steps 1600 --warmup-steps 100 --evaluate-every 80 --test-windows 781 "
        f"--variants {LONG_VARIANTS}",
        claims=(
            "favor+-order",
            "elu+1-order",
            "softmax-rope-loss",
            "favor+-rope-before-loss",
            "favor+-rope-after-loss",
            "elu+1-rope-before-loss",
            "elu+1-rope-after-loss",
            "favor+-rope-before-gap",
            "favor+-rope-after-gap",
            "elu+1-rope-after-gap",
        ),
    ),
    "denominator": Reference("denominator", "--data enwik8-4MB"),
    "mask": Reference("mask", "--data enwik8-4MB"),
    "decay": Reference("decay", f"--data enwik8-4MB {TUNED_TEXT} --variants {ROPE_VARIANTS}"),
    "length": Reference("length", f"--data enwik8-4MB {TUNED_TEXT} --variants {LENGTH_VARIANTS}"),
    "features": Reference("features", f"--data enwik8-4MB {TUNED_TEXT}"),
    "recall": Reference("recall", f"--variants {RECALL_VARIANTS},{NARROW_VARIANTS}"),
    "copying": Reference("copying", ""),
    "pairing": Reference("pairing", f"--data enwik8-4MB {EQUAL_TEXT}"),
    "speed": Reference("speed", ""),
}


def declared_claims(claims: Sequence[Claim], name: str, experiment: str) -> list[Claim]:
    """Those of the experiment's claims that are judged on a comparison of this name: all, unless a reference has fewer.

    The page of claims and the report of a comparison judge the same ones, so that each has one p.
    """
    reference = REFERENCES.get(name)
    if reference is None or reference.experiment != experiment or reference.claims is None:
        return list(claims)
    return [claim for claim in claims if claim.key in reference.claims]


def command(name: str) -> str:
    """The command that makes a reference, into results/runs."""
    return " ".join(["python -m experiments", *arguments(name)])


def arguments(name: str) -> list[str]:
    """The words of the command behind ``python -m experiments``."""
    reference = REFERENCES[name]
    return ["run", reference.experiment, *reference.options.split(), "--out", f"results/runs/{name}"]
