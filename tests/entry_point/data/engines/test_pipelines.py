import multiprocessing
import re
import signal
import socket
import subprocess
import sys
import time
from multiprocessing import resource_sharer
from pathlib import Path
from typing import Any

import pytest
import torch

from entry_point.config.data_config import DataConfig
from entry_point.data.engines.workers import WorkerEngine
from entry_point.data.loader_spec import LoaderSpec
from tests import forkserver
from tests.entry_point.data.engines.every_engine import Way, has_ended, pipeline_of
from tests.entry_point.data.loaders import SIDE, epoch_of, loader_of, source_of

ENGINES: tuple[Way, ...] = ("pillow", "workers", "threads")


@pytest.mark.parametrize("engine", ENGINES)
def test_batches_are_uint8_channels_last_with_the_labels_of_their_indices(
    photo_folder: Path, engine: Way
) -> None:
    loader, source = loader_of(photo_folder, engine, workers=0), source_of(photo_folder)
    batches = epoch_of(loader)
    assert len(batches) == loader.steps_per_epoch == 4
    for batch in batches:
        assert batch.images.shape == (12, 3, SIDE, SIDE) and batch.images.dtype == torch.uint8
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(batch.labels, source.labels[batch.indices])


@pytest.mark.parametrize("split", ["train", "val"])
def test_all_engines_give_the_same_pixels_within_one_level(photo_folder: Path, split: str) -> None:
    """The photographs include all subsamplings, progressive files and all EXIF orientations."""
    reference, *others = (
        epoch_of(loader_of(photo_folder, engine, split, workers=0), 1) for engine in ENGINES
    )
    assert reference
    for batches in others:
        for a, b in zip(reference, batches, strict=True):
            assert torch.equal(a.indices, b.indices) and torch.equal(a.labels, b.labels)
            assert (a.images.int() - b.images.int()).abs().max() <= 1


def test_an_abandoned_epoch_takes_no_batch_from_the_next(photo_folder: Path) -> None:
    loader = loader_of(photo_folder)
    left = loader.epoch(5)
    next(left)
    batches = loader.epoch(2)
    first = next(batches)
    assert next(left, None) is None
    assert len([first, *batches]) == 4
    loader.close()


def test_epochs_differ_in_order_and_crops(photo_folder: Path) -> None:
    loader = loader_of(photo_folder, "pillow", workers=0, batch_size=48)
    first, second = next(loader.epoch(0)), next(loader.epoch(1))
    assert not torch.equal(first.indices, second.indices)
    images = (batch.images[batch.indices.argsort()] for batch in (first, second))
    assert all(not torch.equal(a, b) for a, b in zip(*images, strict=True))


PROGRAM = """
import multiprocessing, os, signal, sys
from pathlib import Path
from entry_point.job.program import run_program
from tests.entry_point.data.loaders import loader_of

photos = Path(sys.argv[1])
batches = loader_of(photos, "pillow", workers=2, batch_size=1).epoch(0)
next(batches)
workers = [child.pid for child in multiprocessing.active_children()]
"""
KILL_A_WORKER = f"""{PROGRAM}
def read():
    os.kill(workers[0], signal.SIGKILL)
    return len(list(batches))

sys.exit(run_program("train", read))
"""


def test_a_killed_worker_is_an_error_of_one_line(photo_folder: Path, tmp_path: Path) -> None:
    job = forkserver.start(["-c", KILL_A_WORKER, str(photo_folder)], tmp_path / "log")
    output, _ = job.communicate()
    assert job.returncode == 1
    (line,) = output.splitlines()
    assert re.match(r"train: DataLoader worker .*(killed|exited).*; if memory ran out", line)


def leave_a_connection(*_request: object, **_: object) -> Any:
    """What a trainer that ends does while it takes a batch over."""
    handle: Any = resource_sharer.DupFd(0)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(handle._id[0])
    time.sleep(0.2)


def test_a_worker_says_nothing_of_a_connection_that_the_trainer_left(
    capfd: pytest.CaptureFixture[str],
) -> None:
    spec = LoaderSpec(DataConfig(), pipeline_of("workers", num_workers=1), "train", 1, seed=0)
    engine = WorkerEngine(leave_a_connection, spec, 1)  # type: ignore[arg-type]
    requests: Any = iter([(0,)])
    assert next(engine.start(requests)) is None
    engine.stop()
    assert capfd.readouterr().err == ""


FAIL_BEFORE_CLOSING = f"""{PROGRAM}
others = loader_of(photos, "threads", workers=2, batch_size=1).epoch(0)
next(others)
raise ValueError("the job fails")
"""


def test_a_job_that_fails_without_closing_its_loaders_ends(photo_folder: Path) -> None:
    """An interpreter of its own ends with their threads and processes."""
    job = subprocess.run(
        [sys.executable, "-c", FAIL_BEFORE_CLOSING, str(photo_folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert job.returncode == 1
    assert job.stderr.rstrip().endswith("ValueError: the job fails")


KILLED_LATER = f"""{PROGRAM}
print(*workers, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
KILLED_WHILE_WORKERS_START = """
import threading, time
from torch.utils.data._utils import worker

def late(check=worker.ManagerWatchdog):
    time.sleep(2)
    return check()

def die():
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

worker.ManagerWatchdog = late
threading.Timer(1, die).start()
"""


@pytest.mark.parametrize(
    "die", [KILLED_LATER, PROGRAM.replace("next(b", f"{KILLED_WHILE_WORKERS_START}next(b")]
)
def test_workers_do_not_outlive_a_killed_trainer(
    die: str, photo_folder: Path, tmp_path: Path
) -> None:
    job = forkserver.start(["-c", die, str(photo_folder)], tmp_path / "log")
    output, _ = job.communicate(timeout=120)
    workers = [int(pid) for pid in output.split()]
    assert job.returncode == -signal.SIGKILL and len(workers) == 2
    deadline = time.monotonic() + 20
    while not all(has_ended(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(has_ended(pid) for pid in workers)


def test_workers_end_when_the_loader_is_closed(photo_folder: Path) -> None:
    loader = loader_of(photo_folder, "pillow", workers=2)
    batches = loader.epoch(0)
    next(batches)
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    assert len(list(batches)) == 3
    del batches
    loader.close()
    deadline = time.monotonic() + 20
    while any(worker.is_alive() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(worker.is_alive() for worker in workers)
    with pytest.raises(RuntimeError, match="closed"):
        next(loader.epoch(1))
