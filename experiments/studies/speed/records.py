"""Reading the speed experiment's records: ``measurements.jsonl``, a JSON object a line, as schema.py says.

A time has ``samples``, for every competitor and length its seconds by round.
"""

from pathlib import Path
from typing import Any

import numpy as np

from experiments.records.record import read_lines
from experiments.records.schema import Comparison
from experiments.records.strict_json import Source, check_measurement, converted, parse_json
from experiments.studies.speed.settings import SpeedConfig

RECORDS = "measurements.jsonl"

Record = dict[str, Any]


def read_config(comparison: Comparison) -> SpeedConfig:
    """The settings in a parsed comparison.json; those that an older version did not record have their defaults.

    Raises:
        ValueError: a setting is of the wrong type or out of range.
    """
    source = Source("comparison.json", "run the comparison again to write it anew")
    return converted(comparison.config, SpeedConfig, source, "$.config")


def read_records(root: Path) -> list[Record]:
    """Every measurement; where one was made again, the later.

    Raises:
        ValueError: a line is not as schema.py says; the message names it.
    """
    latest: dict[tuple[Any, ...], Record] = {}
    for line, where, remedy in read_lines(root / RECORDS, remedy="remove that line"):
        source = Source(where, remedy)
        row = parse_json(line, source)
        check_measurement(row, source)
        case = row["case"] if row["kind"] == "memory" else None
        latest[row["kind"], row["topic"], row["direction"], row["length"], case] = row
    return list(latest.values())


def samples(record: Record) -> dict[tuple[str, int], np.ndarray]:
    """(competitor, length) → seconds by round."""
    return {(sample["case"], sample["length"]): np.array(sample["seconds"]) for sample in record["samples"]}
