"""The code of version 1.1.0, with which the checks of this folder compare."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

COMMIT = "cf188b6c"
HERE = Path(__file__).resolve().parents[2]


def extracted(tree: Path, commit: str = COMMIT) -> Path:
    """The files of the commit in the new folder `tree`; `tests/recorded` is that of this tree.

    So both sides run the same comparisons. Only `driver.py`, what these ask of the code, is the
    commit's own.
    """
    tree.mkdir()
    archive = subprocess.run(
        ["git", "archive", commit], cwd=HERE, stdout=subprocess.PIPE, check=True
    ).stdout
    subprocess.run(["tar", "-x"], cwd=tree, input=archive, check=True)
    ours, theirs = HERE / "tests" / "recorded", tree / "tests" / "recorded"
    driver = (theirs / "driver.py").read_text()
    for file in ours.glob("*.py"):
        shutil.copy(file, theirs)
    (theirs / "driver.py").write_text(driver)
    return tree


def run_in(tree: Path, module: str, *arguments: str) -> None:
    """Run `python -m MODULE ARGUMENTS` with the code in `tree`; an error ends this program."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{tree}: {module}: exit code {done.returncode}")
