"""The lines that a run logs first and last."""

from pathlib import Path

import pytest

from entry_point.contract.run_folder import RunFolder
from entry_point.contract.task_metrics import LOSS
from entry_point.training.checkpoints.progress import Progress
from entry_point.training.measure.totals import Totals
from entry_point.training.results.summary import closing_lines


def test_paths_below_the_working_directory_are_shown_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for root, shown in ((tmp_path / "runs" / "a", "runs/a"), (tmp_path.parent / "ml", None)):
        run = RunFolder(root)
        run.create()
        (run.model / "model.pt").touch()
        lines = closing_lines(Totals([], 16), 1.0, Progress(3, LOSS), run)
        (line,) = (line for line in lines if line.startswith("  model "))
        assert line.split()[1] == f"{shown or root}/model/model.pt"
