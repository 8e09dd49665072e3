"""Shards read in sequence, from one epoch to the next without a break."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from entry_point.config.config_errors import ConfigError
from entry_point.data.plan.stream_order import StreamPlan

SHARDS, PER_SHARD = 12, 2


class Held:
    """A StreamSource's index, and which shards it was told to hold."""

    shard_files = tuple(Path(f"{number}.tar") for number in range(SHARDS))
    shard_of = np.repeat(np.arange(SHARDS), PER_SHARD)

    def __init__(self) -> None:
        self.held: set[int] = set()

    def hold(self, _reader: ThreadPoolExecutor, shards: Sequence[int]) -> None:
        self.held = set(shards)

    def release(self) -> None:
        self.held = set()


def test_the_last_window_of_an_epoch_is_held_until_the_second_of_the_next() -> None:
    """Its batches may still be in progress."""
    source = Held()
    plan = StreamPlan(source, 0, 1, batch_size=PER_SHARD, seed=1, train=True, window_shards=1)
    with ThreadPoolExecutor(1) as reader:
        plan.read_ahead(reader)
        last = {int(source.shard_of[row]) for row in list(plan.batches(0))[-1]}
        following = plan.batches(1)
        next(following)
        with_last = source.held
        plan.release()
        next(plan.batches(1))
        alone = source.held
        next(following)
        next(following)
        assert not last & alone  # else this seed tells nothing
        assert with_last == last | alone and len(alone) == 2
        assert not last & source.held


def test_a_rank_whose_share_fills_no_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match="batch_size=28: must be at most 21, as each"):
        StreamPlan(Held(), 1, 7, batch_size=4, seed=1, train=True)
