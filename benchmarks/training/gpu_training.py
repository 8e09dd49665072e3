"""Which input pipelines keep ResNet-50 busy on a GPU: docs/results/gpu-training.md.

`python -m benchmarks.training.gpu_training [batch_size=256] [images=8192]`.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from omegaconf import OmegaConf

from benchmarks import measure
from benchmarks.pipelines.bench import PEERS, installed, worker_counts
from benchmarks.training.nvjpeg import TrimmedOn
from benchmarks.training.stall_contenders import training_loader, write_data
from benchmarks.training.stall_step import Rounds, Training, take_turns
from entry_point.config.data_config import usable_cores
from entry_point.config.train_config import TrainConfig, load_train_config
from entry_point.data.batch import Batch
from entry_point.data.loader import Loader
from entry_point.training.devices import Devices

ROUNDS, KEPT = 5, 8
FREE, NVJPEG = "batches kept in memory", "trimmed files, nvJPEG"
NVJPEG_THREADS = 4
MOST_WAIT_PCT = 2.0


@dataclass
class Size:
    """The amount of data."""

    batch_size: int = 256
    images: int = 8192


class KeptBatches:
    """A Loader whose input costs nothing: it repeats a few batches."""

    def __init__(self, batches: Sequence[Batch], steps: int) -> None:
        self.steps_per_epoch, self._batches = steps, batches

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        steps = range(start_step, self.steps_per_epoch)
        return (self._batches[(epoch + step) % len(self._batches)] for step in steps)

    def close(self) -> None: ...


def keep_batches(loader: Loader) -> KeptBatches:
    """The first batches of a loader, which is closed."""
    batches = [batch for batch, _ in zip(loader.epoch(0), range(KEPT), strict=False)]
    loader.close()
    return KeptBatches(batches, loader.steps_per_epoch)


def settings(root: Path, size: Size, engine: str, workers: int) -> TrainConfig:
    """Published training of ResNet-50: RandomResizedCrop 224, bf16, channels_last."""
    config, _ = load_train_config(
        [
            "data=shards",
            f"data.root={root / 'shards'}",
            "data.image_size=224",
            f"pipeline={engine}",
            f"pipeline.num_workers={workers}",
            "model=resnet50",
            "trainer.device=cuda",
            "trainer.precision=bf16",
            "trainer.channels_last=true",
            f"trainer.batch_size={size.batch_size}",
        ]
    )
    return config


def contenders(root: Path, size: Size, devices: Devices) -> dict[str, Training]:
    """Free input first, then each pipeline, `threads` with 1, 2, 4 ... of them."""
    pipelines = {f"threads, {n}": ("threads", n) for n in worker_counts(usable_cores())}
    pipelines[NVJPEG] = ("threads", NVJPEG_THREADS)
    if installed(PEERS["dali"]):
        pipelines["DALI on the GPU"] = ("dali", usable_cores())
    found: dict[str, Training] = {}
    for name, (engine, workers) in pipelines.items():
        config = settings(root, size, engine, workers)
        trimmed = TrimmedOn(devices.device) if name == NVJPEG else None
        loader = training_loader(config, devices.device, trimmed)
        found[name] = Training(config, loader, devices)
    config = settings(root, size, "threads", usable_cores())
    free = Training(config, keep_batches(training_loader(config, devices.device)), devices)
    return {FREE: free, **found}


def cores(rounds: Rounds) -> float:
    """CPU seconds of all threads and processes per second of training."""
    seconds = [float(times[:, -1].sum()) for times in rounds.times]
    return statistics.median(c / s for c, s in zip(rounds.cpu, seconds, strict=True))


def wait_pct(rounds: Rounds) -> float:
    return 100 * rounds.milliseconds("data_wait") / rounds.milliseconds("step")


def table(results: Mapping[str, Rounds], batch_size: int) -> str:
    head = ["input", "images/s", "step, ms", "data wait, %", "CPU cores", "speed / free input"]
    free = results[FREE].milliseconds("step")
    rows = []
    for name, rounds in results.items():
        step = rounds.milliseconds("step")
        figures = (f"{wait_pct(rounds):.2f}", f"{cores(rounds):.1f}", f"{free / step:.3f}")
        rows.append([name, f"{1e3 * batch_size / step:.0f}", f"{step:.1f}", *figures])
    return measure.table(head, rows)


def verdict(results: Mapping[str, Rounds]) -> str:
    """The fewest threads that keep the GPU busy, and their CPU cost."""
    for name, rounds in results.items():
        if name.startswith("threads") and wait_pct(rounds) <= MOST_WAIT_PCT:
            more = cores(rounds) - cores(results[FREE])
            return (
                f"`{name}`: {wait_pct(rounds):.2f} % of the step waits for data (goal: at most "
                f"{MOST_WAIT_PCT:.0f} %), with {more:.1f} CPU cores more than free input.\n"
            )
    return f"On this machine `threads` always waits more than {MOST_WAIT_PCT:.0f} % of the step.\n"


def main(arguments: Sequence[str]) -> int:
    if not torch.cuda.is_available():
        sys.stderr.write("gpu_training: needs a CUDA device; torch finds none\n")
        return 2
    given = OmegaConf.from_dotlist(list(arguments))
    size = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Size), given))
    assert isinstance(size, Size)
    torch.backends.cudnn.benchmark = True
    devices = Devices(torch.device("cuda", 0), torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder), size.images)
        results = take_turns(contenders(Path(folder), size, devices), ROUNDS)
    method = (
        f"ResNet-50, bf16, channels_last, batches of {size.batch_size}, from {size.images} JPEGs "
        "of 533x800 pixels (photographs, quality 90, 4:2:0) in shards with restart markers: "
        "RandomResizedCrop 224, flip, normalization on the GPU, training step. All contenders "
        "train in one process and alternate by epoch; each step ends with a synchronization; "
        f"median of {ROUNDS} rounds. CPU cores are the CPU seconds of all threads and processes "
        "per second of training, including the thread that launches kernels. nvJPEG decodes the "
        f"output of `trim_jpeg` through torchvision. {devices.describe()}."
    )
    tables = [table(results, size.batch_size), verdict(results)]
    title, packages = "ResNet-50 on a GPU", ("torchvision", "spdl-core", "nvidia-dali-cuda120")
    sys.stdout.write(measure.write("gpu-training", "gpu", title, method, tables, packages))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
