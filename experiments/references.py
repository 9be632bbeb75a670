"""The comparisons that the claims are judged on, and the commands that make them.

Each is a directory of results/reference. ``python -m experiments run all`` makes them all, in this order.
"""

from typing import NamedTuple


class Reference(NamedTuple):
    """What a reference is a comparison of, and the options of ``run`` that make it."""

    experiment: str
    options: str


def _arms(kernels: dict[str, tuple[str, ...]]) -> str:
    return ",".join(f"{kernel}-{position}" for kernel, positions in kernels.items() for position in positions)


RATES = "--learning-rates 0.001,0.002,0.004"
SHORT_TEXT = (
    "--seeds 5 --steps 800 --warmup-steps 80 --evaluate-every 40 --test-windows 781 --checkpoint-every 200 " + RATES
)
"""equal settings, so that cells of one reference are the cells of another"""

ROPE = ("none", "rope-before", "rope-after")
CONVERGENCE_ARMS = _arms({"softmax": ("none", "learned", "rope"), "favor+": ROPE, "elu+1": ROPE, "relu": ROPE})
LENGTH_ARMS = _arms({"softmax": ("none", "learned", "sinusoidal", "rope", "alibi"), "favor+": ROPE, "elu+1": ROPE})

REFERENCES: dict[str, Reference] = {
    "convergence": Reference("convergence", f"--data enwik8-4MB {SHORT_TEXT} --variants {CONVERGENCE_ARMS}"),
    "convergence-imdb": Reference("convergence", f"--data imdb {SHORT_TEXT}"),
    "denominator": Reference("denominator", "--data enwik8-4MB"),
    "mask": Reference("mask", "--data enwik8-4MB"),
    "decay": Reference("decay", f"--data enwik8-4MB {SHORT_TEXT} --variants {CONVERGENCE_ARMS}"),
    "length": Reference("length", f"--data enwik8-4MB {SHORT_TEXT} --variants {LENGTH_ARMS}"),
    "features": Reference("features", f"--data enwik8-4MB {SHORT_TEXT}"),
    "pairing": Reference("pairing", "--data enwik8-4MB"),
    "speed": Reference("speed", ""),
}


def command(name: str) -> str:
    """The command that makes a reference, into results/runs."""
    return " ".join(["python -m experiments", *arguments(name)])


def arguments(name: str) -> list[str]:
    """The words of the command behind ``python -m experiments``."""
    experiment, options = REFERENCES[name]
    return ["run", experiment, *options.split(), "--out", f"results/runs/{name}"]
