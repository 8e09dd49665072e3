"""Calls functions on CPU ranks that have a process group, in milliseconds."""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from entry_point.job.devices import Devices
from tests.forkserver import SERVER

OnRank = Callable[[Devices, Path], None]


def call_ranks(function: OnRank, ranks: int, folder: Path) -> None:
    """Call `function(devices, folder)` on each of so many ranks."""
    arguments = [(function, rank, ranks, folder) for rank in range(ranks)]
    processes = [SERVER.Process(target=_call, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
    assert {process.exitcode for process in processes} == {0}


def _call(function: OnRank, rank: int, ranks: int, folder: Path) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting-of-{ranks}"
    dist.init_process_group("gloo", meeting, rank=rank, world_size=ranks)
    function(Devices(torch.device("cpu"), None, rank, rank, ranks, dist.group.WORLD), folder)
    dist.destroy_process_group()
