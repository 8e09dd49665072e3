"""The operators' errors: torch carries them as RuntimeError, callers get them by name."""

from __future__ import annotations


class JpegError(RuntimeError):
    """The data is not a JPEG that can be decoded as asked; the message says why."""


class NotIndexableError(JpegError):
    """The file cannot be given restart markers without loss; keep the original."""
