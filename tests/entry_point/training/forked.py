"""Starts training processes in milliseconds, without a supervisor."""

import multiprocessing
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.entry_point.training.training_jobs import TINY
from tests.forkserver import SERVER

STEP = re.compile(r"^\[metrics\] .* loss=", re.MULTILINE)


def _train(
    root: str,
    data: str,
    overrides: Sequence[str],
    place: Mapping[str, str],
    prepare: Callable[[], None] | None,
) -> None:
    log = os.open(str(Path(root) / "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # By default, a fork server's process would start its workers in that server too.
    multiprocessing.set_start_method("fork", force=True)
    os.environ.update(place, ML_ROOT=root, OMP_NUM_THREADS="1")
    import torch

    from entry_point.train import main

    torch.set_num_threads(1)
    if prepare is not None:
        prepare()
    raise SystemExit(main([*TINY, f"data.root={data}", *overrides]))


def start(
    root: Path,
    data: Path,
    overrides: Sequence[str],
    place: Mapping[str, str] | None = None,
    prepare: Callable[[], None] | None = None,
) -> ForkServerProcess:
    """Start a trainer in `root`, with output in `root/log`.

    `place` is torchrun's environment; the process calls `prepare` before it trains.
    """
    root.mkdir(parents=True, exist_ok=True)
    arguments = (str(root), str(data), list(overrides), dict(place or {}), prepare)
    process = SERVER.Process(target=_train, args=arguments)
    process.start()
    return process


def run(
    root: Path,
    data: Path,
    overrides: Sequence[str],
    ranks: int = 1,
    environment: Mapping[str, str] | None = None,
    prepare: Callable[[], None] | None = None,
) -> int:
    """Run a trainer in `root` to its end; returns the exit code, the same on every rank."""
    processes = start_ranks(root, data, overrides, ranks, environment, prepare)
    for process in processes:
        process.join(timeout=120)
    codes = {process.exitcode for process in processes}
    assert len(codes) == 1 and None not in codes, (root / "log").read_text()
    return int(str(codes.pop()))


def start_ranks(
    root: Path,
    data: Path,
    overrides: Sequence[str],
    ranks: int,
    environment: Mapping[str, str] | None = None,
    prepare: Callable[[], None] | None = None,
) -> list[ForkServerProcess]:
    """Start the ranks of a trainer in `root`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    world = {
        **(environment or {}),
        **rendezvous,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
    }
    places = [{**world, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    return [start(root, data, overrides, place, prepare) for place in places]


def run_until_step(
    root: Path, data: Path, overrides: Sequence[str], step: int, number: signal.Signals
) -> int:
    """Run a trainer, and send it a signal once it has logged `step` steps; returns its exit code.

    Until its own first step, a signal ends it at once.
    """
    earlier = len(_log(root))
    process = start(root, data, overrides)
    while process.is_alive() and (
        not STEP.search(_log(root)[earlier:]) or _steps_logged(root) < step
    ):
        time.sleep(0.002)
    if process.is_alive() and process.pid is not None:
        os.kill(process.pid, number)
    process.join(timeout=120)
    assert process.exitcode is not None, (root / "log").read_text()
    return process.exitcode


def _log(root: Path) -> str:
    try:
        return (root / "log").read_text()
    except FileNotFoundError:
        return ""


def _steps_logged(root: Path) -> int:
    try:
        text = (root / "checkpoints" / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return 0
    return text.count('"loss"')
