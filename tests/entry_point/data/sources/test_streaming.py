"""data.access=stream: shards are read whole and in order."""

from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest

from entry_point.data.plan.stream_order import StreamPlan
from entry_point.data.sources.stream import PackedStream
from tests.entry_point.data.loaders import epoch_of, indices_of, loader_of, source_of


@pytest.mark.parametrize("world_size", [1, 3, 5])
def test_ranks_stream_disjoint_samples_in_the_same_number_of_steps(
    packed: Path, world_size: int
) -> None:
    def seen(split: str, epoch: int) -> list[list[int]]:
        ways: dict[str, Any] = {"split": split, "access": "stream", "batch_size": 4}
        ranks = ({"rank": rank, "world_size": world_size} for rank in range(world_size))
        return [indices_of(epoch_of(loader_of(packed, spec=spec, **ways), epoch)) for spec in ranks]

    assert sorted(chain(*seen("val", 0))) == list(range(24))
    first, second = (seen("train", epoch) for epoch in (0, 1))
    assert first != second
    for shares in (first, second):
        every = list(chain(*shares))
        assert len({*every}) == len(every) > 48 - 4 * world_size
        assert len({len(share) for share in shares}) == 1


def test_streaming_shuffles_shards_and_within_windows(packed: Path) -> None:
    source = source_of(packed, access="stream")
    assert isinstance(source, PackedStream)
    plan = StreamPlan(source, 0, 1, batch_size=1, seed=0, train=True, window_shards=2)
    order = [int(batch[0]) for batch in plan.batches(0)]
    shards = source.shard_of[order].tolist()
    firsts = list(dict.fromkeys(shards))
    assert firsts != sorted(firsts)
    changes = sum(a != b for a, b in pairwise(shards))
    assert changes > 2 * len(firsts)
    for place, shard in enumerate(firsts):
        last = len(shards) - 1 - shards[::-1].index(shard)
        assert set(shards[: last + 1]) <= set(firsts[: place + 2])


def test_streaming_holds_at_most_three_windows_of_shards_and_none_when_it_ends(
    packed: Path,
) -> None:
    source = source_of(packed, access="stream")
    assert isinstance(source, PackedStream) and len(source.shard_files) > 5
    plan = StreamPlan(source, 0, 1, batch_size=1, seed=0, train=True, window_shards=1)
    loader = loader_of(source, batch_size=1, plan=plan)
    for epoch in range(2):
        held = [len(source._memory) for _ in loader.epoch(epoch)]
        assert 0 < max(held) <= 3 and not source._memory
    next(iter(loader.epoch(2)))
    assert source._memory
    loader.close()
    assert not source._memory
