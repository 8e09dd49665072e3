"""Keeps this process near its GPU, on a host with several NUMA nodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

_PCI = Path("/sys/bus/pci/devices")


def stay_near(device: torch.device) -> None:
    """Let this thread, and all that it starts, run on the cores of the GPU's node only.

    Batches are then written into memory that the GPU reaches without crossing to another socket.
    """
    if device.type == "cuda" and hasattr(os, "sched_setaffinity"):
        allowed = os.sched_getaffinity(0)
        near = allowed & _cores_near(device)
        if near and near != allowed:
            os.sched_setaffinity(0, near)


def _cores_near(device: torch.device) -> set[int]:
    """The cores of the GPU's node; none if they are not known."""
    gpu: Any = torch.cuda.get_device_properties(device)  # torch's stub lacks the address
    address = f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"
    try:
        text = (_PCI / address / "local_cpulist").read_text().strip()
    except OSError:
        return set()
    cores: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores
