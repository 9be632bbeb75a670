"""trackio: one database of all runs, in the comparison's directory unless TRACKIO_DIR says otherwise.

A run that is trained in a copy elsewhere has its own, in its directory: of another place nothing would come back.
"""

import os
import re
from collections.abc import Mapping

from experiments.trackers.tracker import TrackedRun


class Trackio:
    """As Tracker says. A run that goes on is resumed."""

    needs = "trackio"

    def __init__(self, run: TrackedRun) -> None:
        # Before the import, which reads it.
        os.environ.setdefault("TRACKIO_DIR", str((run.directory if run.is_copy else run.comparison) / "trackio"))
        import trackio

        self._run = trackio.init(
            # Names that begin with registry- or end with _system and the like it keeps for itself.
            re.sub("^(?=registry-)", "run-", run.project.replace("_", "-"), flags=re.IGNORECASE),
            name=f"{run.variant} seed {run.seed} ({run.id()[:8]})",  # by which it is resumed
            group=run.variant,
            config=dict(run.config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def finish(self) -> None:
        self._run.finish()
