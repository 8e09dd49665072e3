"""Reads a data set end to end and reports damage: `python -m entry_point.check_dataset root=...`.

Ends with 0 when all is well and with 1 when anything is wrong.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import MISSING, OmegaConf

from entry_point.config import load_config
from entry_point.config_errors import ConfigError, check_range
from entry_point.data.check import check_dataset
from entry_point.data.config import usable_cores
from entry_point.data.errors import DataError

log = logging.getLogger("check_dataset")


@dataclass
class CheckConfig:
    root: str = MISSING
    """A folder of train/<class>/*.jpg and val/..., or what `make dataset` wrote."""
    workers: int | None = None
    """Threads; null means one per usable core."""

    def __post_init__(self) -> None:
        if self.workers is not None:
            check_range("workers", self.workers, 1, 1024)


def main(arguments: Sequence[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        config = OmegaConf.to_object(load_config("check_dataset", CheckConfig, arguments))
        assert isinstance(config, CheckConfig)
        count, damage = check_dataset(Path(config.root), config.workers or usable_cores())
    except (ConfigError, DataError, OSError) as error:
        log.error("%s", error)
        return 1
    for damaged in damage:
        log.error("%s: %s", damaged.key, damaged.reason)
    log.info("%d images checked, %d things wrong", count, len(damage))
    return 1 if damage else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
