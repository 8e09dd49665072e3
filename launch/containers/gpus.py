"""The GPUs of this machine that containers use: ``GPUS``."""

import os
import shutil
import subprocess

from launch.command_line import LaunchError


def select_gpus(hosts: int) -> list[str]:
    """Indices of the GPUs to use; raises LaunchError if there are fewer GPUs than hosts."""
    present, wanted = find_gpus(), os.environ.get("GPUS") or "all"
    if wanted != "all" and not (wanted.isdecimal() and int(wanted) <= len(present)):
        raise LaunchError(f"GPUS={wanted}: must be a number from 0 to {len(present)}, or unset")
    gpus = present if wanted == "all" else present[: int(wanted)]
    if 0 < len(gpus) < hosts:
        # Hosts with and without a GPU cannot train together.
        raise LaunchError(
            f"HOSTS={hosts}: needs at least {hosts} GPUs, but only {len(gpus)} available; "
            "set GPUS=0 to train on the CPU"
        )
    return gpus


def find_gpus() -> list[str]:
    """Indices of this machine's NVIDIA GPUs; empty without a driver."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True)
    return done.stdout.split() if done.returncode == 0 else []
