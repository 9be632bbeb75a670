"""What the speed report shows, from measurements.jsonl."""

import json
import statistics

import pytest

FORWARD, BACKWARD = "forward", "forward+backward"
SOFTMAX, OURS, AFTER = "softmax rope", "linear-rope", "favor+ rope after"
DECODING = "decoding", "decoding beside a busy process"
REFERENCES = {"operation": OURS, "mapped": AFTER, "module": f"{AFTER}, M=256", "training": AFTER}
REFERENCES |= dict.fromkeys(DECODING, AFTER)
SIX_DIGITS = {"rel": 6e-6}
ROPE = {"softmax": "softmax rope", "favor+": "favor+ rope before", "elu+1": "elu+1 rope after"}


def reference(topic, case):
    """What a competitor is compared with; a position encoding with its own kernel without, a decay with RoPE alone."""
    kernel = case.split()[0]
    return {"positions": f"{kernel} none", "decays": ROPE.get(kernel)}.get(topic) or REFERENCES[topic]


def quartiles(values):
    return statistics.quantiles(values, n=4, method="inclusive")


class Measurements:
    """The records, and the numbers that follow from them."""

    def __init__(self, root):
        rows = [json.loads(line) for line in (root / "measurements.jsonl").read_text().splitlines()]
        assert not any("failures" in row for row in rows)
        of_topics = {(row["topic"], row.get("run")) for row in rows}
        assert len(of_topics) == len({topic for topic, _ in of_topics}), "ratios are taken within a run"
        (self.chunk_size,) = {row["chunk_size"] for row in rows if row["kind"] == "time"}
        self.seconds, self.gemm, self.memory = {}, {}, {}
        for row in rows:
            if row["kind"] == "memory":
                self.memory[row["topic"], row["length"], row["case"]] = row["rise"], row["rise"] - row["returned"]
                continue
            for sample in row["samples"]:
                if sample["case"] == "sgemm":
                    self.gemm[row["direction"]] = [2 * sample["length"] ** 3 / s for s in sample["seconds"]]
                    continue
                key = row["topic"], row["direction"], sample["length"], sample["case"]
                self.seconds[key] = sample["seconds"]

    def times(self, topic, direction=None):
        """(direction, length, case) → seconds by round"""
        return {
            (of, length, case): seconds
            for (found, of, length, case), seconds in self.seconds.items()
            if found == topic and direction in (None, of)
        }

    def ratio(self, topic, direction, length, case, over):
        """Time over another's, by round."""
        both = (self.seconds[topic, direction, length, name] for name in (case, over))
        return [a / b for a, b in zip(*both, strict=True)]

    def rates(self, direction):
        """length → seconds, shares of the sgemm rate by the strict and the dense count, cost of a token; by round."""
        seconds = {length: found for (_, length, _), found in self.times("rate", direction).items()}
        mean = [
            statistics.fmean(of_round) for of_round in zip(*([s / n for s in seconds[n]] for n in seconds), strict=True)
        ]
        passes, heads, features, width, chunk = (1 if direction == FORWARD else 3), 8, 256, 64, self.chunk_size
        found = {}
        for length, of_length in seconds.items():
            state = 4 * length * features * width
            strict = passes * heads * (state + length * (chunk + 1) * (features + width))
            dense = passes * heads * (state + 2 * length * chunk * (features + width))
            rate = list(zip(of_length, self.gemm[direction], strict=True))
            shares = [[count / s / gemm for s, gemm in rate] for count in (strict, dense)]
            found[length] = of_length, *shares, [s / length / m for s, m in zip(of_length, mean, strict=True)]
        return found


@pytest.fixture(scope="module")
def measured(speed):
    return Measurements(speed.root)


def test_times_csv(speed, measured):
    rows = {(r["topic"], r["direction"], int(r["length"]), r["case"]): r for r in speed.read_csv("times.csv")}
    assert set(rows) == {key for key in measured.seconds if key[0] != "rate"}
    for (topic, direction, length, case), row in rows.items():
        seconds = measured.seconds[topic, direction, length, case]
        ratio = measured.ratio(topic, direction, length, case, reference(topic, case))
        expected = [len(seconds), *quartiles(seconds), *quartiles(ratio)]
        names = ("rounds", "low", "median", "high", "ratio_low", "ratio", "ratio_high")
        assert [float(row[name]) for name in names] == pytest.approx(expected, **SIX_DIGITS)


def test_memory_csv(speed, measured):
    rows = {(r["topic"], int(r["length"]), r["case"]): r for r in speed.read_csv("memory.csv")}
    assert {key: (int(row["rise"]), int(row["extra"])) for key, row in rows.items()} == measured.memory


def test_rate_csv_and_its_table(speed, measured):
    rows, runs = speed.read_csv("rate.csv"), speed.table("The operation beside a matrix product")
    expected = [(d, n, *found) for d in (FORWARD, BACKWARD) for n, found in measured.rates(d).items()]
    for row, run, (direction, length, seconds, strict, dense, cost) in zip(rows, runs, expected, strict=True):
        assert (row["direction"], int(row["length"]), int(row["rounds"])) == (direction, length, len(seconds))
        low, share, high = quartiles(strict)
        median, whole, of_token = (statistics.median(values) for values in (seconds, dense, cost))
        names = ("median", "causal_low", "causal_share", "causal_high", "dense_share", "cost")
        numbers = [median, low, share, high, whole, of_token]
        assert [float(row[name]) for name in names] == pytest.approx(numbers, **SIX_DIGITS)
        assert list(run.values()) == [
            *(direction, f"{length:,}", str(len(seconds)), in_words(median), f"{share:.0%} [{low:.0%}, {high:.0%}]"),
            *(f"{whole:.0%}", f"{of_token:.2f}"),
        ]


def in_words(seconds):
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
