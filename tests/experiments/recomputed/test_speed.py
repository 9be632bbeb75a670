"""What the speed report shows, from measurements.jsonl."""

import itertools
import json
import math
import statistics
from functools import partial

import pytest

FORWARD, BACKWARD = "forward", "forward+backward"
PERFORMER, SOFTMAX, SDPA = "performer-pytorch", "softmax rope", "softmax (SDPA)"
OURS, EQ_19, AFTER = "linear-rope", "linear-rope, eq. 19", "favor+ rope after"
DECODING = "decoding", "decoding beside a busy process"
REFERENCES = {"operation": OURS, "mapped": AFTER, "module": f"{AFTER}, M=256", "training": AFTER}
REFERENCES |= dict.fromkeys(DECODING, AFTER)
TITLES = {
    "operation": "The causal operation alone: {}",
    "module": "The attention module: {}",
    "training": "A training step: {}",
    "decoding": "Decoding one token: {}",
    "decoding beside a busy process": "Decoding one token beside a busy process: {}",
}
SIX_DIGITS = {"rel": 6e-6}
MIB = 2**20


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
        self.seconds, self.facts, self.gemm, self.memory = {}, {}, {}, {}
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
                for fact in ("parameters", "state_bytes"):
                    if fact in sample and row["topic"] not in ("positions", "decays"):
                        self.facts[fact, sample["length"], sample["case"]] = sample[fact]

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


def cells(speed, title):
    """(what, length, case) → the cell of a table with a column for each competitor; without the empty ones."""
    return {
        (row.get("what"), int(row["N"].replace(",", "")), case): cell
        for row in speed.table(title)
        for case, cell in row.items()
        if case not in ("what", "N", "rounds") and cell != "-"
    }


@pytest.mark.parametrize("topic", list(TITLES)[:-1])
def test_every_cell_of_times_and_memory(speed, measured, topic):
    check_times(speed, measured, topic)
    title = TITLES[topic]
    memory = {(None, *key[1:]): found for key, found in measured.memory.items() if key[0] == topic}
    shown = {key: f"{extra / MIB:,.1f} MiB ({rise / MIB:,.1f})" for key, (rise, extra) in memory.items()}
    assert (cells(speed, f"{title.format('memory')}: the numbers") if shown else {}) == shown


def check_times(speed, measured, topic):
    times, title = measured.times(topic), TITLES[topic]
    expected = {}
    for (direction, length, case), seconds in times.items():
        low, median, high = quartiles(measured.ratio(topic, direction, length, case, REFERENCES[topic]))
        ratio = "" if case == REFERENCES[topic] else f"; {median:.2f} [{low:.2f}, {high:.2f}]"
        expected[direction, length, case] = f"{in_words(statistics.median(seconds))}{ratio}"
    name = f"{title.format('time')}: the numbers"
    assert cells(speed, name) == expected
    for row in speed.table(name):
        length = int(row["N"].replace(",", ""))
        assert row["rounds"] == str(len(times[row["what"], length, REFERENCES[topic]]))


@pytest.mark.parametrize(
    ("topic", "what"), [("positions", "each position encoding"), ("decays", "a decay and of a selective rotation")]
)
def test_every_row_of_the_tables_of_positions_and_of_decays(speed, measured, topic, what):
    """A reference from before these tables has neither them nor their figures."""
    title, times = f"The cost of {what}: the numbers", measured.times(topic)
    assert (title in speed.markdown) == (topic in speed.figures) == bool(times)
    expected = []
    for (direction, length, case), seconds in times.items():
        kernel, _, encoding = case.partition(" ")
        low, median, high = quartiles(measured.ratio(topic, direction, length, case, reference(topic, case)))
        ratio = "-" if case == reference(topic, case) else f"{median:.3f} [{low:.3f}, {high:.3f}]"
        words = in_words(statistics.median(seconds))
        expected.append([f"{length:,}", kernel, encoding, str(len(seconds)), words, ratio])
    assert [list(row.values()) for row in (speed.table(title) if times else [])] == expected


@pytest.mark.parametrize(
    ("fact", "title"), [("parameters", "Parameters of the models"), ("state_bytes", "Decoding: bytes of state")]
)
def test_every_cell_of_sizes(speed, measured, fact, title):
    expected = {(None, *key[1:]): f"{value:,}" for key, value in measured.facts.items() if key[0] == fact}
    assert cells(speed, title) == expected


def crossing(lengths, gaps):
    """Where the gap, ln(theirs / ours), last rises above 0: on a straight line over the logarithm of the length."""
    found = None
    for (start, before), (end, after) in itertools.pairwise(zip(lengths, gaps, strict=True)):
        if before <= 0 < after:
            found = start * (end / start) ** (before / (before - after))
    return found if gaps[-1] > 0 else None


def test_every_target(speed, measured):
    """What was measured, and whether that is enough; the words beside it are those of targets.toml."""

    def times(ratio):
        low, median, high = quartiles(ratio)
        return f"{median:.3g} times [{low:.3g}, {high:.3g}]"

    def at_least(factor, topic, direction, length, ours, other):
        ratio = measured.ratio(topic, direction, length, other, ours)
        return times(ratio), None if factor is None else statistics.median(ratio) >= factor

    def less_memory(factor, topic, ours, index):
        mine, other = (measured.memory[topic, 1024, case][index] for case in (ours, PERFORMER))
        return f"{mine / MIB:,.1f} MiB of {other / MIB:,.0f} MiB: 1/{other / mine:.1f}", mine <= other / factor

    def beside_softmax(length):
        mine, other = (f"{measured.memory['operation', length, case][1] / MIB:,.1f} MiB" for case in (OURS, SDPA))
        return f"{mine} of {other}", None

    def faster_from(features, direction, length):
        lengths = [512, 1024, 2048, 4096, 8192, 16384]
        ratios = {n: measured.ratio("module", direction, n, SOFTMAX, f"{AFTER}, M={features}") for n in lengths}
        medians = {n: statistics.median(ratio) for n, ratio in ratios.items()}
        start = crossing(lengths, [math.log(median) for median in medians.values()])
        where = "512 or less" if min(medians.values()) > 1 else f"{start:,.0f}"
        words = f"{times(ratios[length])} at N = {length:,}; faster from N = {where}"
        return words, all(median > 1 for n, median in medians.items() if n >= length)

    def as_little_memory_as_chunked():
        mine, other = (measured.memory["training", 16384, case][0] for case in (AFTER, f"{AFTER}, chunked"))
        return f"{mine / MIB:,.1f} MiB of {other / MIB:,.0f} MiB: 1/{other / mine:.1f}", mine <= other

    def training_memory_beside_softmax():
        mine, other = (f"{measured.memory['training', 16384, case][0] / MIB:,.1f} MiB" for case in (AFTER, SOFTMAX))
        return f"{mine} of {other}", None

    def adds(topic, case, other):
        low, median, high = (x - 1 for x in quartiles(measured.ratio(topic, "step", 1024, case, other)))
        return f"{median:+.1%} [{low:+.1%}, {high:+.1%}]", median <= 0.05

    def even(values, bound):
        spread = max(values) / min(values) - 1
        return f"{spread:.0%}", spread <= bound

    rates = measured.rates(BACKWARD)
    shares = {n: quartiles(strict) for n, (_, strict, _, _) in rates.items()}
    worst = min(shares, key=lambda n: shares[n][1])
    low, share, high = shares[worst]
    dense = f"{statistics.median(rates[worst][2]):.0%} counting whole chunks"
    share_in_words = f"{share:.0%} [{low:.0%}, {high:.0%}] at N = {worst:,} by the fewest operations; {dense}"
    decoding = [seconds for (_, _, case), seconds in measured.times("decoding").items() if case == AFTER]
    means = [statistics.fmean(of_round) for of_round in zip(*decoding, strict=True)]
    tokens = [statistics.median(s / m for s, m in zip(seconds, means, strict=True)) for seconds in decoding]
    sizes = {size for (fact, _, case), size in measured.facts.items() if (fact, case) == ("state_bytes", AFTER)}
    operation, step, token = ("operation", BACKWARD, 1024), ("training", "step", 1024), ("decoding", "token", 1024)
    mapped = "mapped", BACKWARD
    expected = [
        *(
            lambda: at_least(2.3, *operation, EQ_19, f"{EQ_19}, chunked"),
            lambda: at_least(50, *operation, EQ_19, PERFORMER),
        ),
        lambda: less_memory(20, "operation", EQ_19, 1),
        *(partial(at_least, None, *operation, EQ_19, other) for other in (SDPA, "fast-transformers")),
        lambda: at_least(22, *mapped, 1024, AFTER, PERFORMER),
        *(partial(at_least, bound, *mapped, length, AFTER, SOFTMAX) for bound, length in ((1.2, 1024), (10, 16384))),
        *(partial(beside_softmax, length) for length in (1024, 16384)),
        lambda: (share_in_words, share >= 0.55),
        lambda: even([statistics.median(cost) for *_, cost in rates.values()], 0.15),
        *(partial(faster_from, 256, direction, 1024) for direction in (FORWARD, BACKWARD)),
        lambda: faster_from(128, BACKWARD, 512),
        lambda: at_least(6, "module", BACKWARD, 16384, f"{AFTER}, M=256", SOFTMAX),
        *(partial(at_least, bound, *step, AFTER, other) for bound, other in ((1.05, SOFTMAX), (7, PERFORMER))),
        lambda: less_memory(5, "training", AFTER, 0),
        as_little_memory_as_chunked,
        training_memory_beside_softmax,
        *(partial(adds, "training", case, "favor+ none") for case in (AFTER, "favor+ rope before")),
        lambda: adds("decays", "elu+1 rope after@decay=gate", "elu+1 rope after"),
        *(
            partial(at_least, None, "decoding", "token", length, case, SOFTMAX)
            for case in (AFTER, "elu+1 rope after")
            for length in (1024, 2048, 8192)
        ),
        lambda: even(tokens, 0.1),
        lambda: (" to ".join(f"{size / 1024:,.0f} KiB" for size in sorted(sizes)), len(sizes) == 1),
        lambda: at_least(None, *token, AFTER, PERFORMER),
    ]
    verdicts = {True: "met", False: "missed", None: "no target"}
    told = []
    for find in expected:
        try:
            words, is_met = find()
            told.append((words, verdicts[is_met]))
        except KeyError:  # a reference from before this was measured
            told.append(("", "not measured"))
    # Without a target it is shown where it was measured.
    told[-9:-3] = [row for row in told[-9:-3] if row[0]]
    rows = speed.table("Targets")
    assert [(row["measured"].removesuffix("-"), row["verdict"]) for row in rows] == told
    assert [list(row.values()) for row in speed.read_csv("targets.csv")] == [list(row.values()) for row in rows]


def test_what_is_shown_of_decoding_alone(decoding):
    measured, verdicts = Measurements(decoding.root), {row["what"]: row for row in decoding.table("Targets")}
    assert len(verdicts) == 2 * 2 * 3 + 3
    for topic, case, (bound, length) in itertools.product(
        DECODING, (AFTER, "elu+1 rope after"), ((1.3, 1024), (2, 2048), (4, 8192))
    ):
        low, median, high = quartiles(measured.ratio(topic, "token", length, SOFTMAX, case))
        row = verdicts[f"{topic}, context {length:,}: {case}: speed against softmax rope"]
        assert row["measured"] == f"{median:.3g} times [{low:.3g}, {high:.3g}]"
        assert row["verdict"] == ("met" if median >= bound else "missed")
    for topic in DECODING:
        check_times(decoding, measured, topic)


def curves_of(rows):
    """case → (lengths, values) of (length, case) → value"""
    cases = dict.fromkeys(case for _, case in rows)
    return {
        case: list(zip(*sorted((n, v) for (n, found), v in rows.items() if found == case), strict=True))
        for case in cases
    }


def assert_curves(report, axes, rows, starts, bands=None):
    """Of one panel: every line, band (case → low and high) and where one falls below another, by pair."""
    curves, found = curves_of(rows), report.lines(axes)
    crossings = [where for where in starts.values() if where is not None]
    assert [x for x, _ in found.pop(None, [])] == [pytest.approx([where] * 2, rel=1e-9) for where in crossings]
    assert [text.get_text() for text in axes.texts] == [f"{where:,.0f}" for where in crossings]
    assert found == {
        case: [(pytest.approx(list(x)), pytest.approx(list(y), rel=1e-9))] for case, (x, y) in curves.items()
    }
    for case, band in zip(curves, axes.collections, strict=bands is not None):
        corners = [list(corner) for corner in band.get_paths()[0].vertices]
        for length in curves[case][0]:
            for edge in bands[length, case]:
                assert any(corner == pytest.approx([length, edge], rel=1e-9) for corner in corners)


def starts_of_sizes(rows, pairs):
    curves, starts = curves_of(rows), {}
    for ours, other in pairs:
        mine, theirs = (dict(zip(*curves[case], strict=True)) for case in (ours, other))
        both = sorted(set(mine) & set(theirs))
        starts[ours, other] = crossing(both, [math.log(theirs[n] / mine[n]) for n in both])
    return starts


CROSSINGS = {
    "operation": [(OURS, SDPA), (EQ_19, SDPA)],
    "module": [(f"{AFTER}, M=256", SOFTMAX), (f"{AFTER}, M=128", SOFTMAX)],
    "training": [(AFTER, SOFTMAX)],
    "decoding": [(AFTER, SOFTMAX)],
}


@pytest.mark.parametrize("topic", CROSSINGS)
def test_every_line_of_the_figures_of_times(speed, measured, topic):
    figure = speed.figures[f"{topic}-time"]
    directions = list(dict.fromkeys(direction for direction, _, _ in measured.times(topic)))
    for axes, direction in zip(figure.axes, directions, strict=True):
        times = {key[1:]: quartiles(s) for key, s in measured.times(topic, direction).items()}
        medians = {key: 1000 * median for key, (_, median, _) in times.items()}
        bands = {key: (1000 * low, 1000 * high) for key, (low, _, high) in times.items()}
        starts = {}
        for ours, other in CROSSINGS[topic]:
            both = sorted({n for n, case in times if case == ours} & {n for n, case in times if case == other})
            ratios = {n: quartiles(measured.ratio(topic, direction, n, other, ours)) for n in both}
            where = crossing(both, [math.log(median) for _, median, _ in ratios.values()])
            is_clear = where is not None and ratios[min(n for n in both if n > where)][0] > 1
            starts[ours, other] = where if is_clear else None
        assert_curves(speed, axes, medians, starts, bands)


@pytest.mark.parametrize("topic", CROSSINGS)
def test_every_line_of_the_figures_of_memory_and_states(speed, measured, topic):
    axes = speed.figures["decoding-state" if topic == "decoding" else f"{topic}-memory"].axes[0]
    sizes = {(n, case): size / MIB for (fact, n, case), size in measured.facts.items() if fact == "state_bytes"}
    peaks = {(n, case): peaks for (found, n, case), peaks in measured.memory.items() if found == topic}
    shown = {key: (rise if topic == "training" else extra) / MIB for key, (rise, extra) in peaks.items()} or sizes
    assert_curves(speed, axes, shown, starts_of_sizes(shown, CROSSINGS[topic]))


def test_every_line_of_the_figure_of_shares(speed, measured):
    left, right = (speed.figures[stem].axes[0] for stem in ("rate", "token-cost"))
    shares, costs = {}, {}
    for direction in (FORWARD, BACKWARD):
        for length, (_, strict, dense, cost) in measured.rates(direction).items():
            shares[length, direction] = statistics.median(strict)
            shares[length, f"{direction}, counting whole chunks"] = statistics.median(dense)
            costs[length, direction] = statistics.median(cost)
    for axes, values in ((left, shares), (right, costs)):
        found = speed.lines(axes)
        assert found.pop(None, [([0.0, 1.0], [0.55, 0.55])]) == [([0.0, 1.0], [0.55, 0.55])]
        assert found == {
            case: [(pytest.approx(list(x)), pytest.approx(list(y), rel=1e-9))]
            for case, (x, y) in curves_of(values).items()
        }
