"""The run command for one comparison, if there is anything to do."""

from rich.console import Console

from experiments.commands.plan import Plan, nothing_to_do
from experiments.console import say_that_it_loads
from experiments.errors import EXIT_FAILED


def run_plan(plan: Plan) -> int:
    """Make a comparison, if there is anything to do. Returns the exit status.

    Raises ValueError for wrong use, when nothing was written, and RunFailed if it began and could not go on.
    """
    if said := nothing_to_do(plan):
        print(said)
        return 0
    say_that_it_loads(f"run {plan.options.study}")
    # From here on, because these load PyTorch.
    from experiments.commands.run_measurements import run_measurements
    from experiments.commands.run_training import run_training
    from experiments.records.store import check_directory

    check_directory(plan.root)
    return run_training(plan) if plan.study.variants else run_measurements(plan)


def exit_status(console: Console, failed: list[str]) -> int:
    """That of several comparisons; says which of them have ``failed``."""
    for name in failed:
        console.print(f"{name} is not done; the same command tries it again")
    return EXIT_FAILED if failed else 0
