"""Runs the real training program as a job, and watches its memory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.gpu_plan import Check
from benchmarks.pipelines import process_tree

Record = dict[str, Any]
JOB = ("entry_point.container", "train")
"""The module that runs a job, and its command."""


@dataclass
class Job:
    """How a job ended."""

    code: int
    log: str
    records: list[Record]
    host_mb: float
    """Most private memory of its processes at once."""
    gpu_mb: float
    """Most GPU memory in use on the first GPU at once, with CUDA's context; nan if unknown."""

    def last(self, key: str) -> float:
        """The newest record's value; nan if no record has it."""
        values = [record[key] for record in self.records if key in record]
        return float(values[-1]) if values else float("nan")


@dataclass
class _Memory:
    """The largest values seen while a thread watches a process."""

    root: int
    host_mb: float = 0.0
    gpu_mb: float = float("nan")
    ended: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        while not self.ended.wait(0.5):
            self.host_mb = max(self.host_mb, process_tree.private_megabytes(self.root))
            used = _gpu_megabytes()
            if used is not None:
                self.gpu_mb = used if self.gpu_mb != self.gpu_mb else max(self.gpu_mb, used)


def _gpu_megabytes() -> float | None:
    if not shutil.which("nvidia-smi"):
        return None
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    asked = subprocess.run(query, capture_output=True, text=True, check=False)
    text = asked.stdout.strip()
    return float(text) * 2**20 / 1e6 if text.isdigit() else None


def run_job(
    check: Check,
    name: str,
    overrides: Sequence[str],
    *,
    module: Sequence[str] = JOB,
    stop_after: int | None = None,
    fresh: bool = True,
) -> Job:
    """Run a job in `check.folder/name`; `stop_after` that many steps, ask it to stop.

    It is killed, with exit code -9, when the part's time is up.
    """
    root = check.folder / name
    if fresh:
        shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "ML_ROOT": str(root), "PYTHONUNBUFFERED": "1"}
    # The supervisor sets it; some modules run without one.
    environment["OMP_WAIT_POLICY"] = "PASSIVE"
    command = [sys.executable, "-m", *module, f"trainer.device={check.device}", *overrides]
    sys.stdout.write(f"{name}: {' '.join(overrides)}\n")
    sys.stdout.flush()
    with (root / "log").open("a", encoding="utf-8") as log:
        job = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        memory = _Memory(job.pid)
        watcher = threading.Thread(target=memory.watch)
        watcher.start()
        try:
            _wait(job, root, stop_after, check.seconds_left)
        finally:
            memory.ended.set()
            watcher.join()
    text = (root / "log").read_text(encoding="utf-8", errors="replace")
    return Job(job.returncode, text, read_records(root), memory.host_mb, memory.gpu_mb)


def _wait(job: subprocess.Popen[bytes], root: Path, stop_after: int | None, seconds: float) -> None:
    deadline = time.monotonic() + max(1.0, seconds)
    while job.poll() is None:
        if stop_after is not None and len(read_records(root)) >= stop_after:
            job.send_signal(signal.SIGTERM)
            stop_after = None
        if time.monotonic() > deadline:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
        time.sleep(0.2)


def read_records(root: Path) -> list[Record]:
    path = root / "output" / "data" / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]
