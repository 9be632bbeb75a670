"""Numbers in words: how a value with its interval is written, what it decides, and the headline made of both."""

import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatch
from math import inf, isfinite
from typing import Any

import pandas as pd
from msgspec.structs import replace

from experiments.config import Config
from experiments.judge.claims import Claim
from experiments.judge.runs import Runs
from experiments.judge.statistics import with_interval
from experiments.judge.verdicts import NOT_SUPPORTED, SUPPORTED, Row
from experiments.records.schema import Comparison, VariantRecord
from experiments.show.colours import LOOKS
from experiments.show.keys import Pair, Shown, shown_of
from experiments.show.rows import Rows, summary

SIDES = {"before": "before its feature map", "after": "after its feature map"}
"""by the end of a position's name"""
SIZES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
FIELD = re.compile(r"\{(\w+):([^}]+)\}")
FIELDS = ("difference", "value", "mean", "size", "lowest", "highest", "count", "names", "rope", "along", "only")
ENDS = ["mean", "low", "high"]
ROPE = ("rope-before", "rope-after")


class Missing(Exception):
    """A number that a sentence needs is not there."""


def in_words(variant: VariantRecord) -> str:
    """A variant as a sentence names it."""
    kernel = kernel_in_words(variant.kernel)
    settings = [_setting_in_words(*each) for each in variant.settings.items() if each[0] != "learning_rate"]
    if variant.name == variant.kernel:
        return kernel
    if variant.position == "none":
        return f"{kernel} without positions{', with ' * bool(settings)}{listed(settings)}"
    words = LOOKS["positions"].get(variant.position, {}).get("words", f"{variant.position} positions")
    return f"{kernel} with {listed([' '.join(filter(None, [words, side(variant)])), *settings])}"


def kernel_in_words(kernel: str) -> str:
    return str(LOOKS["kernels"].get(kernel, {}).get("words", kernel))


def is_softmax(variant: VariantRecord) -> bool:
    return variant.kernel == "softmax"


def side(variant: VariantRecord) -> str:
    """Before or after the feature map; empty where there is none."""
    return "" if is_softmax(variant) else SIDES.get(variant.position.rpartition("-")[2], "")


def _setting_in_words(setting: str, value: object) -> str:
    named = LOOKS["sentences"].get(setting, {})
    return str(named.get(str(value), named.get("any", f"{setting} {{}}"))).format(value)


def listed(parts: Iterable[str]) -> str:
    """a, b and c; nothing of nothing"""
    *first, last = [*parts] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def in_figures(value: float, comparison: Comparison) -> str:
    """A value of the primary metric with its unit; accuracy and what is judged as it is in percent."""
    unit = comparison.objective.unit
    if comparison.objective.better == "lower":
        return f"{value:.3g} {unit}"
    share, of, what = unit.partition("share of ")
    return f"{100 * value:.3g} % of {what}" if of and not share else f"{100 * value:.3g} % ({unit})"


def amount(number: float) -> str:
    """A large number in three digits: 819 k, 2.5 M."""
    size, letter = next(((size, letter) for size, letter in SIZES if number >= size), (1, ""))
    return f"{number / size:.3g} {letter}".strip()


def verdict(row: Row, who: str) -> str:
    """What is known of a difference, one of four: from the interval, and only if the claim's own rule decides.

    That rule is corrected for the number of claims; the interval alone would decide one in eight more.
    """
    found, most = row.estimate, beyond(row.claim)
    if row.verdict not in (SUPPORTED, NOT_SUPPORTED) or not found.has_interval:
        return "undecided"
    if -most < found.low and found.high < most:
        return f"no difference beyond {row.claim.show(most).lstrip('+')}"
    return f"{who} lower" if found.high < 0 else f"{who} higher" if found.low > 0 else "undecided"


def beyond(claim: Claim) -> float:
    """The smallest difference that matters: the bound that the claim names, if that is not 0, or its margin."""
    return max((abs(bound) for bound in claim.region if isfinite(bound) and bound != 0), default=claim.margin)


def answer(rows: Rows) -> str:
    """The answer in a sentence or two, with its numbers; and how much of it is there yet."""
    tested = rows.summary.drop_duplicates("variant")  # the first row of each tells of the test split
    finished, planned = int(tested["n"].sum()), int(tested["planned"].sum())
    if planned and not finished:
        return "No run has finished yet."
    unlearnt = Runs(rows.root, rows.comparison, rows.curves).unlearnt
    nothing_learnt = unlearnt and len(unlearnt) == len(ranking(rows))
    said = "" if nothing_learnt else headline(rows, shown_of(rows.study))
    said = " ".join(filter(None, [said, below_the_floor(rows, unlearnt)])) or "Not everything is measured yet."
    return said if finished == planned else f"{said} ({finished} of {planned} runs have finished; only they count.)"


def below_the_floor(rows: Rows, unlearnt: Collection[str]) -> str:
    """Which variants have learnt nothing that can be told; empty if all have."""
    comparison, means = rows.comparison, ranking(rows)
    if not unlearnt or comparison.floor is None:
        return ""
    names = [in_words(rows.variants[name]) for name in means if name in unlearnt]
    than = f"better than the floor ({comparison.floor.name}: {in_figures(comparison.floor.value, comparison)})"
    if len(names) == len(means):
        best = in_figures(next(iter(means.values())), comparison)
        return f"Nothing was learnt: no variant is clearly {than}; the best has {best}."
    if len(names) > 2:
        return f"{len(names)} of {len(means)} variants are not clearly {than}."
    said = listed(names)
    return f"{said[0].upper()}{said[1:]} {'is' if len(names) == 1 else 'are'} not clearly {than}."


def headline(rows: Rows, shown: Shown) -> str:
    """All sentences whose numbers are there; if there are none, which variant is the best."""
    fields = Fields(rows, shown)
    return " ".join(filter(None, map(fields.filled, shown.headline))) or best(rows)


class Fields:
    """Fills numbers into sentences: a method of ``FIELDS`` for each field, which gets what stands behind its colon."""

    def __init__(self, rows: Rows, shown: Shown) -> None:
        self.rows, self.quantities = rows, shown.quantities
        self.claims = {key: row for key, row in rows.claims.items() if row.estimate.n}

    def filled(self, sentence: str) -> str:
        """Empty if a number in it is missing."""
        try:
            said = self.rows.filled(FIELD.sub(self._field, sentence), best=best(self.rows))
        except Missing:
            return ""
        return said[:1].upper() + said[1:]

    def _field(self, match: re.Match[str]) -> str:
        if match[1] not in FIELDS:
            what = f"study {self.rows.study.name}: headline: {{{match[1]}:...}} is no field"
            raise ValueError(f"{what}; give one of {', '.join(FIELDS)}")
        return str(getattr(self, match[1])(*match[2].split("/", 1)))

    def difference(self, claim: str, who: str = "the first") -> str:
        """{difference:CLAIM/WHO}: the value with its interval, and the verdict on WHO, the first variant."""
        row, planned = self._claim(claim), len(self.rows.comparison.seeds)
        few = f"{row.estimate.n} of {planned} seeds; " if row.unit == "seeds" and row.estimate.n < planned else ""
        return f"{self.value(claim)} ({few}{verdict(row, who)})"

    def value(self, name: str, variant: str = "") -> str:
        """{value:CLAIM} or {value:QUANTITY/VARIANT}: the value with its interval."""
        if not variant:
            row = self._claim(name)
            return row.estimate.show(row.claim.pattern)
        found = self._means(name).query("variant == @variant")
        ends = found[ENDS].to_numpy(float)
        return self._listed(with_interval(mean, low, high, self.quantities[name].format) for mean, low, high in ends)

    def mean(self, name: str, variant: str = "") -> str:
        """{mean:...}: the same without its interval."""
        return self.value(name, variant).partition(" [")[0]

    def size(self, name: str) -> str:
        """{size:...}: that without its sign."""
        return self.mean(name).lstrip("+-")

    def lowest(self, name: str, kernel: str = "", sign: int = 1) -> str:
        """{lowest:QUANTITY} or {highest:QUANTITY/KERNEL}: the variant with the least or largest mean, and its value.

        "linear" for a kernel is any but softmax attention.
        """
        kinds = {"": lambda _: True, "linear": lambda variant: not is_softmax(variant)}
        fits = kinds.get(kernel, lambda variant: variant.kernel == kernel)
        variants = {name: variant for name, variant in self.rows.variants.items() if fits(variant)}
        means = self._means(name).set_index("variant")["mean"]
        best = (sign * means[means.index.isin(variants)]).sort_values(kind="stable").index[:1]
        return self._listed(f"{in_words(variants[each])}, {self.value(name, each)}" for each in best)

    def highest(self, name: str, kernel: str = "") -> str:
        return self.lowest(name, kernel, sign=-1)

    def count(self, pattern: str) -> str:
        """{count:GLOB}: of the measured claims with such keys, how many are supported of how many."""
        found = [row.verdict == SUPPORTED for key, row in self.claims.items() if fnmatch(key, pattern)]
        return self._listed([f"{sum(found)} of {len(found)}"] if found else [])

    def names(self, pattern: str) -> str:
        """{names:*ENDING}: the variants of the supported claims whose keys end so."""
        ending = pattern.removeprefix("*")
        keys = [key for key, row in self.claims.items() if fnmatch(key, pattern) and row.verdict == SUPPORTED]
        names = [name for name in (key.removesuffix(ending) for key in keys) if name in self.rows.variants]
        return self._listed(in_words(self.rows.variants[name]) for name in names)

    def rope(self, name: str) -> str:
        """{rope:QUANTITY}: by how much RoPE changes it, seed by seed, for each kernel on the better side of its map."""
        sign = 1 if self.rows.comparison.objective.better == "lower" else -1
        found = dict[str, tuple[float, str]]()
        for variant in self.rows.variants.values():
            if variant.position in ROPE and "@" not in variant.name:
                pair = Pair(a=variant.name, b=f"{variant.kernel}-none", name="")
                quantity = replace(self.quantities[name], pairs=[pair])
                for mean, low, high in summary(self.rows.of(quantity), ["variant"], quantity)[ENDS].to_numpy(float):
                    said = with_interval(mean, low, high, f"+{quantity.format}")
                    aside = f" ({side(variant)})" if side(variant) else ""
                    told = f"{said} for {kernel_in_words(variant.kernel)}{aside}"
                    found[variant.kernel] = min(found.get(variant.kernel, (inf, "")), (sign * mean, told))
        return self._listed(told for _, told in found.values())

    def along(self, name: str, column: str) -> str:
        """{along:QUANTITY/COLUMN}: its mean at the values of a column; of more than three at the first, where it first
        is on the other side of 1, and at the last.
        """
        means = [*self._means(name, column).set_index(column)["mean"].items()]
        if len(means) > 3:
            turns = [each for each in means[1:-1] if (each[1] > 1) != (means[0][1] > 1)]
            means = [means[0], *turns[:1], means[-1]]
        return self._listed(f"{mean:{self.quantities[name].format}} at {place:,}" for place, mean in means)

    def only(self, word: str) -> str:
        """{only:WORD}: nothing; without such a word the sentence drops out."""
        return self._listed([""] if self.rows.words.get(word) else [])

    def _claim(self, key: str) -> Row:
        if key not in self.claims:
            raise Missing
        return self.claims[key]

    def _means(self, name: str, by: str = "variant") -> pd.DataFrame:
        found = self.rows.of(self.quantities[name])
        if found.empty:
            raise Missing
        return summary(found, [by], self.quantities[name])

    def _listed(self, parts: Iterable[str]) -> str:
        found = [*parts]
        if not found:
            raise Missing
        return listed(found)


def ranking(rows: Rows) -> dict[str, float]:
    """The test figures of the variants with a finished run, the best first."""
    objective = rows.comparison.objective
    tested = rows.summary[(rows.summary["metric"] == f"test_{objective.metric}") & (rows.summary["n"] > 0)]
    ordered = tested.sort_values("mean", ascending=objective.better == "lower", kind="stable")
    return dict(zip(ordered["variant"], ordered["mean"].astype(float), strict=True))


def first_look(rows: Rows) -> list[str]:
    """Of each kernel the best variant, and softmax attention without positions."""
    best_of = {rows.variants[name].kernel: name for name in reversed(ranking(rows))}
    return [*best_of.values(), *({"softmax-none"} & rows.variants.keys())]


def best(rows: Rows) -> str:
    """Which variant ends best, and how far behind the best of the other kind of attention is."""
    comparison, means = rows.comparison, ranking(rows)
    if not means:
        return ""
    first, *rest = (rows.variants[name] for name in means)
    better, worst = ("lowest", "highest") if comparison.objective.better == "lower" else ("highest", "lowest")
    nearest = next((each for each in rest if is_softmax(each) != is_softmax(first)), None)
    said = f"{in_words(first)} ends {better}, at {in_figures(means[first.name], comparison)}"
    if nearest is not None:
        kind = "softmax variant" if nearest.kernel == "softmax" else "linear variant"
        said += f"; the best {kind}, {in_words(nearest)}, has {in_figures(means[nearest.name], comparison)}"
    elif rest:
        said += f", {in_words(rest[-1])} {worst} ({means[rest[-1].name]:.3g})"
    return f"{said[0].upper()}{said[1:]}."


def setting(comparison: Comparison, measured: str = "") -> str:
    """The data, models and seeds behind the numbers, on one line; ``measured`` is ``Study.measured``."""
    if not comparison.variants:
        machine = comparison.machine
        device = machine.get("device", "cpu")
        return f"Preset {comparison.preset}, measured on {machine.get('cpu', 'a CPU') if device == 'cpu' else device}."
    config, seeds, layers = comparison.config, len(comparison.seeds), comparison.config.get("layers", "?")
    read = f"{_round(config['steps'] * comparison.tokens_per_step)} tokens of training"
    if any(data.unit == "examples" for data in comparison.data):
        read = f"{comparison.read_in(config['steps'])} read in training"
    words = [
        f"{measured or f'Test {comparison.objective.quantity}'} on {listed(data.called for data in comparison.data)}",
        "one seed, which says little" if seeds == 1 else f"{seeds} seeds",
        read,
        f"models of {layers} layer{'s' * (layers != 1)} and width {config.get('dim', '?')}",
        f"recipe {recipe(config)}",
    ]
    intervals = "; differences are paired by seed, with 95 % intervals" if seeds > 2 and not measured else ""
    return f"{', '.join(words)}{intervals}."


def recipe(config: Mapping[str, Any]) -> str:
    """The optimiser, the schedule and how the first matrices scatter; version 0 is the recipe before the benchmark's.

    Older records lack settings that were added later, with what they had as the default.
    """
    default = Config()
    optimizer, schedule, spread, std = (
        config.get(name, getattr(default, name)) for name in ("optimizer", "schedule", "initial_spread", "initial_std")
    )
    scatter, old = f"spread {spread:g}" if spread else f"std {std:g}", optimizer == "adamw" and not spread
    return f"{optimizer}, {schedule}, {scatter}{' (version 0)' * old}"


def _round(number: float) -> str:
    if number < 1e6:
        return f"{number:,.0f}"
    return f"{number / 1e6:.2g} million" if number < 1e7 else f"{number / 1e6:,.0f} million"
