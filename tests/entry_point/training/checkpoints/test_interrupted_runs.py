"""A run that is stopped or killed and then restarted ends as if it was never interrupted."""

import json
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from entry_point.config.config_errors import ConfigError
from entry_point.job.known_tasks import LOSS
from entry_point.job.program import ExitCode
from entry_point.training.progress import Progress
from tests.entry_point.training import forked
from tests.entry_point.training.training_jobs import read_records, timeless
from tests.entry_point.training.ways import OTHERS, SOURCES, WAYS, write_others

OVERRIDES = (
    "model.name=tests.own_models.tiny_net_with_state",
    "trainer.epochs=4",
    "trainer.evaluate_every_epochs=2",
    "trainer.log_every_steps=1",
    "trainer.checkpoint_every_steps=1",
    "optim.mixup_alpha=0.2",
    "optim.ema_decay=0.9",
    "augment.name=rand_timm",
    "augment.erase=0.3",
    "data.progressive=[[0,24],[2,32]]",
)
STEPS, STEPS_PER_EPOCH = 12, 3


def newest_step(root: Path) -> int:
    """The step of the newest checkpoint."""
    return max(int(path.stem.removeprefix("step-")) for path in root.glob("checkpoints/step-*.pt"))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, photo_folder: Path) -> Path:
    """A run on the photographs that ended. Tests must not change it."""
    root = tmp_path_factory.mktemp("uninterrupted")
    assert forked.run(root, photo_folder, OVERRIDES) == 0
    return root


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, photo_folder: Path) -> Path:
    """A run on the photographs that was stopped within an epoch. Tests must not change it."""
    root = tmp_path_factory.mktemp("stopped")
    code = forked.run_until_step(root, photo_folder, OVERRIDES, 2, signal.SIGTERM)
    assert code == ExitCode.STOPPED
    if newest_step(root) % STEPS_PER_EPOCH == 0:
        sorted((root / "checkpoints").glob("step-*.pt"))[-1].unlink()
    return root


def weights(root: Path) -> dict[str, Any]:
    state: dict[str, Any] = load_file(root / "model" / "model.safetensors")
    return state


def assert_same_end(root: Path, uninterrupted: Path) -> None:
    one, other = weights(root), weights(uninterrupted)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert timeless(read_records(root)) == timeless(read_records(uninterrupted))


@pytest.mark.parametrize(("engine", "source"), WAYS)
def test_a_run_stopped_and_killed_at_random_steps_ends_bit_identical(
    engine: str,
    source: str,
    tmp_path: Path,
    photo_folder: Path,
    mixed_folder: Path,
    packed_photos: Path,
) -> None:
    data, of_source = packed_photos, (SOURCES | OTHERS)[source]
    if "folder" in source:
        data = mixed_folder if "formats" in source else photo_folder
    elif source in OTHERS:
        data = write_others(source, photo_folder, tmp_path / source)
    overrides = [*OVERRIDES, f"pipeline={engine}", "pipeline.num_workers=1", *of_source]
    assert forked.run(tmp_path / "uninterrupted", data, overrides) == 0
    draw = random.Random(f"{engine} {source}")
    root = tmp_path / "interrupted"
    numbers = [signal.SIGTERM, signal.SIGKILL]
    draw.shuffle(numbers)
    codes = [
        forked.run_until_step(root, data, overrides, step, number)
        for step, number in zip(sorted(draw.sample(range(1, STEPS - 2), 2)), numbers, strict=True)
    ]
    assert set(codes) <= {ExitCode.STOPPED, -signal.SIGKILL}, (root / "log").read_text()
    assert forked.run(root, data, overrides) == 0
    assert_same_end(root, tmp_path / "uninterrupted")


KILLED_WRITER = """
import os, signal, sys
from contextlib import ExitStack
from pathlib import Path

from entry_point.job.whole_file import replacing

with ExitStack() as files:
    for name in sys.argv[1:]:
        files.enter_context(replacing(Path(name))).write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_killed_writers_left_is_removed_at_the_next_start(
    tmp_path: Path, photo_folder: Path
) -> None:
    assert forked.run(tmp_path, photo_folder, [*OVERRIDES, "trainer.epochs=1"]) == 0
    kept = tmp_path / "model" / ".notes.2026"
    kept.write_text("not ours")
    written = (
        *("model/model.safetensors", "model/classes.json", "checkpoints/step-000000003.pt"),
        *("checkpoints/best.pt", "checkpoints/metrics.jsonl", "output/data/profile/a.json.gz"),
    )
    command = [sys.executable, "-c", KILLED_WRITER, *(str(tmp_path / name) for name in written)]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    partial = {path for path in tmp_path.rglob(".*") if path != kept}
    assert len(partial) == len(written)
    assert forked.run(tmp_path, photo_folder, [*OVERRIDES, "trainer.epochs=1"]) == 0
    assert list(tmp_path.rglob(".*")) == [kept]


def test_changed_training_images_are_refused_within_an_epoch_and_named_between_two(
    tmp_path: Path, photo_folder: Path, stopped: Path
) -> None:
    """As many images of as many classes; one has another label."""
    other = changed(photo_folder, "train", tmp_path)
    within, between = Path(shutil.copytree(stopped, tmp_path / "within")), tmp_path / "between"
    epoch = newest_step(within) // STEPS_PER_EPOCH + 1
    assert forked.run(within, other, OVERRIDES) == ExitCode.USAGE
    refused = f"the dataset has changed since the checkpoint, within epoch {epoch}: the training"
    assert refused in (within / "log").read_text().splitlines()[-1]
    assert forked.run(between, photo_folder, [*OVERRIDES, "trainer.epochs=1"]) == 0
    assert forked.run(between, other, [*OVERRIDES, "trainer.epochs=2"]) == 0
    line = "the dataset has changed since the checkpoint: the training images have other names"
    assert (between / "log").read_text().count(line) == 1


def changed(photo_folder: Path, split: str, folder: Path) -> Path:
    other = Path(shutil.copytree(photo_folder, folder / "other"))
    (other / split / "cat" / "000.jpg").rename(other / split / "rocket" / "zebra.jpg")
    return other


def test_a_checkpoint_of_version_1_resumes_to_the_same_end(
    tmp_path: Path, photo_folder: Path, uninterrupted: Path, stopped: Path
) -> None:
    """It has the values of all parts in one, and the records; it may lack what later versions keep
    besides."""
    root = Path(shutil.copytree(stopped, tmp_path / "run"))
    lines = (root / "checkpoints" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (root / "checkpoints" / "metrics.jsonl").unlink()
    for path in root.glob("checkpoints/*.pt"):
        state = torch.load(path, weights_only=True)
        for part in ("progress", "learner", "log"):
            state |= state.pop(part)
        del state["stale"]  # the run does not stop early
        path.unlink()  # two of them may be the same file
        step = STEPS_PER_EPOCH * state["epoch"] + state["step"]
        records = "".join(line for line in lines if json.loads(line)["step"] <= step)
        more = {"weights": "averaged", "ema_measured": 6, "records": records}
        torch.save({**state, **more}, path)
    assert forked.run(root, photo_folder, OVERRIDES) == 0, (root / "log").read_text()
    assert "resuming from" in (root / "log").read_text()
    assert_same_end(root, uninterrupted)


def test_a_run_of_an_earlier_version_keeps_its_split(tmp_path: Path, photo_folder: Path) -> None:
    """Its checkpoints do not say whether small classes are topped up: they were not."""
    images = "44 training and 4 validation images"
    ranks, epochs = 2, [[*OVERRIDES, f"trainer.epochs={count}"] for count in (1, 2)]
    data, log = photo_folder / "train", tmp_path / "log"
    assert forked.run(tmp_path, data, [*epochs[0], "data.val_top_up=null"], ranks) == 0
    for path in tmp_path.glob("checkpoints/*.pt"):
        state = torch.load(path, weights_only=True)
        assert state["identity"].pop("data.val_top_up", "missing") is None
        path.unlink()  # two of them may be the same file
        torch.save(state, path)
    for overrides in epochs[1:]:
        log.unlink()
        assert forked.run(tmp_path, data, overrides, ranks) == 0, log.read_text()
        assert images in log.read_text() and "has changed" not in log.read_text()
        # By the first rank only.
        assert log.read_text().count("\nval has fewer than 10 images of 3 of 8 classes (") == 1
        assert "  val_top_up: null\n" in (tmp_path / "model/config.yaml").read_text()


def test_a_complete_run_refuses_fewer_epochs_and_continues_with_more(
    tmp_path: Path, photo_folder: Path
) -> None:
    def run(epochs: int) -> tuple[int, str]:
        (tmp_path / "log").unlink(missing_ok=True)
        code = forked.run(tmp_path, photo_folder, [*OVERRIDES, f"trainer.epochs={epochs}"])
        return code, (tmp_path / "log").read_text()

    assert run(2)[0] == 0
    code, log = run(2)
    assert code == 0
    assert "complete (epoch 2 of 2): nothing to train; set trainer.epochs=3 or more" in log
    code, log = run(1)
    assert code == ExitCode.USAGE
    assert "trainer.epochs=1: the checkpoint is already at epoch 2, step 0" in log
    code, log = run(3)
    assert code == 0
    assert "start    epoch 2, step 0" in log
    assert "nothing to train" not in log


@pytest.mark.parametrize(("step", "least"), [(0, 7), (3, 8)])
def test_the_error_for_too_few_epochs_names_the_least_allowed(step: int, least: int) -> None:
    progress = Progress(steps_per_epoch=5, metric=LOSS, epoch=7, step=step)
    progress.check_epochs(least)
    with pytest.raises(ConfigError, match=rf"epochs={least - 1}: .* set trainer\.epochs={least}"):
        progress.check_epochs(least - 1)


def test_a_nan_loss_stops_the_job_in_one_line_and_keeps_a_good_checkpoint(
    tmp_path: Path, photo_folder: Path
) -> None:
    overrides = [*OVERRIDES, "model.name=tests.own_models.poisoned_net"]
    assert forked.run(tmp_path, photo_folder, overrides) == ExitCode.FAILED
    failure = (tmp_path / "output" / "failure").read_text()
    assert failure.startswith("loss=nan in step 2 of epoch 0: lower optim.lr=")
    assert failure.endswith("use another name to restart from scratch") and "\n" not in failure
    assert "Traceback" not in (tmp_path / "log").read_text()
    newest = sorted((tmp_path / "checkpoints").glob("step-*.pt"))[-1]
    state = torch.load(newest, weights_only=True)
    assert all(t.isfinite().all() for t in state["learner"]["model"].values())


def test_one_batch_keeps_its_batch_after_a_stop(tmp_path: Path, photo_folder: Path) -> None:
    one_batch = [*OVERRIDES, "trainer.diagnose=one_batch"]
    assert forked.run(tmp_path / "whole", photo_folder, one_batch) == 0
    root = tmp_path / "interrupted"
    code = forked.run_until_step(root, photo_folder, one_batch, 4, signal.SIGTERM)
    assert code == ExitCode.STOPPED
    assert forked.run(root, photo_folder, one_batch) == 0
    assert_same_end(root, tmp_path / "whole")
