"""What was claimed about convergence with RoPE. Quantities are paired by seed; lower is better."""

from math import inf

from experiments.claims import Claim
from experiments.samples import gap_closed, paired, paired_average, steps_saved

BELOW_0, ABOVE_0 = (-inf, 0.0), (0.0, inf)
SMALLEST_DIFFERENCE = 0.01
"""bits per byte: a sixth of the gap between the Performer and the Transformer on enwik8 (AFT, 2105.14103, table 4)"""

ROFORMER_PERFORMER = (
    "RoFormer (2104.09864) Fig. 3 right: the Performer's loss on enwik8 falls faster and lower with RoPE; "
)
ELEUTHER = "EleutherAI 2021, Rotary Embeddings"

HELPS = {
    ("softmax", "softmax-rope"): f"{ELEUTHER}: validation loss 2.759 with RoPE, 2.809 with learned positions (125M)",
    ("the Performer", "favor+-rope-after"): f"{ROFORMER_PERFORMER}a curve, no numbers; eq. 19 rotates after the map",
    ("the Performer", "favor+-rope-before"): f"{ELEUTHER}: a clear decrease of the Performer's loss on enwik8, no "
    "numbers; performer-pytorch rotates before the map",
    (
        "elu+1",
        "elu+1-rope-after",
    ): "none found (RoFormer, 2104.09864, trains the Performer alone; MLLA, LeapLabTHU, rotates after, images)",
    ("elu+1", "elu+1-rope-before"): "none found",
    ("relu", "relu-rope-after"): "SANA-Video (2509.24695): RoPE after the ReLU keeps position; not causal, video",
    ("relu", "relu-rope-before"): "SANA-Video (2509.24695) says the opposite: the ReLU filters position out again",
}
"""(kernel, arm) → what was published"""

ORDER = {
    (
        "the Performer",
        "favor+",
    ): "RoFormer (2104.09864) eq. 19 rotates after, performer-pytorch before; no language model with both was found",
    (
        "elu+1",
        "elu+1",
    ): "RoFormer (2104.09864) eq. 19 and MLLA (LeapLabTHU; images) rotate after; no language model with both was found",
    ("relu", "relu"): "SANA-Video (2509.24695): RoPE before the ReLU filters position out, so it is applied after",
}


def _place(arm: str) -> str:
    return " before the map" if arm.endswith("-before") else " after the map" if arm.endswith("-after") else ""


def _baseline(arm: str) -> str:
    return f"{arm.partition('-rope')[0]}-none"


def _lower_loss() -> list[Claim]:
    pairs = [
        (f"{arm}-loss", f"RoPE{_place(arm)} lowers the loss of {kernel}.", published, arm, _baseline(arm))
        for (kernel, arm), published in HELPS.items()
    ]
    published = HELPS["softmax", "softmax-rope"]
    pairs.insert(
        1,
        (
            "softmax-learned-loss",
            "RoPE is better than learned positions.",
            published,
            "softmax-rope",
            "softmax-learned",
        ),
    )
    return [
        Claim(
            key=key,
            statement=statement,
            published=published,
            quantity=f"test loss, {arm} minus {other}, bits per byte",
            region=BELOW_0,
            margin=SMALLEST_DIFFERENCE,
            sample=paired(arm, other),
            family="loss",
        )
        for key, statement, published, arm, other in pairs
    ]


def _after_beats_before() -> list[Claim]:
    return [
        Claim(
            key=f"{kernel}-order",
            statement=f"For {name}, RoPE after the map gives a lower loss than RoPE before it.",
            published=published,
            quantity=f"test loss, {kernel}-rope-after minus {kernel}-rope-before, bits per byte",
            region=BELOW_0,
            margin=SMALLEST_DIFFERENCE,
            sample=paired(f"{kernel}-rope-after", f"{kernel}-rope-before"),
            family="order",
        )
        for (name, kernel), published in ORDER.items()
    ]


def _fewer_steps() -> list[Claim]:
    quantity = "share of the steps saved by {} on the way to {}'s final validation loss"
    return [
        Claim(
            key="softmax-steps",
            statement="With RoPE, softmax attention needs at least 30 % fewer steps than with learned positions.",
            published=f"{ELEUTHER}: about 30 % faster convergence than learned positions",
            quantity=quantity.format("softmax-rope", "softmax-learned"),
            region=(0.3, inf),
            margin=0.05,
            sample=steps_saved("softmax-rope", "softmax-learned"),
            pattern=".0%",
            family="steps",
        ),
        Claim(
            key="performer-steps",
            statement="With RoPE after the map, the Performer needs at least 10 % fewer steps than without positions.",
            published=f"{ROFORMER_PERFORMER}a curve, no numbers (10 % is ours: the share cannot be negative)",
            quantity=quantity.format("favor+-rope-after", "favor+-none"),
            region=(0.1, inf),
            margin=0.05,
            sample=steps_saved("favor+-rope-after", "favor+-none"),
            pattern=".0%",
            family="steps",
        ),
    ]


def _lower_curves() -> list[Claim]:
    return [
        Claim(
            key=f"{arm}-curve",
            statement=f"RoPE{_place(arm)} makes {kernel} converge faster: its validation loss is lower over training.",
            published=HELPS[kernel, arm],
            quantity=f"average of the validation curve, {arm} minus {_baseline(arm)}, bits per byte",
            region=BELOW_0,
            margin=SMALLEST_DIFFERENCE,
            sample=paired_average(arm, _baseline(arm)),
            family="curve",
        )
        for kernel, arm in HELPS
        if arm in ("softmax-rope", "favor+-rope-after", "favor+-rope-before", "elu+1-rope-after", "relu-rope-after")
    ]


def _the_gap() -> list[Claim]:
    published = (
        f"{ELEUTHER}: for the Performer, RoPE does not close the gap to quadratic attention (enwik8, no numbers)"
    )
    claims = []
    for arm in ("favor+-rope-after", "favor+-rope-before"):
        claims += [
            Claim(
                key=f"{arm}-gap",
                statement=f"With RoPE{_place(arm)}, the Performer stays behind softmax attention with RoPE.",
                published=published,
                quantity=f"test loss, {arm} minus softmax-rope, bits per byte",
                region=ABOVE_0,
                margin=SMALLEST_DIFFERENCE,
                sample=paired(arm, "softmax-rope"),
                family="gap",
            ),
            Claim(
                key=f"{arm}-gap-share",
                statement=f"RoPE{_place(arm)} does not close all of the gap from the Performer to softmax with RoPE.",
                published=published,
                quantity=f"share of the gap in test loss from favor+-none to softmax-rope that {arm} closes",
                region=(-inf, 1.0),
                margin=0.05,
                sample=gap_closed(arm, "favor+-none", "softmax-rope"),
                pattern=".0%",
                family="gap",
            ),
        ]
    return claims


CLAIMS = (*_lower_loss(), *_after_beats_before(), *_fewer_steps(), *_lower_curves(), *_the_gap())
