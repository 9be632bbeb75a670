"""What errors say."""


def why(error: Exception) -> str:
    """The reason of an error, without the number and the path that OSError puts around it."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
