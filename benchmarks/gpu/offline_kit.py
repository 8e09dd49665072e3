"""Carries what the check needs to a machine that has Python and torch, but no internet.

With a network, `offline_kit.py pack FOLDER [PYTHON_VERSION [PACKAGE ...]]`, in a clone; packages
that the machine has are named, and stay here. There, `offline_kit.py run FOLDER [PART ...]`. Both
need the standard library only.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZIP_LZMA, ZipFile

ROOT = Path(__file__).resolve().parents[2]
UNPACKED = Path("runs/gpu-kit")
INSTALLED = ("torch", "torchvision", "numpy")
"""What the machine must have; all other packages are carried."""
TESTING = ("pytest", "pytest-timeout", "pluggy", "iniconfig", "hypothesis", "sortedcontainers")
LARGE = 20_000_000
"""Bytes. Wheels of more are compressed again."""
SOURCES = ("antlr4-python3-runtime",)
HEADERS = (
    ("libjpeg62-turbo", "libjpeg62-turbo-dev"),  # Debian
    ("libjpeg-turbo8", "libjpeg-turbo8-dev"),  # Ubuntu
)
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux2014_x86_64")


def pack(folder: Path, python_version: str, present: Sequence[str] = ()) -> None:
    """Downloads wheels, headers and photographs into FOLDER, about 80 MB if nothing is present."""
    pins = carried(python_version)
    if unknown := [name for name in present if name not in pins]:
        sys.exit(f"offline_kit: {', '.join(unknown)}: not among {', '.join(sorted(pins))}")
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.whl"):
        stale.unlink()
    pins = {name: pin for name, pin in pins.items() if name not in present}
    wanted = [pin for name, pin in pins.items() if name not in SOURCES]
    pip = [sys.executable, "-m", "pip"]
    target = ["--only-binary=:all:", f"--python-version={python_version}", "--implementation=cp"]
    platforms = [f"--platform={name}" for name in PLATFORMS]
    _run([*pip, "download", "-q", "--no-deps", *target, *platforms, "-d", str(folder), *wanted])
    for name in SOURCES:
        if name in pins:
            _run([*pip, "wheel", "-q", "--no-deps", "-w", str(folder), pins[name]])
    for wheel in folder.glob("*.whl"):
        if wheel.stat().st_size > LARGE:
            _shrink(wheel)
    if not any(_download_packages(folder, packages) for packages in HEADERS):
        sys.exit("offline_kit: apt-get downloads neither Debian's nor Ubuntu's libjpeg-turbo")
    _copy_photographs(folder / "photographs")


def carried(python_version: str) -> dict[str, str]:
    """Returns package -> `package==version`, of the job and of the tests marked `gpu`."""
    from packaging.markers import Marker  # only where there is a network

    version = {"python_version": python_version, "python_full_version": f"{python_version}.0"}
    pins = {}
    for file in ("job", "dev"):
        for line in (ROOT / "requirements" / f"{file}.txt").read_text().splitlines():
            pin, _, marker = (part.strip() for part in line.partition(";"))
            name = pin.partition("==")[0]
            wanted = name not in INSTALLED if file == "job" else name in TESTING
            if wanted and "==" in pin and (not marker or Marker(marker).evaluate(version)):
                pins[name] = pin
    return pins


def _shrink(wheel: Path) -> None:
    """Compresses it by LZMA, which pip reads: two thirds of the size."""
    smaller = wheel.with_suffix(".new")
    with ZipFile(wheel) as before, ZipFile(smaller, "w", ZIP_LZMA) as after:
        for item in before.infolist():
            after.writestr(item.filename, before.read(item))
    smaller.replace(wheel)


def _download_packages(folder: Path, packages: tuple[str, ...]) -> bool:
    if not shutil.which("apt-get"):
        return False
    command = ["apt-get", "download", *packages]
    return not subprocess.run(command, cwd=folder, capture_output=True).returncode


def _copy_photographs(folder: Path) -> None:
    """Copies them out of scikit-image and scikit-learn, which are too large to carry."""
    sys.path.insert(0, str(ROOT))
    from tests.photographs import PHOTOGRAPHS

    folder.mkdir(exist_ok=True)
    for photograph in PHOTOGRAPHS.values():
        shutil.copy(photograph, folder)


def unpack(folder: Path, target: Path) -> dict[str, str]:
    """Installs FOLDER's content below `target`, once; returns the environment that uses it."""
    wheels, packages = sorted(folder.glob("*.whl")), sorted(folder.glob("*.deb"))
    if not wheels:
        sys.exit(f"offline_kit: {folder}: holds no wheel; `offline_kit.py pack` fills it")
    site, jpeg = target / "site", target / "jpeg"
    done, content = target / "content", "\n".join(path.name for path in (*wheels, *packages))
    if not (done.is_file() and done.read_text() == content):
        shutil.rmtree(target, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
        _run([*pip, "--target", str(site), *map(str, wheels)])
        for package in packages:
            _run(["dpkg", "-x", str(package), str(jpeg)])
        done.write_text(content)
    added = {"PYTHONPATH": [site, ROOT]}
    if not _has_jpeglib():  # linkers prefer the system's library, which may be of another version
        include, libraries = jpeg / "usr/include", jpeg / "usr/lib/x86_64-linux-gnu"
        added["CPATH"] = [include, include / "x86_64-linux-gnu"]
        added["LIBRARY_PATH"] = added["LD_LIBRARY_PATH"] = [libraries]
    environment = {**os.environ, "PHOTOGRAPHS": str(folder.resolve() / "photographs")}
    for name, paths in added.items():
        environment[name] = ":".join(filter(None, [*map(str, paths), os.environ.get(name)]))
    return environment


def _has_jpeglib() -> bool:
    """Returns whether the machine has libjpeg's header, and so a library that goes with it."""
    compiler = shutil.which("c++") or shutil.which("g++")
    command = [compiler or "c++", "-E", "-x", "c++", "-include", "jpeglib.h", "/dev/null"]
    return bool(compiler) and not subprocess.run(command, capture_output=True).returncode


def run(folder: Path, arguments: list[str]) -> int:
    """Unpacks the kit and runs the check; returns its exit code."""
    environment = unpack(folder, ROOT / UNPACKED)
    sys.path[:0] = environment["PYTHONPATH"].split(":")
    missing = [name for name in INSTALLED if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"offline_kit: no {', '.join(missing)} here; add their wheels to {folder}")
    command = [sys.executable, "-m", "benchmarks.gpu.gpu_check", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def _run(command: list[str]) -> None:
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"offline_kit: failed: {' '.join(command)}")


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["pack"] and Path(sys.prefix) != ROOT / ".venv":
        _run([sys.executable, str(ROOT / "launch" / "environment.py"), "job", "dev"])
        python = str(ROOT / ".venv" / "bin" / "python")
        os.execv(python, [python, __file__, *arguments])
    match arguments:
        case ["pack", folder]:
            pack(Path(folder), f"{sys.version_info.major}.{sys.version_info.minor}")
            return 0
        case ["pack", folder, version, *present]:
            pack(Path(folder), version, present)
            return 0
        case ["run", folder, *rest]:
            return run(Path(folder), rest)
    sys.stderr.write(
        "offline_kit: pack FOLDER [PYTHON_VERSION [PACKAGE ...]], or run FOLDER [PART ...]\n"
    )
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
