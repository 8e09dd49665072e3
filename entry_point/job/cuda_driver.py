"""What the CUDA driver says about this host's GPUs, without torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_DEVICE_FILES = Path("/dev")
_VERSION_FILES = (Path("/sys/module/nvidia/version"), Path("/proc/driver/nvidia/version"))
# In a separate process, since a driver that has been initialized stays in memory.
_QUESTION = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
version, count = ctypes.c_int(), ctypes.c_int()
driver.cuDriverGetVersion(ctypes.byref(version))
error = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
print(version.value, error, count.value)
"""


@dataclass(frozen=True)
class Driver:
    """The driver's own account."""

    cuda: str
    """The newest CUDA version that it supports, such as `13.2`."""
    error: int
    """What kept it from starting, a CUresult; 0: nothing."""
    devices: int
    """Devices that a process may use, as CUDA_VISIBLE_DEVICES, the container and MIG allow."""


def has_gpus() -> bool:
    """Returns whether this host has NVIDIA devices that nobody has hidden from this process."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and re.match(r"\s*(-|NoDevFiles|$)", visible):
        return False
    if os.environ.get("NVIDIA_VISIBLE_DEVICES") in ("void", "none"):
        return False
    return any(re.fullmatch(r"nvidia\d+|dxg", path.name) for path in _DEVICE_FILES.iterdir())


def ask_driver() -> Driver | None:
    """Returns the driver's answer; None if it cannot be loaded."""
    asked = subprocess.run(
        [sys.executable, "-I", "-c", _QUESTION], capture_output=True, text=True, check=False
    )
    if asked.returncode:
        return None
    version, error, devices = map(int, asked.stdout.split())
    return Driver(f"{version // 1000}.{version % 1000 // 10}", error, devices)


def usable_gpus() -> int:
    """Returns the GPUs that a rank of this host can choose from, as CUDA counts them."""
    driver = ask_driver() if has_gpus() else None
    return driver.devices if driver else 0


def describe_driver() -> str:
    """Returns the driver's version and its CUDA version, as far as they can be found."""
    driver, version = ask_driver(), _version()
    if driver is None:
        return f"the driver {version} is loaded, but libcuda.so.1 is not found here"
    failed = f", but fails to start (CUDA error {driver.error})" if driver.error else ""
    return f"driver {version} supports CUDA {driver.cuda}{failed}"


def _version() -> str:
    for path in _VERSION_FILES:
        if path.is_file() and (found := re.search(r"\d+(\.\d+)+", path.read_text())):
            return found[0]
    return "of unknown version"
