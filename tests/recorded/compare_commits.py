"""Train nine small jobs with an earlier commit and with this one: the weights must be equal.

`python -m tests.recorded.compare_commits BEFORE`, where BEFORE is a checkout of the earlier commit
(`git worktree add BEFORE COMMIT`). Both train on this machine with this interpreter, as processors
differ in the last bit of a float. Prints a line per job, with the CPU time of both. The exit code
is 1 if any weights differ.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from tests.photographs import write_photo_folder

HERE = Path(__file__).resolve().parents[2]
SHARED = (
    "data.image_size=64",
    "data.resize=72",
    "pipeline.num_workers=1",
    "model.name=project.models.small_net",
    "trainer.device=cpu",
    "trainer.batch_size=8",
    "trainer.epochs=4",
    "trainer.report=false",
)
"""24 steps on 48 photographs."""
FOLDER = ("data=folder", "data.root=photos")
TABLE = ("data=manifest", "data.root=labels.csv", "data.images=photos")
JOBS: dict[str, tuple[str, ...]] = {
    "classification": FOLDER,
    "multilabel": (*TABLE, "task=multilabel", "data.table.labels=[tall,dark]"),
    "regression": (*TABLE, "task=regression", "data.table.labels=[share]"),
    "averaged weights": (*FOLDER, "optim.ema_decay=0.9"),
    "mixing": (*FOLDER, "optim.mixup_alpha=0.2", "optim.cutmix_alpha=1.0"),
    "accumulation": (*FOLDER, "optim.accumulate=2"),
    "progressive sizes": (*FOLDER, "data.progressive=[[0,32],[2,64]]"),
    "balance": (*FOLDER, "data.balance=classes"),
    "resume after a kill": (*FOLDER, "trainer.checkpoint_every_steps=5"),
}


@dataclass
class Trained:
    """What one commit made of a job."""

    weights: dict[str, torch.Tensor]
    cpu_s: float


def write_data(folder: Path) -> None:
    """`photos`, and `labels.csv` with three made-up labels for each of them."""
    photos = write_photo_folder(folder / "photos")
    rng = np.random.default_rng(0)
    rows = ["path,split,tall,dark,share"]
    for file in sorted(photos.rglob("*.jpg")):
        path = file.relative_to(photos)
        tall, dark = rng.integers(0, 2, 2)
        rows.append(f"{path},{path.parts[0]},{tall},{dark},{rng.random():.3f}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")


def train(source: Path, folder: Path, name: str) -> Trained:
    """Train a job with the code in `source`; `folder` holds the data and gets the run."""
    run = folder / "runs" / "job"
    shutil.rmtree(run.parent, ignore_errors=True)
    started = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    if name == "resume after a kill":
        _kill_after_a_checkpoint(_start(source, folder, name), run)
    job = _start(source, folder, name)
    output, _ = job.communicate()
    if job.returncode:
        sys.exit(f"{source}: {name}: exit code {job.returncode}\n{output}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - started
    return Trained(load_file(run / "model" / "model.safetensors"), used)


def _start(source: Path, folder: Path, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "launch.local", "name=job", *SHARED, *JOBS[name]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _kill_after_a_checkpoint(job: subprocess.Popen[str], run: Path) -> None:
    while not list((run / "checkpoints").glob("step-*.pt")):
        if job.poll() is not None:
            sys.exit(f"the job ended before its first checkpoint\n{job.communicate()[0]}")
        time.sleep(0.01)
    os.kill(job.pid, signal.SIGKILL)
    job.communicate()


def main(before: Path) -> int:
    differ = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_data(folder)
        for name in JOBS:
            old, new = (train(source, folder, name) for source in (before, HERE))
            same = old.weights.keys() == new.weights.keys() and all(
                torch.equal(old.weights[key], new.weights[key]) for key in old.weights
            )
            differ += not same
            word = "equal" if same else "DIFFERENT"
            sys.stdout.write(
                f"{name:20} {len(new.weights):3} tensors {word}; CPU seconds "
                f"{old.cpu_s:.1f} before, {new.cpu_s:.1f} now\n"
            )
            sys.stdout.flush()
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
