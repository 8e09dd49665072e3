"""What the check on a GPU measures, and how: parts, each a list of cases.

A case is a process with a deadline. Cases that are timed run alone.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
from omegaconf import OmegaConf

from benchmarks import measure
from benchmarks.gpu.offline_kit import source_state
from benchmarks.pipelines.process_tree import cpu_seconds
from entry_point.config.compose import CONFIGS
from entry_point.config.data_config import usable_cores
from entry_point.supervisor.cuda_driver import describe_driver, has_gpus

MINUTES = 9.5
"""For one part: what does not fit into them is skipped."""
PATIENCE = 3.0
"""A case that takes so many times its estimate hangs."""
ROUNDS = 3
"""Contenders that are judged by 2 % alternate this many times."""
PEER_CORES, CORES = 4, 8
RECIPES = ("resnet50_torchvision", "resnet50_fast16", "deit_small", "vit_small")
"""Beside them, `imagefolder_resnet50` trains as the goal does, and `resnet50_fast88` as fast16."""
GOAL, COMPILED = "ResNet-50, eager", "ResNet-50, compiled"
PEERS = {
    "DALI, GPU decoder": "dali-gpu",
    "DALI, CPU decoder": "dali-cpu",
    "torchvision's DataLoader": "torchvision",
}
TESTS, SERVING = "tests marked gpu", "serving"
ENDED, CUT_OFF, SKIPPED = "ended", "cut off", "skipped"
LOG_EVERY = 10
LOGGED_LINES = 200
"""Of each case, the last."""


@dataclass(frozen=True)
class Size:
    """The workload, and what the estimates assume."""

    images: int
    batch: int
    rate: float
    """Images per second of the slowest model."""
    peer_rate: float
    start: float
    """Seconds of a job besides its epochs: start, evaluation, checkpoint."""
    compiling: float
    """Seconds of `torch.compile` with the compiler's results of an earlier run at hand."""
    own: tuple[str, ...]
    """Overrides of every job."""
    model: tuple[str, ...] = ()
    """Overrides in place of a recipe's model."""


FULL = Size(12_800, 256, 4000, 1200, 10, 8, ("trainer.precision=bf16",))
DRY = Size(
    64, 8, 100, 50, 15, 10,
    ("trainer.precision=fp32", "trainer.device=cpu", "data.image_size=64", "data.resize=64"),
    ("model.name=tests.own_models.tiny_net_with_state", "~model.kwargs", "data.progressive=[]"),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One process: `python -m ARGUMENTS`."""

    name: str
    arguments: tuple[str, ...]
    estimate: float
    """Seconds, with the start and the compilation."""
    cores: int | None = None
    """It may run on the first of these cores only; None: on all."""
    round: int = 1
    timed: bool = True
    """Others run beside each other."""

    @property
    def folder(self) -> str:
        return re.sub("[^a-z0-9]+", "-", f"{self.name} {self.round}".lower())


@dataclass
class Outcome:
    """How a case ended, and what it measured."""

    case: str
    round: int
    ended: str
    estimate: float
    seconds: float = 0.0
    code: int | None = None
    """Exit code, if it ended by itself; below 0: by a signal that this program did not send."""
    why: str = ""
    """Why it was skipped, cut off or failed."""
    values: dict[str, Any] = field(default_factory=dict)
    clocks: list[dict[str, float]] = field(default_factory=list)
    """Of the GPU, before and after."""


# -- what is measured


@dataclass(frozen=True)
class Plan:
    """Where a run of the check works."""

    device: str
    work: Path

    @property
    def size(self) -> Size:
        return FULL if self.device == "cuda" else DRY

    def job(
        self, name: str, *overrides: str, epochs: int = 3, round: int = 1, cores: int = CORES,
        peer: str = "", timed: bool = True,
    ) -> Case:  # fmt: skip
        """A training of one GPU."""
        size, data = self.size, self.work / "data" / ("folder" if peer else "shards")
        program = ("benchmarks.gpu.peer_jobs", peer) if peer else ("entry_point.container", "train")
        seconds = size.start + epochs * size.images / (size.peer_rate if peer else size.rate)
        if "trainer.compile=default" in overrides:
            seconds += size.compiling if timed else 12 * size.compiling
        settings = (
            f"data={'folder' if peer else 'shards'}",
            f"data.root={data}",
            f"trainer.batch_size={size.batch}",
            f"trainer.epochs={epochs}",
            f"trainer.evaluate_every_epochs={epochs}",
            f"trainer.log_every_steps={min(LOG_EVERY, size.images // size.batch)}",
            "trainer.report=false",
            "trainer.nproc_per_host=1",
            f"pipeline.num_workers={cores}",
        )
        arguments = (*program, *settings, *size.own, *overrides)
        return Case(name, arguments, seconds, cores, round, timed)

    def goal(
        self, name: str, mode: str, *, cores: int = CORES, round: int = 1, timed: bool = True
    ) -> Case:
        """ResNet-50 at 224 pixels."""
        model = self.size.model or ("model=resnet50", "data.image_size=224")
        settings = (f"trainer.compile={mode}", "trainer.diagnose=headspace")
        epochs = 3 if timed else 1
        return self.job(
            name, *model, *settings, epochs=epochs, round=round, cores=cores, timed=timed
        )

    def recipe(self, recipe: str, mode: str, *, timed: bool = True) -> Case:
        """The recipe with batches of this size, at a tenth of the rate that belongs to them.

        A run at the full rate diverges from the same run with other rounding within 20 steps.
        """
        own = OmegaConf.load(CONFIGS / "experiment" / f"{recipe}.yaml")
        rate = 0.1 * own.optim.lr * self.size.batch / own.trainer.batch_size
        overrides = (
            f"experiment={recipe}", f"trainer.compile={mode}", f"optim.lr={rate:g}",
            "optim.warmup_epochs=1", *self.size.model,
        )  # fmt: skip
        what = {"null": "eager", "default": "compiled"}[mode] if timed else "compiles"
        return self.job(f"{recipe}, {what}", *overrides, epochs=4 if timed else 1, timed=timed)


def tests(plan: Plan) -> list[Case]:
    """The tests marked `gpu`, and beside them the compilation of each recipe."""
    files = sorted(p for p in Path("tests").rglob("test_*.py") if "mark.gpu" in p.read_text())
    command = ("pytest", "-m", "gpu", "-q", "--timeout=120", *map(str, files))
    return [
        Case(TESTS, command, 12 * plan.size.start, timed=False),
        plan.goal("ResNet-50, compiles", "default", timed=False),
        *(plan.recipe(recipe, "default", timed=False) for recipe in RECIPES),
    ]


def goal(plan: Plan) -> list[Case]:
    return [
        plan.goal(name, mode, cores=cores, round=number)
        for number in range(1, ROUNDS + 1)
        for name, mode, cores in ((GOAL, "null", PEER_CORES), (COMPILED, "default", CORES))
    ]


def recipes(plan: Plan) -> list[Case]:
    return [plan.recipe(recipe, mode) for recipe in RECIPES for mode in ("null", "default")]


def peers(plan: Plan) -> list[Case]:
    model = plan.size.model or ("model=resnet50",)
    return [
        plan.job(f"{name}, ResNet-50", *model, epochs=2, cores=PEER_CORES, peer=peer)
        for name, peer in PEERS.items()
    ]


def serving(plan: Plan) -> list[Case]:
    arguments = ("benchmarks.gpu.gpu_serving", str(plan.work / "serving"), plan.device)
    return [Case(SERVING, arguments, 5 * plan.size.start)]


PARTS: dict[str, Callable[[Plan], Sequence[Case]]] = {
    "tests": tests,
    "goal": goal,
    "recipes": recipes,
    "peers": peers,
    "serving": serving,
}
"""By worth."""


def data_set(plan: Plan) -> Case:
    """Makes the data, once."""
    size = plan.size
    arguments = ("benchmarks.gpu.gpu_data", str(plan.work / "data"), str(size.images))
    return Case("data set", arguments, 4 * size.start)


# -- running


def run_part(plan: Plan, part: str, cases: Sequence[Case], folder: Path) -> dict[str, Any]:
    """Runs a part's cases; writes FOLDER/PART.json after each: the machine may be taken away."""
    result: dict[str, Any] = {"part": part, **origin(plan.device), "outcomes": []}
    log, ends = folder / f"{part}.log", time.monotonic() + 60 * MINUTES
    folder.mkdir(parents=True, exist_ok=True)
    log.write_text("", encoding="utf-8")
    say(f"{part}: {len(cases)} cases, about {sum(c.estimate for c in cases) / 60:.1f} minutes")
    waiting = [data_set(plan), *cases]
    while waiting:
        count = 1 if waiting[0].timed else sum(not case.timed for case in waiting)
        together, waiting = waiting[:count], waiting[count:]
        outcomes = _run(plan, together, log, ends)
        result["outcomes"] += [
            asdict(outcome) for outcome in outcomes if outcome.case != "data set"
        ]
        (folder / f"{part}.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
        if outcomes[0].case == "data set" and outcomes[0].code != 0:
            say(f"no data set: {outcomes[0].why}")
            return result
    return result


def _run(plan: Plan, cases: Sequence[Case], log: Path, ends: float) -> list[Outcome]:
    """Runs these cases at once, each to its end, or for PATIENCE times its estimate."""
    before = clocks()
    running: list[tuple[Case, Job | None, str, str]] = []
    for case in cases:
        say(f"{case.name}, round {case.round}: about {case.estimate:.0f} s")
        if case.estimate > ends - time.monotonic():
            why = (
                f"takes about {case.estimate:.0f} s, too long for what is left of {MINUTES} minutes"
            )
            running.append((case, None, SKIPPED, why))
        else:
            running.append((case, Job(plan, case, ends), ENDED, ""))
    jobs = [job for _, job, _, _ in running if job is not None]
    while jobs := [job for job in jobs if job.watch()]:
        time.sleep(0.1)
    after = clocks()
    outcomes = []
    for case, job, ended, why in running:
        outcome = Outcome(case.name, case.round, ended, round(case.estimate, 1), why=why)
        if job is not None:
            job.describe(outcome, log)
            outcome.clocks = [before, after]
        how = f"exit code {outcome.code}" if outcome.ended == ENDED else outcome.ended
        say(f"  {case.name}: {how} after {outcome.seconds:.0f} s {outcome.why}")
        outcomes.append(outcome)
    return outcomes


class Job:
    """A case's process."""

    def __init__(self, plan: Plan, case: Case, ends: float) -> None:
        self._root = plan.work / "cases" / case.folder
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.mkdir(parents=True)
        self._began = time.monotonic()
        self._deadline = min(ends, self._began + PATIENCE * case.estimate)
        self._seconds, self._in_time = 0.0, True
        self._seen: list[tuple[int, float, float]] = []
        """Log records so far, the time, and the CPU seconds, whenever there are more records."""
        environment = {
            **os.environ,
            "ML_ROOT": str(self._root),
            "PYTHONUNBUFFERED": "1",
            "OMP_WAIT_POLICY": "PASSIVE",  # the supervisor sets it; some cases run without one
            # Timed jobs find what the part `tests` has compiled.
            "TORCHINDUCTOR_CACHE_DIR": str(plan.work / "inductor"),
            "PYTEST_ADDOPTS": f"-p no:cacheprovider --junit-xml={self._root / 'junit.xml'}",
        }
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, sorted(allowed)[: case.cores])  # the process inherits it
        try:
            with (self._root / "log").open("w", encoding="utf-8") as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", *case.arguments],
                    env=environment, stdout=output, stderr=output, start_new_session=True,
                )  # fmt: skip
        finally:
            os.sched_setaffinity(0, allowed)

    def watch(self) -> bool:
        """Returns whether the process still runs; kills it after its deadline."""
        if self._seconds:
            return False
        now = time.monotonic()
        if self._process.poll() is None and now <= self._deadline:
            count = len(self._training())
            if not self._seen or count > self._seen[-1][0]:
                self._seen.append((count, now, cpu_seconds(self._process.pid)))
            return True
        if self._process.poll() is None:
            self._in_time = False
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._seconds = now - self._began
        return False

    def describe(self, outcome: Outcome, log: Path) -> None:
        """Fills in how it ended and what it measured; adds its last lines to the log."""
        lines = (self._root / "log").read_text("utf-8", "replace").strip().splitlines()
        with log.open("a", encoding="utf-8") as whole:
            title = f"=== {outcome.case}, round {outcome.round}"
            whole.write("\n".join([title, *lines[-LOGGED_LINES:], ""]))
        outcome.seconds = round(self._seconds, 1)
        if not self._in_time:
            outcome.ended, outcome.why = CUT_OFF, f"killed after {outcome.seconds:.0f} s"
            return
        outcome.code = self._process.returncode
        if outcome.code:
            # A job's reason for its failure, or the last line of any process.
            failure = self._root / "output" / "failure"
            text = failure.read_text("utf-8").split("\n")[0] if failure.exists() else ""
            outcome.why = (text or (lines[-1].strip("= ") if lines else ""))[:300]
        outcome.values = self._values(lines)

    def _records(self) -> list[dict[str, float]]:
        path = self._root / "output" / "data" / "metrics.jsonl"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def _training(self) -> list[dict[str, float]]:
        return [record for record in self._records() if "images_per_s" in record]

    def _values(self, lines: Sequence[str]) -> dict[str, Any]:
        """A test run's counts, a job's figures, or what the last line has as JSON.

        A job's are lists, with an element for each log line or epoch after the first epoch.
        """
        if (junit := self._root / "junit.xml").exists():
            suite = ElementTree.parse(junit).getroot().find("testsuite")
            assert suite is not None
            counts = {k: int(suite.get(k, 0)) for k in ("tests", "failures", "errors", "skipped")}
            return {**counts, "passed": counts["tests"] - sum(list(counts.values())[1:])}
        if training := self._training():
            records = self._records()
            later = [record for record in records if record["epoch"] > 0]
            keys = ("images_per_s", "data_wait_pct", "step_ms_p50", "step_ms_p99")
            found: dict[str, Any] = {k: [r[k] for r in later if k in r] for k in keys}
            found["headspace"] = [r["headspace"] for r in records if "headspace" in r]
            found["losses"] = [record["loss"] for record in training if record["epoch"] == 0]
            first = len(found["losses"])
            settled = [seen for seen in self._seen if seen[0] > first]
            settled = settled if len(settled) > 1 else self._seen[-2:]
            (_, began, before), (_, ended, after) = settled[0], settled[-1]
            if ended > began:
                found["cores"] = [(after - before) / (ended - began)]
            return found
        return json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}


def clocks() -> dict[str, float]:
    """Returns the first GPU's clock (MHz), temperature (°C), and whether heat slows it."""
    if not shutil.which("nvidia-smi"):
        return {}
    wanted = "clocks.sm,temperature.gpu,clocks_event_reasons.sw_thermal_slowdown,"
    wanted += "clocks_event_reasons.hw_slowdown"
    query = ["nvidia-smi", "--id=0", f"--query-gpu={wanted}", "--format=csv,noheader,nounits"]
    text = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    match [cell.strip() for cell in text.split(",")]:
        case [megahertz, celsius, *reasons] if megahertz.isdigit() and celsius.isdigit():
            slowed = float("Active" in reasons)
            return {"MHz": float(megahertz), "C": float(celsius), "slowed": slowed}
    return {}


def origin(device: str) -> dict[str, Any]:
    """Returns which code ran where."""
    commit, dirty, files = source_state()
    gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    return {
        "commit": commit,
        "dirty": dirty,
        "files": files,
        "machine": ", ".join([*gpus, measure.processor(), f"{os.cpu_count()} CPUs"]),
        "device": device,
        "date": datetime.date.today().isoformat(),
        "facts": {
            "system": f"{platform.platform()}, {usable_cores()} usable cores",
            "versions": measure.versions(("torchvision", "timm", "nvidia-dali-cuda130")),
            "driver": describe_driver() if has_gpus() else "no NVIDIA device",
        },
    }


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def read_results(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Returns the parts that have run."""
    paths = {part: folder / f"{part}.json" for part in PARTS}
    return {part: json.loads(path.read_text()) for part, path in paths.items() if path.exists()}
