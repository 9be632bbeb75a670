"""The answer of the denominator study."""

from experiments.analysis.verdicts import SUPPORTED
from experiments.report.answer import Findings, listed

MAPS = {"favor+": "FAVOR+", "elu+1": "elu+1", "relu": "relu"}


def answer(found: Findings) -> str:
    """First the loss with a rotated denominator, then without one."""
    unit, said = found.comparison.objective.unit, list[str]()
    for supported, how in ((True, "raises the loss of"), (False, "makes no clear difference for")):
        maps = [
            f"{name} (by {size} {unit})" if supported else f"{name} ({size})"
            for kernel, name in MAPS.items()
            if (size := found.size(f"{kernel}-loss")) and (found.verdict(f"{kernel}-loss") == SUPPORTED) == supported
        ]
        if maps:
            said.append(f"{'A rotated denominator' if not said else 'It'} {how} {listed(maps)}.")
    needed = [kernel for kernel in MAPS if found.verdict(f"{kernel}-none") == SUPPORTED]
    if needed:
        raised = found.range(f"{kernel}-none" for kernel in needed)
        said.append(f"Without any, the loss of {listed(MAPS[kernel] for kernel in needed)} rises by {raised}.")
    return " ".join(said)
