"""The answer of the speed study."""

from math import inf

from experiments.report.answer import Findings
from experiments.show.words import listed
from experiments.studies.speed.records import read_config, read_records
from experiments.studies.speed.results import MIB, Quartiles, Results, size_crossings
from experiments.studies.speed.study import AFTER, DECODING, DIRECTIONS, ELU, SOFTMAX, STEP, TOKEN, after


def answer(found: Findings) -> str:
    """From which length on the module with RoPE pays, how a whole step compares, and what RoPE adds to one."""
    records = read_records(found.root)
    if not records:
        return ""
    results = Results(records, read_config(found.comparison))
    if results.config.topics is not None:
        return _decoding(results)
    return " ".join(filter(None, [_time(found, results), _step(results), _memory(results), _rope(found, results)]))


def _decoding(results: Results) -> str:
    """At every context of the run that measures nothing else."""
    speedups = results.speedups(DECODING, TOKEN, ELU, SOFTMAX)
    times = listed(f"{speedup.median:.2f} after {length:,} tokens" for length, speedup in speedups.items())
    return f"The speed of decoding with elu+1 and RoPE, over that with softmax attention and RoPE, is {times}."


def _time(found: Findings, results: Results) -> str:
    """From where on it is faster in both passes."""
    features = results.config.num_features
    crossings = {each.direction: each.length for each in results.time_crossings("module", [_pair(results)])}
    starts, measured = dict[str, float](), []
    for direction in DIRECTIONS["module"]:
        by_length = results.speedups("module", direction, *_pair(results))
        if by_length:
            starts[direction] = crossings.get(direction, _surely_faster_from(by_length))
            measured = list(by_length)
    if not starts:
        return ""
    last = max(starts, key=starts.__getitem__)
    start = starts[last]
    if start == inf:
        where, fast = f"Up to {measured[-1]:,} tokens not", ""
    else:
        times = found.size("module-faster", ".1f")
        if start <= measured[0]:
            where = f"From {measured[0]:,} tokens, the fewest measured, on"
        else:
            where = _about(start) if last in crossings else f"Surely from {start:,} tokens on"
        fast = f"; at {measured[-1]:,} it is {times} times as fast as softmax attention" if times else ""
    return f"{where} in time (the module, FAVOR+ with RoPE after its map, {features} features{fast})."


def _step(results: Results) -> str:
    """A training step of the whole language model, at every length."""
    speedups = results.speedups("training", STEP, AFTER, SOFTMAX)
    if not speedups:
        return ""
    times = listed(f"{speedup.median:.2f} at {length:,} tokens" for length, speedup in speedups.items())
    return f"The speed of a training step, over that with softmax attention and RoPE, is {times}."


def _surely_faster_from(by_length: dict[int, Quartiles]) -> float:
    """The shortest measured length from which on three quarters of the rounds say so; infinite if there is none."""
    start = inf
    for length, speedup in reversed(by_length.items()):
        if speedup.low <= 1:
            break
        start = length
    return start


def _memory(results: Results) -> str:
    table = results.memory_table
    table = table[table["topic"] == "module"]
    ours, other = _pair(results)
    sizes = table.pivot(index="length", columns="case", values="extra").reindex(columns=[ours, other]).dropna() / MIB
    if sizes.empty:
        return ""
    crossings = size_crossings(table, "extra", [(ours, other)])
    if (sizes[ours] > sizes[other]).all():
        said = "In memory never: softmax attention needs less at every measured length"
    elif (sizes[ours] < sizes[other]).all():
        said = "In memory at every measured length softmax attention needs more"
    elif crossings:
        said = f"In memory {_about(crossings[0].length).lower()}, where softmax attention needs more"
    else:
        said = "In memory not at the longest"
    mine, theirs = (f"{size:,.0f}" if size >= 10 else f"{size:.2g}" for size in sizes.iloc[-1])
    return f"{said} ({theirs} against {mine} MiB at {sizes.index[-1]:,})."


def _rope(found: Findings, results: Results) -> str:
    """With its intervals, which are wide."""
    costs = [(side, found.rows.get(f"favor+-rope-{side}-cost")) for side in ("after", "before")]
    said = [
        f"{side} the FAVOR+ map {cost.estimate.mean:z.0%} [{cost.estimate.low:.0%}, {cost.estimate.high:.0%}]"
        for side, cost in costs
        if cost and cost.estimate.has_interval
    ]
    length = max(results.config.position_lengths)
    return f"At {length:,} tokens RoPE adds to a training step: {', '.join(said)}." if said else ""


def _pair(results: Results) -> tuple[str, str]:
    return after(results.config.num_features), SOFTMAX


def _about(length: float) -> str:
    return f"From about {float(f'{length:.2g}'):,.0f} tokens on"
