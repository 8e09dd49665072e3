"""Part 1: what this machine is, and whether the tests marked `gpu` pass on it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks import measure
from benchmarks.gpu.gpu_part import Part
from benchmarks.gpu.gpu_plan import Check
from entry_point.config.data_config import usable_cores
from entry_point.supervisor.cuda_driver import describe_driver, has_gpus, usable_gpus

PACKAGES = ("torchvision", "spdl-core", "nvidia-dali-cuda130")


def machine_part(check: Check) -> Part:
    part = Part(facts=facts())
    if check.on_gpu:
        same = usable_gpus() == torch.cuda.device_count()
        found = f"driver {usable_gpus()}, torch {torch.cuda.device_count()}"
        part.add("The supervisor counts GPUs as torch does", same, found)
    _run_gpu_tests(check, part)
    return part


def facts() -> dict[str, str]:
    """The machine and the versions, each in one line."""
    nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))
    found = {
        "machine": measure.machine(),
        "system": platform.platform(),
        "cores": f"{usable_cores()} usable of {os.cpu_count()}, {nodes or 1} NUMA node(s)",
        "versions": measure.versions(PACKAGES),
        "driver": describe_driver() if has_gpus() else "no NVIDIA device",
        "CUDA and NCCL of torch": f"{torch.version.cuda or 'none'}, {_nccl()}",
    }
    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)
        found[f"GPU {number}"] = f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB"
    if shutil.which("nvidia-smi"):
        topology = ["nvidia-smi", "topo", "-m"]
        done = subprocess.run(topology, capture_output=True, text=True, check=False)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
        rows = [line.split("\t") for line in plain.splitlines() if line.startswith("GPU")]
        if rows:
            found["affinity of GPU 0"] = " ".join(cell.strip() for cell in rows[0][1:] if cell)
    return found


def _nccl() -> str:
    if not torch.cuda.is_available():
        return "none"
    return ".".join(map(str, torch.cuda.nccl.version()))


def gpu_tests() -> list[Path]:
    """The files with tests marked `gpu`; others may import what is not installed here."""
    return sorted(p for p in Path("tests").rglob("test_*.py") if "mark.gpu" in p.read_text())


def _run_gpu_tests(check: Check, part: Part) -> None:
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", *map(str, gpu_tests())]
    log = check.folder / "gpu-tests.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=check.seconds_left
        )
        text = done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        text = f"{error}\n"
    log.write_text(text, encoding="utf-8")
    last = (text.strip().splitlines() or ["no output"])[-1]
    passed = re.search(r"\b\d+ passed", last) is not None and "failed" not in last
    # Without a GPU they are all skipped: they could be collected, which is all that can be said.
    skipped = not check.on_gpu and "skipped" in last and "error" not in last
    part.add("The tests marked `gpu` pass", None if skipped else passed, last.strip("= "))
