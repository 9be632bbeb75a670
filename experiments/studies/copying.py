"""Can linear attention copy a sequence, and does its position encoding matter for that?

python -m experiments run copying
"""

from math import inf

from experiments.analysis.claims import SEEN, Claim
from experiments.analysis.samples import paired_answers
from experiments.studies.recall.claims import ACCURACY, LEARNT, last_answers, learns, one_answer
from experiments.studies.recall.study import figures, measure

__all__ = ["CLAIMS", "METHOD", "NOT_SHOWN", "QUESTION", "VARIANTS", "figures", "measure"]

QUESTION = (
    "The linear transformer was shown to learn to copy a sequence of symbols as well as softmax attention. Models that "
    "differ in their attention and position encoding alone are trained to repeat what stood before a separator."
)

METHOD = (
    "Two-layer models that differ in their attention and position encoding alone are trained from equal weights on "
    "equal batches of sequences w | w of ten symbols, drawn anew for every step; the loss counts the symbols behind "
    "the separator and nothing else. Accuracy is the share of those symbols that get the largest logit, each "
    "predicted from the right ones before it, on the fixed sequences of the test split after the last step; the curves "
    "are of the validation split. Elu+1 has as many features as a head has channels, favor+ as many as num_features "
    "says. The spread of the initial weights, the learning rate and the batch were found in trials on another task, "
    "associative recall; no variant was tuned by itself. Linear attention is compared with softmax attention only "
    "where "
    "that has learnt the task. A token is kept in a byte, so what tables and figures call bits per byte are bits per "
    "scored symbol."
)

NOT_SHOWN = (
    "The published setting: Katharopoulos et al. train four layers of eight heads on sequences of up to 128 tokens; "
    "here two layers with one head copy words of up to 32 symbols, in 64 tokens (copying-128 copies up to 128). One "
    "number of steps and one learning rate serve all variants, so a variant that is low may need more steps and not be "
    "unable: its curve shows whether it was still rising. Copying is predicted symbol by symbol after right symbols, "
    "so the symbol before tells where to look unless it came twice: a variant can do well with little sense of "
    "position."
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
ONE_ANSWER = one_answer(lambda length: length // 4)
BEGUN = 0.2
"""guessing one of ten symbols is right for 0.1 of the answers"""

CLAIMS = (
    *(
        learns(
            f"{variant}-copies",
            f"Softmax attention with {positions} learns to copy.",
            published,
            variant,
            last_answers(variant),
            family="copying",
            resolution_of=ONE_ANSWER,
        )
        for variant, positions, published in (
            ("softmax-learned", "learned positions", f"{KATHAROPOULOS}, which learns the task"),
            ("softmax-rope", "RoPE", "none found"),
        )
    ),
    *(
        Claim(
            key=f"{variant}-copies-as-well",
            statement=f"{name} copies as well as softmax attention with such positions.",
            published=published,
            quantity=f"test accuracy, {variant} minus {other}",
            region=(-0.02, inf),
            margin=0.005,
            sample=paired_answers(variant, other, ACCURACY, LEARNT, by="other"),
            pattern="+.1%",
            family="copying",
            resolution_of=ONE_ANSWER,
        )
        for variant, other, name, published in (
            ("elu+1-learned", "softmax-learned", "Elu+1 with learned positions", KATHAROPOULOS),
            ("elu+1-rope-before", "softmax-rope", "Elu+1 with RoPE before the map", "none found"),
            ("elu+1-rope-after", "softmax-rope", "Elu+1 with RoPE after the map", "none found"),
            ("favor+-learned", "softmax-learned", "FAVOR+ with learned positions", "none found"),
            ("favor+-rope-before", "softmax-rope", "FAVOR+ with RoPE before the map", "none found"),
            ("favor+-rope-after", "softmax-rope", "FAVOR+ with RoPE after the map", "none found"),
        )
    ),
    *(
        Claim(
            key=f"{kernel}-order",
            statement=f"With {name}, RoPE after the map copies better than RoPE before it.",
            published=SEEN,
            quantity=f"test accuracy, {kernel}-rope-after minus {kernel}-rope-before",
            region=(0.0, inf),
            margin=0.005,
            sample=paired_answers(f"{kernel}-rope-after", f"{kernel}-rope-before", ACCURACY, BEGUN, by="either"),
            pattern="+.1%",
            family="order",
            resolution_of=ONE_ANSWER,
        )
        for kernel, name in (("favor+", "FAVOR+"), ("elu+1", "elu+1"))
    ),
)
