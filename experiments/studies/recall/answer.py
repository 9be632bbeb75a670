"""The answers of the recall and the copying study."""

from experiments.analysis.statistics import Estimate
from experiments.analysis.verdicts import SUPPORTED
from experiments.records.schema import VariantRecord
from experiments.report import answer as general
from experiments.report.answer import ADDED, KERNELS, ROPE, Findings, in_words, listed, settings_in_words
from experiments.studies.recall.measure import BEGUN

WIDE = 0.1
"""an interval this wide is told"""


def answer(found: Findings) -> str:
    """Of each kernel, the best variant with RoPE beside that without positions, at the width of the comparison."""
    if found.comparison.objective.metric != "accuracy":
        return general.answer(found)
    by_kernel: dict[str, dict[str, VariantRecord]] = {}
    for variant in _own_width(found):
        if ADDED.keys() & variant.settings.keys():
            continue
        side = "rope" if variant.position in ROPE else variant.position
        by_kernel.setdefault(variant.kernel, {}).setdefault(side, variant)  # the best comes first
    softmax = by_kernel.pop("softmax", {})
    linear = {kernel: mine for kernel, mine in by_kernel.items() if {"rope", "none"} <= mine.keys()}
    if not linear:
        return best_of_each(found)

    def beside(kernels: list[str]) -> str:
        parts = list[str]()
        for kernel in kernels:
            rope, none = (shown(found.final(linear[kernel][each].name)) for each in ("rope", "none"))
            pattern = "{} {}, against {}" if parts else "{} gives {} of the answers right, against {} without positions"
            parts.append(pattern.format(in_words(linear[kernel]["rope"]), rope, none))
        return "; ".join(parts)

    means = {
        kernel: {side: found.final(variant.name).mean for side, variant in mine.items()}
        for kernel, mine in linear.items()
    }
    begun = [kernel for kernel, mean in means.items() if max(mean["rope"], mean["none"]) >= BEGUN]
    more = [kernel for kernel in begun if means[kernel]["rope"] > means[kernel]["none"]]
    clear = [kernel for kernel in more if found.verdict(f"{linear[kernel]['rope'].name}-helps") == SUPPORTED]
    seeds = len(found.comparison.seeds)
    said = []
    if clear:
        said.append(f"Yes, with {listed(map(_name, clear))}: {beside(clear)}.")
    if unclear := [kernel for kernel in more if kernel not in clear]:
        few = f"{seeds} seed{'s do' if seeds > 1 else ' does'} not settle it"
        said.append(f"Perhaps with {listed(map(_name, unclear))}, but {few}: {beside(unclear)}.")
    less = [kernel for kernel in begun if kernel not in more]
    if less:
        said.append(f"Not with {listed(map(_name, less))}: {beside(less)}.")
    stays = [f"{_name(kernel)} ({means[kernel]['rope']:.0%})" for kernel in linear if kernel not in begun]
    if stays:
        words = f"{listed(stays)} stay{'s' * (len(stays) == 1)} near guessing"
        said.append(f"{words[0].upper()}{words[1:]}." if said else f"No: with RoPE {words}.")
    for kernel in begun:
        said.append(_with_additions(found, linear[kernel]["rope"]))
    if "rope" in softmax:
        said.append(f"Softmax attention with RoPE gives {shown(found.final(softmax['rope'].name))}.")
    return " ".join(filter(None, said))


def _with_additions(found: Findings, base: VariantRecord) -> str:
    """What the same kernel and position give with a decay or a convolution; empty if no such variant was trained."""
    parts = [
        f"with {listed(settings_in_words(variant))} {shown(found.final(variant.name))}"
        for variant in found.finished
        if (variant.kernel, variant.position) == (base.kernel, base.position) and ADDED.keys() & variant.settings.keys()
    ]
    return f"The same {listed(parts)}." if parts else ""


def best_of_each(found: Findings) -> str:
    """The best of softmax attention, the best linear variant, and the best of each other kernel."""
    if found.comparison.objective.metric != "accuracy":
        return general.answer(found)
    said: list[str] = []
    kernels: set[str] = set()
    ranking = sorted(_own_width(found), key=lambda variant: variant.kernel != "softmax")  # keeps the order of others
    for variant in ranking:
        if variant.kernel in kernels:
            continue
        share = shown(found.final(variant.name))
        if not said:
            words = in_words(variant)
            said.append(f"{words[0].upper()}{words[1:]} gives {share} of the answers right")
        elif len(said) == 1 and variant.kernel != "softmax":
            said.append(f"the best linear variant, {in_words(variant)}, {share}")
        else:
            said.append(f"{_name(variant.kernel)} at most {share}")
        kernels.add(variant.kernel)
    return f"{', '.join(said)}." if said else ""


def shown(accuracy: Estimate) -> str:
    """Its mean, and its interval if that is wide."""
    low, high = max(accuracy.low, 0.0), min(accuracy.high, 1.0)
    interval = f" [{low:.0%}, {high:.0%}]" if accuracy.has_interval and high - low > WIDE else ""
    is_short_of_all = 0.995 <= accuracy.mean < 0.9995
    return f"{accuracy.mean:{'.1%' if is_short_of_all else '.0%'}}{interval}"


def _own_width(found: Findings) -> list[VariantRecord]:
    """The finished variants, the best first, without those of another width, where there are others."""
    return [each for each in found.finished if "dim" not in each.settings] or found.finished


def _name(kernel: str) -> str:
    return KERNELS.get(kernel, kernel)
