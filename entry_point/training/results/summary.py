"""Describes a run: its closing lines, and the facts in its report."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from entry_point.config.commands import changes, described, make
from entry_point.config.data_config import PipelineConfig
from entry_point.config.train_config import TrainConfig
from entry_point.job import own_code
from entry_point.job.cores import usable_cores
from entry_point.job.devices import Devices
from entry_point.job.metrics_line import PERCENTILES
from entry_point.job.run_folder import CONTAINER_ROOT, LINK_LATEST, RunFolder
from entry_point.job.text import duration
from entry_point.training.evaluation import Evaluation
from entry_point.training.progress import Progress
from entry_point.training.results.log import format_milliseconds
from entry_point.training.results.times import percentiles
from entry_point.training.results.totals import Totals

CODE = Path(__file__).parents[3]


def closing_lines(
    totals: Totals,
    seconds: float,
    progress: Progress,
    evaluation: Evaluation,
    run: RunFolder,
    *,
    test_of: TrainConfig | None = None,
) -> list[str]:
    """Returns the closing lines: metrics, speed, paths, and a command to measure the split `test`.

    `seconds` have passed since the start of the job; `evaluation` is that of the exported weights;
    `test_of` is the run's configuration if its dataset has that split.
    """
    traces = sorted(run.profile.glob("*.pt.trace.json.gz"))
    files = {
        "model": run.model / "model.safetensors",
        "metrics": run.output_data / "metrics.jsonl",
        "report": run.output_data / "report.html",
        "plot": run.output_data / "summary.png",
        **({"trace": traces[-1]} if traces else {}),
    }
    metric = progress.metric
    value = metric.show(evaluation.metrics.get(metric.name))
    best = metric.show(progress.best_value)
    rows = {
        f"validation {metric.label}": f"{value} (best {best})",
        **speed_rows(totals),
        **{name: _relative(path) for name, path in files.items() if path.is_file()},
        **_tensorboard_row(run),
        **_disk_row(run),
        **({"test images": _test_command(test_of, run)} if test_of else {}),
    }
    width = max(map(len, rows))
    if not len(totals.steps):
        done = f"Already finished; rewrote the results in {duration(seconds)}"
    elif totals.resumed_at:
        done = f"Finished in {duration(seconds)} after the resume at step {totals.resumed_at:,}"
    else:
        done = f"Finished in {duration(seconds)}"
    return [done, *(f"  {name:<{width}}  {value}" for name, value in rows.items())]


def speed_rows(totals: Totals) -> dict[str, str]:
    """Returns throughput, step times and the verdict; empty if nothing was measured."""
    if not totals.training_seconds:
        return {}
    times = {
        f"  {part.replace('_', ' ')}": " / ".join(map(format_milliseconds, values))
        for part, values in percentiles(totals.steps).items()
    }
    earlier = ", earlier starts included" if totals.resumed_at else ""
    head = {"step time (ms)": " / ".join(f"p{share}" for share in PERCENTILES)} if times else {}
    return {
        "training throughput": f"{totals.images_per_s:.0f} images/s",
        "training time": duration(totals.training_seconds) + earlier,
        "waiting for data": f"{totals.data_wait_pct:.1f} % of training time, first steps included",
        **head,
        **times,
        "verdict": totals.verdict,
    }


def _tensorboard_row(run: RunFolder) -> dict[str, str]:
    """Returns the command that shows the event files, if there are any."""
    if not any(run.tensorboard.glob("*")):
        return {}
    # A virtual environment's programs may not be on PATH.
    program = Path(sys.executable).with_name("tensorboard")
    command = _relative(program) if program.is_file() else program.name
    return {"TensorBoard": shlex.join([command, "--logdir", _relative(run.tensorboard)])}


def _disk_row(run: RunFolder) -> dict[str, str]:
    """Returns the sizes of a run's folders."""
    sizes = {}
    for folder in (run.checkpoints, run.model, run.output):
        files = {}
        for parent, _, names in os.walk(folder):
            for name in names:
                with suppress(FileNotFoundError):  # a logger's thread may remove files meanwhile
                    found = Path(parent, name).lstat()
                    files[found.st_ino] = found.st_size  # best.pt may be a link to step-*.pt
        sizes[folder.name] = sum(files.values()) / 1e6
    parts = ", ".join(f"{name} {size:,.1f} MB" for name, size in sizes.items())
    return {"disk": f"{sum(sizes.values()):,.1f} MB: {parts}"}


def _test_command(config: TrainConfig, run: RunFolder) -> str:
    """Returns the command that measures this run's model on the split `test`."""
    settings: dict[str, Any] = {"split": "test"}
    # The path of a container's run differs outside. A finished run becomes `latest`, which the
    # command takes by default.
    if run.root != CONTAINER_ROOT and os.environ.get(LINK_LATEST) != str(run.root):
        settings["model_dir"] = _relative(run.model)
    if config.data.root is None:
        settings |= described(config.data)
    elif "." in config.data.format:  # your own source, which runs only if it is named
        settings["data.format"] = config.data.format
    pipeline = changes(asdict(config.pipeline), asdict(PipelineConfig()), "pipeline.")
    return make("evaluate", {**settings, **dict(pipeline)})


def _relative(path: Path) -> str:
    """Returns the path relative to the working directory, if it is below that."""
    folder = Path.cwd()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def run_name(run: RunFolder) -> str:
    """Returns the platform's name of the job, else the name of the run folder."""
    return os.environ.get("TRAINING_JOB_NAME") or run.root.resolve().name


def run_facts(run: RunFolder, devices: Devices) -> dict[str, str]:
    """Returns facts that distinguish this run from others; unknown ones are left out."""
    # By checkpoints rather than the clock: a finished run may be started again much later.
    written = [path.stat().st_mtime for path in run.checkpoints.glob("step-*.pt")]
    ended = datetime.fromtimestamp(max(written), UTC) if written else None
    facts = {
        "run": run_name(run),
        "ended": ended.strftime("%Y-%m-%d %H:%M UTC") if ended else "",
        "code revision": revision(),
        "own code": os.environ.get(own_code.HASH, ""),
        "devices": devices.describe(),
        "processor": processor(),
    }
    return {name: fact for name, fact in facts.items() if fact}


def code_version() -> str:
    """Returns the commit of the code, and the hash of code that was sent with the job; empty if
    unknown."""
    sent = os.environ.get(own_code.HASH)
    return ", ".join(filter(None, [revision(), sent and f"your own code {sent}"]))


@cache
def revision() -> str:
    """Returns the commit of the code, with `-dirty` if files differ; empty if unknown.

    Cached when the job begins, as the working tree may change until it ends.
    """
    if named := os.environ.get("IMAGE_REVISION"):
        return named
    # In a copy of this code within another repository, git would return that one's commit.
    if not (CODE / ".git").exists():
        return ""
    command = ["git", "-C", str(CODE), "describe", "--always", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run([*command, "--dirty"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def processor() -> str:
    """Returns the number of CPUs that this process may use, and their model."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{usable_cores()} x {models[0] if models else platform.machine()}"
