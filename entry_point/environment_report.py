"""Prints the environment of a job here: versions, devices, the operator's build, the job's files.

`docker run IMAGE` and `python -m entry_point env` print this report.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from torch.utils import collect_env

import custom_op
from entry_point.job import hosts, own_code
from entry_point.job.cores import usable_cores
from entry_point.job.program import ExitCode
from entry_point.job.run_folder import RunFolder

_VARIABLES = (
    *("IMAGE_VERSION", "IMAGE_REVISION", own_code.HASH, "CUSTOM_OP_CACHE", "CUDA_VISIBLE_DEVICES"),
    *("TRAINING_JOB_NAME", "TRAINING_JOB_ARN", *hosts.TORCHRUN, *hosts.TORCH),
)


def report(_arguments: Sequence[str] = ()) -> int:
    """Print the report; returns the exit code."""
    sections: dict[str, Callable[[], Iterable[str]]] = {
        "variables": lambda: [
            f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ
        ],
        "operator": lambda: [f"{key}: {value}" for key, value in custom_op.build_info().items()],
        "run folder": _run_folder,
        f"versions and devices, of which a job may use {usable_cores()} cores": lambda: (
            collect_env.get_pretty_env_info().splitlines()
        ),
    }
    for title, lines in sections.items():
        sys.stdout.write(f"{title}\n")
        try:
            found = [*lines()]
        except Exception as error:  # becomes a part of the report
            found = f"{type(error).__name__}: {error}".splitlines()
        sys.stdout.writelines(f"  {line}\n" for line in found)
    return ExitCode.FINISHED


def _run_folder() -> Iterator[str]:
    """Yields lines on the platform's files and the channels."""
    run = RunFolder.from_environment()
    yield f"root: {run.root}"
    for path in sorted(run.platform_config.glob("*.json")):
        yield f"{path.name}: {' '.join(path.read_text(encoding='utf-8').split())}"
    yield from (f"channel {path.name}: {path}" for path in sorted(run.channels.glob("*")))
