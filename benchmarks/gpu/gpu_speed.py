"""Parts 3 and 4: training speed by pipeline, eager and compiled, against input from memory."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.gpu.gpu_data import data_settings
from benchmarks.gpu.gpu_jobs import JOB, Job, run_job
from benchmarks.gpu.gpu_part import Part
from benchmarks.gpu.gpu_plan import WORKERS, Check
from benchmarks.pipelines.bench import installed
from benchmarks.pipelines.run_case import DALI_READER
from entry_point.config.data_config import usable_cores

DALI = "nvidia.dali"
LEAST_SECONDS = 60.0
"""A job is not begun with less time left on a GPU."""
HEADSPACE = "step / step from memory"


@dataclass(frozen=True)
class Case:
    """One measured job."""

    engine: str
    batch: int
    workers: int = WORKERS
    ema: bool = False

    def __str__(self) -> str:
        name = f"{self.engine}, {self.workers} workers, batch {self.batch}"
        return f"{name}, EMA" if self.ema else name


def cases(check: Check) -> list[Case]:
    """The goal's case first, then those that explain it."""
    usual, large = check.size.batches
    found = [Case("threads", usual), Case("threads", usual, ema=True)]
    found += [Case(engine, usual) for engine in ("subprocess", "dali", DALI_READER)]
    found.append(Case("threads", large))
    if usable_cores() > WORKERS:
        found.append(Case("threads", usual, usable_cores()))
    found += [Case(engine, large) for engine in ("subprocess", "dali")]
    peers = () if installed(DALI) else ("dali", DALI_READER)
    return [case for case in found if case.engine not in peers]


def speed_part(check: Check, compiled: bool) -> Part:
    part = Part()
    if not installed(DALI):
        part.add("DALI as a peer", None, "not installed")
    for case in cases(check):
        if check.on_gpu and check.seconds_left < LEAST_SECONDS:
            part.add(f"{case} is measured", None, "no time left")
            continue
        job = _train(check, case, compiled)
        if job.code:
            part.add(f"{case} is measured", False, f"exit code {job.code}: {job.log[-300:]}")
            continue
        part.rows.append(row(case, compiled, job))
    if part.rows and compiled:
        _judge(check, part)
    return part


def _train(check: Check, case: Case, compiled: bool) -> Job:
    size = check.size
    steps = size.images // case.batch
    engine: str = case.engine
    module: Sequence[str] = JOB
    if engine == DALI_READER:
        engine, module = "threads", ("benchmarks.gpu.dali_reader_job",)
    overrides = [
        *data_settings(check, packed=module is JOB),
        f"model.name={size.model}",
        f"pipeline={engine}",
        f"pipeline.num_workers={case.workers}",
        f"trainer.batch_size={case.batch}",
        f"trainer.compile={str(compiled).lower()}",
        "trainer.epochs=3",
        "trainer.evaluate_every_epochs=3",
        f"trainer.log_every_steps={steps}",
        "trainer.headspace=true",
        *(["optim.ema_decay=0.999"] if case.ema else []),
    ]
    name = f"{'compiled' if compiled else 'eager'}-{case}"
    return run_job(check, re.sub("[^a-z0-9]+", "-", name.lower()), overrides, module=module)


def row(case: Case, compiled: bool, job: Job) -> dict[str, float | str]:
    """What the last epoch's records and the headspace of the first say."""
    return {
        "model": "compiled" if compiled else "eager",
        "case": str(case),
        "images/s": f"{job.last('images_per_s'):.0f}",
        "data wait, %": job.last("data_wait_pct"),
        "p50, ms": job.last("step_ms_p50"),
        "p99, ms": job.last("step_ms_p99"),
        HEADSPACE: job.last("headspace"),
        "GPU, GB": round(job.gpu_mb / 1e3, 2),
        "host, GB": round(job.host_mb / 1e3, 2),
    }


def _judge(check: Check, part: Part) -> None:
    """The goal's promises, for the goal's case; a CPU cannot tell."""
    best, averaged = part.rows[0], [row for row in part.rows if "EMA" in str(row["case"])]
    p50 = float(best["p50, ms"])
    found = [
        ("Training waits for data for less than 1 %", float(best["data wait, %"]), 1.0),
        ("A step takes at most 2 % more than from memory", float(best[HEADSPACE]), 1.02),
        ("The 99th percentile of steps is within 1.2 of p50", float(best["p99, ms"]) / p50, 1.2),
    ]
    if averaged:
        cost = float(averaged[0]["p50, ms"]) / p50
        found.append(("Averaging the weights makes steps at most 2 % slower", cost, 1.02))
    for promise, value, most in found:
        holds = value <= most if check.on_gpu and not math.isnan(value) else None
        part.add(promise, holds, f"{value:.3g} ({best['case']}, compiled)")
