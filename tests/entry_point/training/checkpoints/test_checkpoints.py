"""Checkpoints: which ones are kept, which one a run resumes from, and which are refused."""

import errno
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from entry_point.job.program import ExitCode
from entry_point.job.whole_file import replacing
from entry_point.training import checkpoints
from entry_point.training.checkpoints import (
    CheckpointError,
    Checkpoints,
    State,
    infinite_weights,
    load_best,
    load_newest,
    save_tensors,
)
from entry_point.training.resume import saved_identity
from tests import forkserver
from tests.entry_point.training import forked
from tests.entry_point.training.checkpoints.test_interrupted_runs import OVERRIDES, assert_same_end
from tests.entry_point.training.training_jobs import read_records


def state(step: int) -> State:
    weights = {"weight": torch.full((64,), float(step))}
    return {
        "step": step,
        "identity": {"steps per epoch": 3},
        "progress": {"epoch": step // 3, "step": step % 3},
        "learner": {"model": weights, "ema": weights},
    }


def save(folder: Path, steps: list[int], best: int | None = None) -> None:
    """Save `steps`, as a run that starts one step before the first."""
    checkpoints = Checkpoints(folder, None, steps[0] - 1, writes=True)
    for step in steps:
        checkpoints.save(state(step), step, best=step == best)
    checkpoints.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def test_the_newest_two_and_the_best_are_kept_and_one_of_a_finished_run(tmp_path: Path) -> None:
    assert load_newest(tmp_path) is load_best(tmp_path) is None
    run = Checkpoints(tmp_path, None, 0, writes=True)
    for step in (1, 2, 3, 4):
        run.save(state(step), step, best=step == 2)
    run.wait()
    assert names(tmp_path) == ["best.pt", "step-000000003.pt", "step-000000004.pt"]
    assert torch.load(tmp_path / "best.pt", weights_only=True)["step"] == 2
    run.finish()
    run.close()
    assert names(tmp_path) == ["best.pt", "step-000000004.pt"]
    assert not [thread for thread in threading.enumerate() if "checkpoint" in thread.name]


def test_a_checkpoint_has_the_weights_of_its_step_while_training_continues(tmp_path: Path) -> None:
    run, at_step_1, may_write = Checkpoints(tmp_path, None, 0, writes=True), state(1), Event()

    def export(_: State) -> None:
        assert may_write.wait(60)

    run.save(at_step_1, 1, export=export)
    at_step_1["learner"]["model"]["weight"].zero_()
    may_write.set()
    run.close()
    saved = load_newest(tmp_path)
    assert saved is not None and saved["learner"]["model"]["weight"].tolist() == [1.0] * 64


def test_a_checkpoint_is_due_ten_minutes_after_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(checkpoints, "time", SimpleNamespace(monotonic=lambda: now))
    run = Checkpoints(tmp_path, None, 4, writes=True)
    now = 1600.0
    assert not run.time_is_up()
    now = 1601.0
    assert run.time_is_up() and run.is_due(6, time_is_up=True)
    run.save(state(6), 6)
    assert not run.time_is_up()
    assert not run.is_due(7, time_is_up=True)  # the ranks agreed on it before the save
    assert run.is_due(8, time_is_up=True) and not run.is_due(8, time_is_up=False)
    run.close()


@pytest.mark.parametrize("links", [True, False])
def test_the_newest_checkpoint_takes_no_room_beside_the_best_if_it_is_the_same(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr(Path, "hardlink_to", lambda *_: (tmp_path / "missing").stat())
    save(tmp_path, [1], best=1)
    best, newest = (tmp_path / name for name in names(tmp_path))
    assert best.samefile(newest) == links
    assert best.read_bytes() == newest.read_bytes()
    save(tmp_path, [2])
    assert torch.load(best, weights_only=True)["step"] == 1


@pytest.mark.parametrize("earlier", [[1], []], ids=["earlier", "first"])
def test_a_best_checkpoint_is_not_lost_if_its_epochs_checkpoint_cannot_be_written(
    earlier: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run resumes from the best checkpoint, which is whole."""
    if earlier:
        save(tmp_path, earlier, best=1)
    written: list[Path] = []

    @contextmanager
    def failing(path: Path) -> Iterator[Path]:
        written.append(path)
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        with replacing(path) as temporary:
            yield temporary

    monkeypatch.setattr(checkpoints, "replacing", failing)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, [2], best=2)
    newest = load_newest(tmp_path)
    assert newest is not None and newest["step"] == 2
    assert torch.load(tmp_path / "best.pt", weights_only=True)["step"] == 2
    monkeypatch.undo()
    save(tmp_path, [3])
    assert names(tmp_path) == ["best.pt", *(f"step-{step:09d}.pt" for step in [*earlier, 3])]


def test_a_damaged_newest_checkpoint_is_named_passed_over_and_counts_for_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where `trainer.epochs` ends the run before its step."""
    save(tmp_path, [4, 9])
    damage(tmp_path / "step-000000009.pt")
    good = load_newest(tmp_path)
    assert good is not None and good["step"] == 4
    assert f"{tmp_path}/step-000000009.pt is damaged (" in caplog.text
    run = Checkpoints(tmp_path, None, 4, writes=True)
    for step in (5, 6):
        run.save(state(step), step)
    run.wait()
    assert names(tmp_path) == [f"step-{step:09d}.pt" for step in (5, 6, 9)]
    run.finish()
    run.close()
    newest = load_newest(tmp_path)
    assert newest is not None and newest["step"] == 6


@pytest.mark.parametrize(
    ("whole", "best", "damaged", "expected"),
    [
        ([1, 2, 3], 1, [2, 3], 1),  # the best one, if all others are damaged
        ([4, 8], 8, [8], 8),  # a copy of the damaged one
        ([8, 9], 4, [9], 8),
        ([1, 2, 3], 1, [0], 3),  # the best one is damaged: its step cannot be read
        ([999_999_999, 1_000_000_000], None, [], 1_000_000_000),
    ],
)
def test_the_checkpoint_of_the_highest_step_that_is_whole_is_taken(
    whole: list[int], best: int | None, damaged: list[int], expected: int, tmp_path: Path
) -> None:
    for step in whole:
        save_tensors(state(step), tmp_path / f"step-{step:09d}.pt")
    if best is not None:
        save_tensors(state(best), tmp_path / "best.pt")
    for name in ("step-5.pt.old", "step-000000007 copy.pt", "aside-step-000000099.pt"):
        (tmp_path / name).touch()
    for step in damaged:
        damage(tmp_path / (f"step-{step:09d}.pt" if step else "best.pt"))
    newest = load_newest(tmp_path)
    assert newest is not None and newest["step"] == expected


def test_only_damaged_checkpoints_are_an_error_not_a_restart(tmp_path: Path) -> None:
    assert load_newest(tmp_path) is None
    save(tmp_path, [1, 2])
    for path in tmp_path.glob("step-*"):
        damage(path)
    with pytest.raises(CheckpointError, match=f"every checkpoint in {tmp_path} is"):
        load_newest(tmp_path)


def test_an_unreadable_checkpoint_is_not_called_damaged(tmp_path: Path) -> None:
    save(tmp_path, [1])
    (tmp_path / "step-000000002.pt").mkdir()
    with pytest.raises(IsADirectoryError):
        load_newest(tmp_path)


SHORT_OF_MEMORY = """
import logging, resource, sys
from pathlib import Path

from entry_point.training.checkpoints import load_newest

logging.basicConfig()
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 100_000_000,) * 2)
try:
    load_newest(Path(sys.argv[1]))
except OSError as error:
    print("OSError", error.filename, error.strerror)
"""


def test_a_checkpoint_that_does_not_fit_into_memory_is_not_called_damaged(tmp_path: Path) -> None:
    for step in (1, 2):
        path = tmp_path / f"step-{step:09d}.pt"
        torch.save({"model": {"weight": torch.zeros(80_000_000)}}, path)
    done = forkserver.start(["-c", SHORT_OF_MEMORY, str(tmp_path)], tmp_path / "log")
    newest = tmp_path / "step-000000002.pt"
    expected = f"OSError {newest} not enough memory to load it, 321 MB needed\n"
    assert done.communicate() == (expected, "")


def test_a_bit_that_the_disk_has_changed_in_a_weight_is_damage(tmp_path: Path) -> None:
    save(tmp_path, [1, 2])
    newest = tmp_path / "step-000000002.pt"
    content = bytearray(newest.read_bytes())
    content[content.index(struct.pack("<64f", *[2.0] * 64)) + 10] ^= 1
    newest.write_bytes(content)
    good = load_newest(tmp_path)
    assert good is not None and good["step"] == 1


def test_another_file_of_torchs_has_no_identity(tmp_path: Path) -> None:
    torch.save(torch.zeros(3), tmp_path / "step-000000001.pt")
    assert saved_identity(tmp_path) == {}


def test_damage_to_the_archives_directory_leads_to_the_previous_checkpoint(tmp_path: Path) -> None:
    """A byte that means nothing may leave the newest one whole; none leads to another error."""
    save(tmp_path, [1, 2])
    newest = tmp_path / "step-000000002.pt"
    whole = newest.read_bytes()
    steps = []
    for position in range(len(whole) - 150, len(whole), 5):
        newest.write_bytes(
            whole[:position] + bytes([whole[position] ^ 0x80]) + whole[position + 1 :]
        )
        good = load_newest(tmp_path)
        assert good is not None
        steps.append(good["step"])
    assert steps.count(1) > 10


def test_other_ranks_write_nothing_but_agree_on_when_a_checkpoint_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "SECONDS", 0.0)
    first, second = (Checkpoints(tmp_path / name, 2, 0, name == "0") for name in "01")
    for step in (1, 2, 3):
        assert first.is_due(step, False) == second.is_due(step, False) == (step == 2)
        assert (first.time_is_up(), second.time_is_up()) == (True, False)
        for each in (first, second):
            each.save(state(step), step)
    for each in (first, second):
        each.close()
    assert names(tmp_path) == ["0"]


@pytest.mark.parametrize("part", ["model", "ema"])
def test_nan_weights_are_not_saved_and_the_next_save_says_so(part: str, tmp_path: Path) -> None:
    save(tmp_path, [1], best=1)
    checkpoints = Checkpoints(tmp_path, None, 1, writes=True)
    learner = {**state(2)["learner"], part: {"weight": torch.tensor([1.0, float("nan")])}}
    checkpoints.save({"learner": learner}, 2)
    where = f"from model.weights={tmp_path / 'best.pt'}"
    with pytest.raises(CheckpointError, match=f"weight of the {part} .* after step 2.* {where}$"):
        checkpoints.save(state(3), 3)
    with pytest.raises(CheckpointError, match="after step 2"):
        checkpoints.close()
    assert names(tmp_path) == ["best.pt", "step-000000001.pt"]


def test_what_was_infinite_at_the_start_and_optimizers_may_be_infinite(tmp_path: Path) -> None:
    inf = float("inf")
    start = nn.Linear(2, 1, bias=False)
    start.register_buffer("least", torch.tensor([inf, 0.0]))
    assert infinite_weights(start.state_dict()) == {"least"}
    checkpoints = Checkpoints(tmp_path, None, 0, True, {"least"})
    least = torch.tensor([-inf, 1.0])
    good, wrong = ({"least": least, "weight": torch.tensor([value])} for value in (0.0, inf))
    optimizer = {"state": {0: {"least_loss": torch.tensor(inf)}}}
    checkpoints.save({"learner": {"model": good, "ema": good, "optimizer": optimizer}}, 1)
    checkpoints.wait()
    checkpoints.save({"learner": {"model": wrong}}, 2)
    with pytest.raises(CheckpointError, match="weight of the model holds NaN or infinity"):
        checkpoints.close()


def test_a_model_with_infinite_constants_trains_and_averages(
    tmp_path: Path, photo_folder: Path
) -> None:
    overrides = [*OVERRIDES, "model.name=tests.own_models.infinite_net"]
    assert forked.run(tmp_path, photo_folder, overrides) == 0
    averaged = load_file(tmp_path / "model" / "model.safetensors")
    infinite = {name for name, value in averaged.items() if not value.isfinite().all()}
    assert infinite == {"mask", "least", "floor"}
    assert not any(value.isnan().any() for value in averaged.values())


def test_infinite_gradients_leave_only_finite_checkpoints(
    tmp_path: Path, photo_folder: Path
) -> None:
    overrides = [*OVERRIDES, "model.name=tests.own_models.exploding_net"]
    assert forked.run(tmp_path, photo_folder, overrides) == ExitCode.FAILED
    (line,) = (tmp_path / "output" / "failure").read_text().splitlines()
    assert line.endswith("and use another name to restart from scratch")
    assert "Traceback" not in (tmp_path / "log").read_text()
    for path in (tmp_path / "checkpoints").glob("step-*.pt"):
        weights = torch.load(path, weights_only=True)["learner"]["model"]
        assert all(value.isfinite().all() for value in weights.values())


def test_a_nan_validation_loss_stops_the_job(tmp_path: Path, photo_folder: Path) -> None:
    overrides = [*OVERRIDES, "model.name=tests.own_models.blind_net"]
    assert forked.run(tmp_path, photo_folder, overrides) == ExitCode.FAILED
    assert "val_loss=nan after epoch 1" in (tmp_path / "output" / "failure").read_text()
    assert not [record for record in read_records(tmp_path) if "val_loss" in record]


def test_a_run_stopped_during_evaluation_resumes(tmp_path: Path, photo_folder: Path) -> None:
    overrides = [*OVERRIDES, "model.name=tests.own_models.stopping_in_evaluation_net"]
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "asked").touch()
    assert forked.run(tmp_path / "whole", photo_folder, overrides) == 0
    assert forked.run(tmp_path / "run", photo_folder, overrides) == ExitCode.STOPPED
    assert forked.run(tmp_path / "run", photo_folder, overrides) == 0
    assert_same_end(tmp_path / "run", tmp_path / "whole")


def test_what_could_not_be_read_again_ends_the_job_before_older_checkpoints_go(
    tmp_path: Path,
) -> None:
    """As a list of recent gradients in the state of your own optimizer."""
    save(tmp_path, [1, 2])
    run = Checkpoints(tmp_path, None, 2, writes=True)
    run.save({**state(3), "recent": deque([1.0])}, 3)
    reason = r"step-000000003.pt would hold collections.deque and could not be read again: "
    with pytest.raises(CheckpointError, match=reason):
        run.close()
    assert names(tmp_path) == ["step-000000001.pt", "step-000000002.pt"]
