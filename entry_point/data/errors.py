"""Errors in datasets, what is said of them once, and their way from one process to another."""

from __future__ import annotations

import logging
import math
import os
import traceback

from entry_point.job.program import UserError

log = logging.getLogger(__name__)
_said: dict[str, object] = {}


class DataError(UserError, RuntimeError):
    """A dataset that cannot be used; the message names the path and what to do."""


def picklable(error: Exception) -> Exception:
    """Returns the error, or a RuntimeError with its reason and traceback: not every exception
    survives pickling."""
    if isinstance(error, UserError):
        return error
    reason = "".join(traceback.format_exception_only(error))
    return RuntimeError(f"{reason}{''.join(traceback.format_exception(error))}".rstrip())


def say_once(level: int, message: str) -> None:
    """Log a message that several threads may have at the same moment, once per process."""
    mine = object()
    # setdefault is atomic; functools.cache lets two threads call the function.
    if _said.setdefault(message, mine) is mine:
        log.log(level, "%s", message)


def share_to_skip(damaged: int, images: int) -> float | None:
    """Returns a round `data.max_bad_fraction` that lets a job skip this many of a split's images.

    None if it would be more than a half. Each rank counts its own images, and of those only whole
    batches.
    """
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    share = damaged / ranks
    most = min(damaged, share + 4 * math.sqrt(share) + 1)  # chance deals them unequally
    enough = 2 * most * ranks / images
    return next((each for each in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if each >= enough), None)
