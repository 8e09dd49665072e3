"""Loggers: TensorBoard, your own, and those that fail."""

import csv
import errno
import threading
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from entry_point.job.run_folder import RunFolder
from entry_point.training.results import loggers
from tests.entry_point.training.results.logging_runs import log_to, losses, warnings_in
from tests.entry_point.training.training_jobs import read_records


def events_of(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(RunFolder(folder).tensorboard))
    events.Reload()
    return events


def shown(folder: Path) -> dict[int, float]:
    return {each.step: each.value for each in events_of(folder).Scalars("train/loss")}


def test_tensorboard_shows_training_validation_and_step_times_in_groups(tmp_path: Path) -> None:
    values = {"loss": 1.0, "lr": 0.1, "val_accuracy": 0.5, "step_ms_p50": 9.0, "temperature": 1.2}
    log_to(tmp_path, ["tensorboard"], [{"epoch": 0, "step": 3, **values}])
    assert set(events_of(tmp_path).Tags()["scalars"]) == {
        *("train/loss", "train/lr", "train/temperature"),
        *("validation/accuracy", "step_time/step_ms_p50"),
    }


def test_tensorboard_shows_the_configuration_and_the_training_samples(run: Path) -> None:
    events = events_of(run)
    assert events.Tags()["images"] == ["training samples"]
    (text,) = events.Tensors("config/text_summary")
    assert b"    lr: 0.05" in text.tensor_proto.string_val[0]


def test_tensorboard_hides_the_steps_that_a_later_start_repeats(tmp_path: Path) -> None:
    log_to(tmp_path, ["tensorboard"], losses(5.0, 4.0, 3.0))
    log_to(tmp_path, ["tensorboard"], losses(2.0, first=3), resumed_at=2)
    assert shown(tmp_path) == {1: 5.0, 2: 4.0, 3: 2.0}
    assert [event.step for event in events_of(tmp_path).Tensors("config/text_summary")] == [0, 2]
    log_to(tmp_path, ["tensorboard"], losses(2.0, 1.0))  # from scratch
    assert shown(tmp_path) == {1: 2.0, 2: 1.0}


class FullDisk:
    """What TensorBoard's writing thread writes to."""

    def write(self, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("module", ["tensorboard.summary.writer.event_file_writer", "ours"])
def test_the_traceback_of_tensorboards_own_thread_is_hidden_but_no_other(
    module: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    log_to(tmp_path, ["tensorboard"], [])
    kind = type("Writer", (threading.Thread,), {"__module__": module})
    thread = kind(target=FullDisk().write, args=(b"",))
    thread.start()
    thread.join()
    assert ("No space left" in capfd.readouterr().err) is (module == "ours")


def test_the_logger_in_project_writes_every_number_of_a_resumed_run_once(tmp_path: Path) -> None:
    for new, resumed_at in ((losses(5, 4, 3), 0), (losses(3, 2, first=3), 2)):
        name = "losses.csv"
        log_to(tmp_path, ["project.loggers.CsvLogger"], new, resumed_at, name=name)
    with (tmp_path / "output" / "data" / name).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["name"], row["value"]) for row in rows] == [
        (str(step), "loss", str(6 - step)) for step in range(1, 5)
    ]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Failing", "the server is gone"),
        ("Unopened", "[Errno 13] Permission denied: '{root}'"),
        ("Unclosable", "TimeoutError()"),
        ("Empty", "'Empty' object has no attribute 'log'"),
    ],
)
def test_a_logger_that_fails_says_so_once_and_stops_nothing(
    name: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loggers = [f"tests.own_loggers.{name}", "tensorboard"]
    log_to(tmp_path, loggers, losses(5, 4, 3, 2))
    assert warnings_in(caplog) == [
        f"logger {loggers[0]} failed and is off; the job continues: {reason.format(root=tmp_path)}"
    ]
    assert shown(tmp_path) == {1: 5, 2: 4, 3: 3, 4: 2}
    assert len(read_records(tmp_path)) == 4


def test_a_logger_of_your_own_may_take_parts_out_of_its_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log_to(tmp_path, ["tests.own_loggers.Emptying", "tensorboard"], losses(5, 4, 3))
    assert warnings_in(caplog) == [] and shown(tmp_path) == {1: 5, 2: 4, 3: 3}


def test_a_logger_that_hangs_delays_neither_training_nor_the_end_for_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loggers, "PATIENCE_S", 0.1)
    log_to(tmp_path, ["tests.own_loggers.Slow"], losses(5, 4, 3))
    assert warnings_in(caplog) == [
        "logger tests.own_loggers.Slow did not take the last records within 0.1 s; the job ends "
        "without it"
    ]
