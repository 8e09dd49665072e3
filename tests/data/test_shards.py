"""Training from shards: the same samples with every engine and both ways of access."""

import shutil
import subprocess
import sys
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
from entry_point.data.mapping import map_files
from entry_point.data.stream import Share, StreamPlan, StreamSource
from entry_point.optimize import main as optimize
from tests.data.engines import ENGINES


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


@pytest.mark.parametrize("engine", ENGINES[1:])
@pytest.mark.parametrize("access", ["map", "stream"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_all_engines_read_the_same_samples_from_shards(
    packed: Path, access: str, split: str, engine: str
) -> None:
    reference = _epoch(_loader(packed, "pillow", split, access=access))
    batches = _epoch(_loader(packed, engine, split, access=access))
    most = 32 if engine == "dali" else 1  # levels; test_dali.py looks closer
    for a, b in zip(reference, batches, strict=True):
        assert torch.equal(a.indices, b.indices) and torch.equal(a.labels, b.labels)
        assert (a.images.int() - b.images.cpu().int()).abs().max() <= most


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("access", ["map", "stream"])
def test_a_resumed_epoch_goes_on_with_the_next_sample_and_decodes_none_before_it(
    packed: Path, tmp_path: Path, engine: str, access: str
) -> None:
    """What lies before it cannot be decoded any more when it is resumed."""
    root = Path(shutil.copytree(packed, tmp_path / "copy"))
    loader = _loader(root, engine, access=access)
    whole = list(loader.epoch(3))
    _damage(root, _indices(whole[:4]))
    rest = list(loader.epoch(3, start_step=4))
    loader.close()
    assert len(rest) == len(whole) - 4
    for a, b in zip(whole[4:], rest, strict=True):
        assert torch.equal(a.images, b.images) and torch.equal(a.indices, b.indices)


def _damage(root: Path, indices: list[int]) -> None:
    """Overwrite the beginnings of these training samples."""
    index = StreamSource(root, root, "train", all_here=True).index
    for i in indices:
        with (root / "train" / index.shards[index.shard[i]].file).open("r+b") as opened:
            opened.seek(int(index.offsets[i]))
            opened.write(bytes(20))


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


def _stream(packed: Path, engine: str, batch_size: int = 1) -> tuple[StreamSource, Loader]:
    config = DataConfig(
        format="shards", root=str(packed), image_size=8, resize=8, access="stream", window_shards=1
    )
    source = open_source(config, "train", packed)
    assert isinstance(source, StreamSource) and len(source.shards_here) > 5
    pipeline = PipelineConfig(engine=engine, num_workers=1)
    loader = build_loader(source, config, pipeline, split="train", batch_size=batch_size, seed=0)
    return source, loader


def test_streaming_holds_three_windows_of_shards_at_most_and_none_after_the_epoch(
    packed: Path,
) -> None:
    source, loader = _stream(packed, "threads")
    for epoch in range(2):
        held = [len(source._memory) for _ in loader.epoch(epoch)]
        assert 0 < max(held) <= 3 and not source._memory
    loader.close()


def test_a_closed_loader_holds_no_shard_and_another_reads_them_whole_again(packed: Path) -> None:
    source, loader = _stream(packed, "threads")
    next(iter(loader.epoch(0)))
    assert source._memory
    loader.close()
    assert not source._memory


@pytest.mark.parametrize("step", [0, 20, 47])
def test_a_resumed_stream_reads_nothing_that_lies_before(packed: Path, step: int) -> None:
    source, loader = _stream(packed, "threads")
    loader.close()
    plan = StreamPlan(source, Share(0, 1), batch_size=1, seed=0, train=True, window_shards=1)
    coming = [int(batch[0]) for batch in plan.batches(0, step)]
    plan.read_ahead(_AtOnce(1), here=True)
    next(plan.batches(0, step))
    wanted = dict.fromkeys(source.index.shard[coming].tolist())
    assert list(source._memory) == list(wanted)[:2]


def test_shards_that_were_not_read_in_time_are_read_by_the_next_loader(packed: Path) -> None:
    source, _ = _stream(packed, "threads")
    cancelled: Future[Any] = Future()
    cancelled.cancel()
    source._memory[0] = cancelled
    source.hold(_AtOnce(1), [0])
    assert len(source._memory[0].result()) == source.index.shards[0].bytes


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux's /proc/self/io")
def test_for_worker_processes_the_trainer_reads_whole_shards_ahead_into_the_page_cache(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "ThreadPoolExecutor", _AtOnce)
    source, loader = _stream(packed, "pillow", batch_size=4)
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


def test_mapped_shards_need_no_file_descriptors(packed: Path, tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; import torch\n"
        "from entry_point.data.mapping import map_files\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "files = [Path(sys.argv[1])] * 500\n"
        "data, starts = map_files(files)\n"
        "whole = torch.frombuffer(bytearray(files[0].read_bytes()), dtype=torch.uint8)\n"
        "assert all(torch.equal(data[start:][: len(whole)], whole) for start in starts)\n"
    )
    file = tmp_path / "odd.bin"
    file.write_bytes(sorted((packed / "train").glob("*.tar"))[0].read_bytes()[:9999])
    subprocess.run([sys.executable, "-c", code, str(file)], check=True)


def test_mapped_memory_goes_with_its_last_view(packed: Path) -> None:
    file = sorted((packed / "train").glob("*.tar"))[0]
    view = map_files([file, file])[0][100:200]
    assert _maps(file) == 2 and view.numpy().tobytes() == file.read_bytes()[100:200]
    del view
    assert _maps(file) == 0


def _maps(file: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(file))


def test_a_shard_that_is_on_no_host_is_an_error(packed: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(packed, tmp_path / "copy"))
    gone = sorted((root / "train").glob("*.tar"))[0]
    gone.unlink()
    with pytest.raises(DataError, match=f"{gone.name} is missing"):
        _loader(root, access="stream")
    with pytest.raises(DataError, match=f"{gone.name} is on no host"):
        _loader(root, access="stream", sharded_by_host=True)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_damaged_sample_names_its_shard_and_key(
    packed: Path, tmp_path: Path, engine: str
) -> None:
    root = Path(shutil.copytree(packed, tmp_path / "copy"))
    _damage(root, [0])
    index = StreamSource(root, root, "train", all_here=True).index
    sample = rf"{index.shards[0].file}: {index.name(0)}\.jpg"
    with pytest.raises(DataError, match=sample):
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
