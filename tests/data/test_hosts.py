"""ShardedByS3Key for real: ranks in processes of their own, each host with shards of its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from entry_point.data import DataConfig, open_source
from entry_point.optimize import main as optimize

RANK = """
import json, os, sys
from pathlib import Path
import torch
from torch import distributed
from entry_point.data import DataConfig, PipelineConfig, build_loader, open_source

rank, root, index, meeting = int(sys.argv[1]), *sys.argv[2:]
distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=4)
data = DataConfig(
    format="shards", access="stream", sharded_by_host=True, root=root, index_root=index,
    image_size=8, resize=8,
)
seen = {}
for split, epoch, step in (("train", 0, 0), ("train", 0, 1), ("val", 0, 0)):
    loader = build_loader(
        open_source(data, split, Path()), data, PipelineConfig("threads", 1),
        split=split, batch_size=2, seed=5, rank=rank, world_size=4,
    )
    seen[f"{split} {step}"] = [batch.indices.tolist() for batch in loader.epoch(epoch, step)]
    loader.close()
distributed.destroy_process_group()
print(json.dumps(seen))
"""


def test_four_ranks_on_two_hosts_take_equally_many_steps_of_disjoint_samples(
    photo_folder: Path, tmp_path: Path
) -> None:
    packed = tmp_path / "packed"
    assert optimize([f"source={photo_folder}", f"output={packed}", "shard_mb=0.3"]) == 0
    hosts = [tmp_path / f"host-{host}" for host in range(2)]
    for split in ("train", "val"):
        files = sorted((packed / split).glob("*.tar"))
        cut = len(files) // 3  # the second host has about twice as many
        for host, own in zip(hosts, (files[:cut], files[cut:]), strict=True):
            (host / split).mkdir(parents=True)
            for file in own:
                shutil.copyfile(file, host / split / file.name)
    seen = _run_ranks(hosts, packed, tmp_path / "meeting")
    steps = {len(ranks["train 0"]) for ranks in seen}
    assert len(steps) == 1 and steps.pop() >= 2
    train = [index for rank in seen for batch in rank["train 0"] for index in batch]
    assert len(train) == len(set(train))
    assert all(rank["train 1"] == rank["train 0"][1:] for rank in seen)
    val = sorted(index for rank in seen for batch in rank["val 0"] for index in batch)
    config = DataConfig(format="shards", root=str(packed))
    assert val == list(range(len(open_source(config, "val", packed))))


def _run_ranks(hosts: list[Path], index: Path, meeting: Path) -> list[dict[str, list[list[int]]]]:
    ranks = []
    for rank in range(4):
        local = {"LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        arguments = [str(rank), str(hosts[rank // 2]), str(index), str(meeting)]
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", RANK, *arguments],
                env={**os.environ, **local},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [process.communicate(timeout=180)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0] * 4
    return [json.loads(output.splitlines()[-1]) for output in outputs]
