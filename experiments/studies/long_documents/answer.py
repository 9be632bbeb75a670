"""The answer of the study of long documents."""

from msgspec.structs import replace

from experiments.judge.statistics import Estimate
from experiments.records.schema import VariantRecord
from experiments.report.answer import Findings
from experiments.show.words import in_words, listed
from experiments.studies.long_documents.measure import COSTS, lines_of

REFERENCE = "softmax-rope"


def answer(found: Findings) -> str:
    """What each kernel gains from reading more of each text, and what a text of the greatest length costs it."""
    comparison = found.comparison
    ends = {
        line: [(variant, found.final(variant.name)) for variant in variants if found.final(variant.name).n]
        for line, variants in lines_of(comparison).items()
    }
    of_line = {line: (each[0], each[-1]) for line, each in ends.items() if each}
    if not of_line:
        return ""
    said: dict[str, list[str]] = {}
    for (first, least), (last, most) in of_line.values():
        both = [(first, least), (last, most)][first is last :]
        lengths = " and ".join(f"{comparison.context_of(variant):,}" for variant, _ in both)
        figures = " and ".join(_shown(estimate, found) for _, estimate in both)
        said.setdefault(lengths, []).append(f"{in_words(_without_length(last))} {figures}")
    measured = comparison.objective.metric.replace("_", " ")
    sentences = [f"Test {measured} with {lengths} tokens: {'; '.join(each)}." for lengths, each in said.items()]
    return " ".join(filter(None, [*sentences, _time(found, {line: last for line, (_, (last, _)) in of_line.items()})]))


def _time(found: Findings, longest: dict[str, VariantRecord]) -> str:
    """The time of a text with each line's longest variant, as a share of softmax attention's at the same length."""
    costs, comparison = COSTS.read(found.root), found.comparison
    if costs is None or REFERENCE not in longest:
        return ""
    seconds, reference = costs.pivot(index="round", columns="variant", values="seconds"), longest[REFERENCE]
    length = comparison.context_of(reference)
    shares = [
        f"{(seconds[variant.name] / seconds[reference.name]).mean():.2f} ({in_words(_without_length(variant))})"
        for line, variant in longest.items()
        if line != REFERENCE
        and comparison.context_of(variant) == length
        and {variant.name, reference.name} <= {*seconds}
    ]
    if not shares:
        return ""
    return f"A text of {length:,} tokens takes, of softmax attention's time, {listed(shares)}."


def _without_length(variant: VariantRecord) -> VariantRecord:
    settings = {name: value for name, value in variant.settings.items() if name != "context"}
    return replace(variant, settings=settings)


def _shown(estimate: Estimate, found: Findings) -> str:
    if found.comparison.objective.metric == "accuracy":
        return f"{100 * estimate.mean:.1f} %"
    return f"{estimate.mean:.3f}"
