"""The report command."""

from experiments.console import say_that_it_loads
from experiments.errors import why
from experiments.options import ReportOptions
from experiments.records.record import read_comparison
from experiments.studies.registry import STUDIES


def report(options: ReportOptions) -> int:
    """Rebuild the report of a comparison, or of all in a directory with a page over them, and print what was written.

    Returns the exit status.

    Raises ValueError if the directory holds no comparison, or a damaged one.
    """
    root = options.directory
    try:
        root.stat()
        several = not (root / "comparison.json").exists() and any(root.glob("*/comparison.json"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"DIRECTORY {root} cannot be read ({why(error)}), so there is no comparison.json; give the directory that "
            "`run` wrote (its --out), or one that holds several of them"
        ) from None
    if options.format != "html":
        from experiments.report.report import table_for_a_paper

        print(table_for_a_paper(root, options.format, options.baseline), end="")
        return 0
    if several:
        if options.baseline is not None:
            raise ValueError(f"--baseline is for one comparison, and {root} holds several; give the directory of one")
        say_that_it_loads(f"report {root}")
        from experiments.report.overview import write_overview

        print(write_overview(root, STUDIES, lambda path: print(path, flush=True)))
        return 0
    study = STUDIES[read_comparison(root).study]  # what is none is refused before anything is loaded
    say_that_it_loads(f"report {root}")
    from experiments.report.report import write_report

    print(write_report(root, study, options.baseline))
    return 0
