"""Whole jobs on a GPU: what ends them, what they resume, and several ranks."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from entry_point.job.gpus import usable_gpus
from entry_point.job.program import ExitCode
from tests.entry_point.training.training_jobs import TINY, read_records, run_job, start_job

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ON_GPU = ("trainer.device=cuda", "trainer.nproc_per_host=1", "trainer.deterministic=false")


def losses(root: Path) -> list[float]:
    return [record["loss"] for record in read_records(root) if "loss" in record]


def test_the_supervisor_counts_gpus_as_torch_does() -> None:
    assert usable_gpus() == torch.cuda.device_count()


def test_a_nan_loss_on_a_gpu_ends_the_job_and_is_named_with_its_step(
    tmp_path: Path, photo_folder: Path
) -> None:
    poisoned = [*ON_GPU, "model.name=tests.own_models.poisoned_net"]
    log = run_job(tmp_path, photo_folder, poisoned, code=ExitCode.FAILED)
    assert "loss=nan in step 2 of epoch 0" in log


def test_a_stopped_job_on_a_gpu_resumes_and_repeats_or_loses_no_step(
    tmp_path: Path, photo_folder: Path
) -> None:
    long = [*ON_GPU, "trainer.log_every_steps=1", "trainer.evaluate_every_epochs=300"]
    job = start_job(tmp_path, photo_folder, [*long, "trainer.epochs=300"])
    metrics = tmp_path / "checkpoints" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        assert job.poll() is None
        time.sleep(0.01)
    job.send_signal(signal.SIGTERM)
    output, _ = job.communicate(timeout=100)
    assert job.returncode == ExitCode.STOPPED, output
    done = read_records(tmp_path)[-1]["step"]
    epochs = math.ceil(done / 3) + 1
    log = run_job(tmp_path, photo_folder, [*long, f"trainer.epochs={epochs}"])
    assert "resuming from" in log
    steps = [record["step"] for record in read_records(tmp_path) if "loss" in record]
    assert steps == list(range(1, 3 * epochs + 1))


def test_two_ranks_on_one_gpu_train_as_one_does(tmp_path: Path, photo_folder: Path) -> None:
    """By gloo: NCCL refuses two ranks on one GPU."""
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    rank = "tests.entry_point.training.gpu.shared_gpu_rank"
    overrides = [*TINY, *ON_GPU, f"data.root={photo_folder}", "trainer.nproc_per_host=2"]
    environment = {**os.environ, "ML_ROOT": str(tmp_path / "two"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *torchrun, rank, *overrides]
    subprocess.run(command, env=environment, check=True, timeout=100)
    run_job(tmp_path / "one", photo_folder, ON_GPU)
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert one and two == pytest.approx(one, rel=0.05)
