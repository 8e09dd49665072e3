"""What the check measures: five parts, the most valuable first, each a list of cases.

A case is one process. Its estimate is printed before it starts.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu.gpu_data import folders
from benchmarks.pipelines.bench import installed

CORES = 4
"""The goal: ResNet-50 at full speed with this many cores per GPU."""
ROUNDS = 3
"""Contenders that are judged by 2 % alternate this many times."""
MODELS = ("ResNet-50", "ResNet-18")
"""The goal's model, and a faster one."""
OURS = "this template"
PEERS = {
    "DALI, GPU decoder": ("dali-gpu", "DALI"),
    "DALI, CPU decoder": ("dali-cpu", "DALI"),
    "torchvision's DataLoader": ("torchvision", "/dev/shm"),
}
"""Name -> the contender in `peer_jobs`, and what it needs."""
DATA = "data set"
"""The case that makes it; most others need it."""
HEADSPACE = "trainer.diagnose=headspace"


@dataclass(frozen=True)
class Size:
    """The workload, and what the estimates assume. Rates are images per second."""

    names: tuple[str, str]
    """What trains as MODELS."""
    precision: str
    image_size: int
    images: int
    peer_images: int
    """Fewer: peers are slower, and nothing of theirs is judged by 2 %."""
    batch: int
    rates: tuple[float, float]
    peer_rate: float
    """On CORES cores."""
    start: float
    """Seconds of a job besides its epochs: start, evaluation, checkpoint."""
    compiling: float
    """Seconds of torch.compile."""
    preparing: float
    """Seconds to build the operator and make the data set."""


FULL = Size(
    ("resnet50", "resnet18"), "bf16", 224, 51_200, 12_800, 256, (3500, 5000), 1200, 12, 40, 50
)  # fmt: skip
TINY = "tests.own_models.tiny_net"
DRY = Size((f"{TINY}_with_state", TINY), "fp32", 64, 64, 64, 8, (100, 200), 50, 15, 60, 30)


@dataclass(frozen=True)
class Case:
    """One process to run: `python -m ARGUMENTS`."""

    name: str
    arguments: tuple[str, ...]
    estimate: float
    """Seconds, with the start and the compilation."""
    needs: tuple[str, ...] = ()
    """Probes that must not lack, and DATA."""
    cores: int | None = None
    """It may run on the first of these cores only; None: on all."""
    round: int = 1

    @property
    def folder(self) -> str:
        return re.sub("[^a-z0-9]+", "-", f"{self.name} {self.round}".lower())


@dataclass
class Plan:
    """One run of a part."""

    device: str
    work: Path
    """Where the data set and the folders of the jobs lie."""
    minutes: float
    """Until the part must end."""
    began: float = field(default_factory=time.monotonic)

    @property
    def size(self) -> Size:
        return FULL if self.device == "cuda" else DRY

    @property
    def seconds_left(self) -> float:
        return 60 * self.minutes - (time.monotonic() - self.began)

    def prepare(self, images: int) -> Case:
        """Makes the data set, once."""
        made = folders(self.work, images).done.exists()
        arguments = ("benchmarks.gpu.gpu_data", str(self.work), str(images))
        estimate = self.size.start if made else self.size.preparing
        return Case(DATA, arguments, estimate, ("compiler",))

    def settings(self, images: int, *, packed: bool = True) -> tuple[str, ...]:
        """The overrides of every job."""
        data, size = folders(self.work, images), self.size
        return (
            f"trainer.device={self.device}",
            f"data={'shards' if packed else 'folder'}",
            f"data.root={data.shards if packed else data.plain}",
            f"data.image_size={size.image_size}",
            f"data.resize={size.image_size}",
            f"trainer.precision={size.precision}",
            f"trainer.batch_size={size.batch}",
            f"pipeline.num_workers={CORES}",
            "trainer.report=false",
            "trainer.nproc_per_host=1",
        )

    def training(
        self,
        name: str,
        model: str,
        *extra: str,
        peer: str = "",
        epochs: int = 2,
        windows: int = 1,
        more: float = 0,
        needs: tuple[str, ...] = (),
        round: int = 1,
    ) -> Case:
        """A job on CORES cores that measures the last of `windows` equal parts of its last epoch;
        it takes `more` seconds than usual."""
        size, number = self.size, MODELS.index(model)
        images = size.peer_images if peer else size.images
        rate = min(size.rates[number], size.peer_rate if peer else math.inf)
        arguments = (
            *(("benchmarks.gpu.peer_jobs", peer) if peer else ("entry_point.container", "train")),
            *self.settings(images, packed=not peer),
            f"trainer.log_every_steps={images // size.batch // windows}",
            f"model.name={size.names[number]}",
            f"trainer.epochs={epochs}",
            f"trainer.evaluate_every_epochs={epochs}",
            *extra,
        )
        estimate = size.start + epochs * images / rate + more
        return Case(name, arguments, estimate, ("compiler", DATA, *needs), CORES, round)


def tests(plan: Plan) -> list[Case]:
    """The files with tests marked `gpu`; others may import what is not installed here."""
    files = sorted(p for p in Path("tests").rglob("test_*.py") if "mark.gpu" in p.read_text())
    several = ("-n", "8") if installed("xdist") else ()
    command = ("pytest", "-m", "gpu", "-q", "--timeout=120", *several, *map(str, files))
    return [Case("tests marked gpu", command, 3.5 * plan.size.preparing, ("compiler",))]


def goal(plan: Plan) -> list[Case]:
    usual, fast = MODELS
    found = [
        plan.training(f"{OURS}, {usual}", usual, HEADSPACE, round=number)
        for number in range(1, ROUNDS + 1)
    ]
    found.insert(1, plan.training(f"{OURS}, {fast}", fast, HEADSPACE))
    return [plan.prepare(plan.size.images), *found]


def peers(plan: Plan) -> list[Case]:
    found = [
        plan.training(f"{peer}, {model}", model, peer=program, needs=(need,))
        for model in MODELS
        for peer, (program, need) in PEERS.items()
    ]
    return [plan.prepare(plan.size.peer_images), *found]


def options(plan: Plan) -> list[Case]:
    """One long epoch each, of which the second half is measured."""
    model, size, found = MODELS[0], plan.size, [plan.prepare(plan.size.images)]
    for number in range(1, ROUNDS + 1):
        compiling = size.compiling / (1 if number == 1 else 3)  # then torch has its results cached
        found += [
            plan.training("eager", model, epochs=1, windows=2, round=number),
            plan.training(
                "EMA", model, "optim.ema_decay=0.999", epochs=1, windows=2, round=number
            ),
            plan.training(
                "compiled", model, "trainer.compile=default",
                epochs=1, windows=2, more=compiling, needs=("Python.h",), round=number,
            ),
        ]  # fmt: skip
    precise = f"trainer.precision={'tf32' if plan.device == 'cuda' else 'fp32'}"
    slower = size.images / size.rates[0]
    return [*found, plan.training("tf32", model, precise, epochs=1, windows=2, more=slower)]


def serving(plan: Plan) -> list[Case]:
    arguments = ("benchmarks.gpu.gpu_serving", str(plan.work / "serving"), plan.device)
    return [Case("serving", arguments, 3 * plan.size.start + 40, ("compiler",))]


PARTS: dict[str, Callable[[Plan], Sequence[Case]]] = {
    "tests": tests,
    "goal": goal,
    "peers": peers,
    "options": options,
    "serving": serving,
}
"""By worth."""
