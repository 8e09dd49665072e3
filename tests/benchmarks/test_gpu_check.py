"""The check of the GPU paths, as far as it runs without a GPU."""

import math
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from benchmarks.gpu.gpu_check import main as gpu_check
from benchmarks.gpu.gpu_jobs import Job
from benchmarks.gpu.gpu_page import write_page
from benchmarks.gpu.gpu_part import Part, read_parts, write_part
from benchmarks.gpu.gpu_plan import Check
from benchmarks.gpu.gpu_serving import batches_so_far
from benchmarks.gpu.gpu_speed import Case, _judge, cases, row
from benchmarks.gpu.offline_kit import INSTALLED, carried, unpack
from benchmarks.gpu.offline_kit import main as offline_kit
from benchmarks.gpu.steady_steps import SteadyTrainer, first_waits
from entry_point.config.train_config import load_train_config
from entry_point.contract.run_folder import RunFolder
from entry_point.serving.serving_metrics import ServingMetrics
from entry_point.training.devices import Devices
from tests.entry_point.training.training_jobs import TINY
from tests.photographs import PHOTOGRAPHS


def job(wait: float, p50: float, p99: float, headspace: float) -> Job:
    records = [
        {"loss": 1.0, "images_per_s": 3000.0, "data_wait_pct": wait},
        {"step_ms_p50": p50, "step_ms_p99": p99},
        {"headspace": headspace},
    ]
    return Job(0, "", records, host_mb=4000.0, gpu_mb=20_000.0)


def judged(device: str, measured: Job) -> dict[str, bool | None]:
    part = Part(rows=[row(Case("threads", 256), True, measured)])
    part.rows.append(row(Case("threads", 256, ema=True), True, job(0.1, 101.0, 102.0, 1.0)))
    _judge(Check(device, Path(), minutes=1), part)
    return {check.promise.split()[0]: check.holds for check in part.checks}


def test_a_promise_holds_breaks_or_cannot_be_told() -> None:
    names = ["Training", "A", "The", "Averaging"]
    good, bad = job(0.3, 100.0, 110.0, 1.01), job(1.5, 100.0, 130.0, 1.05)
    assert judged("cuda", good) == dict.fromkeys(names, True)
    assert judged("cuda", bad) == {**dict.fromkeys(names, False), "Averaging": True}
    assert judged("cpu", bad) == dict.fromkeys(names, None)
    assert judged("cuda", job(0.3, 100.0, 110.0, math.nan))["A"] is None


def test_the_goals_case_is_measured_first() -> None:
    first = cases(Check("cuda", Path(), minutes=1))[0]
    assert str(first) == "threads, 4 workers, batch 256"


def test_the_page_has_a_verdict_per_promise_and_says_what_did_not_run(tmp_path: Path) -> None:
    part = Part(facts={"GPU 0": "NVIDIA H200"})
    part.add("No step waits", True, "22 steps")
    part.add("Two ranks train", False, "exit code 1\nand | more")
    part.add("DALI as a peer", None, "not installed")
    write_part(part, tmp_path / "parts", 2)
    write_part(Part(rows=[row(Case("threads", 256), True, job(1, 2, 3, 4))]), tmp_path / "parts", 4)
    path, kept = write_page(read_parts(tmp_path / "parts"), "cpu", tmp_path)
    text = path.read_text()
    assert not kept and "A dry run on a CPU" in text
    for line in (
        "| No step waits | holds | 22 steps |",
        "| Two ranks train | **does not hold** | exit code 1 and / more |",
        "| DALI as a peer | not measured | not installed |",
        "| Part: eager | not run |  |",
        "| GPU 0 | NVIDIA H200 |",
    ):
        assert line in text
    assert "threads, 4 workers, batch 256 | 3000 |" in text
    assert "](plots/gpu.png)" in text and (tmp_path / "plots" / "gpu.png").exists()


def test_the_servers_metrics_tell_images_and_batches() -> None:
    metrics = ServingMetrics(lambda: 0)
    for images in (1, 8, 3):
        metrics.batch(images)
    assert batches_so_far(metrics.page()) == (12, 3)


def test_only_steps_before_the_steady_part_and_at_log_lines_may_wait(
    tmp_path: Path, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[tuple[int, bool]] = []

    def note(trainer: SteadyTrainer, strict: bool) -> None:
        modes.append((trainer.progress.global_step, strict))

    monkeypatch.setattr(SteadyTrainer, "_set_mode", note)
    overrides = [f"data.root={photo_folder}", "trainer.batch_size=8", "trainer.log_every_steps=5"]
    config, _ = load_train_config([*TINY, *overrides])
    devices = Devices(torch.device("cpu"), None)
    steps, first, others = first_waits(config, RunFolder(tmp_path), devices)
    assert steps == 2 * 3 and first > 0 and others > 0  # the last three of six, in two epochs
    # (steps taken, strict): logs after steps 5, 6, 10 and 12.
    strict = [step for step, mode in modes if mode]
    relaxed = [step for step, mode in modes if not mode]
    assert strict == [3, 4, 5, 9, 10, 11]
    assert {5, 6, 10, 12} <= set(relaxed)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "gpu-check: torch finds no CUDA device; DEVICE=cpu makes a dry run\n"),
        (["part=9"], "gpu-check: part=9: must be at least 1 and at most 6\n"),
        (["device=gpu"], "gpu-check: device=gpu: must be one of cuda, cpu; did you mean cpu?\n"),
        (["minutes=0"], "gpu-check: minutes=0.0: must be above 0\n"),
        (["part=two"], "gpu-check: part=two: must be a whole number\n"),
        (
            ["prt=1"],
            "gpu-check: prt=1: no such key; the top level has part, device, out, minutes; "
            "did you mean part?\n",
        ),
    ],
)
def test_what_cannot_run_is_one_line(
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check(arguments) == 2
    assert capsys.readouterr().err == said


def test_a_folder_of_wheels_becomes_an_environment(tmp_path: Path) -> None:
    folder = tmp_path / "carried"
    folder.mkdir()
    with zipfile.ZipFile(folder / "sample-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("sample_of_ours.py", "answer = 42\n")
        for name, text in (
            ("METADATA", "Metadata-Version: 2.1\nName: sample\nVersion: 1.0\n"),
            ("WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
            ("RECORD", ""),
        ):
            wheel.writestr(f"sample-1.0.dist-info/{name}", text)
    environment = unpack(folder, tmp_path / "kit")
    assert environment["PHOTOGRAPHS"] == str(folder / "photographs")
    program = "import sample_of_ours, benchmarks.gpu.gpu_part; print(sample_of_ours.answer)"
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, env=environment, cwd=tmp_path, text=True) == "42\n"
    kept = tmp_path / "kit" / "site" / "kept"
    kept.touch()
    unpack(folder, tmp_path / "kit")
    assert kept.exists()  # each part of the check unpacks, but the first alone installs
    (folder / "headers.deb").touch()
    with pytest.raises(SystemExit, match="failed: dpkg"):
        unpack(folder, tmp_path / "kit")
    assert not kept.exists()


def test_the_check_runs_with_torch_and_the_carried_packages_alone(tmp_path: Path) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    venv.create(tmp_path / "env")
    site = tmp_path / "env" / "lib" / f"python{version}" / "site-packages"
    for package in _with_needs({*INSTALLED, *carried(version)}):
        for file in metadata.files(package) or ():
            top = site / file.parts[0]
            if file.parts[0] != ".." and not top.is_symlink():
                top.symlink_to(Path(str(metadata.distribution(package).locate_file(top.name))))
    for photograph in PHOTOGRAPHS.values():
        shutil.copy(photograph, tmp_path)
    python, out = str(tmp_path / "env" / "bin" / "python"), f"out={tmp_path / 'out'}"
    done = subprocess.run(
        [python, "-m", "benchmarks.gpu.gpu_check", "part=1", "device=cpu", out],
        env={**os.environ, "PHOTOGRAPHS": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert re.search("The tests marked `gpu` pass: .*[1-9][0-9]* skipped", done.stdout), done
    assert done.returncode == 0


def _with_needs(packages: set[str]) -> set[str]:
    """The packages, and what they need on this machine."""
    found: set[str] = set()
    waiting = set(packages)
    while waiting:
        name = waiting.pop()
        with suppress(metadata.PackageNotFoundError):  # on another platform, or an extra
            needs = [Requirement(text) for text in metadata.requires(name) or ()]
            found.add(name)
            wanted = {need.name for need in needs if need.marker is None or need.marker.evaluate()}
            waiting |= wanted - found
    return found


def test_a_folder_without_wheels_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="holds no wheel"):
        offline_kit(["run", str(tmp_path), "device=cpu"])
