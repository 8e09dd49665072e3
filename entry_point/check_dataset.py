"""Reads a whole dataset and reports damage: `python -m entry_point check-dataset root=FOLDER`.

Also reports the number of images of each class in each split, their sizes, formats and pixels.

Exit codes: 0 if nothing is damaged, 1 if an image is damaged or unreadable, 2 without a dataset.
"""

from __future__ import annotations

import logging

from entry_point.config.packing_config import CheckConfig
from entry_point.data.packing.check import check_dataset
from entry_point.job.program import ExitCode
from entry_point.job.text import counted

log = logging.getLogger(__name__)


def check(config: CheckConfig) -> int:
    """Read every image and list the damage. Returns the exit code."""
    found = check_dataset(config)
    for line in found.statistics:
        log.info("%s", line)
    for damaged in found.damage:
        log.error("%s: %s", damaged.key, damaged.reason)
    log.info("%s checked, problems: %d", counted(found.images, "image"), len(found.damage))
    return ExitCode.FAILED if found.damage else ExitCode.FINISHED


if __name__ == "__main__":
    from entry_point.__main__ import end_with

    end_with("check-dataset")
