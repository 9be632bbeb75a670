"""The claims command."""

from experiments.console import say_that_it_loads
from experiments.options import ClaimsOptions


def claims(options: ClaimsOptions) -> int:
    """Judge every claim, print the table and write the page. Returns the exit status.

    Raises ValueError if the results are no directory, a file in it is damaged, or the page cannot be written.
    """
    say_that_it_loads("claims")
    from experiments.report.claims_page import claims as judge
    from experiments.studies.registry import STUDIES

    judge(STUDIES, options.results, options.out, options.summary)
    return 0
