"""The figures and tables of the speed experiment, from its records alone."""

from pathlib import Path

import pandas as pd

from experiments.figures.style import FigureEntry, TableEntry, draw
from experiments.records.csv_files import to_csv
from experiments.records.files import write_atomically
from experiments.records.schema import Comparison
from experiments.studies.speed import figures as speed_plots
from experiments.studies.speed.records import read_config, read_records
from experiments.studies.speed.results import (
    fact_table,
    memory_table,
    rate_table,
    run_table,
    size_crossings,
    time_crossings,
    time_table,
)
from experiments.studies.speed.settings import AFTER, EQ_19, OURS, SDPA, SOFTMAX, after
from experiments.studies.speed.tables import fact_cells, memory_cells, position_cells, rate_cells, time_cells
from experiments.studies.speed.targets import SHARE_TARGET, Target, targets


def figures(
    root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame
) -> list[FigureEntry | TableEntry]:
    """Write times.csv, memory.csv, rate.csv and targets.csv, and draw what they hold."""
    config = read_config(comparison)
    records = read_records(root)
    times, memory, rate = time_table(records, config), memory_table(records), rate_table(records, config)
    judged = pd.DataFrame(targets(records, config), columns=Target._fields)
    entries: list[FigureEntry | TableEntry] = [TableEntry("Targets", judged, _TARGETS)]
    runs = run_table(records)
    if runs["run"].nunique() > 1:
        entries.append(TableEntry("Process runs", runs, _RUNS))
    if not rate.empty:
        entries.append(draw(output / "figures", _RATE, speed_plots.rate_figure, rate, SHARE_TARGET))
        entries.append(TableEntry("The operation beside a matrix product", rate_cells(rate), _RATE_TABLE))
    crossings: dict[str, list[tuple[str, str]]] = {
        "operation": [(OURS, SDPA), (EQ_19, SDPA)],
        "module": [(after(config.num_features), SOFTMAX), (after(config.fewer_features), SOFTMAX)],
        "training": [(AFTER, SOFTMAX)],
    }
    for topic, pairs in crossings.items():
        of_topic, in_memory = (table[table["topic"] == topic] for table in (times, memory))
        time_entry, memory_entry = _TOPICS[topic]
        if not of_topic.empty:
            faster = time_crossings(records, topic, pairs)
            entries.append(draw(output / "figures", time_entry, speed_plots.time_figure, of_topic, faster))
            entries.append(TableEntry(f"{time_entry.title}: the numbers", time_cells(times, topic), _TIME_TABLE))
        if not in_memory.empty:
            column = "rise" if topic == "training" else "extra"
            smaller = size_crossings(in_memory, column, pairs)
            entries.append(
                draw(output / "figures", memory_entry, speed_plots.memory_figure, in_memory, column, smaller)
            )
            entries.append(TableEntry(f"{memory_entry.title}: the numbers", memory_cells(memory, topic), _MEMORY_TABLE))
    positions = times[times["topic"] == "positions"]
    if not positions.empty:
        entries.append(draw(output / "figures", _POSITIONS, speed_plots.positions_figure, positions))
        cells = position_cells(positions)
        entries.append(TableEntry("The cost of each position encoding: the numbers", cells, _POSITIONS_TABLE))
    parameters = fact_table(records, "parameters")
    if not parameters.empty:
        entries.append(TableEntry("Parameters of the models", fact_cells(parameters), _PARAMETERS))
    decoding, state = times[times["topic"] == "decoding"], fact_table(records, "state_bytes")
    if not decoding.empty:
        pair = [(AFTER, SOFTMAX)]
        crossed = time_crossings(records, "decoding", pair), size_crossings(state, "value", pair)
        entries.append(draw(output / "figures", _DECODING, speed_plots.decoding_figure, decoding, state, *crossed))
        entries.append(TableEntry("Decoding: the numbers", time_cells(times, "decoding"), _TIME_TABLE))
        entries.append(TableEntry("Decoding: bytes of state", fact_cells(state), _STATE))
    for name, table in (("times", times), ("memory", memory), ("rate", rate), ("targets", judged)):
        write_atomically(output / f"{name}.csv", to_csv(table, "%.6g"))
    return entries


_HOW = (
    "Median over rounds, the band from the lower to the upper quartile. Each round times every competitor of the same "
    "length once, in turn, because the machine's speed drifts by more than the differences that matter; the longest "
    "have few rounds (the table says how many), whose quartiles are little less than their range. The dotted line is "
    "where ours becomes the faster one: where the median of the ratio within a round is 1, between two measured "
    "lengths on logarithmic axes. There is none where a quarter of the rounds at the next length say otherwise."
)
_LESS_MEMORY = (
    "The dotted line is where ours becomes the one that needs less, between two measured lengths; without one there "
    "is no such length between the first and the last."
)
_EXTRA = (
    "How far memory rises above its level before the call, at its highest point, with inputs and weights in place, "
    "less the output and the gradients that every competitor has to return. Forward and backward pass, in a process "
    f"of its own after a call at a tiny length; on the CPU the peak of resident memory. {_LESS_MEMORY}"
)
_TIME_TABLE = (
    "Median time of a call; then the median over rounds [quartiles] of its time over that of the competitor without "
    "such a figure, both of the same round. Above 1 it takes longer."
)
_MEMORY_TABLE = (
    "Extra memory, without the output and the gradients that have to be returned; in brackets the whole rise above "
    "the inputs and weights, with them."
)
_TARGETS = (
    "What the project set out to reach on two CPU threads in float32, with 8 heads of width 64 and 256 features, and "
    "what was measured: medians with quartiles in brackets. Ratios are taken within a round. A target is met or missed "
    "by the median; it is not measured where its sizes are not part of the run, or it failed. There is no target "
    "where none was set, and with other settings. The share of the sgemm rate is judged by the strict count of "
    "operations, the fewest: of the products inside a chunk only the half that the causal mask keeps. The cost of a "
    "token, and its time in decoding, is the median of what it is relative to the mean of its round over the lengths."
)
_RUNS = (
    "The numbers of this report come from more than one run of the command: the run was stopped and gone on with. "
    "Ratios, shares and costs of a token are always of one run; figures and tables have both beside each other. "
    "Measurements of a version that did not record its runs count as one."
)
_RATE = FigureEntry(
    "rate",
    "The operation beside a matrix product",
    "Left: floating-point operations of the chunked algorithm a second, over those of a product of two large float32 "
    "matrices in the same round. Coloured: the strict count, the fewest that it needs; a head takes "
    "4·N·M·D + N·(C + 1)·(M + D) forward and twice that backward, with C the chunk size: inside a chunk only the pairs "
    "that the causal mask keeps, and no denominator, feature map or recomputation. The target is about this count. "
    "Grey: the dense count, with all C·C pairs of a chunk, 4·N·M·D + 2·N·C·(M + D). Right: "
    "time over N, over its mean over all lengths in the same round; flat means linear. All lengths and the matrix "
    "product are timed in turn in every round.",
)
_RATE_TABLE = (
    "Share of the rate of a float32 matrix product by the strict count, the fewest operations: median over rounds "
    "[quartiles]; beside it the dense count, with all pairs of a chunk. Cost of a token: relative "
    "to the mean over the lengths. These times are of rounds of their own, and may differ from those below."
)
_TOPICS = {
    "operation": (
        FigureEntry(
            "operation-time",
            "The causal operation alone: time",
            "On mapped queries and keys (softmax: on unmapped ones of width D). linear-rope without rotation sums "
            "what performer-pytorch and fast-transformers sum; eq. 19 rotates and has a second denominator. The "
            f"forward pass alone keeps no graph. {_HOW}",
        ),
        FigureEntry("operation-memory", "The causal operation alone: memory", _EXTRA),
    ),
    "module": (
        FigureEntry(
            "module-time",
            "The attention module: time",
            "Projections, feature map, rotation and operation, with gradients of the input and all weights. M = D "
            f"for elu+1. {_HOW}",
        ),
        FigureEntry("module-memory", "The attention module: memory", _EXTRA),
    ),
    "training": (
        FigureEntry(
            "training-time",
            "A training step: time",
            "Forward pass, cross entropy, backward pass and AdamW of a byte-level language model, one sequence. "
            "performer-pytorch is its PerformerLM with tied embedding, rotary positions before the map and an added "
            f"sinusoid, which cannot be had without it; its features are never redrawn. {_HOW}",
        ),
        FigureEntry(
            "training-memory",
            "A training step: memory",
            "How far memory rises in one step above the model and its optimiser's averages, at its highest point: "
            "activations and gradients. In a process of its own; on the CPU the peak of resident memory. "
            f"{_LESS_MEMORY}",
        ),
    ),
}
_POSITIONS = FigureEntry(
    "positions",
    "The cost of each position encoding",
    "A training step of the language model, one sequence: its time over that of the same kernel without positions, "
    "both of the same round, less 1. Median over rounds and quartiles. A learned table has a vector for each position, "
    "which AdamW has to update too; ALiBi adds a bias to every score, which keeps softmax attention from the kernels "
    "that never store the scores.",
)
_POSITIONS_TABLE = (
    "Median time of a step; then the median over rounds [quartiles] of its time over that of the same kernel without "
    "positions in the same round. Above 1 it takes longer."
)
_PARAMETERS = "Trainable parameters of the models whose training step is timed, by length."
_DECODING = FigureEntry(
    "decoding",
    "Decoding one token",
    "Through the whole language model. Linear attention goes on from the state of a real prefill. The softmax caches "
    "hold random keys and values, because the time of a token depends on their number only; a token copies its cache "
    "into a longer one. performer-pytorch's generate computes the whole context anew for every token. Left: median "
    "over rounds, the band from the lower to the upper quartile; all contexts are timed in turn in every round.",
)
_STATE = "All tensors that are carried from token to token, of one sequence."
