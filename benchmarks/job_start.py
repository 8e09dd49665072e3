"""How long a job takes from ``docker run`` to its first step, on what, and to stop when asked.

``python -m benchmarks.job_start [FOLDER [REPEATS]]`` builds the image of this tree without and
with ``PREBUILD=1``, on ``BASE_IMAGE``, runs both in turn on a data set in the folder layout (the
demo's, if it is there) and writes docs/results/job-start.md. The parts are the job's own, from its
``startup:`` line; ``container`` is what comes before them, and ``stop`` the time from SIGTERM to
the end, checkpoint included.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import measure
from launch import image
from launch.contract import write_contract
from launch.engine import ContainerError, Engine, find_engine

STARTUP = re.compile(r"\bstartup: (.+)")
PART = re.compile(r"(\w+)=([0-9.]+)s")
OVERRIDES = ("data=folder", "data.image_size=64", "trainer.epochs=1000")
STOPPED = 75


def parts(line: str) -> dict[str, float]:
    """Seconds by part, from what follows ``startup:`` in the job's log."""
    return {name: float(seconds) for name, seconds in PART.findall(line)}


def start_and_stop(engine: Engine, reference: str, photos: Path, folder: Path) -> dict[str, float]:
    """Start one job, stop it after its first step; returns seconds by part."""
    write_contract(folder, OVERRIDES, hosts=["algo-1"], current="algo-1", channels=["training"])
    name = f"job-start-{os.getpid()}"
    mounts = [f"--volume={folder}:/opt/ml", f"--volume={photos}:/opt/ml/input/data/training:ro"]
    address = ["--network=none", "--hostname=algo-1", "--add-host=algo-1:127.0.0.1"]
    started = time.perf_counter()
    process = subprocess.Popen(
        [*engine.command, "run", "--rm", f"--name={name}", *address, *mounts, reference, "train"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    found: dict[str, float] = {}
    said = []
    for line in process.stdout:
        said.append(line)
        if not found and (match := STARTUP.search(line)):
            total = time.perf_counter() - started
            found = parts(match[1])
            found = {"container": total - found["total"], **found, "total": total}
            engine.call("stop", "-t", "120", name)
            found["stop"] = time.perf_counter() - started - total
    if process.wait() != STOPPED or not found:
        raise ContainerError(f"the job did not start and stop:\n{''.join(said[-20:])}")
    return found


def build_images() -> dict[str, str]:
    """The image of this tree both ways: what the column is called, the image's name."""
    images = {"compiled at job start": "job-start:plain", "PREBUILD=1": "job-start:prebuilt"}
    for prebuild, name in enumerate(images.values()):
        os.environ.update(PREBUILD=str(prebuild), IMAGE=name)
        image.build()
    return images


def report(names: Sequence[str], repeats: int, runs: Mapping[str, list[dict[str, float]]]) -> str:
    rows = [
        (part, *(statistics.median(run[part] for run in runs[name]) for name in names))
        for part in runs[names[0]][0]
    ]
    method = (
        "Seconds from `docker run` to the first training step, and from SIGTERM to the end, on the "
        f"CPU; median of {repeats} alternating starts."
    )
    table = measure.table(("part", *names), rows)
    return measure.write("job-start", "The start of a job in the container", method, [table])


def main(arguments: Sequence[str]) -> None:
    """Exits with one line for an error."""
    photos = Path((*arguments, "data/demo")[0]).resolve()
    if not (photos / "train").is_dir():
        sys.exit(f"job_start: {photos} is no folder with train/CLASS/*.jpg and val/CLASS/*.jpg")
    repeats = int((*arguments[1:], "5")[0])
    try:
        engine, images = find_engine(), build_images()
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in images}
        for _ in range(repeats):
            for name, reference in images.items():
                with tempfile.TemporaryDirectory() as folder:
                    runs[name].append(start_and_stop(engine, reference, photos, Path(folder)))
    except ContainerError as error:
        sys.exit(f"job_start: {error}")
    sys.stdout.write(report(list(images), repeats, runs))


if __name__ == "__main__":
    main(sys.argv[1:])
