"""`pip install .` brings the operator with its sources, and the launcher for notebooks."""

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from custom_op.build import SOURCES, build_key
from custom_op.toolchain import find_toolchain
from tests.photographs import PHOTOGRAPHS

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from pathlib import Path
import custom_op, torch
from custom_op import decode_and_crop_jpeg
from custom_op.build import build_key
from custom_op.toolchain import find_toolchain
data = torch.frombuffer(bytearray(Path(sys.argv[1]).read_bytes()), dtype=torch.uint8)
print(custom_op.__file__)
print(tuple(decode_and_crop_jpeg(data, 10, 20, 30, 40).shape))
print(build_key(find_toolchain()))
from launch.sagemaker.training import load_spec
try:
    load_spec(["data=folder"]).require_valid(None)
except Exception as error:
    print(error)
"""


def run(*command: object) -> str:
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy, since the build writes into its folder."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "copy"
    for name in ("custom_op", "docs", "launch", "entry_point", "configs"):
        shutil.copytree(ROOT / name, copy / name)
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    options = ("--no-build-isolation", "--no-deps", "--wheel-dir", folder)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", *options, copy)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_operator_with_its_sources_and_the_launcher(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        required = archive.read(metadata).decode()
    rooms = ("custom_op/", "launch/", "entry_point/config/", "entry_point/contract/", "configs/")
    assert all(name.startswith(rooms) for name in names)
    sources = {path.relative_to(ROOT).as_posix() for path in SOURCES.rglob("*") if path.is_file()}
    assert sources <= set(names)
    needed = ("torch>=2.11", "filelock", "hydra-core", "omegaconf", "rich")
    assert all(f"Requires-Dist: {package}" in required for package in needed)


def test_the_installed_operator_decodes_far_from_the_clone(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    run(*pip, "--no-index", "--no-deps", wheel)
    (packages,) = venv.glob("lib/python*/site-packages")
    # torch, as if it were installed there.
    (packages / "torch.pth").write_text(sysconfig.get_path("purelib"))
    program = tmp_path / "elsewhere" / "program.py"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    file, shape, key, *mistakes = run(python, program, PHOTOGRAPHS["china"]).splitlines()
    assert Path(file).is_relative_to(venv)
    assert shape == "(3, 30, 40)"
    # The same sources: a build from the clone serves the wheel too.
    assert key == build_key(find_toolchain())
    # The launcher composes its own copy of configs/ and checks the job's overrides with it.
    assert any(line.startswith("job.role is missing") for line in mistakes)
    assert any(line.startswith("data=folder: ") for line in mistakes)
