"""What the records of all steps come to: rates, shares of what the card can do, and the targets (targets.toml)."""

from pathlib import Path
from typing import Any

from experiments.gpu.speeds import OURS
from experiments.study import read_toml

FIELDS = ("what", "value", "least", "stretch", "most")
TARGETS: list[dict[str, Any]] = []
for group in read_toml(Path(__file__).with_name("targets.toml"))["group"]:
    for line in group["targets"]:
        said = {"value": group.get("value")} | {name: line[name] for name in line if name in FIELDS}
        TARGETS.append(said | {"where": group["where"] | {name: line[name] for name in line if name not in FIELDS}})
REACHED, MISSED, NOT_MEASURED = "reached", "missed", "not measured"

Record = dict[str, Any]


def sections(records: list[Record]) -> dict[str, list[Record]]:
    """The records of each step, whose parts are named with a dash, without those that something began."""
    limits: dict[str, float] = next((each["limits"] for each in records if "limits" in each), {})
    found: dict[str, list[Record]] = {}
    for record in records:
        if "begun" not in record:
            found.setdefault(record["step"].partition("-")[0], []).append(record | _derived(record, limits))
    return found


def _derived(record: Record, limits: dict[str, float]) -> Record:
    """What follows from a record's own numbers and the card's rates."""
    if "tokens" in record:
        return {"tokens per second": {name: record["tokens"] / ms * 1e3 for name, ms in record["ms"].items()}}
    if OURS in record.get("errors", {}):
        return {"error over": {name: _over(record["errors"][OURS], each) for name, each in record["errors"].items()}}
    if OURS not in record.get("ms", {}):
        return {}
    rates = {what: amount / record["ms"][OURS] * 1e3 for what, amount in record.get("work", {}).items()}
    return {"rate": rates, "share of": {what: rate / limits[what] for what, rate in rates.items() if what in limits}}


def _over(ours: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {what: ours[what] / other[what] for what in ours}


def targets(found: dict[str, list[Record]]) -> list[Record]:
    """Each target beside what was measured."""
    return [_judged(target, _measured(target, found)) for target in TARGETS]


def _measured(target: Record, found: dict[str, list[Record]]) -> float | None:
    where = dict(target["where"])
    for record in found.get(where.pop("step"), []):
        if where.items() <= record.get("case", {}).items():
            value: Any = record
            for name in target["value"]:
                value = value.get(name, {})
            if isinstance(value, float):
                return value
    return None


def _judged(target: Record, measured: float | None) -> Record:
    bounds: dict[str, Any] = {name: target[name] for name in ("least", "stretch", "most") if name in target}
    verdict, reaches = NOT_MEASURED, None
    if measured is not None:
        verdict = REACHED if bounds.get("least", measured) <= measured <= bounds.get("most", measured) else MISSED
        reaches = measured >= bounds["stretch"] if "stretch" in bounds else None
    return {"target": target["what"], **bounds, "measured": measured, "verdict": verdict, "stretch reached": reaches}
