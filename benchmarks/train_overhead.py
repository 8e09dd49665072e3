"""What the training loop costs beyond the bare step, and what resuming costs.

`python -m benchmarks.train_overhead`: (1) steps of the real loop (interval sums, stop votes, loss
guard, metrics) against `forward, backward, step` on the same preloaded batch, in processor time,
in alternating rounds; (2) seconds from a started trainer to its first step when it resumes.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import nn

from entry_point.config import load_train_config
from entry_point.data import Batch
from entry_point.run_folder import RunFolder
from entry_point.train import Trainer
from entry_point.training.devices import Devices

ROUNDS, STEPS, BATCH, SIZE = 5, 6, 32, 64


class _OneBatch:
    """A loader whose batch is there already."""

    steps_per_epoch = STEPS

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def epoch(self, _epoch: int, _start_step: int = 0) -> Iterator[Batch]:
        yield from [self._batch] * STEPS

    def close(self) -> None: ...


def bare_epoch(trainer: Trainer, images: torch.Tensor, labels: torch.Tensor) -> None:
    """What everyone would write by hand."""
    model, optimizer = trainer.learner.model, trainer.learner.optimizer
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1).backward()
        optimizer.step()


def overhead(data: Path) -> tuple[float, float]:
    """Processor milliseconds per step: the real loop, the bare step (medians over rounds)."""
    overrides = ["data=folder", f"data.root={data}", "pipeline=pillow", "pipeline.num_workers=0"]
    sizes = [f"data.image_size={SIZE}", "data.resize=72", f"trainer.batch_size={BATCH}"]
    config, yaml = load_train_config([*overrides, *sizes, "trainer.log_every_steps=1000"])
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(config, yaml, RunFolder(Path(folder)), Devices(torch.device("cpu"), None))
        pixels = torch.randint(0, 256, (BATCH, 3, SIZE, SIZE), dtype=torch.uint8)
        labels = torch.randint(0, len(trainer.classes), (BATCH,))
        loader = _OneBatch(Batch(pixels, labels, torch.arange(BATCH)))
        trainer.train_loader, trainer.steps_per_epoch = loader, STEPS
        images = trainer.normalize(pixels).contiguous(memory_format=torch.channels_last)
        real, bare = [], []
        for _ in range(ROUNDS + 1):
            trainer.step = 0
            real.append(_time(trainer._train_epoch))
            bare.append(_time(partial(bare_epoch, trainer, images, labels)))
        trainer.close()
    return statistics.median(real[1:]), statistics.median(bare[1:])


def _time(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) / STEPS * 1000


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
    """Print both figures; `data` is a folder of JPEGs in train/ and val/."""
    torch.set_num_threads(1)
    real, bare = overhead(data)
    rows = [
        f"| step of the loop | {real:.1f} ms |",
        f"| bare step | {bare:.1f} ms |",
        f"| overhead | {100 * (real / bare - 1):.2f} % |",
    ]
    parts = resume_seconds(data)
    beyond = parts["total"] - parts["imports"]
    rows += [f"| resume: {name} | {seconds:.1f} s |" for name, seconds in parts.items()]
    rows.append(f"| resume beyond imports | {beyond:.1f} s |")
    sys.stdout.write("\n".join(["| what | value |", "| --- | --- |", *rows]) + "\n")


if __name__ == "__main__":
    from tests.data.photographs import write_photo_folder

    with tempfile.TemporaryDirectory() as photographs:
        main(write_photo_folder(Path(photographs) / "photographs"))
