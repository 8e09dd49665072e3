"""A row that cannot be used."""

from __future__ import annotations

from entry_point.contract.printable import printable

_LONGEST = 80


class BadRowError(Exception):
    """`row` counts from 0 in its chunk; the message says what is wrong and what to do."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


def quoted(value: object) -> str:
    """A cell's content in a message: on one line, and not long."""
    text = printable(str(value)[: _LONGEST + 1])
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")
