"""Carries what the check needs to a machine that has Python and torch, but no internet.

With a network, `offline_kit.py pack FOLDER PYTHON_VERSION [PACKAGE ...]`, in a clone; packages that
the machine has are named, and stay here. There, `offline_kit.py run FOLDER [PART ...]`. Both need
the standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
KIT = "kit.tar.xz"
INSTALLED = ("torch", "torchvision", "numpy")
"""Packages that the machine must have; all others are carried."""
TESTING = ("pytest", "pytest-timeout", "pluggy", "iniconfig", "hypothesis", "sortedcontainers")
SOURCES = ("antlr4-python3-runtime",)
"""Published as sources only."""
TARGET = (
    *("--only-binary=:all:", "--implementation=cp", "--ignore-requires-python"),
    *("--platform=manylinux_2_28_x86_64", "--platform=manylinux2014_x86_64"),
)
HEADERS = (
    ("libjpeg62-turbo", "libjpeg62-turbo-dev"),  # Debian
    ("libjpeg-turbo8", "libjpeg-turbo8-dev"),  # Ubuntu
)


def pack(folder: Path, python_version: str, present: Sequence[str]) -> None:
    """Writes packages, libjpeg's header and photographs into FOLDER/KIT, about 40 MB."""
    sys.path.insert(0, str(ROOT))
    from tests.photographs import PHOTOGRAPHS  # of packages that are too large to carry

    pins = carried(python_version)
    if unknown := [name for name in present if name not in pins]:
        sys.exit(f"offline_kit: {', '.join(unknown)}: not among {', '.join(sorted(pins))}")
    wheels = [pin for name, pin in pins.items() if name not in (*SOURCES, *present)]
    with TemporaryDirectory() as kit:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile"]
        pip.append(f"--target={kit}/site")
        _run([*pip, *TARGET, f"--python-version={python_version}", *wheels])
        _run([*pip, *(pins[name] for name in SOURCES)])
        _add_libjpeg(Path(kit, "jpeg"))
        photographs = Path(kit, "photographs")
        photographs.mkdir()
        for photograph in PHOTOGRAPHS.values():
            shutil.copy(photograph, photographs)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.make_archive(str(folder / KIT.partition(".")[0]), "xztar", kit)


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
            if wanted and (not marker or Marker(marker).evaluate(version)):
                pins[name] = pin
    return pins


def _add_libjpeg(folder: Path) -> None:
    """Unpacks the system's packages of libjpeg-turbo below `folder`."""
    folder.mkdir()
    download = ["apt-get", "download"]
    for packages in HEADERS if shutil.which("apt-get") else ():
        if not subprocess.run([*download, *packages], cwd=folder, capture_output=True).returncode:
            break
    else:
        sys.exit("offline_kit: apt-get downloads neither Debian's nor Ubuntu's libjpeg-turbo")
    for package in folder.glob("*.deb"):
        _run(["dpkg", "-x", str(package), str(folder)])
        package.unlink()


def unpack(folder: Path, target: Path) -> dict[str, str]:
    """Unpacks FOLDER/KIT into `target`, once; returns the environment that uses it."""
    kit, done = folder / KIT, target / "done"
    if not kit.is_file():
        sys.exit(f"offline_kit: {folder}: holds no {KIT}; `offline_kit.py pack` makes it")
    version = f"{kit.stat().st_size} {kit.stat().st_mtime_ns}"
    if not (done.is_file() and done.read_text() == version):
        shutil.rmtree(target, ignore_errors=True)
        shutil.unpack_archive(kit, target, filter="data")
        done.write_text(version)
    added = {"PYTHONPATH": [target / "site", ROOT]}
    if not _has_jpeglib():  # linkers prefer the system's library, which may be of another version
        include, libraries = target / "jpeg/usr/include", target / "jpeg/usr/lib/x86_64-linux-gnu"
        added["CPATH"] = [include, include / "x86_64-linux-gnu"]
        added["LIBRARY_PATH"] = added["LD_LIBRARY_PATH"] = [libraries]
    environment = {**os.environ, "PHOTOGRAPHS": str(target / "photographs")}
    for name, paths in added.items():
        environment[name] = ":".join(filter(None, [*map(str, paths), os.environ.get(name)]))
    return environment


def _has_jpeglib() -> bool:
    """Returns whether the machine has libjpeg's header, and so a library that goes with it."""
    compiler = shutil.which("c++") or shutil.which("g++")
    command = [compiler or "c++", "-E", "-x", "c++", "-include", "jpeglib.h", "/dev/null"]
    return bool(compiler) and not subprocess.run(command, capture_output=True).returncode


def _run(command: list[str]) -> None:
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"offline_kit: failed: {' '.join(command)}")


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["pack"] and Path(sys.prefix) != ROOT / ".venv":
        _run([sys.executable, str(ROOT / "launch" / "environment.py"), "job", "dev"])
        python = str(ROOT / ".venv" / "bin" / "python")
        os.execv(python, [python, __file__, *arguments])
    match arguments:
        case ["pack", folder, version, *present]:
            pack(Path(folder), version, present)
        case ["run", folder, *parts]:
            check = [sys.executable, "-m", "benchmarks.gpu.gpu_check", *parts]
            return subprocess.call(check, cwd=ROOT, env=unpack(Path(folder), ROOT / "runs/gpu-kit"))
        case _:
            sys.exit(
                "offline_kit: pack FOLDER PYTHON_VERSION [PACKAGE ...], or run FOLDER [PART ...]"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
