"""The base class of errors that a user can fix."""

from __future__ import annotations

from entry_point.contract.printable import printable


class UserError(Exception):
    """One printable line: what is wrong, what is allowed, what to do. It needs no traceback."""

    def __str__(self) -> str:
        return printable(super().__str__())
