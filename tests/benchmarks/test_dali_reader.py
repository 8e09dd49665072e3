"""DALI with its own reader, as a contender; `make test ONLY=dali` runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.loader_spec import LoaderSpec
from tests.entry_point.training.training_jobs import TINY, read_records

pytestmark = pytest.mark.skipif(
    not os.environ.get("REQUIRE_DALI"), reason="make test ONLY=dali runs it"
)


def test_dalis_reader_gives_each_class_its_images(photo_folder: Path) -> None:
    from benchmarks.pipelines.dali_reader import DaliReader

    data, pipeline = DataConfig(image_size=32, resize=36), PipelineConfig("threads", num_workers=2)
    reader = DaliReader(photo_folder, LoaderSpec(data, pipeline, "train", 12, seed=0), 4)
    batches = list(reader.epoch(0))
    reader.close()
    assert len(batches) == 4
    for batch in batches:
        assert batch.images.shape == (12, 3, 32, 32) and batch.images.dtype == torch.uint8
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
    labels = torch.cat([batch.labels for batch in batches])
    assert labels.bincount().tolist() == [6] * 8  # all of the 48 images, of 8 classes
    assert len({image.sum().item() for batch in batches for image in batch.images}) > 40


def test_dalis_reader_feeds_a_job(tmp_path: Path, photo_folder: Path) -> None:
    job = [sys.executable, "-m", "benchmarks.gpu.gpu_check", "job", "dali-cpu"]
    job += [f"data.root={photo_folder}"]
    environment = {**os.environ, "ML_ROOT": str(tmp_path)}
    subprocess.run([*job, *TINY], env=environment, check=True, timeout=120)
    assert [record["epoch"] for record in read_records(tmp_path) if "val_loss" in record] == [0, 1]
