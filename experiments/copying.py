"""Can linear attention copy a sequence, and does its position encoding matter for that?

python -m experiments run copying
"""

from math import inf

from experiments.claims import Claim
from experiments.recall import METHOD, NOT_SHOWN, figures, measure
from experiments.recall_claims import ACCURACY, LEARNT, learns
from experiments.samples import paired_answers

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
ANSWERS = 16_000
"""of the test split, at least: 1000 sequences of 16 or more"""

CLAIMS = (
    *(
        learns(
            f"{arm}-copies",
            f"Softmax attention with {positions} learns to copy.",
            published,
            arm,
            family="copying",
            answers=ANSWERS,
        )
        for arm, positions, published in (
            ("softmax-learned", "learned positions", f"{KATHAROPOULOS}, which learns the task"),
            ("softmax-rope", "RoPE", "none found"),
        )
    ),
    *(
        Claim(
            key=f"{arm}-behind",
            statement=f"{name} copies as well as softmax attention with such positions.",
            published=published,
            quantity=f"test accuracy, {arm} minus {other}",
            region=(-0.02, inf),
            margin=0.005,
            sample=paired_answers(arm, other, ACCURACY, LEARNT, by="other"),
            pattern="+.1%",
            family="copying",
            resolution=1 / ANSWERS,
        )
        for arm, other, name, published in (
            ("elu+1-learned", "softmax-learned", "Elu+1 with learned positions", KATHAROPOULOS),
            ("elu+1-rope-before", "softmax-rope", "Elu+1 with RoPE before the map", "none found"),
            ("elu+1-rope-after", "softmax-rope", "Elu+1 with RoPE after the map", "none found"),
            ("favor+-learned", "softmax-learned", "FAVOR+ with learned positions", "none found"),
            ("favor+-rope-before", "softmax-rope", "FAVOR+ with RoPE before the map", "none found"),
            ("favor+-rope-after", "softmax-rope", "FAVOR+ with RoPE after the map", "none found"),
        )
    ),
)
