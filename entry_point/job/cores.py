"""The cores that this process may use."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

_OWN_GROUPS, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def cores_per_rank() -> int:
    """Returns this rank's share of its host's usable cores."""
    of_host = cores = usable_cores()
    if hasattr(os, "sched_getaffinity"):
        # A rank may be bound to the cores near its GPU, but its parent is not.
        of_host = max(cores, min(len(os.sched_getaffinity(os.getppid())), _quota()))
    return max(1, min(cores, of_host // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def usable_cores() -> int:
    """Returns the number of cores that this process may use, as `taskset` or a container allow.

    A container's quota, as of `docker run --cpus=1.5`, is rounded up.
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return min(cores, _quota())


def _quota() -> int:
    """Returns the cores that this process's control groups allow, and the groups around them."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        return sys.maxsize
    quotas = [sys.maxsize]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 2 lists no controllers; version 1 has a folder for each.
        for root in (_GROUPS / (controllers or "unified"), _GROUPS / "cpu", _GROUPS):
            # In a container, the path may be the host's; then the container's group is at the root.
            group = root / path.lstrip("/")
            around = [each for each in group.parents if each.is_relative_to(root)]
            quotas += [_quota_of(each) for each in (group, *around)]
    return min(quotas)


def _quota_of(group: Path) -> int:
    """Returns the cores that one control group allows, of either version."""
    try:
        if (version_2 := group / "cpu.max").exists():
            quota, period = version_2.read_text().split()
        else:
            quota, period = (
                (group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
            )
        return max(1, math.ceil(int(quota) / int(period))) if int(quota) > 0 else sys.maxsize
    except (OSError, ValueError):  # no quota: there is no such file, or it says `max`
        return sys.maxsize
