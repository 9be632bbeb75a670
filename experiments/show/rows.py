"""The tidy rows of a comparison: a value a row, with the facts of its variant; selected, subtracted and summarised."""

import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from msgspec.structs import replace

from experiments.judge.claims import claims_of
from experiments.judge.curves import read_curves
from experiments.judge.references import declared_claims
from experiments.judge.statistics import estimates, finished_values, summarise
from experiments.judge.verdicts import Row, evaluate
from experiments.records.csv_files import NotMeasured
from experiments.records.record import read_comparison
from experiments.records.schema import NEXT_BYTE, Comparison, ObjectiveRecord, VariantRecord
from experiments.records.store import check_runs, with_baseline
from experiments.show.keys import Quantity, Where
from experiments.show.style import setting_in_words
from experiments.study import Study
from experiments.train.tuning import check_trials
from experiments.variants import SIZES


def read_rows(root: Path, study: Study, baseline: str | None = None) -> "Rows":
    """Read a comparison, maybe with another baseline than is on record.

    Raises ValueError if it is none, or has no such variant, or one of its files is not as it says.
    """
    comparison = with_baseline(read_comparison(root), baseline)
    check_runs(root, comparison)
    check_trials(root, comparison)
    curves = read_curves(root, comparison)
    claims = declared_claims(claims_of(study), comparison.name, study.name)
    return Rows(root, study, comparison, curves, evaluate(claims, root, comparison, curves, reference=comparison.name))


class Rows:
    """All that is said and shown of a comparison; ``judged`` are the claims that are judged on it."""

    def __init__(
        self, root: Path, study: Study, comparison: Comparison, curves: pd.DataFrame, judged: Iterable[Row] = ()
    ) -> None:
        self.root, self.study, self.comparison, self.curves = root, study, comparison, curves
        self.where: Path | Sequence[Path] = root  # what sources get
        self.judged, self.summary = [*judged], summarise(root, comparison, curves)
        self.claims = {row.claim.key: row for row in self.judged}
        self.variants = {variant.name: variant for variant in comparison.variants}
        # The first row of each variant tells of its test figures.
        tested = self.summary.drop_duplicates("variant").set_index("variant")
        self.finished = {name: {*map(int, seeds.split())} for name, seeds in tested["seeds"].items()}
        """for each variant the seeds that count: those with a final test figure"""
        self.failures = {name: told for name, row in tested.iterrows() if (told := in_numbers(row))}
        """for each variant with runs that failed or are not finished, how many of how many"""
        self._sources: dict[str, pd.DataFrame | None] = {}

    @cached_property
    def facts(self) -> pd.DataFrame:
        """A row per variant: what tells it apart, in columns that can be panels or lines."""
        config = self.comparison.config
        varied = sorted({name for variant in self.variants.values() for name in variant.settings})
        return pd.DataFrame(
            {
                "variant": variant.name,
                "place": place,
                "kernel": variant.kernel,
                "position": variant.position,
                "base": base_name(variant),
                "encoding": base_name(variant).removeprefix(f"{variant.kernel}-"),
                "setting": setting_label(variant, self.comparison),
                "named": in_words(named_settings(variant)),
                "without_length": without(variant.name, "context"),
                **{name: variant.settings.get(name, config.get(name)) for name in varied},
                "sizeless": reduce(without, SIZES, variant.name),
                "context": self.comparison.context_of(variant),
                "state": variant.state,
            }
            for place, variant in enumerate(self.variants.values())
        )

    @cached_property
    def words(self) -> dict[str, Any]:
        """What stands in braces in labels, captions and conditions.

        The configuration, the words of the objective, and of what the curves of a split show ({train.quantity});
        whether names of variants have settings, or widths; and how many seeds there are.
        """
        comparison, objective = self.comparison, self.comparison.objective
        said = {name: getattr(objective, name) for name in ("metric", "quantity", "unit", "better", "where_better")}
        said |= {f"{split}_windows": number for split, number in comparison.evaluated_windows.items()}
        said |= {split: plotted(self.curves, split, comparison) for split in ("train", "validation")}
        said |= {"baseline": comparison.baseline_in_words, "number": len(comparison.seeds)}
        said["Quantity"] = objective.quantity[:1].upper() + objective.quantity[1:]
        said["classes"] = ", ".join(map(repr, objective.classes or ()))
        is_of_one = "second class" in objective.quantity and objective.classes
        said["second_class"] = f" The second class is {objective.classes[1]!r}." if is_of_one else ""
        said["rates"] = "search" if comparison.rate_seeds else "grid" if comparison.learning_rates else "given"
        said["which"] = "Best" if comparison.config.get("tested") == "best" else "Final"
        named = {part.partition("=")[0] for name in self.variants for part in name.split("@")[1:]}
        said |= {"settings": bool(named - {"dim"}), "widths": "dim" in named}
        if self.variants:
            every = comparison.config["evaluate_every"]
            said |= {"step": comparison.read_in(1), "between": comparison.read_in(every)}
        return comparison.config | said

    def filled(self, value: Any, **more: Any) -> Any:
        """A text with its words and the constants of the study filled in; anything else as it is."""
        return self.study.said(value, **self.words, **more) if isinstance(value, str) else value

    def holds(self, condition: Where) -> bool:
        """Whether words have the values that they have to have."""
        return all(self.words.get(name) in _listed(wanted) for name, wanted in condition.items())

    @cached_property
    def _values(self) -> pd.DataFrame:
        values = finished_values(self.root, self.comparison, self.curves)
        return values if len(values) else pd.DataFrame(columns=["variant", "metric", "seed", "value"])

    def _source(self, name: str) -> pd.DataFrame | None:
        if name in ("values", "runs"):
            return self._values if name == "values" else self.curves
        if name not in self._sources:
            package = (
                "" if "." in name.partition(":")[0] else f"experiments.studies.{self.study.name.replace('-', '_')}."
            )
            try:
                self._sources[name] = pkgutil.resolve_name(package + name)(self.where)
            except NotMeasured:
                self._sources[name] = None
        return self._sources[name]

    def of(self, quantity: Quantity) -> pd.DataFrame:
        """The rows of a quantity in the order of the variants, with their facts; none if its source is not there."""
        rows = self._source(quantity.source)
        if rows is None or rows.empty:
            return pd.DataFrame(columns=["variant", "seed", "value"])
        if quantity.column != "value":
            rows = rows.assign(value=rows[quantity.column])
        rows = self.chosen(self.chosen(rows, quantity.where), quantity.without, are=False)
        empty = [column for column in rows if column != "value" and rows[column].isna().all()]
        rows = rows.drop(columns=empty) if len(rows) else rows
        if quantity.factor != 1:
            rows = rows.assign(**{end: rows[end] * quantity.factor for end in ("value", "low", "high") if end in rows})
        if quantity.pairs:
            parts = [paired(rows, each.a, each.b).assign(variant=each.a, pair=each.name) for each in quantity.pairs]
            rows = pd.concat(parts)
        elif quantity.minus:
            rows = self._minus(rows, quantity.minus)
        if "variant" not in rows or not self.variants:
            return rows
        # What is no variant, as "uniform attention", comes last and has no facts.
        found = rows.merge(self.facts, on="variant", how="left", suffixes=("", "_of_variant"))
        return found.sort_values("place", kind="stable")

    def chosen(self, rows: pd.DataFrame, where: Mapping[str, Any], *, are: bool = True) -> pd.DataFrame:
        """The rows that have (or not) these values, each in a column of theirs or a fact of their variants."""
        for column, wanted in where.items():
            allowed = [self.filled(each) for each in _listed(wanted)]
            if column in rows:
                have = rows[column].isin(allowed)
            elif column in self.facts:
                have = rows["variant"].isin(self.facts[self.facts[column].isin(allowed)]["variant"])
            else:
                raise ValueError(f"study {self.study.name}: where: there is no column {column!r}")
            rows = rows[have if are else ~have]
        return rows

    def _minus(self, rows: pd.DataFrame, other: str) -> pd.DataFrame:
        """Every variant minus another one, paired by seed and place; of the seeds at which the other is finished."""
        parts = [rows[:0]]
        for name, variant in self.variants.items():
            base = self.comparison.baseline_of(variant) if other == "baseline" else other
            if base != name:
                whole = (rows["variant"] != base) | rows["seed"].isin(self.finished.get(base, set()))
                parts.append(paired(rows[whole], name, base).assign(variant=name))
        return pd.concat([part for part in parts if len(part)] or parts[:1])


class RowsOver(Rows):
    """The same over several comparisons of a study: its sources get their directories; the rest is of the first one."""

    def __init__(self, roots: Sequence[Path], study: Study) -> None:
        comparisons = [read_comparison(root) for root in roots]
        variants = {variant.name: variant for each in comparisons for variant in each.variants}
        first = replace(comparisons[0], variants=tuple(variants.values()))
        super().__init__(roots[0], study, first, read_curves(roots[0], first))
        self.where, self.failures = roots, {}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def without(name: str, setting: str) -> str:
    """The name of a variant without one of its settings."""
    base, *settings = name.split("@")
    return "@".join([base, *(each for each in settings if not each.startswith(f"{setting}="))])


def paired(rows: pd.DataFrame, a: str, b: str) -> pd.DataFrame:
    """Variant a minus variant b by everything else that the rows have: seed, step, length and so on."""
    keys = [column for column in rows.columns if column not in ("variant", "value")]
    values = rows.set_index(keys)["value"]
    of_a, of_b = (values[(rows["variant"] == name).to_numpy()] for name in (a, b))
    return (of_a - of_b).dropna().rename("value").reset_index()


def summary(rows: pd.DataFrame, by: list[str], quantity: Quantity) -> pd.DataFrame:
    """n, mean, low and high by these columns, in order of appearance, as the quantity says."""
    if rows.empty:
        return rows.assign(n=0, mean=np.nan, low=np.nan, high=np.nan)
    if quantity.spread in ("columns", "text"):
        found = rows.assign(n=1).reindex(columns=[*by, "value", "low", "high", "n"])
        return found.rename(columns={"value": "mean"})
    grouped = rows.groupby(by)["value"]
    if quantity.spread == "quartiles":
        quartiles = grouped.quantile(np.array([0.5, 0.25, 0.75])).unstack()
        found = quartiles.set_axis(["mean", "low", "high"], axis=1).assign(n=grouped.size())
    elif quantity.spread == "range":
        found = grouped.agg(["size", "mean", "min", "max"]).set_axis(["n", "mean", "low", "high"], axis=1)
    elif quantity.mean == "geometric":
        found = estimates(rows.assign(value=np.log10(rows["value"].clip(lower=1e-30))), by, "value")
        found[["mean", "low", "high"]] = 10 ** found[["mean", "low", "high"]]
    else:
        found = estimates(rows, by, "value")
    found[["low", "high"]] = found[["low", "high"]].clip(*quantity.limits)
    # The mean of equal values may be rounded to one beyond them.
    found["low"], found["high"] = np.minimum(found["low"], found["mean"]), np.maximum(found["high"], found["mean"])
    return rows[by].drop_duplicates().merge(found.rename_axis(by).reset_index(), on=by)


def in_numbers(row: Mapping[str, Any] | pd.Series) -> str:
    """How many of a variant's runs failed or are not finished, of a row of its summary; empty if none."""
    return ", ".join(f"{row[word]} of {row['planned']} {word}" for word in ("failed", "unfinished") if row[word])


def plotted(curves: pd.DataFrame, split: str, comparison: Comparison) -> ObjectiveRecord:
    """The metric that the curves of a split show: the primary one, or the loss where that is not recorded."""
    recorded = set(curves[curves["split"] == split]["metric"])
    nats = replace(NEXT_BYTE, metric="loss", unit="nats")
    return next((o for o in (comparison.objective, NEXT_BYTE) if o.metric in recorded), nats)


def base_name(variant: VariantRecord) -> str:
    """The variant without its settings."""
    return str(variant.name).partition("@")[0]


def named_settings(variant: VariantRecord) -> dict[str, str]:
    """The settings in a variant's name."""
    return dict(part.split("=", 1) for part in variant.name.split("@")[1:])


def in_words(settings: dict[str, str]) -> str:
    """Settings as a figure says them."""
    return ", ".join(filter(None, (setting_in_words(key, value) for key, value in settings.items())))


def setting_label(variant: VariantRecord, comparison: Comparison) -> str:
    """What distinguishes a variant in its panel, such as "redrawn every 100 steps".

    Of many settings those that it names; of up to three also what the others vary, such as "never redrawn".
    """
    varied = dict.fromkeys(key for other in comparison.variants for key in named_settings(other))
    own = named_settings(variant)
    if len(varied) > 3 and not own:
        return "nothing set"
    values = own if len(varied) > 3 else {key: own.get(key, str(comparison.config[key])) for key in varied}
    if "num_features" in values and not base_name(variant).startswith("favor"):
        # Maps that draw nothing have as many features as a head has channels, paired twice as many.
        values["num_features"] = "2·D" if "+paired" in base_name(variant) else "D"
    return in_words(values)
