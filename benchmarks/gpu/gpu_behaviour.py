"""Part 2: what must not happen in a job, and what must: waits, NaN, a stop, two ranks."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.gpu.gpu_data import data_settings
from benchmarks.gpu.gpu_jobs import Job, run_job
from benchmarks.gpu.gpu_part import Part
from benchmarks.gpu.gpu_plan import WORKERS, Check
from benchmarks.gpu.steady_steps import first_waits
from entry_point.config.train_config import load_train_config
from entry_point.contract import exit_codes
from entry_point.contract.run_folder import RunFolder
from entry_point.training.devices import join_devices

SMALL = "model.name=tests.own_models.tiny_net"


def behaviour_part(check: Check) -> Part:
    part = Part()
    common = [*data_settings(check), f"trainer.batch_size={check.size.batches[0]}"]
    _watch_waits(check, part, common)
    _nan_guard(check, part, common)
    _stop_and_resume(check, part, common)
    _two_ranks(check, part, common)
    return part


def _watch_waits(check: Check, part: Part, common: list[str]) -> None:
    """In a process of its own, since a wait ends it with an error."""
    size = check.size
    arguments = [
        *common,
        f"model.name={size.model}",
        f"pipeline.num_workers={WORKERS}",
        f"trainer.device={check.device}",
        "trainer.epochs=4",
        "trainer.evaluate_every_epochs=4",
        "optim.ema_decay=0.99",
        "optim.clip_norm=10",
        "optim.mixup_alpha=0.2",
    ]
    promise = "No step waits for the GPU but at log lines"
    command = [sys.executable, "-m", "benchmarks.gpu.gpu_behaviour", str(check.folder / "waits")]
    try:
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=check.seconds_left,
        )
    except subprocess.TimeoutExpired:
        part.add(promise, False, "no end in time")
        return
    (check.folder / "waits.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode:
        part.add(promise, False, done.stderr.strip().splitlines()[-1][:300])
        return
    steps, first, others = json.loads(done.stdout.strip().splitlines()[-1])
    part.add(promise, True if check.on_gpu else None, f"{steps} steps watched")
    part.add(
        "An epoch's first step waits for data no longer than its others",
        (first <= max(others, 1e-3)) if check.on_gpu else None,
        f"{1e3 * first:.2f} ms; the others' 99th percentile {1e3 * others:.2f} ms",
    )


def _nan_guard(check: Check, part: Part, common: list[str]) -> None:
    job = run_job(check, "nan", [*common, "model.name=tests.own_models.poisoned_net"])
    named = "loss=nan in step 2 of epoch 0" in job.log
    holds = job.code == exit_codes.FAILED and named
    part.add("A NaN loss ends the job and is named with its step", holds, f"exit code {job.code}")


def _stop_and_resume(check: Check, part: Part, common: list[str]) -> None:
    overrides = [*common, SMALL, "trainer.log_every_steps=1", "trainer.epochs=30"]
    overrides.append("trainer.evaluate_every_epochs=30")
    stopped = run_job(check, "stopped", overrides, stop_after=3)
    resumed = run_job(check, "stopped", overrides, fresh=False)
    seen = [record["step"] for record in resumed.records if "loss" in record]
    holds = (
        (stopped.code, resumed.code) == (exit_codes.STOPPED, exit_codes.FINISHED)
        and "resuming from" in resumed.log
        and seen == list(range(1, len(seen) + 1))
    )
    found = (
        f"exit codes {stopped.code}, {resumed.code}; {len(stopped.records)} of {len(seen)} steps"
    )
    part.add("A stopped job resumes and repeats or loses no step", holds, found)


def _two_ranks(check: Check, part: Part, common: list[str]) -> None:
    overrides = [*common, SMALL, "trainer.epochs=2", "trainer.nproc_per_host=2"]
    if check.on_gpu and torch.cuda.device_count() > 1:
        job, how = run_job(check, "ranks", overrides), "two GPUs, NCCL"
    else:
        torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")
        module = (*torchrun, "benchmarks.gpu.shared_gpu_rank")
        job, how = run_job(check, "ranks", overrides, module=module), "one device, gloo"
    alone = run_job(check, "alone", [*common, SMALL, "trainer.epochs=2"])
    losses = [_losses(some) for some in (job, alone)]
    close = all(math.isclose(a, b, rel_tol=0.05) for a, b in zip(*losses, strict=False))
    holds = job.code == alone.code == exit_codes.FINISHED and bool(losses[0]) and close
    found = f"{how}; exit code {job.code}; losses {losses[0][:3]} and {losses[1][:3]}"
    part.add("Two ranks train as one does", holds, found)


def _losses(job: Job) -> list[float]:
    return [record["loss"] for record in job.records if "loss" in record]


def main(folder: str, overrides: list[str]) -> None:
    """The process of _watch_waits: prints what first_waits returns."""
    config, _ = load_train_config([*overrides, "trainer.resume=false"])
    with join_devices(config.trainer) as devices:
        found = first_waits(config, RunFolder(Path(folder)), devices)
    sys.stdout.write(f"\n{json.dumps(found)}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
