"""How long a job takes from ``docker run`` to its first step, on what, and to stop when asked.

``python -m benchmarks.job_start FOLDER [repeats]`` runs the image of this tree, or the one that
``IMAGE`` names, on a data set in the folder layout and prints the median of each part. The parts
are the job's own, from its ``startup:`` line; ``container`` is what comes before them, and
``stop`` the time from SIGTERM to the end, checkpoint included.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from launch.contract import write_contract
from launch.engine import ContainerError, Engine, find_engine
from launch.image import local_reference

STARTUP = re.compile(r"\bstartup: (.+)")
PART = re.compile(r"(\w+)=([0-9.]+)s")
OVERRIDES = ("data=folder", "data.image_size=64", "trainer.epochs=1000")
STOPPED = 75


def parts(line: str) -> dict[str, float]:
    """Seconds by part, from what follows ``startup:`` in the job's log."""
    return {name: float(seconds) for name, seconds in PART.findall(line)}


def measure(engine: Engine, image: str, photos: Path, folder: Path) -> dict[str, float]:
    """Start one job, stop it after its first step; returns seconds by part."""
    write_contract(folder, OVERRIDES, hosts=["algo-1"], current="algo-1", channels=["training"])
    name = f"job-start-{os.getpid()}"
    mounts = [f"--volume={folder}:/opt/ml", f"--volume={photos}:/opt/ml/input/data/training:ro"]
    address = ["--network=none", "--hostname=algo-1", "--add-host=algo-1:127.0.0.1"]
    started = time.perf_counter()
    process = subprocess.Popen(
        [*engine.command, "run", "--rm", f"--name={name}", *address, *mounts, image, "train"],
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


def main(arguments: Sequence[str]) -> None:
    """Print a table of medians; exits with one line for an error."""
    if not arguments or not Path(arguments[0]).is_dir():
        sys.exit("job_start: name a folder with train/CLASS/*.jpg and val/CLASS/*.jpg")
    photos, repeats = Path(arguments[0]).resolve(), int((*arguments, "5")[1])
    try:
        engine, image = find_engine(), local_reference()
        runs = []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                runs.append(measure(engine, image, photos, Path(folder)))
    except ContainerError as error:
        sys.exit(f"job_start: {error}")
    sys.stdout.write(f"{image}, median of {repeats} starts\n\n| part | seconds |\n|---|---|\n")
    for name in runs[0]:
        sys.stdout.write(f"| {name} | {statistics.median(run[name] for run in runs):.2f} |\n")


if __name__ == "__main__":
    main(sys.argv[1:])
