"""ResNet-50 at full speed on a GPU, and what feeds it: `make bench-gpu`, or

    python -m benchmarks.training.gpu_training [batch_size=256] [images=8192]

writes docs/results/gpu-training.md. Without a CUDA device it says so and ends with 2.
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
from benchmarks.training.stall_contenders import write_data
from benchmarks.training.stall_step import Rounds, Training, take_turns
from entry_point.config.data_config import usable_cores
from entry_point.config.train_config import TrainConfig, load_train_config
from entry_point.data.batch import Batch
from entry_point.data.loader import Loader, build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.training.devices import Devices

ROUNDS, KEPT = 5, 8
FREE, NVJPEG = "batches kept in memory", "trimmed files, nvJPEG"
NVJPEG_THREADS = 4
MOST_WAIT_PCT = 2.0


@dataclass
class Size:
    """What is trained on."""

    batch_size: int = 256
    images: int = 8192


class KeptBatches:
    """A Loader whose input is free: a few batches, again and again."""

    def __init__(self, loader: Loader) -> None:
        self.steps_per_epoch = loader.steps_per_epoch
        self._batches = [batch for batch, _ in zip(loader.epoch(0), range(KEPT), strict=False)]
        loader.close()

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        steps = range(start_step, self.steps_per_epoch)
        return (self._batches[(epoch + step) % len(self._batches)] for step in steps)

    def close(self) -> None:
        self._batches.clear()


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


def loader_of(config: TrainConfig, device: torch.device, trimmed: bool = False) -> Loader:
    data, pipeline, seed = config.data, config.pipeline, config.trainer.seed
    spec = LoaderSpec(data, pipeline, "train", config.trainer.batch_size, seed, device=device)
    source = open_source(data, "train", Path())
    return build_loader(source, spec, TrimmedOn(device) if trimmed else None)


def contenders(root: Path, size: Size, devices: Devices) -> dict[str, Training]:
    """Free input first, then each way, `threads` with 1, 2, 4 ... of them."""
    ways = {f"threads, {n}": ("threads", n) for n in worker_counts(usable_cores())}
    ways[NVJPEG] = ("threads", NVJPEG_THREADS)
    if installed(PEERS["dali"]):
        ways["DALI on the GPU"] = ("dali", usable_cores())
    found: dict[str, Training] = {}
    for name, (engine, workers) in ways.items():
        config = settings(root, size, engine, workers)
        loader = loader_of(config, devices.device, trimmed=name == NVJPEG)
        found[name] = Training(config, loader, devices)
    config = settings(root, size, "threads", usable_cores())
    free = Training(config, KeptBatches(loader_of(config, devices.device)), devices)
    return {FREE: free, **found}


def cores(rounds: Rounds) -> float:
    """CPU seconds of all threads and processes in a second of training."""
    seconds = [float(times[:, -1].sum()) for times in rounds.times]
    return statistics.median(c / s for c, s in zip(rounds.cpu, seconds, strict=True))


def wait_pct(rounds: Rounds) -> float:
    return 100 * rounds.milliseconds("data_wait") / rounds.milliseconds("step")


def table(results: Mapping[str, Rounds], batch_size: int) -> str:
    head = ["input", "images/s", "step, ms", "data wait, %", "CPU cores", "speed of free input"]
    free = results[FREE].milliseconds("step")
    rows = []
    for name, rounds in results.items():
        step = rounds.milliseconds("step")
        figures = (f"{wait_pct(rounds):.2f}", f"{cores(rounds):.1f}", f"{free / step:.3f}")
        rows.append([name, f"{1e3 * batch_size / step:.0f}", f"{step:.1f}", *figures])
    return measure.table(head, rows)


def verdict(results: Mapping[str, Rounds]) -> str:
    """The fewest threads that keep the GPU busy, and what they cost."""
    for name, rounds in results.items():
        if name.startswith("threads") and wait_pct(rounds) <= MOST_WAIT_PCT:
            more = cores(rounds) - cores(results[FREE])
            return (
                f"`{name}`: {wait_pct(rounds):.2f} % of the step waits for data (bar: "
                f"{MOST_WAIT_PCT:.0f} %), for {more:.1f} CPU cores more than with free input.\n"
            )
    return f"`threads` stays above {MOST_WAIT_PCT:.0f} % of waiting on this machine.\n"


def main(arguments: Sequence[str]) -> int:
    if not torch.cuda.is_available():
        sys.stderr.write("gpu_training: needs a CUDA device, and torch finds none here\n")
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
        f"ResNet-50, bf16, channels_last, batches of {size.batch_size}: {size.images} JPEGs of "
        "533x800 pixels (photographs, quality 90, 4:2:0) in indexed shards -> RandomResizedCrop "
        f"224, flip -> normalised on the GPU -> a step. All train in one process, an epoch each in "
        f"turn, the GPU awaited after each step; median of {ROUNDS} rounds. CPU cores are CPU "
        "seconds of all threads and processes in a second of training, and include the one that "
        "launches kernels and waits for them. nvJPEG decodes what `trim_jpeg` cuts out, through "
        f"torchvision. {devices.describe()}."
    )
    tables = [table(results, size.batch_size), verdict(results)]
    title, packages = "ResNet-50 fed on a GPU", ("torchvision", "spdl-core", "nvidia-dali-cuda120")
    sys.stdout.write(measure.write("gpu-training", title, method, tables, packages))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
