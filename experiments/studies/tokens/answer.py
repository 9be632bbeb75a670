"""The answer of the study of budgets."""

from experiments.report.answer import Findings
from experiments.report.answer import answer as of_any
from experiments.studies.tokens.budgets import MILLION, budgets, in_words


def answer(found: Findings) -> str:
    """The difference that matters most, at the smallest and the largest budget; then what RoPE adds."""
    if not found.rows:
        return of_any(found)
    tokens = sorted(budgets(found.comparison))
    first, last = (_difference(found, "below-softmax", many) for many in (tokens[0], tokens[-1]))
    if not (first and last) or first == last:
        return of_any(found)
    said = (
        f"After {in_words(tokens[0])} bytes of training, elu+1 with RoPE after its map and a fixed decay is {first} "
        f"softmax attention with RoPE; after {in_words(tokens[-1])} it is {last}."
    )
    ropes = [_difference(found, "rope-after", many) for many in (tokens[0], tokens[-1])]
    if all(ropes):
        said += f" With RoPE its loss is {ropes[0]} the one without at first, and {ropes[1]} at the end."
    return said


def _difference(found: Findings, family: str, tokens: int) -> str:
    key = f"{family}-{tokens / MILLION:g}"
    if not found.size(key):
        return ""
    mean = found.rows[key].estimate.mean
    side, doubt = "below" if mean < 0 else "above", "" if found.is_sure(key) else " (not beyond doubt)"
    return f"{abs(mean):.3f} {found.comparison.objective.unit} {side}{doubt}"
