"""Decides, for all readers of datasets, which failed reads are retried, and when a failure ends the
program.

A network disk may fail briefly (ESTALE, EIO, ETIMEDOUT) although the file is intact. That must not
count as damage: training would stop, and packing would leave the image out.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from entry_point.job.program import ReadError
from entry_point.job.text import printable

T = TypeVar("T")

PAUSES = (0.5, 2.0, 8.0)
"""Seconds to wait before each retry of a read that the disk or network failed."""
_FILE_ERRORS = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP),
    *(errno.ENAMETOOLONG, errno.EINVAL, errno.ENXIO, errno.ENODEV, errno.EILSEQ, errno.EFBIG),
}
"""Error numbers that concern the file itself; a retry cannot help."""

log = logging.getLogger(__name__)
_no_retries = threading.Event()


def with_retries(
    read: Callable[..., T], *arguments: object, name: Callable[..., object] = lambda file, *_: file
) -> T:
    """Returns `read(*arguments)`, retried after PAUSES if the disk or network failed.

    Only the calling thread waits. Messages name the file `name(*arguments)`, by default the first
    argument. Raises ReadError if all retries fail; errors that concern the file are raised at once.
    """
    pauses = iter(PAUSES)
    while True:
        try:
            return read(*arguments)
        except OSError as error:
            if not _is_transient(error):
                raise
            reason = error.strerror or str(error)
            failed = f"{printable(str(error.filename or name(*arguments)))}: could not be read"
            pause = next(pauses, None)
            if pause is None or _no_retries.is_set():
                message = "also when tried again; check its disk or network"
                raise ReadError(f"{failed} ({reason}), {message}") from error
            log.warning("%s (%s); trying again in %g s", failed, reason, pause)
            _no_retries.wait(pause)


def _is_transient(error: OSError) -> bool:
    """Returns whether the disk or network failed, rather than the file. Parsers report damage as
    errors without a number."""
    if error.errno is None:
        return isinstance(error, (ConnectionError, TimeoutError))
    return error.errno not in _FILE_ERRORS


@contextmanager
def without_retries() -> Iterator[None]:
    """End the waits of `with_retries` in all threads, whose results are no longer needed."""
    _no_retries.set()
    try:
        yield
    finally:
        _no_retries.clear()
