"""What the data part raises."""

from __future__ import annotations

from entry_point.contract.user_error import UserError


class DataError(UserError, RuntimeError):
    """A data set that cannot be used as it is; the message names the path and what to do."""
