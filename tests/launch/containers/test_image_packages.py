"""How the image gets the job's Python packages: pip in environments of empty packages."""

import importlib.util
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from launch import image_packages
from tests.launch.conftest import ROOT

REQUIREMENTS = ROOT / "requirements"
BASE = {"torch": "2.13.0+cpu", "torchvision": "0.28.0", "numpy": "2.4", "odd_name": "2"}
# name==version, and what it requires: a package index.
INDEX = {
    **dict.fromkeys(("numpy==2.5", "filelock==4.2", "filelock==4.9", "odd_name==3"), ""),
    **dict.fromkeys(("grpcio==1", "markers==1", "extra==1", "extra==2", "mine==1"), ""),
    "hydra_core==1.3": "filelock",
    "hydra_core==1.4": "filelock",
    "board==2": "grpcio",
}
FILES = {
    "job.in": "# why\nnumpy\nfilelock>=4\nhydra-core<2\nboard\nnone ; python_version < '3'\n",
    "job.txt": "filelock==4.2 # pin\nhydra-core==1.3\nboard==2\nnumpy==2.5\ngrpcio==1\n"
    "Odd_Name==3\nmarkers==0 ; python_version < '3'\n",
    "more.in": "-c job.txt\nextra\n",
    "more.txt": "extra==1\n",
}


def write_wheel(folder: Path, name: str, version: str, requires: str = "") -> None:
    """Write an empty package."""
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        about += f"Requires-Dist: {requires}\n" if requires else ""
        wheel.writestr(f"{stem}.dist-info/METADATA", about)
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        record = "".join(f"{name},,\n" for name in wheel.namelist())
        wheel.writestr(f"{stem}.dist-info/RECORD", f"{record}{stem}.dist-info/RECORD,,\n")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of wheels."""
    folder = tmp_path_factory.mktemp("index")
    for pin, requires in INDEX.items():
        name, version = pin.split("==")
        write_wheel(folder, name, version, requires)
    return folder


def install(
    index: Path,
    folder: Path,
    base: Mapping[str, str],
    own: str = "",
    names: str = "job more",
    requires: str = "",
) -> tuple[str, dict[str, str]]:
    """Run the program in a base; returns the line with which it ends, and what is installed."""
    venv.create(folder / "venv", symlinks=True)
    (packages,) = folder.glob("venv/lib/*/site-packages")
    pip = importlib.util.find_spec("pip")
    assert pip and pip.origin  # slow to install
    (packages / "pip").symlink_to(Path(pip.origin).parent)
    for name, version in base.items():
        write_wheel(folder, name, version, requires if name == "odd_name" else "")
        with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl") as wheel:
            wheel.extractall(packages)
    for file, text in {**FILES, "own.in": own}.items():
        (folder / file).write_text(text)
    (folder / "own.in").rename(own_file := folder / "venv/own.in")
    python = folder / "venv/bin/python"
    program = ROOT / "launch/image_packages.py"
    command = [*map(str, (python, program, folder, own_file)), *names.split()]
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"{index}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("ERROR", "\n"))]
    listed = {path.stem.rpartition("-")[::2] for path in packages.glob("*.dist-info")}
    return "" if not done.returncode else lines[-1], dict(listed)


def test_versions_of_the_base_win_if_they_are_accepted_and_pins_else(
    index: Path, tmp_path: Path
) -> None:
    told, installed = install(index, tmp_path, {**BASE, "filelock": "3.9"}, "mine\nextra")
    assert told == ""
    # Nothing displays TensorBoard's events, which is all that grpcio is for.
    new = {"filelock": "4.2", "hydra_core": "1.3", "board": "2", "extra": "1", "mine": "1"}
    assert installed == {**BASE, **new}


@pytest.mark.parametrize(
    ("base", "arguments", "line"),
    [
        ({}, {"own": "numpy<2"}, "pip could not install the job's packages, see its error above"),
        (
            {"filelock": "3.9"},
            {"requires": "filelock<4"},
            "the job's packages break packages of the base: odd-?_?name 2 has requirement filelock",
        ),
        ({"torch": "2.10.0+cpu"}, {}, r"the base image has torch 2\.10\.0\+cpu: set BASE_IMAGE"),
        ({"torchvision": ""}, {}, "the base image has torchvision not at all: set BASE_IMAGE to"),
        ({}, {"names": "job mroe"}, "EXTRAS=mroe: must be one of job, more"),
    ],
)
def test_a_base_that_does_not_fit_is_one_line(
    index: Path, tmp_path: Path, base: dict[str, str], arguments: dict[str, str], line: str
) -> None:
    versions = {name: version for name, version in {**BASE, **base}.items() if version}
    told, _ = install(index, tmp_path, versions, **arguments)
    assert re.search(line, told), told


def test_the_requirements_of_the_project_can_be_parsed_and_are_pinned() -> None:
    for name in ("job", "dali"):
        wanted, pinned = (
            {each.name for each in image_packages.read(REQUIREMENTS / f"{name}.{suffix}")}
            for suffix in ("in", "txt")
        )
        assert wanted and wanted <= pinned and not wanted & {*image_packages.BASE_BRINGS}


def test_image_packages_needs_only_pip_and_the_standard_library() -> None:
    """The base may lack `packaging`."""
    program = "import sys; sys.modules['packaging'] = None; import image_packages"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT / "launch", check=True)
