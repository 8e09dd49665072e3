"""Training from shards: the same samples with every engine and both ways of access."""

import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from entry_point.config_errors import ConfigError
from entry_point.data import (
    Batch,
    DataConfig,
    DataError,
    Loader,
    PipelineConfig,
    build_loader,
    open_source,
    workers,
)
from entry_point.data.stream import Share, StreamPlan, StreamSource
from entry_point.optimize import main as optimize

ENGINES = ("pillow", "workers", "threads")


@pytest.fixture(scope="module")
def packed(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("packed") / "data"
    assert optimize([f"source={photo_folder}", f"output={output}", "shard_mb=0.3"]) == 0
    return output


def _loader(
    root: Path,
    engine: str = "threads",
    split: str = "train",
    *,
    rank: int = 0,
    world_size: int = 1,
    batch_size: int = 8,
    **data: Any,
) -> Loader:
    config = DataConfig(format="shards", root=str(root), image_size=48, resize=56, **data)
    pipeline = PipelineConfig(engine=engine, num_workers=1)
    return build_loader(
        open_source(config, split, root),
        config,
        pipeline,
        split=split,
        batch_size=batch_size,
        seed=9,
        rank=rank,
        world_size=world_size,
    )


def _epoch(loader: Loader, epoch: int = 0, start_step: int = 0) -> list[Batch]:
    batches = list(loader.epoch(epoch, start_step))
    loader.close()
    return batches


def _indices(batches: list[Batch]) -> list[int]:
    return [int(index) for batch in batches for index in batch.indices]


@pytest.mark.parametrize("access", ["map", "stream"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_all_engines_read_the_same_samples_from_shards(
    packed: Path, access: str, split: str
) -> None:
    reference = _epoch(_loader(packed, ENGINES[0], split, access=access))
    for engine in ENGINES[1:]:
        for a, b in zip(
            reference, _epoch(_loader(packed, engine, split, access=access)), strict=True
        ):
            assert torch.equal(a.indices, b.indices) and torch.equal(a.labels, b.labels)
            assert (a.images.int() - b.images.int()).abs().max() <= 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("access", ["map", "stream"])
def test_a_resumed_epoch_goes_on_with_the_next_sample(
    packed: Path, engine: str, access: str
) -> None:
    whole = _epoch(_loader(packed, engine, access=access), epoch=3)
    rest = _epoch(_loader(packed, engine, access=access), epoch=3, start_step=4)
    assert len(rest) == len(whole) - 4
    for a, b in zip(whole[4:], rest, strict=True):
        assert torch.equal(a.images, b.images) and torch.equal(a.indices, b.indices)


def test_streaming_gives_every_training_sample_once_in_another_order_each_epoch(
    packed: Path,
) -> None:
    first, second = (_indices(_epoch(_loader(packed, access="stream"), epoch)) for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(48))
    assert first != second


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("split", ["train", "val"])
def test_ranks_stream_disjoint_samples_in_the_same_number_of_steps(
    packed: Path, world_size: int, split: str
) -> None:
    shares = [
        _epoch(
            _loader(
                packed, split=split, rank=rank, world_size=world_size, access="stream", batch_size=4
            )
        )
        for rank in range(world_size)
    ]
    seen = [index for share in shares for index in _indices(share)]
    assert len(seen) == len(set(seen))
    if split == "train":
        assert len({len(share) for share in shares}) == 1
    else:
        assert sorted(seen) == list(range(24))


def test_streaming_shuffles_shards_and_within_windows(packed: Path) -> None:
    source = open_source(
        DataConfig(format="shards", root=str(packed), access="stream"), "train", packed
    )
    assert isinstance(source, StreamSource)
    plan = StreamPlan(source, Share(0, 1), batch_size=1, seed=0, train=True, window_shards=2)
    order = [int(batch[0]) for batch in plan.batches(0)]
    shards = source.index.shard[order].tolist()
    firsts = list(dict.fromkeys(shards))
    assert firsts != sorted(firsts)
    changes = sum(a != b for a, b in pairwise(shards))
    assert changes > 2 * len(firsts)
    for place, shard in enumerate(firsts):
        last = len(shards) - 1 - shards[::-1].index(shard)
        assert set(shards[: last + 1]) <= set(firsts[: place + 2])


def test_streaming_holds_three_windows_of_shards_at_most(packed: Path) -> None:
    config = DataConfig(
        format="shards", root=str(packed), image_size=8, resize=8, access="stream", window_shards=1
    )
    source = open_source(config, "train", packed)
    assert isinstance(source, StreamSource) and len(source.shards_here) > 5
    pipeline = PipelineConfig(engine="threads", num_workers=1)
    loader = build_loader(source, config, pipeline, split="train", batch_size=1, seed=0)
    held = []
    for _ in loader.epoch(0):
        held.append(len(source._memory))
    loader.close()
    assert max(held) <= 3


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux's /proc/self/io")
def test_for_worker_processes_the_trainer_reads_whole_shards_ahead_into_the_page_cache(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "ThreadPoolExecutor", _AtOnce)
    config = DataConfig(
        format="shards", root=str(packed), image_size=8, resize=8, access="stream", window_shards=1
    )
    source = open_source(config, "train", packed)
    assert isinstance(source, StreamSource) and len(source.shards_here) > 5
    pipeline = PipelineConfig(engine="pillow", num_workers=1)
    loader = build_loader(source, config, pipeline, split="train", batch_size=4, seed=0)
    before, cached = _bytes_read(), 0
    for _ in loader.epoch(0):
        cached = max(cached, len(source._cached))
    loader.close()
    assert _bytes_read() - before >= sum(shard.bytes for shard in source.index.shards)
    assert 0 < cached <= 3 and not source._memory


class _AtOnce(ThreadPoolExecutor):
    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*args, **kwargs))
        return future


def _bytes_read() -> int:
    """By this process, not its children."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def test_hosts_with_shards_of_their_own_read_only_those(packed: Path, tmp_path: Path) -> None:
    """As ShardedByS3Key leaves it: the index in one channel, some of the shards in another."""
    seen: list[int] = []
    files = sorted((packed / "train").glob("*.tar"))
    for host in range(2):
        root = tmp_path / f"host-{host}"
        (root / "train").mkdir(parents=True)
        for file in files[host::2]:
            shutil.copyfile(file, root / "train" / file.name)
        seen += _indices(
            _epoch(
                _loader(
                    root,
                    access="stream",
                    sharded_by_host=True,
                    index_root=str(packed),
                    batch_size=1,
                )
            )
        )
    assert sorted(seen) == list(range(48))


def test_a_missing_shard_is_an_error_unless_hosts_have_their_own(
    packed: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(packed, tmp_path / "copy"))
    gone = sorted((root / "train").glob("*.tar"))[0]
    gone.unlink()
    with pytest.raises(DataError, match=f"{gone.name} is missing"):
        _loader(root, access="stream")
    _loader(root, access="stream", sharded_by_host=True).close()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_damaged_sample_names_its_shard_and_key(
    packed: Path, tmp_path: Path, engine: str
) -> None:
    root = Path(shutil.copytree(packed, tmp_path / "copy"))
    source = StreamSource(root, root, "train", all_here=True)
    start = int(source.index.offsets[0])
    shard = root / "train" / source.index.shards[0].file
    data = bytearray(shard.read_bytes())
    data[start : start + 20] = bytes(20)
    shard.write_bytes(data)
    with pytest.raises(DataError, match=rf"{shard.name}: {source.index.name(0)}\.jpg"):
        _epoch(_loader(root, engine, batch_size=1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"access": "steam", "format": "shards"}, "data.access=steam.*did you mean stream"),
        ({"access": "stream"}, "data.access=stream: needs data=shards"),
        ({"sharded_by_host": True, "format": "shards"}, "data.sharded_by_host=true: needs"),
        ({"window_shards": 0}, "data.window_shards=0"),
    ],
)
def test_settings_of_streaming_that_make_no_sense_are_named(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        DataConfig(**settings)
