"""The table of failures and spikes."""

import pandas as pd

from experiments.judge.statistics import estimate, run_states
from experiments.show.rows import Rows
from experiments.studies.denominator.measure import BEFORE, spike_share


def table(shown: Rows) -> pd.DataFrame:
    """A row of strings per variant: runs, failures, spikes in the training loss."""
    comparison, curves = shown.comparison, shown.curves
    states = run_states(shown.root, comparison, curves)
    losses = curves[(curves["split"] == "train") & (curves["metric"] == "bits_per_byte")]
    by_run = {run: rows.set_index("step")["value"].sort_index() for run, rows in losses.groupby(["variant", "seed"])}
    rows = []
    for variant in comparison.variants:
        mine = states[states["variant"] == variant.name]
        done = [(variant.name, seed) for seed in mine[mine["state"] == "done"]["seed"]]
        shares = [spike_share(by_run[run]) for run in done if run in by_run and len(by_run[run]) > BEFORE]
        spikes = f"{estimate(shares).mean:.2%} (worst seed {max(shares):.2%})" if shares else "-"
        failed = str((mine["state"] == "failed").sum())
        rows.append((variant.name, str(len(mine)), failed, spikes))
    return pd.DataFrame(rows, columns=["variant", "runs", "failed", "records that are spikes"])
