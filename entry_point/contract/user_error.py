"""The base class of errors that a user can fix."""

from __future__ import annotations


class UserError(Exception):
    """One line: what is wrong, what is allowed, what to do. It needs no traceback."""
