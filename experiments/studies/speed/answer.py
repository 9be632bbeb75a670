"""The answer of the speed study."""

from experiments.report.answer import Findings


def answer(found: Findings) -> str:
    """How fast linear attention is at the longest length, and what RoPE adds to a step."""
    operation, module = (found.size(key, ".2g") for key in ("operation-faster", "module-faster"))
    said = []
    if operation and module:
        said.append(
            f"At the longest length measured the operation is {operation} times and the whole module {module} times as "
            "fast as softmax attention."
        )
    costs = {side: [f"{kernel}-rope-{side}-cost" for kernel in ("favor+", "elu+1")] for side in ("before", "after")}
    after, before = (found.range(costs[side], ".0%") for side in ("after", "before"))
    if after and before:
        said.append(f"RoPE adds {after} to a training step after the feature map, {before} before it.")
    return " ".join(said)
