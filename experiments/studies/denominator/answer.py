"""The answer of the denominator study."""

from experiments.analysis.verdicts import SUPPORTED
from experiments.report.answer import Findings, listed

MAPS = {"favor+": "FAVOR+", "elu+1": "elu+1", "relu": "relu"}


def answer(found: Findings) -> str:
    """First the loss with a rotated denominator, then without one."""
    unit, said = found.comparison.objective.unit, list[str]()
    known = [kernel for kernel in MAPS if found.size(f"{kernel}-loss")]
    surely = [kernel for kernel in known if found.verdict(f"{kernel}-loss") == SUPPORTED]
    higher = [kernel for kernel in known if found.rows[f"{kernel}-loss"].estimate.high < 0 and kernel not in surely]
    rest = [kernel for kernel in known if kernel not in surely + higher]

    def sizes(kernels: list[str]) -> str:
        return listed(f"{MAPS[each]} ({-found.rows[f'{each}-loss'].estimate.mean:+.2f})" for each in kernels)

    if surely:
        names, raised = listed(MAPS[each] for each in surely), listed(found.size(f"{each}-loss") for each in surely)
        whose = "its" if len(surely) == 1 else "their"
        said.append(f"Yes for {names}: a rotated denominator raises {whose} loss by {raised} {unit}.")
    if higher:
        start = "For" if said else "Not beyond doubt: with a rotated denominator the loss of"
        was = "it was higher too, but not beyond doubt" if said else f"was higher (in {unit}), but not clearly"
        said.append(f"{start} {sizes(higher)} {was} after the correction for the number of claims.")
    if rest:
        what = "It" if said else "Not shown: a rotated denominator"
        said.append(f"{what} makes no clear difference for {sizes(rest)}.")
    needed = [kernel for kernel in MAPS if found.verdict(f"{kernel}-none") == SUPPORTED]
    if needed:
        raised = found.range(f"{kernel}-none" for kernel in needed)
        said.append(f"Without any, the loss of {listed(MAPS[kernel] for kernel in needed)} rises by {raised}.")
    return " ".join(said)
