"""A whole job on real photographs, run as processes: its log and its results."""

import json
from pathlib import Path

import pytest
import torchvision
from safetensors.torch import load_file

from tests import forkserver
from tests.entry_point.job.test_metrics_line import found
from tests.entry_point.training.training_jobs import read_records, run_job


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, photo_folder: Path) -> tuple[Path, str]:
    """The run folder and the output of a ResNet-18 trained for two epochs, decoded in workers."""
    root = tmp_path_factory.mktemp("run")
    loaded = ("pipeline=workers", "pipeline.num_workers=1", "trainer.report=true")
    output = run_job(root, photo_folder, ["model.name=resnet18", "optim.lr=0.02", *loaded])
    return root, output


def test_the_model_loads_safely_and_fits_torchvision(finished: tuple[Path, str]) -> None:
    root, _ = finished
    state = load_file(root / "model" / "model.safetensors")
    classes = json.loads((root / "model" / "classes.json").read_text())
    model = torchvision.models.resnet18(num_classes=len(classes))
    model.load_state_dict(state)
    assert len(classes) == 8
    assert "resnet18" in (root / "model" / "config.yaml").read_text()


def test_the_job_writes_metrics_plot_and_tensorboard_events(finished: tuple[Path, str]) -> None:
    root, _ = finished
    records = read_records(root)
    assert [r["step"] for r in records if "loss" in r] == [2, 3, 4, 6]
    assert [r["step"] for r in records if "val_loss" in r] == [3, 6]
    assert all(0 <= r["data_wait_pct"] <= 100 for r in records if "loss" in r)
    assert (root / "output" / "data" / "summary.png").read_bytes().startswith(b"\x89PNG")
    assert list((root / "output" / "data" / "tensorboard").glob("events.out.tfevents.*"))


def test_the_log_has_every_record_but_step_times_and_no_terminal_codes(
    finished: tuple[Path, str],
) -> None:
    root, output = finished
    lines = [line for line in output.splitlines() if line.startswith("[metrics] ")]
    assert len(lines) == len([each for each in read_records(root) if "step_ms_p50" not in each])
    epochs = [line for line in output.splitlines() if " median ms: " in line]
    assert len(epochs) == 2 and all(len(line) <= 100 for line in epochs)
    assert all("train:loss" in found(line) for line in lines if " loss=" in line)
    assert "\x1b" not in output


def test_the_log_has_the_opening_and_closing_lines(finished: tuple[Path, str]) -> None:
    _, output = finished
    opening = (
        "code     ",
        "resnet18, 11,",
        "48 training and 24 validation images, 8 classes",
        "fp32",
    )
    closing = ("validation accuracy", "images/s", "waiting for data", "verdict")
    for part in (*opening, *closing, "model.safetensors", "summary.png"):
        assert part in output


def test_every_epoch_logs_the_percentiles_of_its_steps(finished: tuple[Path, str]) -> None:
    records = [r for r in read_records(finished[0]) if "step_ms_p50" in r]
    assert [r["step"] for r in records] == [3, 6]
    assert all(0 < r["data_wait_ms_p50"] <= r["step_ms_p99"] for r in records)


def test_a_job_lists_each_folder_of_its_dataset_once(tmp_path: Path, photo_folder: Path) -> None:
    code = (
        "import collections, sys\n"
        "seen = collections.Counter()\n"
        "def watch(event, arguments):\n"
        "    if event in ('os.listdir', 'os.scandir'):\n"
        "        seen[str(arguments[0])] += 1\n"
        "sys.addaudithook(watch)\n"
        "from entry_point.train import main\n"
        "code = main(sys.argv[2:])\n"
        "print('listed', {n for name, n in seen.items() if name.startswith(sys.argv[1])})\n"
        "sys.exit(code)\n"
    )
    arguments = [f"data.root={photo_folder}", "model.name=tests.own_models.tiny_net"]
    small = ["data.image_size=32", "trainer.batch_size=16", "trainer.epochs=1", "pipeline=pillow"]
    job = forkserver.start(
        ["-c", code, str(photo_folder), *arguments, *small, "pipeline.num_workers=0"],
        tmp_path / "log",
        environment={"ML_ROOT": str(tmp_path / "run")},
    )
    output, _ = job.communicate()
    assert job.returncode == 0, output
    assert "listed {1}" in output
