"""A run that continues leaves no result of its earlier weights."""

import shutil
from pathlib import Path

from tests.entry_point.training import forked
from tests.entry_point.training.results.conftest import OVERRIDES


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_continued_run_leaves_no_result_of_earlier_weights(
    run: Path, photo_folder: Path, tmp_path: Path
) -> None:
    root = tmp_path / run.name
    shutil.copytree(run, root)
    (root / "log").unlink()
    (root / "model" / "code" / "project" / "earlier.py").touch()
    other_settings = [*OVERRIDES, "trainer.epochs=9", "trainer.report=false"]
    assert forked.run(root, photo_folder, other_settings) == 0
    assert "epochs: 9" in (root / "model" / "config.yaml").read_text()
    assert files(root / "model") == files(run / "model")
    written = files(root / "output" / "data")
    assert "metrics.jsonl" in written and not {"report.html", "summary.png"} & written
    log = (root / "log").read_text()
    assert "report.html" not in log and "summary.png" not in log


def test_results_of_earlier_weights_are_removed_before_new_weights_are_written(
    run: Path, photo_folder: Path, tmp_path: Path
) -> None:
    root = tmp_path / run.name
    shutil.copytree(run, root)
    (root / "model" / "model.safetensors").unlink()
    (root / "model" / "model.safetensors").mkdir()  # the weights cannot be written
    assert forked.run(root, photo_folder, OVERRIDES) == 1
    assert not {"report.html", "summary.png"} & files(root / "output" / "data")
