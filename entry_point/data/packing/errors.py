"""What packing one file raises."""

from __future__ import annotations


class RejectedError(Exception):
    """A file that cannot be packed; the message says why."""
