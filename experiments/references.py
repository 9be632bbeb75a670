"""The comparisons that the claims are judged on, and the commands that make them.

Each is a directory of results/reference. A command may name more arms than the committed comparison has: claims about
those are shown as not run, with the command.
"""

from typing import NamedTuple


class Reference(NamedTuple):
    """What a reference is a comparison of, and the options of ``run`` that make it."""

    experiment: str
    options: str


CONVERGENCE_ARMS = ",".join(
    [
        *("softmax-none", "softmax-learned", "softmax-rope"),
        *("favor+-none", "favor+-rope-before", "favor+-rope-after"),
        *("elu+1-none", "elu+1-rope-before", "elu+1-rope-after"),
        *("relu-none", "relu-rope-before", "relu-rope-after"),
    ]
)

TRAINED = "--data enwik8-4MB --seeds 3 --steps 1600 --warmup-steps 100 --evaluate-every 80 --test-windows 781"
"""how the language models of the convergence reference are trained; what trains the same can take them over"""

REFERENCES: dict[str, Reference] = {
    "convergence": Reference("convergence", f"{TRAINED} --variants {CONVERGENCE_ARMS}"),
    "decay": Reference("decay", TRAINED),
    "speed": Reference("speed", ""),
}


def command(name: str) -> str:
    """The command that makes a reference, into results/runs."""
    experiment, options = REFERENCES[name]
    return " ".join(["python -m experiments run", experiment, *options.split(), "--out", f"results/runs/{name}"])
