"""Can linear attention copy a sequence, and does its position encoding matter for that?

python -m experiments run copying
"""

from math import inf

from experiments.claims import Claim
from experiments.recall import METHOD, NOT_SHOWN, figures, measure
from experiments.samples import paired, per_seed

__all__ = ["CLAIMS", "METHOD", "NOT_SHOWN", "QUESTION", "VARIANTS", "figures", "measure"]

QUESTION = (
    "The linear transformer was shown to learn to copy a sequence of symbols as well as softmax attention. Models that "
    "differ in their attention and position encoding alone are trained to repeat what stood before a separator."
)

VARIANTS = (
    "softmax-learned",
    "softmax-rope",
    *(
        f"{kernel}-{position}"
        for kernel in ("favor+", "elu+1")
        for position in ("learned", "rope-before", "rope-after")
    ),
)

KATHAROPOULOS = "Katharopoulos et al. 2020 (2006.16236), copy task: linear (elu+1) reaches softmax's loss"
ACCURACY = "test_accuracy"
ANSWERS = 16_000
"""of the test split, at least: 1000 sequences of 16 or more"""

CLAIMS = (
    Claim(
        key="softmax",
        statement="Softmax attention learns to copy.",
        published=f"{KATHAROPOULOS}, which learns the task",
        quantity="test accuracy of softmax-learned",
        region=(0.95, inf),
        margin=0.01,
        sample=per_seed(("softmax-learned",), lambda cell: cell.last(ACCURACY)),
        pattern=".1%",
        family="copying",
        resolution=1 / ANSWERS,
    ),
    *(
        Claim(
            key=f"{arm}-behind",
            statement=f"{name} copies as well as softmax attention with learned positions.",
            published=published,
            quantity=f"test accuracy, {arm} minus softmax-learned",
            region=(-0.02, inf),
            margin=0.005,
            sample=paired(arm, "softmax-learned", ACCURACY),
            pattern="+.1%",
            family="copying",
            resolution=1 / ANSWERS,
        )
        for arm, name, published in (
            ("elu+1-learned", "Elu+1 with learned positions", KATHAROPOULOS),
            ("elu+1-rope-before", "Elu+1 with RoPE before the map", "none found"),
            ("elu+1-rope-after", "Elu+1 with RoPE after the map", "none found"),
            ("favor+-learned", "FAVOR+ with learned positions", "none found"),
            ("favor+-rope-before", "FAVOR+ with RoPE before the map", "none found"),
            ("favor+-rope-after", "FAVOR+ with RoPE after the map", "none found"),
        )
    ),
)
