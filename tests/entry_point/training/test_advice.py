"""What a training job advises leads on: each case meets the line, and follows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from entry_point.job.program import ExitCode
from tests.entry_point.training import forked


def run(root: Path, data: Path, *overrides: str, code: int = ExitCode.FINISHED) -> str:
    """What the job has written, once it has ended with `code`."""
    (log := root / "log").unlink(missing_ok=True)
    assert forked.run(root, data, overrides) == code, log.read_text()
    return log.read_text()


def test_a_run_resumes_with_the_setting_that_the_line_advises(
    photo_folder: Path, tmp_path: Path
) -> None:
    groups = "optim.groups={6.*:{lr:0.1},*:{weight_decay:0.01}}"
    run(tmp_path, photo_folder, groups, "trainer.epochs=1")
    line = run(tmp_path, photo_folder, code=ExitCode.USAGE)
    advised = re.search(r"made with (optim\.groups=\{\S+\}); restore that value", line)
    assert advised, line
    assert "start    epoch 1, step 0" in run(tmp_path, photo_folder, advised[1])


@pytest.mark.parametrize(
    ("given", "advice", "then"),
    [
        ("task.loss=torch.nn.functional.cross_entropy task.class_weights=auto", "set null",
         "task.loss=torch.nn.functional.cross_entropy task.class_weights=null"),
        ("trainer.batch_size=64", "must be at most 48", "trainer.batch_size=48"),
    ],
)  # fmt: skip
def test_a_job_trains_with_the_advised_setting(
    given: str, advice: str, then: str, photo_folder: Path, tmp_path: Path
) -> None:
    assert advice in run(tmp_path, photo_folder, *given.split(), code=ExitCode.USAGE)
    run(tmp_path, photo_folder, "trainer.epochs=1", *then.split())
