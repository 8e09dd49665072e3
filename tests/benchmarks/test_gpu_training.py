"""The parts of the GPU benchmark that run without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from benchmarks.training.gpu_training import FREE, keep_batches, table, verdict
from benchmarks.training.nvjpeg import TrimmedOn
from benchmarks.training.stall_contenders import write_data
from benchmarks.training.stall_step import Rounds
from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec


def _rounds(wait: float, step: float, cpu: float) -> Rounds:
    return Rounds([np.array([[wait, 0, 0, step]] * 10, dtype=np.float32)], [cpu])


def test_the_verdict_names_the_fewest_threads_that_keep_up_and_their_cost() -> None:
    results = {
        FREE: _rounds(0.0, 0.1, 1.0),
        "threads, 1": _rounds(0.1, 0.2, 4.0),
        "threads, 4": _rounds(0.001, 0.1, 2.5),
        "threads, 8": _rounds(0.0, 0.1, 3.0),
    }
    assert verdict(results).startswith("`threads, 4`: 1.00 % of the step waits")
    assert "1.5 CPU cores more" in verdict(results)
    assert "| threads, 1 | 500 | 200.0 | 50.00 | 2.0 | 0.500 |" in table(results, 100)


def test_trimmed_files_give_the_samples_of_threads_within_their_rounding(tmp_path: Path) -> None:
    write_data(tmp_path, 12)
    data = DataConfig(format="shards", root=str(tmp_path / "shards"), image_size=64, resize=64)
    source, pipeline = open_source(data, "train", Path()), PipelineConfig("threads", 1)
    spec = LoaderSpec(data, pipeline, "train", 6, seed=0)
    threads = build_loader(source, spec)
    trimmed = build_loader(source, spec, TrimmedOn(torch.device("cpu")))
    for a, b in zip(threads.epoch(1), trimmed.epoch(1), strict=True):
        assert torch.equal(a.indices, b.indices)
        assert (a.images.int() - b.images.int()).abs().max() <= 1
    trimmed.close()
    kept = keep_batches(threads)
    assert len(list(kept.epoch(3))) == kept.steps_per_epoch == 2


def test_without_a_gpu_the_benchmark_exits_with_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.training.gpu_training"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and done.stderr.startswith("gpu_training: needs a CUDA device")
