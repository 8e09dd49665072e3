"""A container's quota of CPU time counts as a number of cores, in every form that it has."""

import os
from pathlib import Path

import pytest

from entry_point.config.data_config import PipelineConfig
from entry_point.job import cores
from entry_point.job.cores import cores_per_rank, usable_cores


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host of 8 cores, whose control groups are in `tmp_path`."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(8)))
    monkeypatch.setattr(cores, "_OWN_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cores, "_GROUPS", tmp_path / "groups")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


def write_group(root: Path, own: str, files: dict[str, str]) -> None:
    (root / "cgroup").write_text(own + "\n")
    for name, content in files.items():
        file = root / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content + "\n")


def version_1(group: str, quota: int, period: int = 100_000) -> dict[str, str]:
    return {
        f"{group}/cpu.cfs_quota_us": str(quota),
        f"{group}/cpu.cfs_period_us": str(period),
    }


GROUPS = {
    "version 2": ("0::/box", {"box/cpu.max": "100000 100000"}, 1),
    "version 2, as a container sees it": ("0::/", {"cpu.max": "300000 100000"}, 3),
    "version 2, part of a core": ("0::/", {"cpu.max": "50000 100000"}, 1),
    "version 2, a core and a half": ("0::/", {"cpu.max": "150000 100000"}, 2),
    "version 2, another period": ("0::/", {"cpu.max": "10000 5000"}, 2),
    "version 2, no quota": ("0::/box", {"box/cpu.max": "max 100000"}, 8),
    "version 2, more than there are": ("0::/", {"cpu.max": "9900000 100000"}, 8),
    "version 2, of the group around": (
        "0::/pod/box",
        {"pod/cpu.max": "200000 100000", "pod/box/cpu.max": "max 100000"},
        2,
    ),
    "version 1": ("3:cpu,cpuacct:/box", version_1("cpu,cpuacct/box", 100_000), 1),
    "version 1, by itself": ("3:memory:/\n2:cpu:/box", version_1("cpu/box", 250_000), 3),
    "version 1, linked": ("3:cpu,cpuacct:/box", version_1("cpu/box", 100_000), 1),
    "version 1, the host's path": ("3:cpu,cpuacct:/docker/1a", version_1("cpu", 200_000), 2),
    "version 1, no quota": ("3:cpu:/", version_1("cpu", -1), 8),
    "both versions": ("3:cpu:/\n0::/", version_1("cpu", 400_000) | {"unified/x": ""}, 4),
    "other controllers": ("3:cpuset:/\n2:cpuacct:/", version_1("cpu", 100_000), 8),
    "no text": ("0::/", {"cpu.max": ""}, 8),
    "no groups": ("0::/gone", {}, 8),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_a_quota_counts_as_cores(kind: str, tmp_path: Path) -> None:
    own, files, cores = GROUPS[kind]
    write_group(tmp_path, own, files)
    assert usable_cores() == cores == PipelineConfig().worker_count()


def test_without_control_groups_the_affinity_counts() -> None:
    assert usable_cores() == 8


def test_ranks_share_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are bound to the cores near their GPU, unlike the supervisor."""
    write_group(tmp_path, "0::/", {"cpu.max": "400000 100000"})
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert cores_per_rank() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert cores_per_rank() == 2
