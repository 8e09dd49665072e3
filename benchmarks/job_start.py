"""Time to start, stop and rebuild the image, and its size: docs/results/job-start.md.

``python -m benchmarks.job_start [FOLDER [REPEATS]]`` builds the image of this tree on
``BASE_IMAGE``, with ``PREBUILD=0`` and ``PREBUILD=1``, and alternates jobs on a dataset in the
folder layout (default: the demo). ``first line`` and ``first step`` are times from ``docker run``
to these lines of the log, ``stop`` the time from SIGTERM to the end, including the checkpoint.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks import measure
from entry_point.job.metrics_line import MARK
from entry_point.job.program import ExitCode, UserError
from launch import image
from launch.docker import WRITTEN, machine_options, mounts
from launch.engine import Engine, find_engine
from launch.revision import ROOT

CONTEXT = (
    *(".dockerignore", "Dockerfile", "launch/image_packages.py", "requirements"),
    *("configs", "custom_op", "entry_point", "project"),
)
OVERRIDES = "data=folder data.image_size=64 trainer.epochs=1000 trainer.log_every_steps=1".split()
TITLE = "The image: start, stop, rebuild, size"


def start_and_stop(engine: Engine, reference: str, photos: Path, work: Path) -> dict[str, float]:
    """Start a job, in a new folder of `work`, and stop it after its first step; returns seconds by
    part."""
    folder = Path(tempfile.mkdtemp(dir=work))
    for part in WRITTEN:
        (folder / part).mkdir(parents=True)
    name = f"job-start-{os.getpid()}"
    options = [*machine_options(), *mounts(folder, {"training": photos})]
    job = ["--network=none", reference, "train", *OVERRIDES]
    started = time.perf_counter()
    process = subprocess.Popen(
        [*engine.command, "run", "--rm", f"--name={name}", *options, *job],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    found: dict[str, float] = {}
    log = []
    for line in process.stdout:
        log.append(line)
        found.setdefault("first line", time.perf_counter() - started)
        if "first step" not in found and MARK in line:
            found["first step"] = time.perf_counter() - started
            engine.call("stop", "-t", "120", name)
            found["stop"] = time.perf_counter() - started - found["first step"]
    if process.wait() != ExitCode.STOPPED or "stop" not in found:
        raise UserError(f"the job did not start and stop:\n{''.join(log[-20:])}")
    return found


def build_images(engine: Engine, context: Path) -> dict[str, str]:
    """Build the image with PREBUILD=0 and 1; returns column title -> image name."""
    images = {"compiled at job start": "job-start:plain", "PREBUILD=1": "job-start:prebuilt"}
    for prebuild, name in enumerate(images.values()):
        os.environ["PREBUILD"] = str(prebuild)
        image.build_image(engine, name, context)
    return images


def copy_context(folder: Path) -> Path:
    """Copy the files that a build reads, so that they can be changed."""
    for name in CONTEXT:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return folder


def builds(engine: Engine, context: Path, images: Mapping[str, str]) -> Iterator[list[object]]:
    """Rows: column title, seconds to rebuild after a code change, megabytes above the base."""
    name_of_base = os.environ.get("BASE_IMAGE")
    base = size(engine, name_of_base) if name_of_base else 0
    for prebuild, (column, name) in enumerate(images.items()):
        os.environ["PREBUILD"] = str(prebuild)
        code = context / "project/models.py"
        code.write_text(f"{code.read_text()}# {time.time()}\n")  # no layer of an earlier run
        started = time.perf_counter()
        image.build_image(engine, name, context)
        seconds = time.perf_counter() - started
        own = (size(engine, name) - base) / 1e6 if base else "base not pulled"
        yield [column, seconds, own]


def size(engine: Engine, image: str) -> int:
    """Returns the bytes of an image; 0 if the engine does not have it."""
    listed = engine.call("image", "ls", "--quiet", image)
    return int(engine.call("image", "inspect", "--format={{.Size}}", image)) if listed else 0


def report(
    repeats: int, runs: Mapping[str, list[dict[str, float]]], built: Sequence[Sequence[object]]
) -> None:
    rows = [
        (part, *(statistics.median(run[part] for run in column) for column in runs.values()))
        for part in next(iter(runs.values()))[0]
    ]
    method = (
        "Seconds from `docker run` to the first training step, and from SIGTERM to the end, on a "
        f"CPU; median of {repeats} alternating starts. They do not contain what a job on SageMaker "
        "waits for before: its instance, the pull of the image, and downloads of channels, "
        "checkpoints and weights. Here, image and photos are on this machine's disk, mostly in its "
        "page cache; there is one host, no GPU, and no model that is compiled. Goals: 10 more "
        "without PREBUILD=1, stop 10, second build after a code change 5 s, with PREBUILD=0 230 MB "
        "above the base, 180 of them polars."
    )
    tables = [
        measure.table(("part", *runs), rows),
        measure.table(("image", "second build, s", "above the base, MB"), built),
    ]
    measure.write("job-start", "job-start", TITLE, method, tables)


def main(arguments: Sequence[str]) -> None:
    photos = Path((*arguments, "data/demo")[0]).resolve()
    if not (photos / "train").is_dir():
        sys.exit(f"job_start: {photos}: must hold train/CLASS/*.jpg and val/CLASS/*.jpg")
    repeats = int((*arguments[1:], "5")[0])
    try:
        engine = find_engine()
        with tempfile.TemporaryDirectory() as folder:
            context = copy_context(Path(folder))
            images = build_images(engine, context)
            jobs = {
                name: partial(start_and_stop, engine, reference, photos, Path(folder))
                for name, reference in images.items()
            }
            runs = measure.alternate(jobs, repeats)
            built = list(builds(engine, context, images))
    except UserError as error:
        sys.exit(f"job_start: {error}")
    report(repeats, runs, built)


if __name__ == "__main__":
    main(sys.argv[1:])
