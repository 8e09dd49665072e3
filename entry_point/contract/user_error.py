"""The base class of errors that a user can fix."""

from __future__ import annotations

from entry_point.contract.printable import printable


class UserError(Exception):
    """What is wrong, what is allowed, what to do; it needs no traceback.

    One argument for each problem; each becomes one printable line.
    """

    def __str__(self) -> str:
        return "\n".join(map(printable, self.args))
