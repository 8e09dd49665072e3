"""Errors in datasets, their transport between processes, and warnings that are logged once."""

from __future__ import annotations

import logging
import math
import os
import traceback

from entry_point.job.program import UserError

log = logging.getLogger(__name__)
_logged: dict[str, object] = {}


class DataError(UserError, RuntimeError):
    """The dataset cannot be used; the message names the path and what to do."""


def picklable(error: Exception) -> Exception:
    """Returns a UserError as it is; another error as a RuntimeError with its reason and traceback,
    because it may not be picklable."""
    if isinstance(error, UserError):
        return error
    reason = "".join(traceback.format_exception_only(error))
    return RuntimeError(f"{reason}{''.join(traceback.format_exception(error))}".rstrip())


def log_once(level: int, message: str) -> None:
    """Log a message once per process, even if several threads log it at the same moment."""
    mine = object()
    # setdefault is atomic; functools.cache would let two threads call the function.
    if _logged.setdefault(message, mine) is mine:
        log.log(level, "%s", message)


def share_to_skip(damaged: int, images: int) -> float | None:
    """Returns a round `data.max_bad_fraction` that lets a job skip `damaged` of a split's images.

    Returns None if it would exceed 0.5. Each rank counts only its own images, in whole batches.
    """
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    share = damaged / ranks
    most = min(damaged, share + 4 * math.sqrt(share) + 1)  # ranks get unequal shares by chance
    enough = 2 * most * ranks / images
    return next((each for each in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if each >= enough), None)
