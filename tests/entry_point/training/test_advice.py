"""What a training job advises leads on: each case meets the line, and follows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from entry_point.job.program import ExitCode
from tests.entry_point.training import forked

Overrides = list[str]


def run(root: Path, data: Path, *overrides: str, code: int = ExitCode.FINISHED) -> str:
    """What the job has written, once it has ended with `code`."""
    (log := root / "log").unlink(missing_ok=True)
    assert forked.run(root, data, overrides) == code, log.read_text()
    return log.read_text()


def advised(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    assert found, text
    return found[1]


# What the first run has, what the next one has, and the setting that the line advises.
CHANGES = [
    (
        ["optim.groups={6.*:{lr:0.1},'*':{weight_decay:0.01}}".replace("'", "")],
        [],
        r"made with (optim\.groups=\{\S+\}); restore that value",
    ),
    (["data.progressive=[[0,32]]"], [], r"made with (data\.progressive=\S+); restore that value"),
    ([], ["trainer.epochs=1"], r"set (trainer\.epochs=2) or more"),
]


@pytest.mark.parametrize(("first", "then", "advice"), CHANGES, ids=lambda each: str(each)[:50])
def test_a_run_resumes_with_the_advised_setting(
    first: Overrides, then: Overrides, advice: str, photo_folder: Path, tmp_path: Path
) -> None:
    run(tmp_path, photo_folder, *first)
    line = run(tmp_path, photo_folder, *then, code=ExitCode.USAGE)
    setting = advised(line, advice)
    key = setting.partition("=")[0]
    kept = [each for each in then if not each.startswith(f"{key}=")]
    resumed = run(tmp_path, photo_folder, *kept, setting)
    assert "start    epoch 2, step 0" in resumed


# What cannot be trained here, the advice, and what is typed.
SETTINGS = [
    (["trainer.precision=tf32"], "use fp32 on a CPU", ["trainer.precision=fp32"]),
    (
        ["task.loss=torch.nn.functional.cross_entropy", "task.class_weights=auto"],
        "set null",
        ["task.loss=torch.nn.functional.cross_entropy", "task.class_weights=null"],
    ),
    (["trainer.batch_size=64"], "must be at most 48", ["trainer.batch_size=48"]),
]


@pytest.mark.parametrize(("given", "advice", "then"), SETTINGS, ids=lambda each: str(each)[:50])
def test_a_job_trains_with_the_advised_setting(
    given: Overrides, advice: str, then: Overrides, photo_folder: Path, tmp_path: Path
) -> None:
    assert advice in run(tmp_path, photo_folder, *given, code=ExitCode.USAGE)
    run(tmp_path, photo_folder, "trainer.epochs=1", *then)
