"""The answer of the study of GLUE, for one task."""

from experiments.judge.statistics import Estimate
from experiments.judge.verdicts import NOT_RUN
from experiments.report.answer import Findings, best
from experiments.show.words import listed

BERT, ROFORMER = "softmax-learned", "softmax-rope"
LINEAR = {
    "elu+1-rope-after": "with RoPE after its map",
    "elu+1-rope-after@decay=gate@local_conv=4": "with RoPE, a gate and a local convolution",
}


def answer(found: Findings) -> str:
    """RoPE beside learned positions, then linear attention beside both, each with the verdict on it."""
    learned, rope = found.final(BERT), found.final(ROFORMER)
    if not (learned.n and rope.n):
        return best(found)
    intervals = "; 95 % intervals" * rope.has_interval
    both = f"Softmax attention has {_percent(rope)} with RoPE and {_percent(learned)} with learned positions"
    said = [f"{both} ({_of(found)}{intervals}){_verdicts(found, ['rope-or-learned'], 'RoPE')}."]
    linear = {name: words for name, words in LINEAR.items() if found.final(name).n}
    if linear:
        each = listed(f"{_percent(found.final(name))} {words}" for name, words in linear.items())
        judged = _verdicts(found, [f"{name}-or-softmax" for name in linear], "it", " softmax attention with RoPE")
        said.append(f"Elu+1 has {each}{judged}.")
    return " ".join(said)


def _percent(found: Estimate) -> str:
    """A mean in percent, with its interval if there is one."""
    interval = f" [{100 * found.low:.1f}, {100 * found.high:.1f}]" if found.has_interval else ""
    return f"{100 * found.mean:.1f} %{interval}"


def _verdicts(found: Findings, keys: list[str], who: str, what: str = "") -> str:
    """What was said of ``who`` being at most two points below ``what``; empty where it was not judged."""
    verdicts = [found.verdict(key) for key in keys]
    if {"", NOT_RUN} & {*verdicts}:
        return ""
    each = verdicts[0] if len({*verdicts}) == 1 else f"{verdicts[0]} of the first, {verdicts[1]} of the second"
    return f"; that {who} is at most two points below{what} is {each}"


def _of(found: Findings) -> str:
    """What is in percent, and of which class where it is of one."""
    objective = found.comparison.objective
    if objective.metric == "accuracy":
        return "accuracy"
    second = repr(objective.classes[1]) if len(objective.classes) == 2 else "the second class"
    return objective.unit.replace("the second class", second)
