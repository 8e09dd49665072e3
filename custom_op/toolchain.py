"""Finds the C++ compiler and the headers of libjpeg-turbo; errors name the packages to install."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

_ADVICE = (
    "Install them with one of:\n"
    "  Debian:        apt-get install g++ libjpeg62-turbo-dev\n"
    "  Ubuntu:        apt-get install g++ libjpeg-turbo8-dev\n"
    "  Amazon Linux:  dnf install gcc-c++ libjpeg-turbo-devel\n"
    "  macOS:         xcode-select --install && brew install jpeg-turbo"
)
# The first torch with the stable ABI that the sources use, and its encoding in torch's headers.
_OLDEST_TORCH = (2, 11)
_TARGET = _OLDEST_TORCH[0] << 56 | _OLDEST_TORCH[1] << 48
_NO_COMPILER = "no C++ compiler: neither $CXX nor c++, g++ or clang++ is on the PATH. "
_NO_HEADER = "cannot use jpeglib.h of libjpeg-turbo: "


class BuildError(RuntimeError):
    """The operator cannot be built; the message says what is missing and how to install it."""


@dataclass(frozen=True)
class Toolchain:
    """The parts of a compile command."""

    compiler: str
    compiler_version: str
    libjpeg_version: str
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]

    def identity(self) -> tuple[str, ...]:
        return (self.compiler, self.compiler_version, self.libjpeg_version, *self.compile_flags,
                *self.link_flags)  # fmt: skip

    def record(self) -> dict[str, str]:
        return {
            "compiler": self.compiler_version.splitlines()[0],
            "libjpeg_turbo": self.libjpeg_version,
            "flags": " ".join(self.compile_flags),
        }

    def compile_commands(self, sources: Path, folder: Path) -> list[list[str]]:
        """Writes one source per folder of C++ files to `folder`; returns what compiles each there.

        Such a source includes all files of its folder. Compiling the files one by one takes twice
        as long, because the compiler reads the headers of torch and the standard library each time.
        """
        files = sorted(sources.rglob("*.cpp"))
        sizes: Counter[Path] = Counter()
        for file in files:
            sizes[file.parent] += file.stat().st_size
        compiler = (self.compiler, *self.compile_flags, f"-I{sources}", "-c")
        commands = []
        for room, _ in sizes.most_common():  # the last one to finish should be short
            unit = folder / f"{room.name}.cpp"
            included = (file.relative_to(sources) for file in files if file.parent == room)
            unit.write_text("".join(f'#include "{file}"\n' for file in included))
            commands.append([*compiler, str(unit), "-o", str(unit.with_suffix(".o"))])
        return commands

    def link_command(self, objects: list[Path], library: Path) -> list[str]:
        return [self.compiler, "-shared", *map(str, objects), "-o", str(library), *self.link_flags]


def find_toolchain() -> Toolchain:
    """Raises BuildError if torch is too old, or the compiler or the headers are missing."""
    _check_torch(torch.__version__)
    compiler = _find_compiler()
    include = [f"-I{path}" for path in _jpeg_folders("include")]
    return Toolchain(
        compiler=compiler,
        compiler_version=_version(compiler),
        libjpeg_version=_libjpeg_version(compiler, tuple(include)),
        compile_flags=(
            "-std=c++17",
            "-O3",
            "-DNDEBUG",
            f"-DTORCH_TARGET_VERSION={_TARGET:#x}",
            "-fPIC",
            "-fvisibility=hidden",
            *_native(compiler),
            "-ffp-contract=off",  # the same floats on processors with and without FMA
            "-isystem",
            f"{_torch_folder()}/include",
            *include,
        ),
        link_flags=_link_flags(),
    )


def _check_torch(version: str) -> None:
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST_TORCH:
        oldest = ".".join(map(str, _OLDEST_TORCH))
        raise BuildError(f"torch {version} is too old for the operator; install {oldest} or newer")


def _find_compiler() -> str:
    if named := os.environ.get("CXX"):
        if found := shutil.which(named):
            return found
        raise BuildError(f"CXX={named}: no such program. {_ADVICE}")
    for name in ("c++", "g++", "clang++"):
        if found := shutil.which(name):
            return found
    raise BuildError(_NO_COMPILER + _ADVICE)


def _torch_folder() -> Path:
    """Without links: copies of this package that share an environment share its builds, too."""
    return Path(torch.__file__).resolve().parent


def _link_flags() -> tuple[str, ...]:
    torch_libraries = f"{_torch_folder()}/lib"
    jpeg = [f"-L{path}" for path in _jpeg_folders("lib")]
    return (f"-L{torch_libraries}", "-ltorch_cpu", *jpeg, "-ljpeg", "-pthread")


def _jpeg_folders(kind: str) -> list[Path]:
    """Homebrew keeps libjpeg-turbo outside the compiler's search path."""
    if sys.platform != "darwin":
        return []
    roots = (Path("/opt/homebrew/opt/jpeg-turbo"), Path("/usr/local/opt/jpeg-turbo"))
    return [root / kind for root in roots if (root / kind).is_dir()]


def _run(command: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=text, capture_output=True, text=True, errors="replace")


@functools.cache
def _version(compiler: str) -> str:
    done = _run([compiler, "--version"])
    if done.returncode != 0:
        raise BuildError(f"{compiler} --version failed: {done.stderr.strip()}. {_ADVICE}")
    return done.stdout.strip()


@functools.cache
def _libjpeg_version(compiler: str, include: tuple[str, ...]) -> str:
    program = "#include <cstdio>\n#include <jpeglib.h>\nversion: LIBJPEG_TURBO_VERSION\n"
    done = _run([compiler, *include, "-E", "-P", "-x", "c++", "-"], program)
    if done.returncode != 0:
        lines = "\n".join(done.stderr.strip().splitlines()[-3:])
        raise BuildError(f"{_NO_HEADER}{lines}\n{_ADVICE}")
    found = re.search(r"^version: *([0-9][0-9. ]*)$", done.stdout, re.MULTILINE)
    if found is None:
        raise BuildError(f"{_NO_HEADER}this one belongs to another libjpeg.\n{_ADVICE}")
    return found.group(1).replace(" ", "")


@functools.cache
def _native(compiler: str) -> tuple[str, ...]:
    """The flag for this CPU; the cache key contains the CPU."""
    for flag in ("-march=native", "-mcpu=native"):
        if _run([compiler, flag, "-E", "-x", "c++", "-"]).returncode == 0:
            return (flag,)
    return ()
