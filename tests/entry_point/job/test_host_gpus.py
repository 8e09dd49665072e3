"""How GPUs are counted: by the CUDA driver, here a library that stands for it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from entry_point.config.train_config import load_train_config
from entry_point.job import gpus
from entry_point.job.gpus import has_gpus, usable_gpus
from entry_point.start_training import ranks_on_this_host

LIBCUDA = """
#include <stdlib.h>
#include <string.h>
int cuDriverGetVersion(int *version) { *version = 13020; return 0; }
int cuInit(unsigned flags) { return getenv("CU_ERROR") ? atoi(getenv("CU_ERROR")) : flags; }
int cuDeviceGetCount(int *count) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    *count = !visible ? 4 : strstr(visible, "MIG-") ? 1 : strchr(visible, ',') ? 2 : 1;
    return 0;
}
"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with four GPUs, whose device files lie in the returned folder."""
    source, devices = tmp_path / "libcuda.c", tmp_path / "dev"
    source.write_text(LIBCUDA)
    compiler = shutil.which("cc") or "c++"
    library = tmp_path / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    devices.mkdir()
    for name in ("null", "nvidiactl", *(f"nvidia{number}" for number in range(8))):
        (devices / name).touch()
    monkeypatch.setattr(gpus, "_DEVICE_FILES", devices)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return devices


def ranks(*overrides: str) -> int:
    config, _ = load_train_config([*overrides, "trainer.batch_size=24"])
    return ranks_on_this_host(config)


def test_a_host_has_as_many_ranks_as_cuda_devices_not_device_files(host: Path) -> None:
    """A privileged container sees the files of all GPUs, and may use some."""
    assert len(list(host.glob("nvidia[0-9]"))) == 8
    assert ranks() == 4
    assert ranks("trainer.nproc_per_host=2") == 2
    assert ranks("trainer.device=cpu") == 1


@pytest.mark.parametrize(
    ("visible", "count"),
    [("0,1", 2), ("MIG-6fa1b3,MIG-70c2d4", 1), ("GPU-1", 1), ("", 0), ("-1", 0), ("-1,0", 0)],
)
@pytest.mark.usefixtures("host")
def test_a_host_has_the_devices_that_its_environment_leaves_visible(
    visible: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert usable_gpus() == count
    assert has_gpus() == (count > 0)
    assert ranks() == max(1, count)


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(("name", "value"), [("CU_ERROR", "803"), ("LD_LIBRARY_PATH", "")])
def test_a_driver_that_is_missing_or_does_not_start_has_no_devices(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert has_gpus() and usable_gpus() == 0


def test_a_host_without_device_files_has_no_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "_DEVICE_FILES", tmp_path)
    assert not has_gpus() and usable_gpus() == 0
