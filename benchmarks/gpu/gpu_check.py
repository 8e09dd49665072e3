"""Measures on a GPU whether training and serving keep their promises: docs/results/gpu-NAME.md.

`python -m benchmarks.gpu.gpu_check [PART ...] [device=cpu] [out=FOLDER]`. Each part leaves
PART.json and its logs in FOLDER; `page` judges them and writes the page, on any machine. Without a
part, all but `options` run in turn. `device=cpu` is a dry run of little size, whose page goes into
FOLDER.

A part is a list of cases. A case is a process with a deadline; cases that are timed run alone. Some
are this program:

- `job memory OVERRIDES` is the training program, whose last epoch trains on batches kept in memory.
  That epoch says how fast training is if its input is free. The idea is SPDL's headspace analysis.
  Only loading is free: batches still cross to the device.
- `job dali-gpu|dali-cpu|torchcodec|torchvision OVERRIDES` is fed by that loader, which reads the
  plain files of `data.root`. Validation has this template's loader.
- `job serving cuda|cpu` prints the server's speed as JSON, and what many clients get done of what
  one does. That its answers are those of the CPU is in the tests marked `gpu`.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, groupby, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch
from omegaconf import OmegaConf

from benchmarks import measure
from benchmarks.gpu import gpu_page
from benchmarks.gpu.gpu_page import CORES, PEER_CORES, PEERS, RECIPES, ROUNDS, Outcome, Result
from benchmarks.pipelines.process_tree import cpu_seconds
from entry_point import train
from entry_point.config.compose import CONFIGS
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.batch import Batch
from entry_point.data.packing.pack import pack
from entry_point.job.program import UserError, run_program
from entry_point.job.run_folder import RunFolder
from entry_point.training import trainer
from entry_point.training.input import TrainingInput, loader_spec

MINUTES = 9.5
"""For one part: what does not fit into them is skipped."""
PATIENCE = 3.0
"""A case that takes this many times its estimate hangs."""
THIS = "benchmarks.gpu.gpu_check"
KEPT_BATCHES = 8


@dataclass(frozen=True)
class Plan:
    """The workload."""

    device: str
    work: Path = Path("runs/gpu-work")
    images: int = 12_800
    batch: int = 256
    own: tuple[str, ...] = ("trainer.precision=bf16",)
    """Overrides of every job."""
    model: tuple[str, ...] = ()
    """Overrides in place of each model."""


PLANS = {
    "cuda": Plan("cuda"),
    "cpu": Plan(
        "cpu", images=64, batch=8,
        own=("trainer.precision=fp32", "trainer.device=cpu", "data.image_size=64",
             "data.resize=64"),
        model=("model.name=tests.own_models.tiny_net_with_state", "~model.kwargs",
               "data.progressive=[]"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One process: `python ARGUMENTS`."""

    name: str
    arguments: tuple[str, ...]
    estimate: float
    """Seconds on an H200, with the start; of a timed compiled job after the part `tests`."""
    cores: int | None = None
    """It may run on the first of these cores only; None: on all."""
    round: int = 1
    timed: bool = True
    """Others run beside each other."""


# -- what is measured


def tests(plan: Plan) -> list[Case]:
    """Returns the tests marked `gpu`, and beside them the compilation of each recipe."""
    files = sorted(p for p in Path("tests").rglob("test_*.py") if "mark.gpu" in p.read_text())
    options = ("-m", "gpu", "-q", "--timeout=120", "-p", "no:cacheprovider")
    arguments = ("-m", "pytest", *options, *map(str, files))
    compile_all = [
        job(plan, model, "compiled", 110, name=f"{model}, compiles", epochs=1)
        for model in ("ResNet-50", *RECIPES)
    ]
    return [Case(gpu_page.TESTS, arguments, 120, timed=False), *compile_all]


def goal(plan: Plan) -> list[Case]:
    """Returns ResNet-50, eager and compiled in turn, and their input from memory."""
    return [
        job(plan, "ResNet-50", how, seconds, feed="memory", epochs=4, cores=cores, round=number)
        for number in range(1, ROUNDS + 1)
        for how, seconds, cores in (("eager", 19, PEER_CORES), ("compiled", 28, CORES))
    ]


def recipes(plan: Plan) -> list[Case]:
    """Returns each recipe, eager and compiled: an epoch for the losses, and ROUNDS to measure."""
    return [
        job(plan, recipe, how, seconds, epochs=1 + ROUNDS)
        for recipe in RECIPES
        for how, seconds in (("eager", 23), ("compiled", 31))
    ]


def peers(plan: Plan) -> list[Case]:
    """Returns the eager ResNet-50, fed by others' loaders."""
    return [
        job(plan, "ResNet-50", "eager", 32, name=name, feed=peer, epochs=2, cores=PEER_CORES)
        for name, peer in PEERS.items()
    ]


def options(plan: Plan) -> list[Case]:
    """Returns the compiled ResNet-50, and in turn each change that could make its steps faster, or
    is expected to cost little."""
    changes = {
        "none": (),
        "CUDA graphs": ("trainer.compile=reduce-overhead",),
        "4 times the batch": (f"trainer.batch_size={4 * plan.batch}",),
        "an optimizer that is not fused": ("optim.kwargs.fused=false",),
        "averaged weights": ("optim.ema_decay=0.999",),
        "an evaluation after each epoch": ("trainer.evaluate_every_epochs=1",),
    }
    return [
        job(plan, "ResNet-50", "compiled", 28, *change, name=gpu_page.OPTION + name, round=number)
        for number in range(1, ROUNDS + 1)
        for name, change in changes.items()
    ]


def serving(plan: Plan) -> list[Case]:
    return [Case(gpu_page.SERVING, ("-m", THIS, "job", "serving", plan.device), 50)]


PARTS: dict[str, Callable[[Plan], list[Case]]] = {
    part.__name__: part for part in (tests, goal, recipes, options, peers, serving)
}
"""Parts in the order of their value."""
WITHOUT_A_NAME = tuple(part for part in PARTS if part != "options")
"""Parts that run if none is named: all that fits into ten minutes."""


def job(
    plan: Plan, model: str, how: str, estimate: float, *changes: str, name: str = "",
    feed: str = "", epochs: int = 3, cores: int = CORES, round: int = 1,
) -> Case:  # fmt: skip
    """Returns a training on one GPU, of ResNet-50 at 224 pixels or of a recipe.

    `feed`: what replaces its input. A job of one epoch is not timed: figures leave out
    the first. Recipes have a tenth of the rate that belongs to batches of this size: a run at the
    full rate diverges from the same run with other rounding within 20 steps.
    """
    data = "folder" if feed in PEERS.values() else "shards"
    settings = (
        f"data={data}",
        f"data.root={(plan.work / 'data' / data).resolve()}",
        f"trainer.batch_size={plan.batch}",
        f"trainer.epochs={epochs}",
        f"trainer.evaluate_every_epochs={epochs}",
        f"trainer.log_every_steps={min(10, plan.images // plan.batch)}",
        "trainer.report=false",
        "trainer.nproc_per_host=1",
        f"pipeline.num_workers={cores}",
    )
    mode = {"eager": "trainer.compile=null", "compiled": "trainer.compile=default"}[how]
    if model == "ResNet-50":
        trained = (*(plan.model or ("model=resnet50", "data.image_size=224")), mode)
    else:
        own = OmegaConf.load(CONFIGS / "experiment" / f"{model}.yaml")
        rate = f"optim.lr={0.1 * own.optim.lr * plan.batch / own.trainer.batch_size:g}"
        trained = (f"experiment={model}", mode, rate, "optim.warmup_epochs=1", *plan.model)
    program = (THIS, "job", feed) if feed else ("entry_point", "train")
    arguments = ("-m", *program, *settings, *plan.own, *trained, *changes)
    return Case(name or f"{model}, {how}", arguments, estimate, cores, round, timed=epochs > 1)


def make_data(plan: Plan) -> None:
    """Writes 48 JPEGs of 533x800 pixels, repeated, as plain files and as shards, once."""
    # Not above: jobs import this file, but not the packages of the photographs.
    from benchmarks.sample_photographs import many_photographs, write_classes

    root, files = plan.work / "data", many_photographs()
    done = root / f"complete-{plan.images}"
    if done.exists():
        return
    shutil.rmtree(root, ignore_errors=True)
    for split, count in (("train", plan.images), ("val", min(plan.images, 512))):
        write_classes(root / "folder" / split, files, count, len(files), linked=True)
    pack(root / "folder", root / "shards", OptimizeConfig())
    done.touch()


# -- jobs with other input, and the server


class LastEpochFromMemory(TrainingInput):
    def __init__(self, *of_trainer: Any) -> None:
        super().__init__(*of_trainer)
        self._in_memory: list[Batch] = []

    def train_batches(self, epoch: int, step: int) -> Iterator[Batch]:
        if epoch == self._config.trainer.epochs - 1:
            steps = self.train_loader.steps_per_epoch - step
            yield from islice(cycle(self._in_memory), steps)
            return
        for batch in super().train_batches(epoch, step):
            if len(self._in_memory) < KEPT_BATCHES:
                # The loader reuses its memory.
                copy = replace(batch, images=batch.images.clone(), labels=batch.labels.clone())
                pinned = batch.images.is_pinned()
                self._in_memory.append(copy.pin_memory() if pinned else copy)
            yield batch


class FedByPeer(TrainingInput):
    peer: ClassVar[str]

    def __init__(self, *of_trainer: Any) -> None:
        super().__init__(*of_trainer)
        root = Path(str(self._config.data.root))
        spec = loader_spec(self._config, self._devices, "train")
        steps = self.train_loader.steps_per_epoch
        if self.peer.startswith("dali"):
            from benchmarks.pipelines.dali_reader import DaliReader

            self.train_loader = DaliReader(root, spec, steps, on_gpu=self.peer == "dali-gpu")
        else:
            from benchmarks.pipelines.peers import PeerLoader

            name = {"torchvision": "imagefolder"}.get(self.peer, self.peer)
            self.train_loader = PeerLoader(name, root, spec, steps)


def train_on(feed: str, *overrides: str) -> int:
    """Trains as `train` does; returns its exit code."""
    FedByPeer.peer = feed
    source = LastEpochFromMemory if feed == "memory" else FedByPeer
    trainer.TrainingInput = source  # type: ignore[attr-defined,assignment]
    return train.main(overrides)


def serve(device: str) -> int:
    """Measures and prints; returns the exit code. A dry run has a model that costs nothing."""
    from benchmarks.sample_photographs import photographs
    from benchmarks.serving.serve_contenders import Clients, server, write_free_model, write_model
    from benchmarks.serving.serve_speed import CLIENTS, P50, P99, RATE, figures, write_bodies

    on_gpu, speeds, rates = device == "cuda", [], []
    write, precision, seconds = write_free_model, "fp32", 0.1
    if on_gpu:
        write, precision, seconds = write_model, "bf16", 5.0
    with TemporaryDirectory() as folder, closing(Clients()) as clients:
        write_bodies(bodies := Path(folder, "bodies"), photographs())
        with server(write(Path(folder, "run")), precision, on_gpu=on_gpu) as ready:
            for count in CLIENTS:
                found = figures([clients.send(ready, bodies / "jpg", count, seconds)])
                rates.append(found[RATE])
                latency = f"p50 {found[P50]:.3g} ms, p99 {found[P99]:.3g} ms"
                speeds.append(f"{count} clients: {found[RATE]:.4g}/s, {latency}")
    model = "ResNet-18" if on_gpu else "a free model"
    speed = f"{model} in {precision}, {'; '.join(speeds)}"
    say(json.dumps({"times one client": rates[-1] / rates[0], "speed": speed}))
    return 0


# -- running


def run_part(plan: Plan, part: str, cases: Sequence[Case], out: Path) -> Result:
    """Runs a part's cases; writes OUT/PART.json after each: the machine may be taken away."""
    gpu = torch.cuda.get_device_name() if plan.device == "cuda" else ""
    versions = measure.versions(("torchvision", "torchcodec", "timm", "nvidia-dali-cuda130"))
    module = Path("/sys/module/nvidia/version")
    driver = f"driver {module.read_text().strip()}" if module.is_file() else "no NVIDIA driver"
    result = Result(
        part, gpu_page.sources_hash(), measure.hardware(), gpu,
        datetime.date.today().isoformat(), f"{versions}; {driver}",
    )  # fmt: skip
    ends = time.monotonic() + 60 * MINUTES
    out.mkdir(parents=True, exist_ok=True)
    say(f"{part}: {len(cases)} cases")
    for timed, group in groupby(cases, lambda case: case.timed):
        alike = list(group)
        with ThreadPoolExecutor(1 if timed else len(alike)) as pool:
            for outcome in pool.map(lambda case: run_case(plan, case, ends, out), alike):
                result.outcomes.append(outcome)
                result.write(out)
    return result


def run_case(plan: Plan, case: Case, ends: float, out: Path) -> Outcome:
    """Runs a case to its end, or for PATIENCE times its estimate. Its log goes into `out`."""
    outcome, left = Outcome(case.name, case.round, case.estimate), ends - time.monotonic()
    say(f"{case.name}, round {case.round}: about {case.estimate:.0f} s")
    if case.estimate <= left:
        _run(plan, case, min(left, PATIENCE * case.estimate), out, outcome)
    else:
        outcome.ended = gpu_page.SKIPPED
        outcome.why = f"takes about {case.estimate:.0f} s, of {MINUTES} minutes {left:.0f} s remain"
    say(f"  {case.name}: {outcome} after {outcome.seconds:.0f} s")
    return outcome


def _run(plan: Plan, case: Case, patience: float, out: Path, outcome: Outcome) -> None:
    """Runs the case's process, in a session of its own, and completes its outcome."""
    name = re.sub("[^a-z0-9]+", "-", f"{case.name} {case.round}".lower())
    folder, log = plan.work.resolve() / "cases" / name, out / f"{name}.log"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = {
        **os.environ,
        "ML_ROOT": str(folder),
        "PYTHONUNBUFFERED": "1",
        "OMP_WAIT_POLICY": "PASSIVE",  # as the command `train` sets it; some cases are ranks alone
        # Timed jobs find what the part `tests` has compiled.
        "TORCHINDUCTOR_CACHE_DIR": str(plan.work.resolve() / "inductor"),
    }
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: case.cores]))
    command = ["taskset", "--cpu-list", cores, sys.executable, *case.arguments]
    seen: list[tuple[int, float, float]] = []
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    began = time.monotonic()
    while process.poll() is None and time.monotonic() - began < patience:
        count = len(_records(folder, "images_per_s"))
        if not seen or count > seen[-1][0]:
            seen.append((count, time.monotonic(), cpu_seconds(process.pid)))
        time.sleep(0.1)
    outcome.seconds = round(time.monotonic() - began, 1)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        outcome.ended, outcome.why = gpu_page.CUT_OFF, "killed at its deadline"
        return
    last_line = log.read_text("utf-8", "replace").strip().rpartition("\n")[2].strip("= ")
    outcome.ended = f"exit code {process.returncode}"
    if process.returncode:
        reason = folder / "output" / "failure"  # a job's; other processes say it at last
        why = reason.read_text("utf-8") if reason.exists() else last_line
        outcome.why = why.split("\n")[0][:300]
    outcome.values = _values(folder, case, last_line, seen)


def _records(folder: Path, key: str) -> list[dict[str, float]]:
    """Returns the job's records that have the key, also while it runs."""
    path = RunFolder(folder).metrics
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("}")]
    return [record for record in records if key in record]


def _values(
    folder: Path, case: Case, last_line: str, seen: Sequence[tuple[int, float, float]]
) -> dict[str, Any]:
    """Returns a test run's counts, a job's figures, or what the last line has as JSON.

    `seen` has the number of log lines, the time, and the CPU seconds, for each new line of a job.
    """
    if case.name == gpu_page.TESTS:
        passed = re.search(r"(\d+) passed", last_line)
        return {"passed": int(passed[1]) if passed else 0, "said": last_line}
    training = _records(folder, "images_per_s")
    if not training:
        return json.loads(last_line) if last_line.startswith("{") else {}
    last, from_memory = max(one["epoch"] for one in training), "memory" in case.arguments
    found: dict[str, list[float]] = {}
    for key in ("images_per_s", "data_wait_pct", "step_ms_p50", "step_ms_p99"):
        epochs = defaultdict(list)
        for record in _records(folder, key):
            epochs[record["epoch"]].append(record[key])
        medians = {epoch: median(values) for epoch, values in epochs.items()}
        found[key] = [medians[n] for n in medians if 0 < n < last + (not from_memory)]
        if from_memory and key == "images_per_s" and found[key]:
            found["headspace"] = [medians[last] / median(found[key])]
    found["losses"] = [record["loss"] for record in training if record["epoch"] == 0]
    measured = [r for r in training if not from_memory or r["epoch"] < last]
    settled = [one for one in seen if len(found["losses"]) < one[0] <= len(measured)]
    if len(settled) > 1:
        (_, began, before), (_, ended, after) = settled[0], settled[-1]
        found["cores"] = [(after - before) / (ended - began)]
    return found


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(words: Sequence[str]) -> int:
    """Returns 0 if no promise is broken, 1 if one is, 2 if nothing could run."""
    settings = {"device": "cuda", "out": "runs/gpu-check"}
    settings |= dict(word.split("=", 1) for word in words if "=" in word)
    parts = [word for word in words if "=" not in word] or [*WITHOUT_A_NAME, "page"]
    plan, out = PLANS.get(settings["device"]), Path(settings["out"])
    if plan is None or {*parts} - {*PARTS, "page"} or len(settings) > 2:
        allowed = f"{', '.join([*PARTS, 'page'])}, device=cuda|cpu, out=FOLDER"
        raise UserError(f"{' '.join(words)}: must be some of {allowed}")
    to_run = [part for part in parts if part != "page"]
    if to_run:
        if plan.device == "cuda" and not torch.cuda.is_available():
            raise UserError("torch finds no CUDA device; device=cpu makes a dry run")
        make_data(plan)
    for part in to_run:
        run_part(plan, part, PARTS[part](plan), out)
    files = {part: out / f"{part}.json" for part in PARTS}
    results = {part: Result.read(file) for part, file in files.items() if file.exists()}
    if not results:
        raise UserError(f"out={out}: holds no part's result; run a part first")
    if "page" in parts:
        return gpu_page.write_page(results, out)
    return gpu_page.report({part: results[part] for part in parts})


if __name__ == "__main__":
    if sys.argv[1:2] == ["job"]:
        _, feed, *given = sys.argv[1:]
        sys.exit(serve(*given) if feed == "serving" else train_on(feed, *given))
    sys.exit(run_program("gpu-check", partial(main, sys.argv[1:])))
