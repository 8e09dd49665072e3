"""Threads near their GPU, on a host with several NUMA nodes, here described by files."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from entry_point.job import cores, devices
from entry_point.job.cores import cores_per_rank
from entry_point.job.devices import bind_near

CUDA = torch.device("cuda", 1)


@dataclass
class Properties:
    pci_domain_id: int = 0
    pci_bus_id: int = 0xAB
    pci_device_id: int = 0


@pytest.fixture
def bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The cores that this process was bound to; it may use eight."""
    calls: list[set[int]] = []
    monkeypatch.setattr(devices, "_PCI", tmp_path)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties())
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: calls[-1] if calls else set(range(8)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: calls.append(set(cores)))
    return calls


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("4-7,12-15\n", [{4, 5, 6, 7}]),  # the node's cores that the container may use
        ("0,2\n", [{0, 2}]),
        ("0-63\n", []),  # one node
        ("32-63\n", []),  # none of them may be used
        ("\n", []),
    ],
)
def test_a_process_stays_on_the_cores_near_its_gpu(
    listed: str, expected: list[set[int]], tmp_path: Path, bound: list[set[int]]
) -> None:
    device = tmp_path / "0000:ab:00.0"
    device.mkdir()
    (device / "local_cpulist").write_text(listed)
    bind_near(CUDA)
    assert bound == expected


def test_a_host_that_does_not_say_where_its_gpus_are_changes_nothing(
    bound: list[set[int]],
) -> None:
    bind_near(CUDA)
    bind_near(torch.device("cpu"))
    assert bound == []


def test_a_bound_rank_still_takes_its_share_of_the_whole_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four of eight ranks share a node of half the cores."""
    allowed = {0: set(range(96)), os.getppid(): set(range(192))}
    monkeypatch.setattr(os, "sched_getaffinity", allowed.__getitem__)
    monkeypatch.setattr(cores, "usable_cores", lambda: 96)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert cores_per_rank() == 24
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert cores_per_rank() == 96
