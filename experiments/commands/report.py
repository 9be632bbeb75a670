"""The report command."""

from experiments.console import say_that_it_loads
from experiments.errors import why
from experiments.options import ReportOptions
from experiments.records.record import read_comparison
from experiments.studies.registry import STUDIES


def report(options: ReportOptions) -> int:
    """Rebuild the report of a comparison and print its path. Returns the exit status.

    Raises ValueError, and changes nothing, if the directory holds no comparison, or a damaged one.
    """
    root = options.directory
    try:
        root.stat()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"DIRECTORY {root} cannot be read ({why(error)}), so there is no comparison.json; give the directory that "
            "`run` wrote (its --out)"
        ) from None
    study = STUDIES[read_comparison(root).study]  # what is none is refused before anything is loaded
    say_that_it_loads(f"report {root}")
    from experiments.report.report import remove_unfinished_reports, write_report

    remove_unfinished_reports(root)
    print(write_report(root, study))
    return 0
