"""The errors of the operators. torch raises all of them as RuntimeError; callers get JpegError."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class JpegError(RuntimeError):
    """The data cannot be decoded as requested; the message says why."""


@contextlib.contextmanager
def raising_jpeg_error() -> Iterator[None]:
    """Turns a RuntimeError of an operator into a JpegError."""
    try:
        yield
    except RuntimeError as error:
        raise JpegError(str(error)) from None
