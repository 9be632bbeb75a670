"""Error messages, and the exception that ends a run that had begun."""

EXIT_FAILED = 1
"""the exit status when a run failed, or doctor found something missing"""


class RunFailed(RuntimeError):
    """A run that began and cannot go on, for a reason that lies outside; what was recorded is kept."""


def why(error: Exception) -> str:
    """The reason of an error, without the number and the path that OSError puts around it."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
