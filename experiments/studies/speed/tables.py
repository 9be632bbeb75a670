"""The speed experiment's numbers as tables of strings."""

import pandas as pd

from experiments.report.tables import NOTHING

MIB = 2**20


def time_cells(times: pd.DataFrame, topic: str) -> pd.DataFrame:
    """A row per direction and length, a column per competitor: its median time, and its time over ours."""
    rows = []
    of_topic = times[times["topic"] == topic]
    for (direction, length), group in of_topic.groupby(["direction", "length"], sort=False):
        row = {"what": direction, "N": f"{length:,}"}
        for entry in group.to_dict("records"):
            cell, low, high = _time(entry["median"]), entry["ratio_low"], entry["ratio_high"]
            is_alone = low == high == 1 or pd.isna(entry["ratio"])
            row[entry["case"]] = cell if is_alone else f"{cell}; {entry['ratio']:.2f} [{low:.2f}, {high:.2f}]"
        rows.append(row | {"rounds": str(group["rounds"].iloc[0])})
    table = pd.DataFrame(rows).fillna(NOTHING)
    return table[[*table.columns.drop("rounds", errors="ignore"), *(["rounds"] if rows else [])]]


def position_cells(times: pd.DataFrame) -> pd.DataFrame:
    """A row per length, kernel and position encoding: its median time, and its time over that without positions."""
    rows = []
    for entry in times.to_dict("records"):
        kernel, _, encoding = entry["case"].partition(" ")
        ratio = f"{entry['ratio']:.3f} [{entry['ratio_low']:.3f}, {entry['ratio_high']:.3f}]"
        is_reference = encoding == "none" or pd.isna(entry["ratio"])
        rows.append(
            {
                "N": f"{entry['length']:,}",
                "kernel": kernel,
                "positions": encoding,
                "time": _time(entry["median"]),
                "over none": NOTHING if is_reference else ratio,
                "rounds": str(entry["rounds"]),
            }
        )
    return pd.DataFrame(rows)


def memory_cells(memory: pd.DataFrame, topic: str) -> pd.DataFrame:
    """A row per length, a column per competitor: extra memory, and the whole rise."""
    rows = []
    for length, group in memory[memory["topic"] == topic].groupby("length", sort=False):
        row = {"N": f"{length:,}"}
        for entry in group.to_dict("records"):
            row[entry["case"]] = f"{entry['extra'] / MIB:,.1f} MiB ({entry['rise'] / MIB:,.1f})"
        rows.append(row)
    return pd.DataFrame(rows).fillna(NOTHING)


def rate_cells(rate: pd.DataFrame) -> pd.DataFrame:
    """A row per direction and length of our operation beside the matrix product."""
    return pd.DataFrame(
        {
            "what": rate["direction"],
            "N": rate["length"].map("{:,}".format),
            "time": rate["median"].map(_time),
            "share of sgemm": [
                f"{row['causal_share']:.0%} [{row['causal_low']:.0%}, {row['causal_high']:.0%}]"
                for row in rate.to_dict("records")
            ],
            "counting whole chunks": rate["dense_share"].map("{:.0%}".format),
            "cost of a token": rate["cost"].map("{:.2f}".format),
            "rounds": rate["rounds"].map(str),
        }
    )


def fact_cells(facts: pd.DataFrame) -> pd.DataFrame:
    """A row per length, a column per competitor, of whole numbers."""
    rows = []
    for length, group in facts.groupby("length", sort=False):
        values = {str(case): f"{int(value):,}" for case, value in zip(group["case"], group["value"], strict=True)}
        rows.append({"N": f"{length:,}"} | values)
    return pd.DataFrame(rows).fillna(NOTHING)


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
