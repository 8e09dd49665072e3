"""Full disks, frozen processes, hostile names and forged datasets, all drawn at random."""

import random
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from entry_point.job.metrics_line import METRIC_REGEXES
from entry_point.job.program import ExitCode
from entry_point.job.ranks import ONE_REQUEST_S
from tests import forkserver
from tests.chaos import victims
from tests.chaos.attempts import Command, attempt, survivors
from tests.chaos.conftest import Chaos
from tests.chaos.endings import Ending
from tests.chaos.hostile_data import disturb_dataset, disturb_names
from tests.chaos.test_random_deaths import (
    OVERRIDES,
    local_command,
    moments_of_training,
    undisturbed,
)
from tests.entry_point.training import forked
from tests.entry_point.training.training_jobs import read_records

LONGEST_S = 120.0
ALLOWED = (ExitCode.FINISHED, ExitCode.FAILED, ExitCode.USAGE)
NO_ROOM = re.compile(r"no space left|No space left|File too large|no shared memory")


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """A file system of `size` bytes at `folder`."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def can_mount(folder: Path) -> bool:
    mount = ["mount", "-t", "tmpfs", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        return False
    return subprocess.run(["umount", "--lazy", str(folder)]).returncode == 0


@pytest.mark.share(0.1)
def test_training_on_full_disks_names_them_and_ends_with_the_same_bits(
    chaos: Chaos, photo_folder: Path, folder: Path, tmp_path: Path
) -> None:
    whole = undisturbed("threads", "folder", 1, photo_folder, photo_folder / "val", tmp_path)
    for draw in chaos:
        place = folder / str(chaos.rounds)
        (place / "runs/chaos").mkdir(parents=True)
        command = local_command(place, ("threads", "folder"), 1, photo_folder)
        size = int(2 ** draw.uniform(13, 19))
        mounted = draw.random() < 0.5 and can_mount(place / "runs")
        print(f"  {'a disk' if mounted else 'files'} of at most {size} bytes")  # noqa: T201
        if mounted:
            with small_disk(place / "runs", size):
                check_reason(place, command)
                grow = ["mount", "-o", "remount,size=100m", str(place / "runs")]
                subprocess.run(grow, check=True)
                require_same_end(place, command, photo_folder, whole)
        else:
            check_reason(place, limited(command, size))
            require_same_end(place, command, photo_folder, whole)


def limited(command: Command, size: int) -> Command:
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
    return replace(command, limit=limit)


def check_reason(place: Path, command: Command) -> None:
    """The command finishes, or says where there is no room."""
    done = attempt(command, place / "log")
    if done.code == ExitCode.FINISHED:
        return
    assert done.code == ExitCode.FAILED, done.log
    failure = place / "runs/chaos/output/failure"
    reason = failure.read_text() if failure.exists() else done.log
    assert NO_ROOM.search(reason) and str(place) in reason, f"{reason}\n{done.log}"
    assert "Traceback" not in done.log and "Traceback" not in reason, done.log


def require_same_end(place: Path, command: Command, images: Path, whole: Ending) -> None:
    done = attempt(command, place / "log")
    assert done.code == ExitCode.FINISHED, done.log
    Ending.read(place / "runs/chaos", images / "val").require_equal(whole)


@pytest.mark.share(0.08)
@pytest.mark.parametrize("ranks", [1, 2])
def test_training_whose_loaders_freeze_ends_once_it_is_asked_twice_and_resumes(
    ranks: int, chaos: Chaos, photo_folder: Path, folder: Path, tmp_path: Path
) -> None:
    for draw in chaos:
        place = folder / str(chaos.rounds)
        engine = draw.choice(("pillow", "workers"))
        print(f"  {engine}, {ranks} ranks")  # noqa: T201
        whole = undisturbed(engine, "folder", ranks, photo_folder, photo_folder / "val", tmp_path)
        place.mkdir()
        command = local_command(place, (engine, "folder"), ranks, photo_folder)
        freeze_and_stop(draw, command, place)
        require_same_end(place, command, photo_folder, whole)


def freeze_and_stop(draw: random.Random, command: Command, place: Path) -> None:
    """Freeze one process that makes batches, then ask the job to stop, twice if it does not."""
    log, mark = place / "log", victims.mark()
    moments, moment = moments_of_training(place / "runs/chaos", log), "first step"
    process = command.start(mark, log)
    try:
        while process.poll() is None and not moments[moment]():
            time.sleep(0.002)
        time.sleep(draw.random())
        loaders = sorted(p for p, role in victims.find(mark).items() if role == "loader")
        if loaders and process.poll() is None:
            victims.kill(draw.choice(loaders), signal.SIGSTOP)
            time.sleep(draw.random())
            victims.kill(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=3 * ONE_REQUEST_S)
            victims.kill(process.pid, signal.SIGTERM)
        code = process.wait(timeout=100)
        print(f"  frozen: exit code {code}")  # noqa: T201
        text = log.read_text()
        failure = place / "runs/chaos/output/failure"
        if code == ExitCode.FAILED:
            assert failure.read_text().startswith("the job was asked to stop and then killed"), text
        else:
            assert code in (ExitCode.STOPPED, ExitCode.FINISHED), text
            assert not failure.exists(), text
        assert not survivors(mark), text
    finally:
        for pid in victims.find(mark):
            victims.kill(pid, signal.SIGKILL)
        process.wait()


def run_soon(*arguments: str, log: Path) -> tuple[int, str]:
    """The exit code and the output of a command that must end soon, and not by a signal."""
    program = forkserver.start(["-m", "entry_point", *arguments], log)
    with suppress(subprocess.TimeoutExpired):
        program.wait(LONGEST_S)
    program.kill()
    code, text = program.wait(), log.read_text(errors="backslashreplace")
    assert code >= 0, f"{arguments} ended with {code}\n{text}"
    return code, text


@pytest.mark.share(0.1)
def test_forged_datasets_are_refused_with_a_line(
    chaos: Chaos, packed_photos: Path, tmp_path: Path
) -> None:
    for draw in chaos:
        place = tmp_path / str(chaos.rounds)
        data = Path(shutil.copytree(packed_photos, place / "data"))
        print(f"  {disturb_dataset(draw, data)}")  # noqa: T201
        code, log = run_soon("check-dataset", f"root={data}", log=place / "check.log")
        print(f"  check-dataset: {code}")  # noqa: T201
        assert code in ALLOWED and "Traceback" not in log, log
        assert "panicked" not in log and log.strip(), log
        run = place / "run"
        overrides = ["data.format=shards", f"data.access={draw.choice(('map', 'stream'))}"]
        trained = forked.run(run, data, [*overrides, "trainer.epochs=1"])
        log = (run / "log").read_text(errors="backslashreplace")
        assert trained in ALLOWED and "Traceback" not in log, log
        assert code or not trained, f"check-dataset finds nothing, but training fails:\n{log}"
        shutil.rmtree(place)


@pytest.mark.share(0.08)
def test_hostile_names_and_pipes_neither_stop_nor_mislead(
    chaos: Chaos, photo_folder: Path, tmp_path: Path
) -> None:
    regexes = [METRIC_REGEXES[name] for name in ("validation:accuracy", "validation:loss")]
    for draw in chaos:
        place = tmp_path / str(chaos.rounds)
        data = Path(shutil.copytree(photo_folder, place / "data"))
        disturb_names(draw, data)
        engine = draw.choice(("threads", "pillow"))
        skip = ["data.max_bad_fraction=0.5", f"pipeline={engine}"]
        run, output = place / "run", place / "packed"
        assert forked.run(run, data, [*skip, *OVERRIDES]) == 0, (run / "log").read_text()
        text = (run / "log").read_text()
        found = [
            float(n) for r in regexes for line in text.splitlines() for n in re.findall(r, line)
        ]
        logged = [r[k] for k in ("val_accuracy", "val_loss") for r in read_records(run) if k in r]
        assert found == pytest.approx(logged, rel=1e-4)
        packing = (f"source={data}", f"output={output}")
        code, packed_log = run_soon("optimize", *packing, log=place / "pack.log")
        assert code == 0 and (output / "dataset.json").is_file(), packed_log
        code, checked_log = run_soon("check-dataset", f"root={data}", log=place / "check.log")
        assert code == ExitCode.FAILED, checked_log
        for log in (text, packed_log, checked_log):
            assert "Traceback" not in log
            assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", log), log
        shutil.rmtree(place)
