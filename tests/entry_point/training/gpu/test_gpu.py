"""On a GPU: copying batches to it, and jobs that train on it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.config.train_config import load_train_config
from entry_point.data.batch import Batch
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.job.devices import join_devices
from entry_point.job.run_folder import RunFolder
from entry_point.training.input import device_batches
from entry_point.training.models import Normalize
from tests.entry_point.data.engines.every_engine import Way, pipeline_of
from tests.entry_point.training.gpu.steady_steps import SETTLING_STEPS, steady_steps
from tests.entry_point.training.training_jobs import TINY, read_records, run_job

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda", 0)
ON_GPU = (
    "trainer.device=cuda",
    "trainer.nproc_per_host=1",  # the small batches cannot be shared by any number of GPUs
    "trainer.deterministic=false",
    "pipeline=threads",
)


def _normalize(data: DataConfig, device: str) -> Normalize:
    return Normalize(*data.normalization).to(device)


@pytest.mark.parametrize("engine", ["pillow", "workers", "threads"])
def test_every_engine_returns_pinned_batches(engine: Way, photo_folder: Path) -> None:
    data = DataConfig(root=str(photo_folder), image_size=32, resize=32)
    source, pipeline = open_source(data, "train", Path()), pipeline_of(engine, num_workers=1)
    loader = build_loader(source, LoaderSpec(data, pipeline, "train", 16, seed=0, device=CUDA))
    for batch in loader.epoch(0):
        assert batch.images.is_pinned() and batch.labels.is_pinned()
    loader.close()


def test_batches_are_intact_while_compute_lags_and_memory_is_reused(photo_folder: Path) -> None:
    data = DataConfig(root=str(photo_folder), image_size=64, resize=64)
    source, pipeline = open_source(data, "train", Path()), PipelineConfig("threads", num_workers=2)

    def made(device: str, batches_of: int) -> list[torch.Tensor]:
        place = torch.device(device)
        loader = build_loader(
            source, LoaderSpec(data, pipeline, "train", batches_of, seed=0, device=place)
        )
        seen = []
        busy = torch.randn(4096, 4096, device=place) if place.type == "cuda" else None
        for batch in device_batches(loader.epoch(3), place, _normalize(data, device)):
            for _ in range(10 if busy is not None else 0):
                busy = busy @ busy * 1e-4  # type: ignore[operator]
            seen.append((batch.images * 1).float())  # on the compute stream
        loader.close()
        return [images.cpu() for images in seen]

    for images, expected in zip(made("cuda", 4), made("cpu", 4), strict=True):
        torch.testing.assert_close(images, expected, rtol=1e-5, atol=1e-5)


def test_epochs_reuse_gpu_memory() -> None:
    data = DataConfig()
    images = torch.zeros((8, 3, 256, 256), dtype=torch.uint8).pin_memory()
    reserved = []
    for _ in range(4):
        batches = [Batch(images, torch.arange(8), torch.arange(8))] * 3
        list(device_batches(batches, CUDA, _normalize(data, "cuda")))
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[1] == reserved[-1]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_jobs_of_every_precision_learn_on_a_gpu(
    tmp_path: Path, photo_folder: Path, precision: str
) -> None:
    overrides = [*ON_GPU, f"trainer.precision={precision}", "trainer.epochs=4", "optim.lr=0.01"]
    run_job(tmp_path, photo_folder, [*overrides, "trainer.log_every_steps=3"])
    losses = [record["loss"] for record in read_records(tmp_path) if "loss" in record]
    assert losses[-1] < losses[0]


def test_a_profile_on_a_gpu_shows_gpu_time(tmp_path: Path, photo_folder: Path) -> None:
    run_job(tmp_path, photo_folder, [*ON_GPU, "trainer.batch_size=2", "trainer.diagnose=profile"])
    text = (tmp_path / "output" / "data" / "profile" / "rank0.txt").read_text()
    assert "Self CUDA" in text and re.search(r"^ +forward ", text, re.M)


def test_no_step_of_a_steady_epoch_waits_for_the_gpu(tmp_path: Path, photo_folder: Path) -> None:
    """torch raises an error where one of its operators waits."""
    overrides = [
        f"data.root={photo_folder}",
        *ON_GPU,
        "trainer.batch_size=4",
        "trainer.log_every_steps=100",
        "model.name=tests.own_models.tiny_net_with_state",
        "optim.ema_decay=0.9",
        "optim.clip_norm=1",
        "optim.mixup_alpha=0.2",
        "optim.cutmix_alpha=0.2",
        "optim.accumulate=2",
    ]
    config, _ = load_train_config([*TINY, *overrides])
    with join_devices(config.trainer) as devices:
        steps = steady_steps(config, RunFolder(tmp_path), devices)
    assert steps == 2 * (12 - SETTLING_STEPS)


ON_SECOND_GPU = """
import sys
from pathlib import Path
import torch
from entry_point.config.data_config import (DataConfig, Way, PipelineConfig)
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec

device = torch.device("cuda", 1)
torch.cuda.set_device(device)
data = DataConfig(root=sys.argv[1], image_size=32, resize=32)
source, pipeline = open_source(data, "train", Path()), PipelineConfig("threads", num_workers=2)
loader = build_loader(source, LoaderSpec(data, pipeline, "train", 8, seed=0, device=device))
assert all(batch.images.is_pinned() for batch in loader.epoch(0))
loader.close()
assert torch._C._cuda_hasPrimaryContext(1) and not torch._C._cuda_hasPrimaryContext(0)
"""


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_the_loader_of_a_second_gpu_starts_no_context_on_the_first(photo_folder: Path) -> None:
    subprocess.run([sys.executable, "-c", ON_SECOND_GPU, str(photo_folder)], check=True)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_gpus_train_as_one_does(tmp_path: Path, photo_folder: Path) -> None:
    plain = "model.name=tests.own_models.tiny_net"
    for name, ranks in (("one", 1), ("two", 2)):
        run_job(tmp_path / name, photo_folder, [*ON_GPU, plain, f"trainer.nproc_per_host={ranks}"])
    one, two = (
        [record["loss"] for record in read_records(tmp_path / name) if "loss" in record]
        for name in ("one", "two")
    )
    assert one and two == pytest.approx(one, rel=0.05)
