"""Everything here provokes faults for real, so it is slow; what was provoked is counted and printed at the end."""

from collections import Counter
from pathlib import Path

import pytest

COUNTS = pytest.StashKey[Counter]()


def pytest_configure(config):
    config.stash[COUNTS] = Counter()


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter, config):
    counts = config.stash[COUNTS]
    if counts:
        terminalreporter.section("faults provoked")
        for what, number in counts.items():
            terminalreporter.line(f"{what}: {number:,}")


@pytest.fixture
def counts(request):
    """How often what was provoked, by its name; printed when all tests have run."""
    return request.config.stash[COUNTS]
