"""What the data part raises."""

from __future__ import annotations


class DataError(RuntimeError):
    """A data set that cannot be used as it is; the message names the path and what to do."""
