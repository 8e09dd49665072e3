"""Compare version 1.1.0 itself with this tree: samples, weights and metrics, requests.

`python -m tests.recorded.compare_commits COMMIT [WORD]` prints a line per comparison, or those
whose names have WORD: `samples: packed`, `weights`, `request`. The exit code is 1 if anything
differs that `decided.py` does not list, or if what it lists does not differ. Both sides run on this
machine with this interpreter, as processors differ in the last bit of a float. Nothing is compared
with a record, which somebody could renew.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from tests.recorded.decided import Report, today
from tests.recorded.frozen import COMMIT, HERE, extracted, run_in

SHARED = (
    "data.image_size=64",
    "data.resize=72",
    "pipeline.num_workers=1",
    "model.name=project.models.small_net",
    "trainer.device=cpu",
    "trainer.batch_size=6",
    "trainer.epochs=3",
    "trainer.report=false",
)
KILLED = "trainer.checkpoint_every_steps=1"
RANKS = "trainer.nproc_per_host=2"
JOBS: dict[str, tuple[str, ...]] = {
    "classification": ("folders",),
    "multilabel": ("json_lines_of_lists",),
    "regression": ("csv_of_numbers",),
    "segmentation": ("mask_folders", "model.name=lraspp_mobilenet_v3_large"),
    "self-supervised": (
        *("folders", "task.name=project.simclr.SimClr", "task.metrics=[knn_accuracy]"),
        *("data.views=2", "augment.name=simclr", "model.name=project.simclr.encoder"),
        "model.kwargs.backbone=resnet18",
    ),
    "own task": ("folders", "task.name=project.tasks.OrderedClasses"),
    "own source": ("own_source",),
    "tables": ("csv_of_classes", "optim.name=adamw", "optim.lr=1e-3"),
    "tar files": ("tars_of_classes", "pipeline=workers"),
    "parquet files": ("parquet_of_hugging_face",),
    "packed": ("packed", "pipeline=pillow"),
    "packed stream": ("packed_stream",),
    "class weights and focal loss": ("folders", "task.class_weights=auto", "task.loss=focal"),
    "averaged weights": ("folders", "optim.ema_decay=0.9"),
    "mixing": ("folders", "optim.mixup_alpha=0.2", "optim.cutmix_alpha=1.0"),
    "accumulation": ("folders", "optim.accumulate=2"),
    "progressive sizes": ("folders", "data.progressive=[[0,32],[2,64]]"),
    "balance": ("folders", "data.balance=classes"),
    "resume after a kill": ("folders", KILLED),
    "two ranks": ("folders", RANKS),
    "two ranks, a stream, resume after a kill": ("packed_stream", RANKS, KILLED),
    "two ranks, masks": ("mask_table", RANKS, "model.name=lraspp_mobilenet_v3_large"),
}
"""By name: a layout and overrides. 12 steps or more."""
Result = dict[str, Any]
"""What a side has of a comparison, by name."""


def observed(tree: Path, file: Path, recorded: Path, word: str) -> dict[str, Result]:
    run_in(tree, "tests.recorded.observed", str(file), str(recorded), word)
    results: dict[str, Result] = json.loads(file.read_text())
    return results


def trained(overrides: list[str], tree: Path, folder: Path) -> Result:
    """Weights and metrics of a job that the code in `tree` trains in `folder`."""
    run = folder / "runs" / "job"
    shutil.rmtree(run.parent, ignore_errors=True)
    if KILLED in overrides:
        _kill_after_a_checkpoint(_start(tree, folder, overrides), run)
    job = _start(tree, folder, overrides)
    output, _ = job.communicate()
    if job.returncode:
        last = "\n".join(output.splitlines()[-9:])
        return {"error": f"exit code {job.returncode}\n{last}"}
    weights = load_file(run / "model" / "model.safetensors")
    lines = (run / "output" / "data" / "metrics.jsonl").read_text().splitlines()
    tensors = {name: (value.dtype.str, value.tobytes()) for name, value in weights.items()}
    return {**tensors, "metrics.jsonl": [_without_times(json.loads(line)) for line in lines]}


def _start(tree: Path, folder: Path, overrides: list[str]) -> subprocess.Popen[str]:
    # What `make local-train` runs.
    return subprocess.Popen(
        [sys.executable, "-m", "launch.local", "name=job", *overrides],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _kill_after_a_checkpoint(job: subprocess.Popen[str], run: Path) -> None:
    while not list((run / "checkpoints").glob("step-*.pt")) and job.poll() is None:
        time.sleep(0.01)
    if job.poll() is None:
        os.kill(job.pid, signal.SIGKILL)
    job.communicate()


def _without_times(record: Result) -> Result:
    names = ("epoch", "step", "lr", "grad_norm")
    return {k: v for k, v in record.items() if k in names or "loss" in k or k.startswith("val_")}


def both(before: Callable[[], Any], now: Callable[[], Any]) -> tuple[Any, Any]:
    """What two functions return that run at the same time."""
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.submit(before), threads.submit(now)
        return first.result(), second.result()


def written(layout: str, tree: Path, side: Path) -> list[str]:
    """Overrides that name a layout. Each side writes its own: 1.1.0 packs in another format."""
    data, file = side / "data" / layout, side / "data" / f"{layout}.json"
    if not file.exists():
        run_in(tree, "tests.recorded.written", layout, str(data), str(file))
    overrides: list[str] = json.loads(file.read_text())
    return overrides


def comparisons(word: str, commit: str, folder: Path) -> Iterator[tuple[str, Result, Result]]:
    """The name of a comparison, and what both sides have."""
    tree = extracted(folder / "tree", commit)
    recorded = tree / "tests" / "launch" / "recorded_requests.json"
    before, now = folder / "before", folder / "now"
    for name, (layout, *overrides) in JOBS.items():
        if word in f"weights: {name}":
            theirs = [*written(layout, tree, before), *SHARED, *overrides]
            ours = today([*written(layout, HERE, now), *SHARED, *overrides])
            results = both(
                partial(trained, theirs, tree, before), partial(trained, ours, HERE, now)
            )
            yield f"weights: {name}", *results
    if not word.startswith("weights"):
        first = partial(observed, tree, folder / "before.json", recorded, word)
        old, new = both(first, partial(observed, HERE, folder / "now.json", recorded, word))
        for name in {**old, **new}:
            yield name, old.get(name, {}), new.get(name, {})


def main(commit: str = COMMIT, word: str = "") -> int:
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        for name, before, now in comparisons(word, commit, Path(folder)):
            if "error" in before:
                sys.exit(f"{name}: {commit} itself fails: {before['error']}")
            differing = [key for key in {**before, **now} if before.get(key) != now.get(key)]
            report.add(name, now.get("error", ", ".join(differing[:5])))
    return report.end()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
