"""`pip install .` brings the operator with its sources, the loader, and the launcher."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from custom_op.build import SOURCES, build_key
from custom_op.toolchain import find_toolchain
from tests.photographs import PHOTOGRAPHS, write_photo_folder

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
from launch.sagemaker.checks import require_valid
from launch.sagemaker.plan import plan
try:
    require_valid(plan(["data=folder"], None), None)
except Exception as error:
    print(error)
"""
ONLY = """
import sys
class OnlyTheRequired:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("hydra", "omegaconf", "polars", "rich", "yaml", "matplotlib"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, OnlyTheRequired())
"""


def run(*command: object) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = [str(each) for each in command]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True)
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


def test_the_wheel_holds_the_operator_with_its_sources_and_asks_for_little(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        required = archive.read(metadata).decode()
    rooms = ("custom_op/", "launch/", "entry_point/", "configs/")
    assert all(name.startswith(rooms) for name in names)
    sources = {path.relative_to(ROOT).as_posix() for path in SOURCES.rglob("*") if path.is_file()}
    assert sources <= set(names)
    needed = re.findall(r"^Requires-Dist: ([\w-]+)(?!.*extra ==)", required, re.MULTILINE)
    assert needed == [
        "filelock",
        "numpy",
        "pillow",
        "pydantic",
        "spdl-core",
        "torch",
        "torchvision",
    ]


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel."""
    venv = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    run(*pip, "--no-index", "--no-deps", wheel)
    (packages,) = venv.glob("lib/python*/site-packages")
    # What the wheel requires, as if it were installed there.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return python


def test_the_installed_operator_decodes_far_from_the_clone(python: Path, tmp_path: Path) -> None:
    program = tmp_path / "elsewhere" / "program.py"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    file, shape, key, *mistakes = run(python, program, PHOTOGRAPHS["china"]).splitlines()
    assert Path(file).is_relative_to(python.parents[1])
    assert shape == "(3, 30, 40)"
    # The same sources: a build from the clone serves the wheel too.
    assert key == build_key(find_toolchain())
    # The launcher composes its own copy of configs/ and checks the job's overrides with it.
    assert any(line.startswith("job.role is missing") for line in mistakes)
    assert any(line.startswith("data=folder: ") for line in mistakes)


def test_the_plain_loop_needs_only_what_the_wheel_requires(python: Path, tmp_path: Path) -> None:
    program = tmp_path / "plain_loop.py"
    program.write_text(ONLY + (ROOT / "examples/plain_loop.py").read_text())
    one_step = write_photo_folder(tmp_path / "photos", train=2, shrink=2)
    (line,) = run(python, program, one_step).splitlines()
    assert re.fullmatch(r"epoch 0 loss \d\.\d+", line)
