"""Reads a whole dataset and reports damage: `python -m entry_point check-dataset root=FOLDER`.

Also says how many images each class has in each split, and what sizes, formats and pixels.

Exit codes: 0 if nothing is damaged, 1 if anything is, 2 if there is no dataset to read, or if its
disk failed.
"""

from __future__ import annotations

import logging

from entry_point.config.packing_config import CheckConfig
from entry_point.data.errors import DataError
from entry_point.data.packing.check import Unread, check_dataset
from entry_point.job.program import ExitCode, ReadError, counted

log = logging.getLogger(__name__)


def check(config: CheckConfig) -> int:
    """Read every image and list the damage. Returns the exit code."""
    try:
        found = check_dataset(config)
    # Exit code 1 means damage, not a folder or a disk that cannot be read.
    except ReadError as error:
        raise DataError(*error.args) from error
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}") from error
    for line in found.statistics:
        log.info("%s", line)
    damage = found.damage
    for damaged in damage:
        log.error("%s: %s", damaged.key, damaged.reason)
    unread = sum(isinstance(each, Unread) for each in damage)
    lost = f", could not be read: {unread}" if unread else ""
    problems = len(damage) - unread
    log.info("%s checked, problems: %d%s", counted(found.images, "image"), problems, lost)
    if unread < len(damage):
        return ExitCode.FAILED
    return ExitCode.USAGE if unread else ExitCode.FINISHED


if __name__ == "__main__":
    from entry_point.__main__ import end_with

    end_with("check-dataset")
