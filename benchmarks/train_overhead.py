"""What the training loop costs beyond the bare step, and what resuming costs.

`python -m benchmarks.train_overhead`: (1) steps of the real loop (interval sums, stop votes, loss
guard, metrics) against `forward, backward, step` on the same preloaded batch, in processor time,
in alternating rounds; (2) seconds from a started trainer to its first step when it resumes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import nn

from benchmarks import measure
from entry_point.config import load_train_config
from entry_point.data import Batch
from entry_point.run_folder import RunFolder
from entry_point.train import Trainer
from entry_point.training.devices import Devices

ROUNDS, STEPS, BATCH, SIZE = 7, 6, 32, 64


class _OneBatch:
    """A loader whose batch is there already."""

    steps_per_epoch = STEPS

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def epoch(self, _epoch: int, _start_step: int = 0) -> Iterator[Batch]:
        yield from [self._batch] * STEPS

    def close(self) -> None: ...


def bare_epoch(trainer: Trainer, pixels: torch.Tensor, labels: torch.Tensor) -> None:
    """What everyone would write by hand: the same work on the same batch, and nothing else."""
    learner, normalize = trainer.learner, trainer.prepare.normalize
    criterion = nn.CrossEntropyLoss(label_smoothing=trainer.config.optim.label_smoothing)
    for _ in range(STEPS):
        images = normalize(pixels)
        learner.optimizer.zero_grad(set_to_none=True)
        criterion(learner.model(images), labels).backward()
        learner.optimizer.step()
        learner.schedule.step()


def overhead(data: Path) -> tuple[float, float]:
    """Processor milliseconds per step: the real loop, the bare step (medians over rounds)."""
    overrides = ["data=folder", f"data.root={data}", "pipeline=pillow", "pipeline.num_workers=0"]
    sizes = [f"data.image_size={SIZE}", "data.resize=72", f"trainer.batch_size={BATCH}"]
    config, yaml = load_train_config([*overrides, *sizes, "trainer.log_every_steps=1000"])
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(config, yaml, RunFolder(Path(folder)), Devices(torch.device("cpu"), None))
        pixels = torch.randint(0, 256, (BATCH, 3, SIZE, SIZE), dtype=torch.uint8)
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        labels = torch.randint(0, len(trainer.data.classes), (BATCH,))
        loader = _OneBatch(Batch(pixels, labels, torch.arange(BATCH)))
        trainer.data.train_loader, trainer.progress.steps_per_epoch = loader, STEPS

        def real_epoch() -> None:
            trainer.progress.step = 0
            trainer._train_epoch()

        epochs: dict[str, Callable[[], object]] = {
            "real": real_epoch,
            "bare": partial(bare_epoch, trainer, pixels, labels),
        }
        times = measure.cpu_milliseconds(epochs, works=STEPS, rounds=ROUNDS)
        trainer.close()
    return times["real"], times["bare"]


def resume_seconds(data: Path) -> dict[str, float]:
    """The parts of `startup:` of a ResNet-18 run that goes on from its checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "entry_point.container", "train", "data=folder"]
        command += [f"data.root={data}", "data.image_size=64", "data.resize=72"]
        command += ["trainer.batch_size=16", "trainer.report=false", "pipeline.num_workers=1"]
        environment = {**os.environ, "ML_ROOT": folder}
        for epochs in (1, 2):
            output = subprocess.run(
                [*command, f"trainer.epochs={epochs}"],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
    line = next(line for line in output.splitlines() if line.startswith("startup:"))
    return {name: float(value) for name, value in re.findall(r"(\w+)=([0-9.]+)s", line)}


def main(data: Path) -> None:
    """Write docs/results/train-overhead.md; `data` is a folder of JPEGs in train/ and val/."""
    torch.set_num_threads(1)
    real, bare = overhead(data)
    steps = [
        ("step of the loop, CPU ms", round(real, 2)),
        ("bare step, CPU ms", round(bare, 2)),
        ("overhead, % (bar: 1)", round(100 * (real / bare - 1), 2)),
    ]
    parts = resume_seconds(data)
    resume = list(parts.items())
    resume.append(("total beyond imports (bar: 5)", round(parts["total"] - parts["imports"], 1)))
    text = measure.write(
        "train-overhead",
        "What the training loop costs beyond a bare one",
        f"ResNet-18, a batch of {BATCH} at {SIZE}x{SIZE} that is there already, one thread. The "
        "bare step normalises the same uint8 batch, computes, steps optimizer and schedule; the "
        "loop also measures, votes, guards and logs. CPU time, median of "
        f"{ROUNDS} alternating rounds of {STEPS} steps. Below, the parts of the start of a "
        "ResNet-18 run that goes on from a checkpoint, by the clock.",
        [
            measure.table(["step", "value"], steps),
            measure.table(["resume, seconds", "value"], resume),
        ],
    )
    sys.stdout.write(text)


if __name__ == "__main__":
    from tests.data.photographs import write_photo_folder

    with tempfile.TemporaryDirectory() as photographs:
        main(write_photo_folder(Path(photographs) / "photographs"))
