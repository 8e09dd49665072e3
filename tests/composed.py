"""Has a process compose the same options once: hundreds of tests and jobs begin with that."""

import copy
from collections.abc import Callable, Sequence
from functools import cache

from omegaconf import DictConfig

from entry_point.config import compose as composing

Compose = Callable[[str, list[str]], DictConfig]
Stamps = tuple[tuple[str, int], ...]


def remember_compositions() -> None:
    """Keep what Hydra composes of a file of `configs/` and options, until a file there changes."""
    compose: Compose = vars(composing)["compose"]

    @cache
    def composed(name: str, options: tuple[str, ...], _files: Stamps) -> DictConfig:
        return compose(name, [*options])

    def remembered(name: str, options: Sequence[str]) -> DictConfig:
        files = sorted(composing.CONFIGS.rglob("*.yaml"))
        stamps = tuple((str(file), file.stat().st_mtime_ns) for file in files)
        return copy.deepcopy(composed(name, tuple(options), stamps))

    vars(composing)["compose"] = remembered
