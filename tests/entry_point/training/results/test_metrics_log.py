"""A run's records: log lines, and the history in metrics.jsonl."""

import io
import logging
import signal
from pathlib import Path

import pytest
from rich.console import Console

from entry_point.job.metrics_line import STEP_TIMES, format_metrics, metrics_line
from entry_point.job.program import ExitCode
from entry_point.job.run_folder import RunFolder
from entry_point.training.results.log import LineHandler, Record, RunLog, format_milliseconds
from tests.entry_point.training import forked
from tests.entry_point.training.results.logging_runs import log_to, losses
from tests.entry_point.training.training_jobs import read_records


@pytest.mark.parametrize("collected", [False, True])
@pytest.mark.parametrize("terminal", [False, True])
def test_step_times_are_complete_only_in_the_log_that_the_platform_collects(
    terminal: bool, collected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("entry_point.training.results.log.logs_are_collected", lambda: collected)
    steps: Record = {"epoch": 0, "step": 37, **dict.fromkeys(STEP_TIMES, 1990.613)}
    loss: Record = {"epoch": 0, "step": 37, "loss": 0.5}
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    logger, handler = logging.getLogger("entry_point"), LineHandler(console)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    log = RunLog(RunFolder(tmp_path), writes=True)
    log.rewind(0, epoch=0)
    log.add(steps, loss)
    log.close()
    logger.removeHandler(handler)
    logger.setLevel(level)
    assert isinstance(console.file, io.StringIO)
    first, second = console.file.getvalue().splitlines()
    short = "epoch=0 step=37 median ms: data_wait 1991, step 1991 (p99 1991)"
    assert first == (metrics_line(steps) if collected and not terminal else short)
    assert read_records(tmp_path) == [steps, loss]
    assert second == (format_metrics if terminal else metrics_line)(loss)


def test_milliseconds_are_shown_without_an_exponent() -> None:
    shown = [format_milliseconds(value) for value in (0.135, 12.34, 123.4, 1990.61, 123456.0)]
    assert shown == ["0.14", "12.3", "123", "1991", "123456"]


@pytest.mark.parametrize("left", [b"", b'{"epoch": 1, "st', b"\0\0\0", b"\xff\xfe"])
def test_a_resume_drops_later_records_and_what_a_crash_left_unfinished(
    left: bytes, tmp_path: Path
) -> None:
    log_to(tmp_path, [], losses(5, 4, 3))
    with RunFolder(tmp_path).metrics.open("ab") as file:
        file.write(left)
    log_to(tmp_path, [], losses(2, first=3), resumed_at=2)
    assert read_records(tmp_path) == [*losses(5, 4), *losses(2, first=3)]


def test_a_resume_before_an_evaluation_repeats_its_record_only(tmp_path: Path) -> None:
    """A kill may come after the evaluation, and before the checkpoint with it is written."""
    loss: Record = {"epoch": 0, "step": 3, "loss": 5.0}
    evaluation: Record = {"epoch": 0, "step": 3, "val_loss": 4.0}
    for epoch, kept in ((1, [loss, evaluation]), (0, [loss])):
        log = RunLog(RunFolder(tmp_path), writes=True)
        log.rewind(0, epoch=0)
        log.add(loss, evaluation)
        log.rewind(3, epoch)
        assert log.records() == kept


@pytest.mark.parametrize("end", ["stopped", "failed"])
def test_every_end_leaves_the_records_in_output_data(
    end: str, tmp_path: Path, photo_folder: Path
) -> None:
    """Where `sagemaker download` and `compare` find them."""
    overrides = ["trainer.log_every_steps=1"]
    if end == "failed":
        code = forked.run(tmp_path, photo_folder, [*overrides, "optim.lr=1e30"])
        assert code == ExitCode.FAILED
    else:
        endless = [*overrides, "trainer.epochs=100000"]
        code = forked.run_until_step(tmp_path, photo_folder, endless, 2, signal.SIGTERM)
        assert code == ExitCode.STOPPED
    records = RunFolder(tmp_path).metrics.read_text()
    assert records and (tmp_path / "output/data/metrics.jsonl").read_text() == records


def test_a_record_has_the_learning_rate_of_the_step_that_was_just_made(
    tmp_path: Path, photo_folder: Path
) -> None:
    drop = ["optim.schedule=step", "optim.schedule_kwargs.every=1"]
    warm_up = ["optim.lr=0.3", "optim.warmup_epochs=1", "trainer.log_every_steps=1"]
    assert forked.run(tmp_path, photo_folder, [*drop, *warm_up]) == 0
    rates = [record["lr"] for record in read_records(tmp_path) if "lr" in record]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.03, 0.03, 0.03])
