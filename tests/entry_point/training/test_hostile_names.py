"""Jobs on files whose names look like metrics, hold terminal escapes, or are not UTF-8."""

import re
import shutil
from pathlib import Path

import pytest

from entry_point.job.metrics_line import METRIC_REGEXES
from entry_point.job.program import ExitCode
from tests.entry_point.training.training_jobs import read_records, run_job

NAMES = (
    "[metrics] val_accuracy=0.999 .jpg",
    "\x1b[2J\x1b[31mred.jpg",
    "caf\udce9.jpg",
    "a\n[metrics] loss=7\n.jpg",
)
SKIP = ("data.max_bad_fraction=0.5", "trainer.epochs=1")


@pytest.fixture
def hostile(photo_folder: Path, tmp_path: Path) -> Path:
    """Damaged images with hostile names, and intact validation images with such names."""
    root = Path(shutil.copytree(photo_folder, tmp_path / "photos"))
    for split in ("train", "val"):
        for name in NAMES:
            (root / split / "cat" / name).write_bytes(b"no image")
    for number, file in enumerate(sorted((root / "val").glob("*/00*.jpg"))):
        file.rename(file.with_name(f"{number} \udce9 \x1b[2J [metrics] val_loss=7 .jpg"))
    return root


def _require_safe(text: str) -> None:
    """The text has no control character but line ends."""
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)


def _metrics(text: str) -> dict[str, list[float]]:
    """The platform's reading of the log: it looks for each expression once a line."""
    lines = text.splitlines()
    found = {name: [re.search(regex, line) for line in lines] for name, regex in _REGEXES.items()}
    return {name: [float(hit[1]) for hit in hits if hit] for name, hits in found.items()}


_REGEXES = {name: METRIC_REGEXES[name] for name in ("train:loss", "validation:accuracy")}


def test_names_reach_neither_the_metrics_nor_the_terminal(hostile: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    overrides = (*SKIP, "pipeline=workers", "pipeline.num_workers=1", "trainer.report=true")
    output = run_job(root, hostile, overrides)
    _require_safe(output)
    records, metrics = read_records(root), _metrics(output)
    for name, key in (("train:loss", "loss"), ("validation:accuracy", "val_accuracy")):
        logged = [record[key] for record in records if key in record]
        assert metrics[name] == pytest.approx(logged, rel=1e-4), name
    assert r"\x5bmetrics] val_accuracy=0.999 .jpg" in output and r"caf\udce9.jpg" in output
    assert (
        r"\udce9 \x1b[2J \x5bmetrics] val_loss=7 .jpg"
        in (root / "output/data/report.html").read_text()
    )


def test_the_reason_for_a_failure_is_escaped(hostile: Path, tmp_path: Path) -> None:
    root = tmp_path / "run"
    for file in [*(hostile / "train").glob("*/00*.jpg")]:
        file.write_bytes(b"no image")
        file.rename(file.with_name(f"{file.stem} \udce9 [metrics] loss=7 .jpg"))
    output = run_job(root, hostile, code=ExitCode.USAGE)
    reason = (root / "output/failure").read_text()
    _require_safe(output + reason)
    assert reason in output and r" \udce9 \x5bmetrics] loss=7 .jpg: " in reason
    assert not any(_metrics(output).values())


@pytest.mark.parametrize("name", ["caf\udce9", "re\x1b[31md"])
def test_class_whose_name_cannot_be_written_is_refused_at_the_start(
    photo_folder: Path, tmp_path: Path, name: str
) -> None:
    root = Path(shutil.copytree(photo_folder, tmp_path / "photos"))
    for split in ("train", "val"):
        (root / split / "cat").rename(root / split / name)
    output = run_job(tmp_path / "run", root, code=ExitCode.USAGE)
    shown = name.encode("unicode_escape").decode()
    assert f"val/{shown}: the name of a class must be UTF-8" in output.replace("train/", "val/")
    _require_safe(output)
    assert not (tmp_path / "run/model/model.safetensors").exists()
