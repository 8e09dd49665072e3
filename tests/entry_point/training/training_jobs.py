"""Runs real jobs as processes, started as on the host and in the container."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from entry_point.job.metrics_line import STEP_TIMES
from entry_point.job.program import ExitCode
from entry_point.job.ranks import STOP_PATIENCE_S
from tests import forkserver
from tests.entry_point.training import forked_ranks
from tests.forkserver import Program

TINY = (
    "data=folder",
    "data.image_size=32",
    "data.resize=32",
    "model.name=tests.own_models.tiny_net",
    "pipeline=pillow",
    "pipeline.num_workers=0",
    "trainer.device=cpu",
    "trainer.batch_size=16",
    "trainer.epochs=2",
    "trainer.log_every_steps=2",
    "trainer.deterministic=true",
    "trainer.report=false",
    "optim.warmup_epochs=0",
)
"""3 steps per epoch on the 48 photographs, of a few milliseconds each."""


def write_job(
    root: Path, data: Path, overrides: Sequence[str] = (), *, module: str = "entry_point"
) -> tuple[list[str], dict[str, str]]:
    """Fill `root` for a job on the folder `data`; returns its command and its environment."""
    (root / "input" / "config").mkdir(parents=True, exist_ok=True)
    channel = root / "input" / "data" / "training"
    channel.parent.mkdir(parents=True, exist_ok=True)
    if not channel.exists():
        channel.symlink_to(data)
    command = ["train"] if module == "entry_point" else []
    command = [sys.executable, "-m", module, *command, *TINY, *overrides]
    return command, {**os.environ, "ML_ROOT": str(root), "OMP_NUM_THREADS": "1"}


def start_job(
    root: Path, data: Path, overrides: Sequence[str] = (), *, module: str = "entry_point"
) -> Program:
    """Start the container's program (or the trainer alone) in `root` on the folder `data`."""
    (_, *arguments), environment = write_job(root, data, overrides, module=module)
    (log := root / "input" / "log").unlink(missing_ok=True)
    prepare = forked_ranks.prepare if module == "entry_point" else None
    return forkserver.start(arguments, log, environment=environment, prepare=prepare)


def run_job(
    root: Path,
    data: Path,
    overrides: Sequence[str] = (),
    *,
    module: str = "entry_point",
    code: int = 0,
) -> str:
    """Run a job to its end and check its exit code; returns its output."""
    process = start_job(root, data, overrides, module=module)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == code, output
    return output


def stop_job(process: Program, number: int = signal.SIGTERM) -> str:
    """Ask a job to stop, which it must do before its ranks are killed; returns its output."""
    process.send_signal(number)
    output, _ = process.communicate(timeout=STOP_PATIENCE_S - 10)
    assert process.returncode == ExitCode.STOPPED, output
    return output


def read_records(root: Path) -> list[dict[str, Any]]:
    """The records of the run's history."""
    lines = (root / "checkpoints" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def timeless(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records without measured times."""
    clock = {"images_per_s", "data_wait_pct", *STEP_TIMES}
    return [{k: v for k, v in record.items() if k not in clock} for record in records]
