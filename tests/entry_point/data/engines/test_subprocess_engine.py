"""The engine `subprocess`: a child process makes the batches of `threads`."""

import logging
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.batch import Batch
from entry_point.data.errors import DataError
from entry_point.data.loader import Loader, build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.sources.folder import FolderSource
from entry_point.data.sources.source import Source
from entry_point.optimize import main as optimize
from tests.entry_point.data.engines.every_engine import has_ended


def _loader(root: Path, engine: str, **data: Any) -> Loader:
    config = DataConfig(root=str(root), image_size=40, resize=48, **data)
    return _loader_of(open_source(config, "train", root), engine, config)


def _loader_of(source: Source, engine: str, config: DataConfig) -> Loader:
    pipeline = PipelineConfig(engine=engine, num_workers=2)
    return build_loader(source, LoaderSpec(config, pipeline, "train", 8, seed=3))


def _assert_same(left: list[Batch], right: list[Batch]) -> None:
    assert len(left) == len(right) > 0
    for a, b in zip(left, right, strict=True):
        assert torch.equal(a.indices, b.indices) and torch.equal(a.labels, b.labels)
        assert torch.equal(a.images, b.images)
        assert b.images.is_contiguous(memory_format=torch.channels_last)


@pytest.fixture(scope="module")
def packed(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("packed") / "data"
    assert optimize([f"source={photo_folder}", f"output={output}", "shard_mb=0.3"]) == 0
    return output


@pytest.mark.parametrize("access", [None, "map", "stream"])
def test_subprocess_gives_the_batches_of_threads_from_any_step_and_after_an_abandoned_epoch(
    photo_folder: Path, packed: Path, access: str | None
) -> None:
    data = {"format": "shards", "access": access} if access else {}
    root = packed if access else photo_folder
    threads, child = _loader(root, "threads", **data), _loader(root, "subprocess", **data)
    assert child.steps_per_epoch == threads.steps_per_epoch == 6
    whole = list(threads.epoch(1))
    batches = list(child.epoch(1))
    _assert_same(whole, batches)
    assert all(batch.images.is_shared() for batch in batches)
    abandoned = child.epoch(2)
    next(abandoned)
    _assert_same(whole[4:], list(child.epoch(1, start_step=4)))
    threads.close()
    child.close()


def test_damage_in_a_child_is_skipped_and_listed_or_stops_the_job(
    photo_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = Path(shutil.copytree(photo_folder, tmp_path / "root"))
    bad = root / "train/cat/003.jpg"
    bad.write_bytes(bad.read_bytes()[:-3000])
    for engine in ("threads", "subprocess"):
        caplog.clear()
        loader = _loader(root, engine, on_error="skip", max_bad_fraction=0.1)
        with caplog.at_level(logging.WARNING):
            seen = torch.cat([batch.indices for batch in loader.epoch(0)]).tolist()
        assert str(bad) in caplog.text
        assert seen.count(9) == 0 and seen.count(10) == 2
        loader.close()
    loader = _loader(root, "subprocess")
    with pytest.raises(DataError, match=re.escape(str(bad))):
        list(loader.epoch(0))
    loader.close()


JOB = """
import multiprocessing, os, signal, sys
from pathlib import Path
from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec

data = DataConfig(root=sys.argv[1], image_size=32, resize=32)
source = open_source(data, "train", Path())
pipeline = PipelineConfig(engine="subprocess", num_workers=1)
loader = build_loader(source, LoaderSpec(data, pipeline, "train", 1, seed=0))
batches = loader.epoch(0)
next(batches)
(child,) = multiprocessing.active_children()
print(child.pid, flush=True)
"""


def _run(job: str, folder: Path) -> tuple[int, int, str]:
    """Exit code, pid of the child, standard error."""
    done = subprocess.run(
        [sys.executable, "-c", job, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, int(done.stdout), done.stderr


def test_a_killed_child_is_an_error_that_names_it_and_the_signal(photo_folder: Path) -> None:
    code, child, errors = _run(
        JOB + "os.kill(child.pid, signal.SIGKILL); list(batches)", photo_folder
    )
    assert code == 1
    assert f"(pid {child}) was killed by SIGKILL" in errors


def test_a_failing_job_ends_together_with_its_child(
    photo_folder: Path,
) -> None:
    code, child, errors = _run(JOB + "raise ValueError('the job fails')", photo_folder)
    assert code == 1 and errors.rstrip().endswith("ValueError: the job fails")
    assert has_ended(child)


def test_a_child_does_not_outlive_a_killed_trainer(photo_folder: Path) -> None:
    code, child, _ = _run(JOB + "os.kill(os.getpid(), signal.SIGKILL)", photo_folder)
    assert code == -signal.SIGKILL
    deadline = time.monotonic() + 20
    while not has_ended(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert has_ended(child)


def test_a_child_ignores_signals_meant_for_the_trainer_and_ends_when_closed(
    photo_folder: Path,
) -> None:
    others = set(multiprocessing.active_children())
    loader = _loader(photo_folder, "subprocess")
    batches = loader.epoch(0)
    next(batches)
    (child,) = set(multiprocessing.active_children()) - others
    assert child.pid is not None
    os.kill(child.pid, signal.SIGTERM)
    os.kill(child.pid, signal.SIGINT)
    assert len(list(batches)) == 5
    loader.close()
    assert has_ended(child.pid)
    with pytest.raises(RuntimeError, match="closed"):
        loader.epoch(1)


class HangingSource(FolderSource):
    """Stands for a network file system that is gone: reading `hung` never ends."""

    hung = -1

    def read(self, index: int) -> Tensor:
        if index == self.hung:
            threading.Event().wait()
        return super().read(index)


@pytest.mark.timeout(120)
def test_close_ends_a_child_that_is_blocked_on_a_read(photo_folder: Path) -> None:
    loader = _loader(photo_folder, "threads")
    order = torch.cat([batch.indices for batch in loader.epoch(0)]).tolist()
    loader.close()
    source = HangingSource(photo_folder, "train")
    source.hung = order[40]
    loader = _loader_of(source, "subprocess", DataConfig(image_size=40, resize=48))
    others = set(multiprocessing.active_children())
    batches = loader.epoch(0)
    for _ in range(4):
        next(batches)
    (child,) = set(multiprocessing.active_children()) - others
    loader.close()
    assert child.pid is not None and has_ended(child.pid)
