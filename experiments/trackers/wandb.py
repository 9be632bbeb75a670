"""Weights & Biases, offline unless WANDB_MODE says otherwise: ``wandb sync`` uploads what is in the run's directory."""

import os
from collections.abc import Mapping

from experiments.trackers.tracker import TrackedRun


class WandB:
    """As Tracker says. A run that goes on has the same id."""

    needs = "wandb"

    def __init__(self, run: TrackedRun) -> None:
        os.environ.setdefault("WANDB_CACHE_DIR", str(run.directory / "wandb" / "cache"))
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", run.project),
            group=run.variant,
            name=f"{run.variant} seed {run.seed}",
            id=run.id(),
            resume="allow",
            dir=os.environ.get("WANDB_DIR", str(run.directory)),
            mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
            config=dict(run.config),
            # The run's own log has what it prints, and its record the code and the machine.
            settings=wandb.Settings(
                console="off", disable_code=True, disable_git=True, disable_job_creation=True, x_disable_stats=True
            ),
        )
        # Its own steps only ascend; those of a run that is tested in between do not.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def finish(self) -> None:
        self._run.finish()
