"""Which run this is: its name, when, how long, of which code, on what."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from functools import cache
from pathlib import Path

from entry_point.contract.run_folder import RunFolder
from entry_point.training.measure.totals import Totals
from entry_point.training.results.summary import duration

CODE = Path(__file__).parents[3]


def run_name(run: RunFolder) -> str:
    """The platform's name for the job, else the run folder's."""
    return os.environ.get("TRAINING_JOB_NAME") or run.root.resolve().name


def about(run: RunFolder, totals: Totals, devices: str) -> dict[str, str]:
    """What tells this run from others, by what it is called."""
    facts = {
        "run": run_name(run),
        "ended": _ended(run),
        "trained for": duration(totals.training_seconds),
        "code revision": revision(),
        "devices": devices,
        "processor": processor(),
    }
    return {name: fact for name, fact in facts.items() if fact}


def _ended(run: RunFolder) -> str:
    """When the last checkpoint was written: a finished run may be started again much later."""
    times = [path.stat().st_mtime for path in run.checkpoints.glob("step-*.pt")]
    if not times:
        return ""
    return datetime.fromtimestamp(max(times), timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


@cache
def revision() -> str:
    """The image's, or the working tree's commit, `-dirty` if files differ; empty if unknown. To be
    asked first when the job begins: the tree may be another when it ends.
    """
    if named := os.environ.get("IMAGE_REVISION"):
        return named
    # A repository around a copy of this code would name another commit.
    if not (CODE / ".git").exists():
        return ""
    command = ["git", "-C", str(CODE), "describe", "--always", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run([*command, "--dirty"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def processor() -> str:
    """The CPU's model and how many of them this process sees."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} x {models[0] if models else platform.machine()}"
