"""ShardedByS3Key with one process per rank; each host has its own shards."""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from torch import distributed

from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.errors import DataError
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.sources.shards import ShardIndex
from entry_point.data.sources.stream import PackedStream
from tests.forkserver import SERVER


def _rank(root: str, index: str, meeting: str, output: str, environment: dict[str, str]) -> None:
    """Read as one rank of a job, whose number is in the environment; write what it has seen."""
    os.environ.update(environment)
    rank, ranks = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=ranks)
    data = DataConfig(
        format="shards",
        access="stream_by_host",
        root=root,
        index_root=index,
        image_size=8,
        resize=8,
        max_bad_fraction=0.5,
    )
    seen: dict[str, Any] = {}
    try:
        for split, step in (("train", 0), ("train", 1), ("val", 0)):
            spec = LoaderSpec(
                data,
                PipelineConfig("threads", num_workers=1),
                split,
                2,
                seed=5,
                rank=rank,
                world_size=ranks,
            )
            loader = build_loader(open_source(data, split, Path()), spec)
            batches = list(loader.epoch(0, step))
            seen[f"{split} {step}"] = [batch.indices.tolist() for batch in batches]
            seen[f"{split} {step} damaged"] = [bad.key for batch in batches for bad in batch.damage]
            loader.close()
    except DataError as error:
        seen["error"] = str(error)
    distributed.destroy_process_group()
    Path(output).write_text(json.dumps(seen))


def _shards(packed: Path, split: str) -> list[Path]:
    return sorted((packed / split).glob("*.tar"))


def _host(root: Path, train: list[Path], val: list[Path]) -> Path:
    for file in train + val:
        (root / file.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, root / file.parent.name / file.name)
    return root


def test_four_ranks_on_two_hosts_take_the_same_number_of_steps_with_disjoint_samples(
    packed: Path, tmp_path: Path
) -> None:
    """The second host has twice as many training shards, and all validation shards.

    The last sample of each shard on the first host is damaged; the next sample of the dataset is on
    the second host.
    """
    train = _shards(packed, "train")
    hosts = [
        _host(tmp_path / "host-0", train[::3], []),
        _host(tmp_path / "host-1", [file for file in train if file not in train[::3]], []),
    ]
    _host(hosts[1], [], _shards(packed, "val"))
    index = PackedStream(packed, packed, "train", all_here=True).index
    own = range(0, len(train), 3)
    damaged = _damage_last_samples(hosts[0], index, own)
    seen = _run_ranks(hosts, 2, packed, tmp_path / "meeting")
    steps = {len(ranks["train 0"]) for ranks in seen}
    assert len(steps) == 1 and steps.pop() >= 2
    first, second = (
        [i for rank in ranks for batch in rank["train 0"] for i in batch]
        for ranks in (seen[:2], seen[2:])
    )
    assert set(index.shard[first]) <= set(own) and not set(first) & set(damaged)
    assert not set(index.shard[second]) & set(own) and len(second) == len(set(second))
    found = {key for rank in seen for key in rank["train 0 damaged"]}
    assert found and found <= {index.key(i) for i in damaged}
    assert len(set(first)) >= len(first) - len(found)
    assert all(rank["train 1"] == rank["train 0"][1:] for rank in seen)
    val = sorted(i for rank in seen for batch in rank["val 0"] for i in batch)
    config = DataConfig(format="shards", root=str(packed))
    assert val == list(range(len(open_source(config, "val", packed))))
    assert [rank["val 0"] for rank in seen[:2]] == [[], []]


def _damage_last_samples(host: Path, index: ShardIndex, shards: Iterable[int]) -> list[int]:
    rows = [int(np.flatnonzero(index.shard == shard)[-1]) for shard in shards]
    for shard, row in zip(shards, rows, strict=True):
        with (host / "train" / index.shards[shard].file).open("r+b") as opened:
            opened.seek(int(index.offsets[row]))
            opened.write(bytes(100))
    return rows


def test_shards_on_every_host_are_an_error_on_all_ranks(packed: Path, tmp_path: Path) -> None:
    seen = _run_ranks([packed, packed], 1, packed, tmp_path / "meeting")
    first = _shards(packed, "train")[0].name
    for rank in seen:
        assert f"{first} is on 2 of 2 hosts: data.access=stream_by_host needs" in rank["error"]


def test_too_few_samples_on_one_host_are_an_error_on_all_ranks(
    packed: Path, tmp_path: Path
) -> None:
    hosts = [
        _host(tmp_path / "host-0", [], _shards(packed, "val")),
        _host(tmp_path / "host-1", _shards(packed, "train"), []),
    ]
    for rank in _run_ranks(hosts, 1, packed, tmp_path / "meeting"):
        assert "share of the train split is 0 images, fewer than one batch" in rank["error"]


def _run_ranks(
    hosts: list[Path], ranks_per_host: int, index: Path, meeting: Path
) -> list[dict[str, Any]]:
    ranks = []
    for rank in range(len(hosts) * ranks_per_host):
        environment = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(hosts) * ranks_per_host),
            "LOCAL_RANK": str(rank % ranks_per_host),
            "LOCAL_WORLD_SIZE": str(ranks_per_host),
            "OMP_NUM_THREADS": "1",
        }
        places = [str(place) for place in (hosts[rank // ranks_per_host], index, meeting)]
        output = f"{meeting}-rank-{rank}"
        ranks.append(SERVER.Process(target=_rank, args=(*places, output, environment)))
        ranks[-1].start()
    for process in ranks:
        process.join(timeout=180)
    assert [process.exitcode for process in ranks] == [0] * len(ranks)
    return [json.loads(Path(f"{meeting}-rank-{rank}").read_text()) for rank in range(len(ranks))]
