"""What the training loop costs beyond the bare step, and what resuming costs.

`python -m benchmarks.training.train_overhead` writes docs/results/train-overhead.md: (1) steps of
the real loop (stall meter, stop votes, loss guard, metrics) against the same work written by
hand, on a batch that is there already, in processor time; (2) seconds from a started trainer
to its first step when it resumes.
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
from entry_point.config.train_config import load_train_config
from entry_point.contract.run_folder import RunFolder
from entry_point.data.batch import Batch
from entry_point.training.devices import Devices
from entry_point.training.trainer import Trainer

ROUNDS, BATCH, SIZE = 9, 32, 64


def glance(num_classes: int) -> nn.Module:
    """A model so cheap that the loop around it shows: it looks at one pixel in 16 by 16."""
    return nn.Sequential(nn.MaxPool2d(1, stride=16), nn.Flatten(), nn.Linear(48, num_classes))


class _OneBatch:
    """A loader whose batch is there already."""

    def __init__(self, batch: Batch, steps: int) -> None:
        self._batch, self.steps_per_epoch = batch, steps

    def epoch(self, _epoch: int, _start_step: int = 0) -> Iterator[Batch]:
        yield from [self._batch] * self.steps_per_epoch

    def close(self) -> None: ...


def bare_epoch(trainer: Trainer, batch: Batch, steps: int) -> None:
    """What everyone would write by hand: the same work on the same batch, and nothing else."""
    learner, normalize = trainer.learner, trainer.input.transform.normalize
    criterion = nn.CrossEntropyLoss(label_smoothing=trainer.config.optim.label_smoothing)
    for _ in range(steps):
        images = normalize(batch.images)
        learner.optimizer.zero_grad(set_to_none=True)
        criterion(learner.model(images), batch.labels).backward()
        learner.optimizer.step()
        learner.schedule.step()


def step_milliseconds(data: Path, model: str, steps: int) -> dict[str, float]:
    """Processor milliseconds per step of the real loop and of the bare one."""
    overrides = ["data=folder", f"data.root={data}", "pipeline=pillow", "pipeline.num_workers=0"]
    sizes = [f"data.image_size={SIZE}", "data.resize=72", f"trainer.batch_size={BATCH}"]
    config, _ = load_train_config([*overrides, *sizes, f"model.name={model}"])
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(config, RunFolder(Path(folder)), Devices(torch.device("cpu"), None))
        pixels = torch.randint(0, 256, (BATCH, 3, SIZE, SIZE), dtype=torch.uint8)
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        labels = torch.randint(0, len(trainer.input.classes), (BATCH,))
        batch = Batch(pixels, labels, torch.arange(BATCH))
        trainer.input.train_loader.close()
        trainer.input.train_loader = _OneBatch(batch, steps)
        trainer.progress.steps_per_epoch = steps

        def real_epoch() -> None:
            trainer.progress.step = 0
            trainer._train_epoch()

        epochs: dict[str, Callable[[], object]] = {
            "real": real_epoch,
            "bare": partial(bare_epoch, trainer, batch, steps),
        }
        times = measure.cpu_milliseconds(epochs, works=steps, rounds=ROUNDS)
        trainer.close()
    return times


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
    """`data` is a folder of JPEGs in train/ and val/."""
    torch.set_num_threads(1)
    cheap = step_milliseconds(data, "benchmarks.training.train_overhead.glance", steps=200)
    loop = cheap["real"] - cheap["bare"]
    resnet = step_milliseconds(data, "resnet18", steps=4)
    steps = [
        ("loop around a model that costs nothing, CPU ms", round(cheap["real"], 3)),
        ("the same step written by hand, CPU ms", round(cheap["bare"], 3)),
        ("what the loop adds, CPU ms", round(loop, 3)),
        ("ResNet-18's step written by hand, CPU ms", round(resnet["bare"], 1)),
        ("what the loop adds to it, % (bar: 1)", round(100 * loop / resnet["bare"], 2)),
    ]
    parts = resume_seconds(data)
    resume = list(parts.items())
    resume.append(("total beyond imports (bar: 5)", round(parts["total"] - parts["imports"], 1)))
    text = measure.write(
        "train-overhead",
        "What the training loop costs beyond a bare one",
        f"A batch of {BATCH} at {SIZE}x{SIZE} that is there already, one thread. By hand: the same "
        "uint8 batch normalised, forward, backward, optimizer and schedule; the loop also "
        "measures, votes, guards and logs. Its cost is taken where it shows, around a model that "
        "costs nothing, and set against ResNet-18's step, whose own time varies by more than that. "
        f"CPU time, median of {ROUNDS} alternating rounds. Below, the parts of the start of a "
        "ResNet-18 run that goes on from a checkpoint, by the clock.",
        [
            measure.table(["step", "value"], steps),
            measure.table(["resume, seconds", "value"], resume),
        ],
    )
    sys.stdout.write(text)


if __name__ == "__main__":
    from tests.photographs import write_photo_folder

    with tempfile.TemporaryDirectory() as photographs:
        main(write_photo_folder(Path(photographs) / "photographs"))
