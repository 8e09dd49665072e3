"""`make compare`: runs side by side."""

import json
from pathlib import Path

import pytest

from entry_point import compare
from entry_point.config.train_config import load_train_config
from entry_point.job.program import ExitCode


def write_run(folder: Path, accuracies: list[float], *overrides: str, ended: bool = True) -> None:
    """Write what a run leaves of its evaluations and settings."""
    records = [
        {"epoch": epoch, "step": 5, "val_loss": 1.5, "val_accuracy": value}
        for epoch, value in enumerate(accuracies)
    ]
    training = {"epoch": 0, "step": 1, "loss": 2.0}
    (data := folder / "output" / "data").mkdir(parents=True)
    lines = [json.dumps(record) + "\n" for record in (training, *records)]
    (data / "metrics.jsonl").write_text("".join(lines))
    (folder / "model").mkdir()
    _, yaml = load_train_config(["data=folder", *overrides])
    unfinished = "" if ended else "unfinished:\n  epoch: 1\n  step: 5\n"
    (folder / "model" / "config.yaml").write_text(yaml + unfinished)


def test_the_table_shows_what_differs_and_marks_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("runs/a"), [0.5, 0.75, 0.7], "optim.lr=0.1")
    write_run(Path("runs/sweep/0"), [0.5], "optim.lr=0.2", "model.kwargs.width=3")
    write_run(Path("runs/stopped"), [0.1], "optim.lr=0.3", ended=False)
    Path("runs/latest").symlink_to("a")
    Path("runs/empty").mkdir()
    assert compare.main([]) == ExitCode.FINISHED
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["run", "best", "at", "epoch", "optim.lr", "model.kwargs.width"]
    assert [row.split() for row in rows] == [
        ["runs/a", "*", "75.00", "%", "accuracy", "2", "of", "3", "0.1"],
        ["runs/sweep/0", "50.00", "%", "accuracy", "1", "of", "1", "0.2", "3"],
        ["runs/stopped", "10.00", "%", "accuracy", "1", "of", "1"],
    ]


def test_the_tracked_metric_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a", [0.5, 0.75], "task.best=loss")
    assert compare.main([str(tmp_path)]) == ExitCode.FINISHED
    assert "* 1.5 loss  1 of 2" in capsys.readouterr().out


def test_a_folder_without_runs_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare.main([str(tmp_path)]) == ExitCode.USAGE
    assert capsys.readouterr().err.count("\n") == 1
