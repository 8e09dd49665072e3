"""A finished run holds these files, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from tests.launch.test_local import local_train
from tests.recorded.compare_commits import SHARED

FILES = """
checkpoints/best.pt
checkpoints/metrics.jsonl
checkpoints/step-000000012.pt
model/classes.json
model/code/project
model/config.yaml
model/model.safetensors
output/config.yaml
output/data/metrics.jsonl
output/data/report.html
output/data/summary.png
output/data/tensorboard/events.out.tfevents
output/data/tracked.json
output/lock
""".split()


def test_a_run_leaves_the_recorded_files(photo_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").symlink_to(photo_folder)
    changed = ["trainer.epochs=2", "trainer.batch_size=8", "trainer.report=true"]
    job = ["name=job", *SHARED, "data=folder", "data.root=photos", *changed]
    code, output = local_train(tmp_path, *job)
    assert code == 0, output
    run = tmp_path / "runs" / "job"
    found = {str(file.relative_to(run)) for file in run.rglob("*") if file.is_file()}
    assert sorted({re.sub(r"(tfevents|code/project).*", r"\1", name) for name in found}) == FILES
    assert (tmp_path / "runs" / "latest").resolve() == run
