"""The answer of the forgetting study."""

from experiments.report.answer import Findings
from experiments.report.answer import answer as of_any

BEST = "elu+1-rope-after@decay=fixed"


def answer(found: Findings) -> str:
    """First the gap, then what RoPE adds, then softmax attention equipped alike."""
    if not found.size(f"{BEST}-gap"):
        return of_any(found)
    unit, said = found.comparison.objective.unit, list[str]()
    closed, alone = (found.size(f"{variant}-gap", ".0%") for variant in (BEST, "elu+1-rope-after"))
    said.append(
        f"elu+1 with RoPE after its map and a fixed decay closes {closed} of the gap to softmax attention with RoPE; "
        f"without the decay {alone}."
    )
    if found.size("fixed-below-softmax"):
        difference = found.rows["fixed-below-softmax"].estimate.mean
        said.append(
            f"It ends {_beside(difference, unit)} softmax attention with RoPE{_doubt(found, 'fixed-below-softmax')}."
        )
    if found.size("retnet-below-softmax"):
        retnet = found.rows["retnet-below-softmax"].estimate.mean
        said.append(
            f"The spread of decays matters: with RetNet's it ends {_beside(retnet, unit)}"
            f"{_doubt(found, 'retnet-below-softmax')}."
        )
    if found.size("rope-after-with-fixed"):
        added = found.rows["rope-after-with-fixed"].estimate.mean
        word, doubt = "lowers" if added < 0 else "raises", _doubt(found, "rope-after-with-fixed")
        said.append(f"With the decay RoPE after the map {word} the loss by {abs(added):.3f}{doubt}.")
    if found.size("alike"):
        beside = found.rows["alike"].estimate.mean
        said.append(f"With a gate and a local convolution on both, elu+1 minus softmax attention is {beside:+.3f}.")
    return " ".join(said)


def _beside(difference: float, unit: str) -> str:
    return f"{abs(difference):.3f} {unit} {'below' if difference < 0 else 'above'}"


def _doubt(found: Findings, key: str) -> str:
    return "" if found.is_sure(key) else ", not beyond doubt"
