"""The lines that a run logs first and last."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from entry_point.config.train_config import load_train_config
from entry_point.job.known_tasks import LOSS
from entry_point.job.run_folder import RunFolder
from entry_point.training.evaluation import Evaluation
from entry_point.training.models import describe_parameters
from entry_point.training.progress import Progress, TimeLeft
from entry_point.training.results.summary import closing_lines, code_version
from entry_point.training.results.totals import Totals

NOTHING = Evaluation(0.0, {}, torch.empty(0), torch.empty(0, 1), damaged=0)


def test_paths_below_the_working_directory_are_shown_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for root, shown in ((tmp_path / "runs" / "a", "runs/a"), (tmp_path.parent / "ml", None)):
        run = RunFolder(root)
        run.create()
        (run.model / "model.safetensors").touch()
        lines = closing_lines(Totals([], 16), 1.0, Progress(3, LOSS), NOTHING, run)
        (line,) = (line for line in lines if line.startswith("  model "))
        assert line.split()[1] == f"{shown or root}/model/model.safetensors"


def test_the_code_is_told_by_its_commit_and_by_what_was_sent_with_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("entry_point.training.results.summary.revision", lambda: "0123456789ab")
    monkeypatch.delenv("OWN_CODE", raising=False)
    assert code_version() == "0123456789ab"
    monkeypatch.setenv("OWN_CODE", "fedcba9876543210")
    assert code_version() == "0123456789ab, your own code fedcba9876543210"
    monkeypatch.setattr("entry_point.training.results.summary.revision", lambda: "")
    assert code_version() == "your own code fedcba9876543210"


@pytest.mark.parametrize("resumed_at", [0, 40])
def test_the_times_of_a_resumed_run_say_which_starts_they_cover(
    resumed_at: int, tmp_path: Path
) -> None:
    record = {"step": 50, "loss": 1.0, "images_per_s": 20.0, "data_wait_pct": 9.2}
    totals = Totals([record], 16, np.ones((3, 3), np.float32), resumed_at=resumed_at)
    run, progress = RunFolder(tmp_path), Progress(3, LOSS)
    first, *rows = closing_lines(totals, 8.0, progress, NOTHING, run)
    times = {row[2:23].strip(): row[23:] for row in rows}
    if resumed_at:
        assert first == "Finished in 8 s after the resume at step 40"
        assert times["training time"] == "40 s, earlier starts included"
    else:
        assert first == "Finished in 8 s" and times["training time"] == "40 s"
    assert times["waiting for data"] == "9.2 % of training time, first steps included"


def test_the_disk_that_a_run_takes_is_shown_by_folder_and_counts_links_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a logger removes a file meanwhile."""
    (run := RunFolder(tmp_path)).create()
    (run.checkpoints / "best.pt").write_bytes(bytes(2_000_000))
    (run.checkpoints / "step-000000001.pt").hardlink_to(run.checkpoints / "best.pt")
    (run.model / "model.safetensors").write_bytes(bytes(1_000_000))
    (run.output_data / "removed").write_bytes(bytes(1_000_000))
    lstat = Path.lstat

    def racing(path: Path) -> os.stat_result:
        if path.name == "removed":
            path.unlink()
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", racing)
    lines = closing_lines(Totals([], 16), 1.0, Progress(3, LOSS), NOTHING, run)
    assert lines[-1].endswith("  3.0 MB: checkpoints 2.0 MB, model 1.0 MB, output 0.0 MB")
    assert not any("TensorBoard" in line for line in lines)


def test_a_dataset_with_a_test_split_ends_with_the_command_that_measures_it(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "a")
    config, _ = load_train_config(["data.root=photos"])
    lines = closing_lines(Totals([], 16), 1.0, Progress(3, LOSS), NOTHING, run, test_of=config)
    typed = f'make evaluate ARGS="split=test model_dir={run.model}"'
    assert lines[-1].split(maxsplit=2)[2] == typed


def test_a_line_a_minute_says_how_far_the_run_is_and_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([0.0, 30.0, 61.0, 100.0, 200.0])
    monkeypatch.setattr("entry_point.training.progress.time.monotonic", lambda: next(clock))
    left = TimeLeft(steps=5000)
    lines = [left.line(step) for step in (10, 40, 70, 80, 210)]
    assert lines[:2] == [None, None] and lines[3] is None
    assert lines[2] == "step 70 of 5,000; about 1 h 23 min left"  # a step takes 61/60 s
    assert lines[4] == "step 210 of 5,000; about 1 h 19 min left"


def test_the_parameters_that_train_are_told_apart_from_the_others() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1000, 2), torch.nn.Linear(2, 3))
    assert describe_parameters(model) == "2,011 parameters"
    model[0].requires_grad_(False)
    assert describe_parameters(model) == "9 of 2,011 parameters train"
