"""The cost of the training loop beyond a hand-written step, and of resuming.

Writes docs/results/train-overhead.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from pathlib import Path

import torch
from torch import nn

from benchmarks import measure
from entry_point.config.train_config import load_train_config
from entry_point.data.batch import Batch
from entry_point.data.loader import Loader
from entry_point.job.devices import Devices
from entry_point.job.metrics_line import MARK
from entry_point.job.run_folder import RunFolder
from entry_point.training.trainer import Trainer

ROUNDS, BATCH, SIZE = 9, 32, 64


class KeptBatch(Loader):
    """A Loader whose input costs nothing: it repeats one batch."""

    def __init__(self, batch: Batch, steps: int) -> None:
        self.steps_per_epoch, self._batch = steps, batch

    def epoch(self, _epoch: int, start_step: int = 0) -> Iterator[Batch]:
        return repeat(self._batch, self.steps_per_epoch - start_step)

    def close(self) -> None: ...


def bare_epoch(trainer: Trainer, batch: Batch, steps: int) -> None:
    """The same work on the same batch, written by hand."""
    learner, normalize = trainer.learner, trainer.input.normalize
    criterion = nn.CrossEntropyLoss(label_smoothing=trainer.config.task.label_smoothing)
    for _ in range(steps):
        images = normalize(batch.images)
        learner.optimizer.zero_grad(set_to_none=True)
        criterion(learner.model(images), batch.labels).backward()
        learner.optimizer.step()
        learner.schedule.step()


def step_milliseconds(data: Path, model: str, steps: int) -> dict[str, float]:
    """CPU milliseconds per step of the real loop and of the bare one."""
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
        trainer.input.train_loader = KeptBatch(batch, steps)
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
    """Returns the seconds to the first step of a ResNet-18 run that resumes from its checkpoint,
    and those of its imports, measured alone."""
    with tempfile.TemporaryDirectory() as folder:
        settings = ["data=folder", f"data.root={data}", "data.image_size=64", "data.resize=72"]
        settings += ["trainer.batch_size=16", "trainer.report=false", "trainer.log_every_steps=1"]
        settings += ["pipeline.num_workers=1"]
        command = [sys.executable, "-m", "entry_point", "train", *settings]
        environment = {**os.environ, "ML_ROOT": folder, "PYTHONUNBUFFERED": "1"}
        began = time.perf_counter()
        imports = [sys.executable, "-c", "import entry_point.training.trainer"]
        subprocess.run(imports, env=environment, check=True)
        found = {"imports": time.perf_counter() - began}
        subprocess.run([*command, "trainer.epochs=1"], env=environment, check=True)
        began = time.perf_counter()
        with subprocess.Popen(
            [*command, "trainer.epochs=2"], env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(MARK) and "total" not in found:
                    found["total"] = time.perf_counter() - began
    return found


def main(data: Path) -> None:
    """Measure with the JPEGs in data/train and data/val."""
    torch.set_num_threads(1)
    cheap = step_milliseconds(data, "benchmarks.training.stall_step.glance", steps=200)
    loop = cheap["real"] - cheap["bare"]
    resnet = step_milliseconds(data, "resnet18", steps=4)
    steps = [
        ("the loop with an almost free model, CPU ms", round(cheap["real"], 3)),
        ("the same step written by hand, CPU ms", round(cheap["bare"], 3)),
        ("overhead of the loop, CPU ms", round(loop, 3)),
        ("ResNet-18's step written by hand, CPU ms", round(resnet["bare"], 1)),
        ("overhead for ResNet-18, % (goal: 1)", round(100 * loop / resnet["bare"], 2)),
    ]
    parts = resume_seconds(data)
    resume = [(part, round(seconds, 1)) for part, seconds in parts.items()]
    resume.append(("total without imports (goal: 5)", round(parts["total"] - parts["imports"], 1)))
    method = (
        f"A batch of {BATCH} at {SIZE}x{SIZE} in memory, one thread. By hand: normalization, "
        "forward, backward, optimizer and schedule on the same uint8 batch. The loop also "
        "measures, votes on stopping, guards the loss and logs. Its overhead is measured with an "
        "almost free model and compared with ResNet-18's step, which varies by more than the "
        f"overhead. CPU time, median of {ROUNDS} alternating rounds. The second table has the "
        "time from the start of a ResNet-18 run that resumes from a checkpoint to its first step, "
        "in wall-clock time."
    )
    tables = [
        measure.table(["step", "value"], steps),
        measure.table(["resume, seconds", "value"], resume),
    ]
    title = "The overhead of the training loop"
    measure.write("train-overhead", "train", title, method, tables)


if __name__ == "__main__":
    from tests.photographs import write_photo_folder

    with tempfile.TemporaryDirectory() as photographs:
        main(write_photo_folder(Path(photographs) / "photographs"))
