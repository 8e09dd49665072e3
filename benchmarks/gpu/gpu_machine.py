"""The machine: what it lacks, what it is, which code runs on it, and how fast its clocks are."""

from __future__ import annotations

import datetime
import os
import platform
import re
import shutil
import subprocess
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks import measure
from benchmarks.gpu.gpu_plan import CORES, Plan
from benchmarks.gpu.offline_kit import source_state
from benchmarks.pipelines.bench import installed
from custom_op.toolchain import BuildError, find_toolchain
from entry_point.config.data_config import usable_cores
from entry_point.supervisor.cuda_driver import describe_driver, has_gpus

PACKAGES = ("torchvision", "spdl-core", "nvidia-dali-cuda130")
SHARED_MEMORY = Path("/dev/shm")


NO_NINJA = "no ninja on the PATH: pip install ninja (only torch's C++ extensions need it)"


def lacks(plan: Plan) -> dict[str, str]:
    """What is missing of all that cases need -> what is wrong, and what to do."""
    found = {
        "compiler": _compiler(),
        "Python.h": _python_headers(),
        "/dev/shm": _shared_memory(plan),
        "ninja": "" if shutil.which("ninja") else NO_NINJA,
        "DALI": "" if installed("nvidia.dali") else "DALI is not installed",
    }
    return {name: lack for name, lack in found.items() if lack}


def _compiler() -> str:
    try:
        find_toolchain()
    except BuildError as error:
        return " ".join(str(error).split())
    return ""


def _python_headers() -> str:
    """torch.compile builds C++ that includes it."""
    folders = [sysconfig.get_paths()["include"], *os.environ.get("CPATH", "").split(":")]
    if any(Path(folder, "Python.h").exists() for folder in filter(None, folders)):
        return ""
    version = ".".join(platform.python_version_tuple()[:2])
    return f"no {folders[0]}/Python.h: apt-get install python{version}-dev"


def _shared_memory(plan: Plan) -> str:
    """DataLoader's workers hand their batches over in it: two ahead each, and as much again."""
    size = plan.size
    wanted = 2 * 2 * CORES * size.batch * 3 * size.image_size**2
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.exists() else 0
    if free >= wanted:
        return ""
    return (
        f"{free / 1e6:.0f} MB free in {SHARED_MEMORY}, {wanted / 1e6:.0f} MB needed: "
        f"mount -o remount,size=4G {SHARED_MEMORY}, or --shm-size=4g for a container"
    )


@dataclass(frozen=True)
class Origin:
    """Which code ran where."""

    commit: str
    dirty: bool | None
    """Whether files differ from the commit's; None if that is not known."""
    files: str
    """Hash of the source files."""
    machine: str
    torch: str
    device: str
    date: str

    def differences(self, other: Origin) -> list[str]:
        """What keeps the results of both apart; the date does not."""
        mine, theirs = asdict(self), asdict(other)
        return [
            f"{key} {mine[key]} and {theirs[key]}"
            for key in ("commit", "files", "machine", "torch", "device")
            if mine[key] != theirs[key]
        ]


def origin(plan: Plan) -> Origin:
    gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    machine = ", ".join([*gpus, measure.processor(), f"{os.cpu_count()} CPUs"])
    date = datetime.date.today().isoformat()
    return Origin(*source_state(), machine, torch.__version__, plan.device, date)


def facts() -> dict[str, str]:
    """The machine and the versions, each in one line."""
    nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1
    release = platform.release().partition("-")[0]
    system = " ".join([platform.system(), release, *platform.libc_ver()])
    return {
        "system": f"{system}, {usable_cores()} usable cores, {nodes} NUMA node(s)",
        "versions": f"{measure.versions(PACKAGES)}, CUDA {torch.version.cuda}",
        "driver": describe_driver() if has_gpus() else "no NVIDIA device",
    }


_REASON = r"^\s*([HS]W [\w ]*?)\s*: "


def clocks() -> dict[str, float]:
    """SM clock, temperature, and why the first GPU slows itself: seconds so far, which older
    drivers do not count, and reasons that apply now. Empty without nvidia-smi."""
    if not shutil.which("nvidia-smi"):
        return {}
    query = ["nvidia-smi", "--id=0", "-q", "-d", "PERFORMANCE,CLOCK,TEMPERATURE"]
    text = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    found = {
        key: float(value[1])
        for key, pattern in (("MHz", r"\bSM\s*: (\d+) MHz"), ("C", r"Current Temp\s*: (\d+) C"))
        if (value := re.search(pattern, text))
    }
    for reason, microseconds in re.findall(rf"{_REASON}(\d+) us$", text, re.M):
        found[f"{reason}, s"] = int(microseconds) / 1e6
    for reason in re.findall(rf"{_REASON}Active$", text, re.M):
        found[f"{reason} now"] = 1.0
    return found
