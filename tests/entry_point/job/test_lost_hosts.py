"""The failure of the host that survives names the other one, not what gloo says."""

from pathlib import Path

import pytest

from entry_point.job.hosts import Hosts, lost_host
from entry_point.job.training_job import _died
from tests import forkserver

TWO = Hosts(0, 2, ("127.0.0.1", "127.0.0.2"))
THREE = Hosts(0, 3, ("127.0.0.1", "127.0.0.2", "127.0.0.3"))
RANK = """
import os, sys
import torch
import torch.distributed as dist
from entry_point.job.program import failure_text
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
dist.barrier()
if rank == 1:
    os._exit(9)  # as if killed
try:
    for _ in range(100):
        CALL
except Exception as error:
    print(failure_text(error))
"""


@pytest.mark.parametrize("call", ["dist.all_reduce(torch.ones(9))", "dist.monitored_barrier()"])
def test_what_gloo_says_is_read_as_a_lost_host(tmp_path: Path, call: str) -> None:
    command = ["-c", RANK.replace("CALL", call)]
    ranks = [
        forkserver.start([*command, str(rank), str(tmp_path / "store")], tmp_path / f"log-{rank}")
        for rank in (0, 1)
    ]
    said, _ = ranks[0].communicate(timeout=120)
    ranks[1].wait()
    reason = _died({0: 1}, said, Hosts(1, 2, ("127.0.0.1", "127.0.0.2")), 8)
    assert reason and reason.startswith("host 127.0.0.1 ended first"), said
    assert "gloo" not in reason


CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:538] Connection closed by peer [{}]:4123"


@pytest.mark.parametrize(
    ("reason", "hosts", "name"),
    [
        (CLOSED.format("127.0.0.3"), THREE, "127.0.0.3"),
        (CLOSED.format("10.9.8.7"), THREE, "10.9.8.7"),
        (CLOSED.format("127.0.0.1"), Hosts(1, 4, ("127.0.0.1",)), "127.0.0.1"),
        ("RuntimeError: Rank 1 failed to pass monitoredBarrier in 9 ms", THREE, "another host"),
        ("torch.distributed.DistNetworkError: failed to recv, got 0 bytes", TWO, "127.0.0.2"),
        (CLOSED.format("127.0.0.1"), THREE, ""),
        (CLOSED.format("127.0.0.1"), Hosts(), ""),
        ("ValueError: the loss is NaN at 127.0.0.2", TWO, ""),
    ],
)
def test_the_lost_host_is_named(reason: str, hosts: Hosts, name: str) -> None:
    assert lost_host(reason, hosts) == name
