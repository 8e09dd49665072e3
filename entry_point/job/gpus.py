"""The GPUs of this host, as the CUDA driver counts them, without torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

_DEVICE_FILES = Path("/dev")
# In a separate process, because the driver stays in memory once it is initialized.
_QUESTION = """
import ctypes
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
print(count.value)
"""


def has_gpus() -> bool:
    """Returns whether this host has NVIDIA devices that are not hidden from this process."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and re.match(r"\s*(-|NoDevFiles|$)", visible):
        return False
    if os.environ.get("NVIDIA_VISIBLE_DEVICES") in ("void", "none"):
        return False
    return any(re.fullmatch(r"nvidia\d+|dxg", path.name) for path in _DEVICE_FILES.iterdir())


def usable_gpus() -> int:
    """Returns the number of GPUs for ranks of this host, as CUDA_VISIBLE_DEVICES, the container and
    MIG allow; 0 if the driver does not work."""
    if not has_gpus():
        return 0
    command = [sys.executable, "-I", "-c", _QUESTION]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(asked.stdout or 0)
