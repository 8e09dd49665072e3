"""A command whose processes die at random, repeated until it ends, ends like an undisturbed one."""

import functools
import itertools
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from entry_point.data.sources.dataset_description import is_packed
from entry_point.job.program import ExitCode
from tests.chaos import traces
from tests.chaos.attempts import Attempt, Command, attempt
from tests.chaos.conftest import Chaos
from tests.chaos.endings import Ending
from tests.chaos.strikes import Moments, Strike
from tests.entry_point.data.packing.pack_command import command as packing_command
from tests.entry_point.data.packing.pack_command import contents
from tests.entry_point.training import forked
from tests.entry_point.training.training_jobs import TINY
from tests.entry_point.training.ways import ENGINES, SOURCES

OVERRIDES = (
    "model.name=project.models.small_net",
    "model.kwargs.width=8",
    "trainer.epochs=6",
    "trainer.log_every_steps=1",
    "trainer.checkpoint_every_steps=2",
    "trainer.report=true",
    "optim.mixup_alpha=0.2",
    "optim.ema_decay=0.9",
    "pipeline.num_workers=1",
)
WAYS = list(itertools.product(ENGINES, SOURCES))
MOST_STRIKES = 4
LOCK = ".dataset.json.lock"


@functools.cache
def undisturbed(
    engine: str, source: str, ranks: int, data: Path, images: Path, folder: Path
) -> Ending:
    run = folder / f"{engine}-{source}-{ranks}"
    overrides = [*OVERRIDES, f"pipeline={engine}", *SOURCES[source]]
    assert forked.run(run, data, overrides, ranks) == 0, (run / "log").read_text()
    return Ending.read(run, images)


def moments_of_training(run: Path, log: Path) -> Moments:
    def logged(text: str) -> bool:
        return log.exists() and text in log.read_text(errors="replace")

    return {
        "start": lambda: True,
        "lock": (run / "output/lock").exists,
        "build": lambda: logged("custom_op: compiling") or logged("code  "),
        "operator": lambda: logged("code  "),
        "first step": lambda: logged("epoch=") and logged("step="),
        "third epoch": lambda: logged("epoch=2 "),
        "last epoch": lambda: logged("epoch=5 "),
        "results": lambda: logged("epoch=5 step=18 val_loss"),
    }


def check_training(run: Path, done: Attempt) -> None:
    """After every attempt: the lock is free, and every failure has a reason."""
    done.check_code()
    traces.require_free(run)
    failure = run / "output/failure"
    if done.code == ExitCode.FAILED:
        reason = failure.read_text()
        assert reason and "Traceback" not in reason and "gave no reason" not in reason, done.log
        assert reason in done.log
    elif done.code >= 0 and done.struck != "launcher":  # it leaves the last attempt's reason
        assert not failure.exists(), done.log


def local_command(folder: Path, way: tuple[str, str], ranks: int, data: Path) -> Command:
    """`make local-train` in `folder`."""
    engine, source = way
    overrides = [*TINY, *OVERRIDES, f"pipeline={engine}", *SOURCES[source], f"data.root={data}"]
    arguments = ["name=chaos", *overrides, f"trainer.nproc_per_host={ranks}"]
    program = [sys.executable, "-m", "launch.local", *arguments]
    return Command(program, folder, folder / "tmp")


def engine_builds(draw: random.Random, way: tuple[str, str]) -> bool:
    """Sometimes, where the engine needs the operator."""
    return draw.random() < 0.2 and way[0] != "pillow"


def train_until_the_end(
    draw: random.Random, way: tuple[str, str], ranks: int, data: Path, folder: Path
) -> Path:
    """Start the same command again and again; returns its run folder."""
    run, log = folder / "runs/chaos", folder / "log"
    folder.mkdir()
    command, cache = local_command(folder, way, ranks, data), folder / "cache"
    if builds := engine_builds(draw, way):
        command = replace(command, environment={"CUSTOM_OP_CACHE": str(cache)})
        print("  without a built operator")  # noqa: T201
    moments = moments_of_training(run, log)
    for _ in range(draw.randint(1, MOST_STRIKES)):
        done = attempt(command, log, Strike.drawn(draw, moments, 2.0), moments)
        check_training(run, done)
        if done.code == ExitCode.FINISHED:
            break
    done = attempt(command, log)
    assert done.code == ExitCode.FINISHED, done.log
    check_training(run, done)
    if builds:
        assert not list(cache.glob("*.tmp*")), list(cache.iterdir())
    return run


@pytest.mark.share(0.28)
@pytest.mark.parametrize("ranks", [1, 2])
def test_training_whose_processes_die_at_random_ends_with_the_same_bits(
    ranks: int,
    chaos: Chaos,
    photo_folder: Path,
    packed_photos: Path,
    folder: Path,
    tmp_path: Path,
) -> None:
    ways = random.Random(f"{chaos.seed} {ranks}").sample(WAYS, len(WAYS))
    for draw in chaos:
        engine, source = ways[chaos.rounds % len(ways)]
        print(f"  {engine}, {source}, {ranks} ranks")  # noqa: T201
        data = photo_folder if "folder" in source else packed_photos
        whole = undisturbed(engine, source, ranks, data, photo_folder / "val", tmp_path)
        run = train_until_the_end(draw, (engine, source), ranks, data, folder / str(chaos.rounds))
        Ending.read(run, photo_folder / "val").require_equal(whole)


@pytest.mark.share(0.1)
def test_packing_that_dies_at_random_makes_the_same_bytes(
    chaos: Chaos, photo_folder: Path, packed: Path, folder: Path
) -> None:
    for draw in chaos:
        place = folder / str(chaos.rounds)
        place.mkdir()
        output, work = place / "out/data", place / "out/data/.unfinished"
        moments: Moments = {
            "start": lambda: True,
            "work folder": work.exists,
            "first shard": lambda work=work: any(work.glob("*/*.rows")),  # type: ignore[misc]
            "index": lambda work=work: any(work.glob("*/index.safetensors*")),  # type: ignore[misc]
        }
        command = Command(packing_command(photo_folder, output), place, place / "tmp")
        for _ in range(draw.randint(1, MOST_STRIKES)):
            attempt(command, place / "log", Strike.drawn(draw, moments, 1.0), moments).check_code()
            # A run that finds all done holds a lock, too, which the next one removes.
            done = {name: content for name, content in contents(output).items() if name != LOCK}
            assert not is_packed(output) or work.exists() or done == contents(packed)
        assert attempt(command, place / "log").code == ExitCode.FINISHED
        assert contents(output) == contents(packed)
        assert [path.name for path in output.parent.iterdir()] == ["data"]
