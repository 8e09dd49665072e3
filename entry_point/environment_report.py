"""Prints what a job would find here: versions, devices, the operator's build, platform files.

`docker run IMAGE` and `python -m entry_point.container env` print this report for people.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from entry_point.job import hosts, own_code
from entry_point.job.program import ExitCode, run_for_reader, run_program
from entry_point.job.run_folder import ContractError, RunFolder

PACKAGES = (
    *("torch", "torchvision", "numpy", "pillow", "hydra-core", "omegaconf", "tensorboard"),
    "uvicorn",
)
PLATFORM_FILES = ("resourceconfig.json", "inputdataconfig.json", "hyperparameters.json")
VARIABLES = (
    *("TRAINING_JOB_NAME", "TRAINING_JOB_ARN", "CUSTOM_OP_CACHE", "CUDA_VISIBLE_DEVICES"),
    own_code.HASH,
    *hosts.BATCH,
    *hosts.TORCHRUN,
    *hosts.TORCH,
)


def version_lines() -> Iterator[str]:
    """Yields the image, Python and the packages that a job depends on."""
    if revision := os.environ.get("IMAGE_REVISION"):
        yield f"image {os.environ.get('IMAGE_VERSION', 'unknown')} of revision {revision}"
    yield f"python {platform.python_version()} on {platform.platform()}"
    for name in PACKAGES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"{name}: not installed"


def device_lines() -> Iterator[str]:
    """Yields the devices that torch can use."""
    import torch

    from entry_point.job.cores import usable_cores

    yield f"CPU: {usable_cores()} cores, {torch.get_num_threads()} torch threads"
    for index in range(torch.cuda.device_count()):
        yield f"GPU {index}: {torch.cuda.get_device_name(index)}, CUDA {torch.version.cuda}"


def operator_lines() -> Iterator[str]:
    """Yields how the operator was built (it is built now if it was not), or why it cannot be
    built."""
    import custom_op

    try:
        yield from (f"{key}: {value}" for key, value in custom_op.build_info().items())
    except Exception as error:
        yield from f"{type(error).__name__}: {error}".splitlines()


def run_folder_lines() -> Iterator[str]:
    """Yields the platform's files, channels and environment variables as they are."""
    try:
        run = RunFolder.from_environment()
    except ContractError as error:
        yield str(error)
        return
    yield f"root: {run.root}"
    for name in PLATFORM_FILES:
        yield f"{name}: {_content(run.platform_config / name)}"
    channels = sorted(run.channels.iterdir()) if run.channels.is_dir() else []
    yield from (f"channel {path.name}: {path}" for path in channels)
    yield from (f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ)


def _content(path: Path) -> str:
    try:
        return json.dumps(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return "missing"
    except (OSError, ValueError) as error:
        return f"unreadable: {error}"


def main(_arguments: Sequence[str] = ()) -> int:
    """Print the report. Anything missing is a line of it, not an error."""
    return run_for_reader(partial(run_program, "env", report))


def report() -> int:
    """Print every section of the report; returns the exit code."""
    sections = {
        "versions": version_lines(),
        "devices": device_lines(),
        "operator": operator_lines(),
        "run folder": run_folder_lines(),
    }
    for title, lines in sections.items():
        sys.stdout.write(f"{title}\n")
        for line in lines:
            sys.stdout.write(f"  {line}\n")
    return ExitCode.FINISHED
