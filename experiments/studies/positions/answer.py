"""The answer of the positions study."""

from experiments.analysis.verdicts import SUPPORTED
from experiments.report.answer import Findings, in_words, listed

GOES_ON = "-goes-on"
"""how the keys of the claims end that ask for longer texts"""


def answer(found: Findings) -> str:
    """Which encoding of each attention ends lowest, how many RoPE is below, and which go on beyond the training."""
    unit = found.comparison.objective.unit
    softmax = [each for each in found.finished if each.kernel == "softmax"]
    if not softmax:
        return ""
    best, rope = softmax[0], next((each for each in softmax if each.position == "rope-before"), None)
    said = [f"{in_words(best)[0].upper()}{in_words(best)[1:]} ends lowest, at {found.final(best.name).mean:.2f} {unit}"]
    if rope is not None and rope != best:
        said[0] += f"; with RoPE it is {found.final(rope.name).mean:.2f}"
    said[0] += "."
    clear, asked = found.supported("-or-rope")
    if asked:
        said.append(f"RoPE is clearly below {clear or 'none'} of the {asked} others.")
    goes_on = [
        key.removesuffix(GOES_ON) for key in found.rows if key.endswith(GOES_ON) and found.verdict(key) == SUPPORTED
    ]
    linear = next((each for each in found.finished if each.kernel != "softmax"), None)
    if linear is not None:
        name = f"{in_words(linear)[0].upper()}{in_words(linear)[1:]}"
        said.append(f"{name} is the lowest of linear attention, at {found.final(linear.name).mean:.2f}.")
    words = [in_words(each) for each in found.comparison.variants if each.name in goes_on]
    if words:
        said.append(f"On longer texts the loss falls for {listed(words)}.")
    return " ".join(said)
