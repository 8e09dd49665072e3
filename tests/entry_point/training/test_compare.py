"""`make compare`: runs side by side."""

import json
import re
from pathlib import Path

import pytest

from entry_point.config.train_config import load_train_config
from entry_point.job.known_tasks import TASKS, Metric
from entry_point.job.program import ExitCode
from entry_point.job.run_folder import RunFolder
from entry_point.training.progress import write_tracked
from tests import commands
from tests.entry_point.training.training_jobs import run_job


def write_run(folder: Path, accuracies: list[float], *overrides: str, ended: bool = True) -> None:
    """Write what a run leaves of its evaluations and settings."""
    records = [
        {"epoch": epoch, "step": 5, "val_loss": 1.5, "val_accuracy": value}
        for epoch, value in enumerate(accuracies)
    ]
    training = {"epoch": 0, "step": 1, "loss": 2.0, "images_per_s": 812.4}
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
    monkeypatch.setenv("COLUMNS", "100")
    write_run(Path("runs/a"), [0.5, 0.75, 0.7], "optim.lr=0.1")
    write_run(Path("runs/sweep/0"), [0.5], "optim.lr=0.2", "model.kwargs.width=3")
    write_run(Path("runs/stopped"), [0.1], "optim.lr=0.3", ended=False)
    Path("runs/latest").symlink_to("a")
    Path("runs/empty").mkdir()
    assert commands.compare([]) == ExitCode.FINISHED
    header, *rows = capsys.readouterr().out.splitlines()
    names = ["run", "best", "at", "epoch", "images/s", "optim.lr", "model.kwargs.width"]
    assert header.split() == names
    assert [row.split() for row in rows[:3]] == [
        ["runs/a", "*", "75.00", "%", "accuracy", "2", "of", "3", "812", "0.1"],
        ["runs/sweep/0", "50.00", "%", "accuracy", "1", "of", "1", "812", "0.2", "3"],
        ["runs/stopped", "10.00", "%", "accuracy", "1", "of", "1", "812"],
    ]
    assert rows[3:] == ["*: the best of the runs with the same dataset and metric"]


def test_the_history_beside_the_checkpoints_counts_before_its_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that was resumed, and then killed or not yet ended, has an older copy or none."""
    for name, copied in (("resumed", True), ("begun", False)):
        write_run(run := tmp_path / name, [0.5, 0.75])
        (run / "checkpoints").mkdir()
        copy = run / "output" / "data" / "metrics.jsonl"
        (run / "checkpoints" / "metrics.jsonl").write_text(copy.read_text() + '{"epoch": 2, "st')
        copy.write_text(copy.read_text().replace("0.75", "0.25"))
        if not copied:
            copy.unlink()
    rows = table(tmp_path, capsys)
    assert set(rows) == {"resumed", "begun"}
    assert all("75.00 % accuracy" in row for row in rows.values())


@pytest.mark.parametrize("width", [80, 150])
def test_the_table_fits_the_terminal_and_names_what_it_leaves_out(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    write_run(Path("runs/20261127-092733"), [0.5], "experiment=demo", "optim.lr=0.3")
    write_run(Path("runs/20261127-092734"), [0.6], f"data.root=/{'photos/' * 20}", "optim.lr=0.2")
    write_run(Path("runs/20261127-092735"), [0.7], "experiment=vit_small", "optim.lr=0.1")
    assert commands.compare([]) == ExitCode.FINISHED
    header, *lines = capsys.readouterr().out.splitlines()
    assert max(map(len, [header, *lines])) <= width
    head, *settings = re.split(r" {2,}(?=\w+\.)", header)
    assert re.split(" {2,}", head) == ["run", "best", "at epoch", "images/s"]
    assert len(settings) == {80: 1, 150: 4}[width] and settings[0] == "data.root"
    assert lines[-2].startswith("also differ: ") and settings[-1] not in lines[-2]
    assert lines[-1] == "all settings of a run: RUN/model/config.yaml"
    assert "  .../photos/photos/" in lines[1]


@pytest.mark.parametrize("recorded", [True, False])
def test_the_best_is_marked_among_runs_on_the_same_images(
    recorded: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the fingerprint of their validation images; of earlier versions by their settings."""
    runs = {"a1": 0.5, "a2": 0.6, "b1": 0.8, "b2": 0.7, "c": 0.9}
    for name, value in runs.items():
        root = "photos" if recorded else name[0]
        write_run(tmp_path / name, [value], f"data.root={root}", f"data.image_size={3 + len(name)}")
        if recorded:
            write_tracked(RunFolder(tmp_path / name), ACCURACY, f"24 (#{name[0]})", finished=True)
    assert [name for name, row in table(tmp_path, capsys).items() if row[0] == "*"] == ["a2", "b1"]


def test_the_tracked_metric_decides_also_of_a_run_that_a_link_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "a", [0.5, 0.75], "task.best=loss")
    (tmp_path / "latest").symlink_to("a")
    for named in ("a", "latest"):
        rows = table(tmp_path / named, capsys)
        assert [*rows] == [named] and rows[named].startswith("1.5 loss  1 of 2")


ACCURACY = TASKS["classification"].metrics[0]


def write_records(
    folder: Path, *records: dict[str, float], metric: Metric | None = ACCURACY
) -> None:
    """Write the records of evaluations, and the metric that the run tracks."""
    run = RunFolder(folder)
    run.create()
    lines = [json.dumps({"epoch": i, "step": i + 1, **each}) for i, each in enumerate(records)]
    (run.output_data / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    if metric:
        write_tracked(run, metric, "24 (#0000cafe)", finished=True)


def table(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The row of each run by the name of its folder."""
    assert commands.compare([str(folder)]) == ExitCode.FINISHED
    lines = capsys.readouterr().out.splitlines()[1:]
    rows = (line.split(maxsplit=1) for line in lines if line.startswith(("/", "...")))
    return {Path(run).name: row.strip() for run, row in rows}


def test_the_better_of_both_weights_of_a_run_of_version_1_counts_and_nan_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nan = float("nan")
    raw, averaged = [(0.3, 0.8), (0.45, 0.9), (0.5, nan)], [(nan, 0.6), (0.7, 0.6)]
    for name, values in (("raw", raw), ("averaged", averaged)):
        records = ({"val_loss": 1.0, "val_accuracy": a, "val_accuracy_raw": b} for a, b in values)
        write_records(tmp_path / name, *records)
    write_records(tmp_path / "now", *({"val_loss": 1.0, "val_accuracy": a} for a in (0.8, nan)))
    rows = table(tmp_path, capsys)
    assert rows["raw"].split() == ["*", "90.00", "%", "accuracy", "2", "of", "3", "-"]
    assert rows["averaged"].split() == ["70.00", "%", "accuracy", "2", "of", "2", "-"]
    assert rows["now"].split() == ["80.00", "%", "accuracy", "1", "of", "2", "-"]


RECALL = Metric("recall", "recall of cats", percent=True)
COST = Metric("cost", "cost", higher_is_better=False)


def test_the_metric_of_a_task_of_your_own_is_shown_and_starred_among_its_like(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(name: str, metric: Metric | None, *values: float) -> None:
        shared = {"val_loss": 1.0, "val_accuracy": 0.75}
        records = ({**shared, "val_recall": each, "val_cost": each} for each in values)
        write_records(tmp_path / name, *records, metric=metric)

    write("a", RECALL, 0.2, 0.6, 0.4)
    write("b", RECALL, 0.3)
    write("c", COST, 0.5, 0.4, 0.6)
    write("d", COST, 0.7)
    write("e", None, 0.9)  # of an earlier version
    rows = table(tmp_path, capsys)
    assert rows["a"].startswith("* 60.00 % recall of cats  2 of 3")
    assert rows["b"].startswith("30.00 % recall of cats  1 of 1")
    assert rows["c"].split()[:6] == ["*", "0.4", "cost", "2", "of", "3"]
    assert rows["d"].split()[:5] == ["0.7", "cost", "1", "of", "1"]
    assert rows["e"].split()[:3] == ["75.00", "%", "accuracy"]


def test_an_earlier_versions_task_of_your_own_shows_its_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "a", [0.5, 0.75], "task.name=project.tasks.OrderedClasses")
    assert table(tmp_path, capsys)["a"].startswith("1.5 loss")


def test_a_run_leaves_the_metric_that_its_own_task_tracks(
    tmp_path: Path, photo_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["task.name=project.tasks.OrderedClasses", "trainer.epochs=2", "optim.ema_decay=0.9"]
    output = run_job(tmp_path / "a", photo_folder, own)
    best = re.search(r"distance in classes .*\(best (.*)\)", output)
    assert best is not None
    row = table(tmp_path, capsys)["a"]
    assert row.startswith(f"{best[1]} distance in classes ")
    assert json.loads((tmp_path / "a/output/data/tracked.json").read_text())["images"]


def test_a_folder_without_runs_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.compare([str(tmp_path)]) == ExitCode.USAGE
    assert capsys.readouterr().err.count("\n") == 1
